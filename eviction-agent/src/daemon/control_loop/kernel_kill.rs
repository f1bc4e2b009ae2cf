//! Kernel kill: arms a kill order after each sample, and finishes what the kernel carried out.

use std::sync::Arc;

use eviction_bpf::KernelKill;
use eviction_core::decision::{Action, Decision};
use eviction_core::engine::kernel_kill::{ArmedKillOrder, NotArmedReason};
use eviction_core::in_flight::InFlightEviction;
use eviction_core::input::{Event, Input};
use eviction_core::pods::KnownPod;
use eviction_core::policy::eviction_settings;
use eviction_core::reading::Reading;
use eviction_core::signal::Resource;
use eviction_node::cgroup::sample::Tasks;

use super::super::kernel_kill::{GuardedLevel, KernelKillIdle, reach};
use super::super::memory_notifier::root_id;
use super::super::rate_limit::Admission;
use super::ControlLoop;
use crate::telemetry::event_log;
use crate::telemetry::queue::DecisionEvent;
use eviction_node::clock::{Instant, mono_ns};
use eviction_node::sampler::CompleteSample;

/// How a decision that the kernel carried out is called where it is told by what it was seen.
const SEEN_BY: &str = "kernel_kill";

impl ControlLoop {
    /// Logs that kernel kill is configured and not available.
    pub(super) fn warn_without_kernel_kill(&self) {
        if self.engine.policy().kernel_kill == eviction_settings::KernelKillMode::HardMemory
            && !self.notifier.bpf.has_kernel_kill()
        {
            tracing::warn!(
                help = "it takes --action kill, a charge hook, and to be on when the agent starts",
                "kernel kill is on, but no kill order will be armed"
            );
        }
    }

    /// Marks the sample that was just taken, where a verdict may come of it.
    pub(super) fn mark_sample(&mut self, memory: Reading<i64>, mono_ns: u64) {
        if !self.notifier.bpf.has_kernel_kill() {
            if self.kill_orders.is_marked() {
                self.kill_orders.mark(&mut self.notifier.bpf, None);
            }
            self.metrics.kernel_kill_armed.set(0);
            return;
        }
        let wanted = self.engine.policy().kernel_kill == eviction_settings::KernelKillMode::HardMemory;
        if wanted && self.kill_orders.is_young(mono_ns) && self.victim_goes_by(mono_ns).is_some() {
            return self.kill_orders.keep();
        }
        let reach = reach(self.node_sampler.capacity().memory);
        let lines = &self.memory_levels;
        let near = wanted
            && memory.known().is_some_and(|available| {
                lines.may_be_met(available) || lines.distance(available).is_some_and(|left| left <= reach)
            });
        let near = root_id(&self.node_sampler.cgroups).filter(|_| near);
        self.kill_orders.mark(&mut self.notifier.bpf, near);
        if near.is_none() {
            self.metrics.kernel_kill_armed.set(0);
        }
    }

    /// Lets a verdict stand until the next look, if one may.
    pub(super) fn stand(&mut self, node_sample: &CompleteSample) {
        if !self.kill_orders.is_marked() {
            return;
        }
        match self.try_stand(node_sample) {
            Ok(()) => {
                self.metrics.kernel_kill_armed.set(1);
            }
            // What stands since the look before is on whoever takes the next page.
            Err(KernelKillIdle::NoOrder(NotArmedReason::AtThreshold))
                if self.kill_orders.victim(node_sample.at.mono_ns).is_some() => {}
            Err(idle) => self.kill_orders.stay_idle(idle, &mut self.notifier.bpf, &self.metrics),
        }
        self.notifier.bpf.export_suppressed(&self.metrics);
    }

    /// Others go by an ordinary decision than the victim of the verdict that stands: it stands no more, so that one
    /// crossing costs one pod. True if it was carried out already: then that one goes, when its record is read, and
    /// they do not.
    pub(super) fn is_killed_in_kernel(&mut self, decision: &Decision) -> bool {
        let Some(victim) = self.kill_orders.victim(mono_ns()) else { return false };
        let goes = self.evictions_of(victim).next().is_some() || number_of(decision, 0, victim).is_some();
        let evicts =
            decision.actions.iter().any(|it| matches!(it, Action::Evict(_) | Action::ShortenGrace(_)));
        evicts && !goes && self.kill_orders.withdraw(&mut self.notifier.bpf)
    }

    /// The ordinary decision by which the victim of the verdict that stands goes: somebody saw the crossing come, and
    /// until the grace period is over the victim may go on growing.
    fn victim_goes_by(&self, mono_ns: u64) -> Option<u64> {
        let mut evictions = self.evictions_of(self.kill_orders.victim(mono_ns)?);
        evictions.find(|it| it.hard && it.resource() == Resource::Memory)?.decision
    }

    fn try_stand(&mut self, node_sample: &CompleteSample) -> Result<(), KernelKillIdle> {
        let goes_by = self.victim_goes_by(node_sample.at.mono_ns);
        if goes_by.is_none() && self.executing().next().is_some() {
            return Err(KernelKillIdle::UnderWay);
        }
        let (Reading::Known(seen), Some(id)) = (node_sample.memory, root_id(&self.node_sampler.cgroups))
        else {
            return Err(KernelKillIdle::NotSet);
        };
        let available = self.node_sampler.capacity().memory.saturating_sub(seen.working_set);
        let distance = self.memory_levels.distance(i64::try_from(available).unwrap_or(i64::MAX));
        if goes_by.is_none() && self.kill_orders.wants_choice(node_sample.at, distance.unwrap_or(0)) {
            self.choose(node_sample)?;
        }
        let is_all = !self.node_sampler.cgroups.root().whole_machine;
        let room = self.watermarks.room(node_sample.free).filter(|_| !is_all);
        self.kill_orders.stand(
            &mut self.notifier.bpf,
            GuardedLevel { id, is_all, room },
            seen,
            node_sample.at,
            goes_by,
        )
    }

    /// Asks the engine which pod would be evicted, and whether it could be killed.
    fn choose(&mut self, node_sample: &CompleteSample) -> Result<(), KernelKillIdle> {
        let snapshot = self.node_sampler.snapshot_with_pods(node_sample, &self.pod_index, Tasks::Leave);
        let snapshot = self.node_sampler.finish(snapshot, self.engine.pods());
        let reach = reach(self.node_sampler.capacity().memory);
        let verdict = self.engine.kill_order(node_sample.read_at.wall, &snapshot, reach);
        self.node_sampler.recycle(snapshot);
        let verdict = verdict.map_err(KernelKillIdle::NoOrder)?;
        let target = self
            .target(0, &verdict.decision, &verdict.eviction, mono_ns())
            .ok_or(KernelKillIdle::SeveralCgroups)?;
        let [group] = target.groups.as_slice() else { return Err(KernelKillIdle::SeveralCgroups) };
        let victim_id = group.id.ok_or(KernelKillIdle::SeveralCgroups)?;
        let admitted = self.rate_limit.admit(&target, self.executing(), &self.clock, mono_ns());
        let is_admitted = admitted == Ok(Admission::Begin);
        if !is_admitted || self.executor.check(&target).is_err() {
            return Err(KernelKillIdle::KillerRefuses);
        }
        self.kill_orders.choose(verdict, victim_id, node_sample.at);
        Ok(())
    }

    /// The kernel has killed a process by a verdict. The engine is told of the crossing as the
    /// verdict supposed it, so that its decision is in force, and the ordinary hand does the rest.
    pub(super) fn take_kernel_kill(&mut self, kill: &KernelKill) {
        let carried_out = self.clock.at(kill.stamp.ktime_ns);
        let Some(choice) = self.kill_orders.choice_of(kill.verdict) else {
            tracing::error!(
                verdict = kill.verdict,
                pid = kill.tgid,
                "the kernel carried out a verdict that nobody made"
            );
            return;
        };
        self.kill_orders.forget();
        self.notifier.bpf.disarm_kill();
        if let Some(error) = kill.error {
            tracing::warn!(
                verdict = kill.verdict,
                pid = kill.tgid,
                error,
                "the kernel refused to carry out a verdict"
            );
            return;
        }
        self.metrics.kernel_kills.inc();
        let victim = Arc::clone(&choice.verdict.victim);
        let goes_by = self.evictions_of(&victim).next().and_then(|it| it.decision).or(choice.goes_by);
        let id = goes_by.or_else(|| self.finish(&choice.verdict, carried_out));
        let told = event_log::KernelKill {
            id,
            // The slow side knows what it is called.
            decision_id: None,
            pod: event_log::PodRef::from(&victim.pod),
            pod_uid: victim.pod.uid.to_string(),
            pid: kill.tgid,
            comm: kill.comm_lossy().to_string(),
            threshold_bytes: choice.verdict.threshold,
            available: choice.verdict.available,
            growth: kill.grown,
            usage: kill.usage,
            armed_mono_ns: choice.chosen.mono_ns,
            killed_mono_ns: kill.stamp.ktime_ns,
            received_mono_ns: mono_ns(),
        };
        self.telemetry.publish(event_log::Event::KernelKill(told), carried_out.wall);
    }

    /// The evictions of a pod that are under way.
    fn evictions_of(&self, victim: &KnownPod) -> impl Iterator<Item = &InFlightEviction> {
        self.executing().filter(|it| it.pod.uid == victim.pod.uid)
    }

    /// Lets the engine decide what it decided ahead, for real, and carries it out. The number of
    /// the decision by which the victim goes, if it is still the same.
    fn finish(&mut self, verdict: &ArmedKillOrder, crossed: Instant) -> Option<u64> {
        let at = self.clock.now();
        let snapshot = verdict.met_at(crossed.wall)?;
        let decision = self.step(Input { at: at.wall, event: Event::Sample(snapshot) });
        let decided_mono_ns = mono_ns();
        let first_id = self.state.decisions + 1;
        self.carry_out(&decision, decided_mono_ns);
        let id = number_of(&decision, first_id, &verdict.victim);
        self.state.last_change.take(&decision);
        self.publish_decision(decision, |decision, permit| DecisionEvent {
            first_id,
            usage: None,
            detected_by: SEEN_BY,
            crossed_mono_ns: Some(crossed.mono_ns),
            sampled: at,
            decided_mono_ns,
            decision,
            permit,
        });
        id
    }
}

/// The number of the eviction of this pod, if it is among those of a decision.
fn number_of(decision: &Decision, first_id: u64, victim: &KnownPod) -> Option<u64> {
    let pods = &decision.evaluation()?.pods;
    let evictions = decision.actions.iter().filter_map(|action| match action {
        Action::Evict(eviction) | Action::ShortenGrace(eviction) => Some(eviction),
        Action::RecordEvent(_) | Action::Reclaim(_) => None,
    });
    let of_victim = |place: u32| pods.get(place).is_some_and(|known| known.pod.uid == victim.pod.uid);
    (first_id..).zip(evictions).find(|(_, eviction)| of_victim(eviction.pod)).map(|(id, _)| id)
}
