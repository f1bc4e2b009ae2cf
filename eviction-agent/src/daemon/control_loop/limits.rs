//! Memory limits of cgroups: sets kernel thresholds, and publishes that a limit is near.

use std::time::Duration;

use eviction_core::oom::LimitScope;

use super::super::limit_monitor::{LimitChange, usage_and_limit};
use super::super::oom_attribution::CgroupNames;
use super::ControlLoop;
use crate::telemetry::event_log;
use eviction_node::clock::mono_ns;
use eviction_node::sampler::MemoryUsage;

/// The name of a sample that no probe caused.
const SAMPLE: &str = "sample";

/// The container is reported instead of its pod if the pod uses at most its limit divided by this more than the
/// container.
const POD_EXCESS_DIVISOR: u64 = 64;

impl ControlLoop {
    /// Updates the watched limits after the cgroup tree was read.
    pub(super) fn adopt_limits(&mut self) {
        let memory = self.node_sampler.capacity().memory;
        let bpf = &mut self.notifier.bpf;
        self.limits.adopt(&self.node_sampler.cgroups, memory, |id| bpf.clear_threshold(id));
    }

    /// Updates all limits with a full sample.
    pub(super) fn update_limits(&mut self, sampled_ns: u64) {
        for id in self.limits.ids() {
            let Some(sample) = self.node_sampler.cgroups.group(id) else { continue };
            if let Some((seen, limit)) = usage_and_limit(&sample) {
                let is_fresh = sample.stat_at_ns >= sampled_ns;
                let watch = self.limits.find_mut(id).filter(|_| is_fresh);
                let crossed_ns = watch.and_then(|watch| watch.record_sample(sampled_ns));
                self.handle_limit_sample(id, seen, limit, crossed_ns);
            }
        }
        self.limits.export(&self.metrics);
    }

    /// Samples the cgroups whose crossings the kernel reported, and those whose crossings it cannot report,
    /// within the rate limit.
    pub(super) fn sample_limits(&mut self) {
        let now_ns = mono_ns();
        let mut any = false;
        while let Some(crossed) = self.notifier.bpf.take_limit_crossing() {
            any |= self.limits.fire(&crossed);
        }
        while let Some((id, crossed_ns)) = self.limits.next_due(now_ns) {
            any = true;
            self.node_sampler.cgroups.read_limit(id);
            // A removed cgroup is dropped when the tree is read.
            let sample = self.node_sampler.cgroups.sample_group(id, &self.state.charged);
            if let Some((seen, limit)) = sample.as_ref().and_then(usage_and_limit) {
                self.handle_limit_sample(id, seen, limit, crossed_ns);
            }
        }
        if any {
            self.limits.export(&self.metrics);
        }
    }

    /// Samples limits if no sync follows: then the timer may have to fire sooner.
    pub(super) fn sample_limits_alone(&mut self) {
        self.sample_limits();
        if let Some(due) = self.limits.due_ns(mono_ns()) {
            self.sync_within(Duration::from_nanos(due));
        }
    }

    /// Takes a sample of a cgroup, sets its kernel threshold, and publishes a change. `crossed_ns` is the
    /// kernel's timestamp of the crossing, if a probe caused the sample.
    pub(super) fn handle_limit_sample(
        &mut self,
        id: u64,
        seen: MemoryUsage,
        limit: u64,
        crossed_ns: Option<u64>,
    ) {
        let (growth, at_ns) = (self.notifier.bpf.growth(), mono_ns());
        let has_eviction_thresholds = self.notifier.bpf.has_eviction_thresholds(id);
        let Some(watch) = self.limits.find_mut(id) else { return };
        let change = watch.evaluate(limit, seen.working_set, crossed_ns.unwrap_or(at_ns));
        watch.update_polling(growth, seen);
        if has_eviction_thresholds {
            // Its kernel threshold is set in each sync, in place of that of the limit.
            watch.armed = None;
        } else if let Some(threshold) = watch.threshold_to_set(growth.unwrap_or_default(), seen) {
            let generation = self.notifier.bpf.set_threshold(id, threshold);
            watch.armed = generation.map(|generation| (generation, threshold));
        }
        let Some(LimitChange { near_ns, publish }) = change else { return };
        let owner = watch.owner;
        let state = if near_ns.is_some() { "away" } else { "near" };
        self.metrics.memory_limit_transitions.with([owner.name(), state]).inc();
        if !publish {
            return;
        }
        if near_ns.is_none() && owner == LimitScope::Pod && self.is_its_containers(id, seen, limit) {
            if let Some(watch) = self.limits.find_mut(id) {
                watch.mark_unpublished();
            }
            return;
        }
        let event = event_log::MemoryLimit {
            state,
            limit_scope: owner.name(),
            owner: CgroupNames::read(&self.node_sampler.cgroups).named(id, &self.pod_index),
            usage: seen.usage,
            working_set: seen.working_set,
            limit,
            detected_by: crossed_ns.map_or(SAMPLE, |_| self.notifier.bpf.charge_backend()),
            crossed_mono_ns: crossed_ns,
            mono_ns: at_ns,
            near_limit_us: near_ns.map(|ns| ns / 1000),
        };
        self.telemetry.publish(event_log::Event::MemoryLimit(event), self.clock.at(at_ns).wall);
    }

    /// Returns whether the usage of a pod is that of one container with the same limit.
    fn is_its_containers(&self, id: u64, seen: MemoryUsage, limit: u64) -> bool {
        let pods = self.node_sampler.cgroups.pods();
        let mut containers = pods.owner(id).into_iter().flat_map(|(group, _)| &group.containers);
        containers.any(|container| {
            let same = self.limits.find(container.cgroup_id).is_some_and(|watch| watch.limit == limit);
            let own =
                self.node_sampler.cgroups.group(container.cgroup_id).and_then(|own| own.working_set.known());
            same && own.is_some_and(|own| own.saturating_add(limit / POD_EXCESS_DIVISOR) >= seen.working_set)
        })
    }

    /// Returns since when the cgroup has been near its limit, also if the kernel reported that and it was not
    /// sampled yet.
    pub(super) fn near_since_ns(&self, id: u64) -> Option<u64> {
        self.limits
            .find(id)
            .and_then(|watch| watch.near_since_ns)
            .or_else(|| self.notifier.bpf.near_limit_ns(id))
    }
}
