//! Keeps the pods and the cgroup tree up to date.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use eviction_bpf::EventClass;
use eviction_core::input::Event;
use eviction_core::time::nanos;

use super::ControlLoop;
use crate::error::chain;
use crate::telemetry::event_log;
use crate::telemetry::queue::TelemetryEvent;
use eviction_node::clock::mono_ns;
use eviction_node::pod_index::PodIndex;

/// How soon the tree is read again after a cgroup was created or removed: the containers of a pod are created
/// together.
pub(super) const TREE_READ_DELAY: Duration = Duration::from_millis(50);

/// How often the tree is read if BPF programs report each change of it. This is only for what they do not
/// report, such as a renamed cgroup.
const TREE_CHECK_INTERVAL: Duration = Duration::from_secs(300);

/// How soon the tree is read again if it could not be read.
const TREE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// How much longer a read of the tree may wait near a threshold: a pod that is not known cannot be chosen.
const TREE_POSTPONEMENT: Duration = Duration::from_secs(1);

impl ControlLoop {
    pub(super) fn adopt_pods(&mut self, pod_index: PodIndex) {
        let reread = !pod_index.is_quiet();
        self.pod_index = pod_index;
        let engine_has_pods = self.read_tree(reread);
        self.report_status_terminations();
        if !engine_has_pods {
            // No other pods run, but the fields of one or the policy may have changed.
            self.step_pods();
        }
    }

    pub(super) fn step_pods(&mut self) {
        self.step_terminating();
        let restored = self.restored();
        self.step_and_discard(Event::Pods(Arc::clone(self.pod_index.active())));
        self.resume(&restored);
        self.end_evictions_of_removed_pods();
        self.state.is_warm = false;
    }

    pub(super) fn schedule_tree_read(&mut self) {
        self.state.tree_due_ns.get_or_insert_with(|| mono_ns().saturating_add(nanos(TREE_READ_DELAY)));
    }

    /// Reads the tree again when a change of it has settled: at once with `has_time`; without it, that is near a
    /// threshold, only after a longer wait. Returns in how many nanoseconds the read is due otherwise.
    pub(super) fn refresh_tree_if_due(&mut self, now_ns: u64, has_time: bool) -> Option<u64> {
        let due_ns = self.state.tree_due_ns?;
        let due_ns = if has_time { due_ns } else { due_ns.saturating_add(nanos(TREE_POSTPONEMENT)) };
        if now_ns < due_ns {
            return Some(due_ns - now_ns);
        }
        self.refresh_tree();
        None
    }

    /// Part of a full sample: reads the tree again, unless a change of it would have been reported.
    pub(super) fn check_tree(&mut self, now_ns: u64, lost: bool) {
        let age_ns = now_ns.saturating_sub(self.state.tree_read_ns);
        let is_sure =
            self.notifier.bpf.reports(EventClass::Cgroup) && !lost && !self.node_sampler.cgroups.is_stale();
        match is_sure && age_ns < nanos(TREE_CHECK_INTERVAL) {
            true => self.watch_containers(),
            false => self.refresh_tree(),
        }
    }

    /// Returns the directory of the cgroup of all pods.
    fn pods_folder(&self) -> Option<PathBuf> {
        let sampler = &self.node_sampler.cgroups;
        let id = sampler.pods().pods_root?;
        let index = sampler.tree().groups().iter().position(|group| group.id == id)?;
        Some(sampler.root().memory.join(sampler.tree().relative_path(index)))
    }

    pub(super) fn refresh_tree(&mut self) {
        let _has_changed = self.read_tree(false);
    }

    /// Reads the tree. Returns whether the pods that run differ from before; then the engine has got them.
    fn read_tree(&mut self, reread: bool) -> bool {
        (self.state.tree_due_ns, self.state.tree_read_ns) = (None, mono_ns());
        let pod_index = &self.pod_index;
        let read = self.node_sampler.cgroups.refresh(|uid| pod_index.contains(uid));
        // Also if the read failed: other pods may be known by now.
        let has_changed = self.pod_index.join(self.node_sampler.cgroups.pods());
        if has_changed {
            self.step_pods();
        }
        match read {
            Ok(()) => {
                let skipped = self.node_sampler.cgroups.tree().skipped();
                self.metrics.cgroups_unreadable.set(i64::try_from(skipped).unwrap_or(i64::MAX));
                let pods = event_log::Pods::of(&self.pod_index, self.node_sampler.cgroups.pods());
                let pods_root = self.pods_folder();
                let at = self.clock.now().wall;
                self.telemetry.send(TelemetryEvent::Pods { pods, reread, pods_root, at });
                self.watch_containers();
                self.adopt_limits();
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot read the cgroup tree: the previous one is used");
                self.state.tree_due_ns = Some(mono_ns().saturating_add(nanos(TREE_RETRY_DELAY)));
            }
        }
        has_changed
    }
}
