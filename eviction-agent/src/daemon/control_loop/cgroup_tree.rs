//! Keeps the pods and the cgroup tree up to date.
//!
//! **Terminating pods.** A forced deletion removes the object of a pod at once, and the previous agent may have ended
//! in between. While there are processes in the cgroup of such a pod it counts as terminating, so that no other pod
//! is evicted for the same shortage. It counts no longer than the kubelet waits for a victim after its grace period.
//! No directory is created or removed when a process ends, so the cgroup is checked after each sync. The check
//! allocates memory, and a decision must not wait for that.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use eviction_bpf::EventClass;
use eviction_core::in_flight::{InFlightEviction, TERMINATION_TIMEOUT};
use eviction_core::input::Event;
use eviction_core::time::nanos;
use eviction_kill::CgroupDirs;
use eviction_node::cgroup::files::is_populated;
use eviction_node::cgroup::names::PodUid;

use super::ControlLoop;
use super::evictions::grace_of;
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
                let pods = event_log::PodsEvent::of(&self.pod_index, self.node_sampler.cgroups.pods());
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

    /// Passes the terminating pods to the engine if they changed. Runs before the engine gets the pods.
    pub(super) fn step_terminating(&mut self) {
        let terminating = self.find_terminating(mono_ns());
        let before = std::mem::replace(&mut self.state.terminating, terminating);
        if self.state.terminating == before {
            return;
        }
        let uids = self.state.terminating.keys().cloned().collect();
        self.step_and_discard(Event::Terminating(uids));
    }

    /// Returns whether a pod is terminating without an object.
    pub(super) fn is_terminating(&self, uid: &str) -> bool {
        self.state.terminating.contains_key(uid)
    }

    /// Returns whether there are processes in the cgroup of a pod, with or without an object.
    pub(super) fn is_populated(&self, uid: &str) -> bool {
        self.groups_by_uid(uid).iter().any(|dirs| is_populated(&dirs.memory))
    }

    /// Stops waiting for pods without processes, and for those whose time is over. Returns whether a sync is
    /// due now.
    pub(super) fn update_terminating(&mut self, now_ns: u64) -> bool {
        let mut terminating = self.state.terminating.iter();
        let is_over = terminating.any(|(uid, until_ns)| *until_ns <= now_ns || !self.is_populated(uid));
        if is_over {
            self.step_pods();
        }
        is_over
    }

    /// Returns the directories of a pod's cgroups, also if it has no object.
    pub(super) fn groups_by_uid(&self, uid: &str) -> Vec<CgroupDirs> {
        self.folders_of(self.node_sampler.cgroups.pods().by_uid(&PodUid::new(uid)))
    }

    /// Returns the pods for [`IterationState::terminating`](super::IterationState).
    fn find_terminating(&self, now_ns: u64) -> BTreeMap<Box<str>, u64> {
        let pods = self.pod_index.active();
        let is_terminating = |it: &&InFlightEviction| {
            // Before the pods are known, none counts as missing.
            it.is_executing()
                && !it.termination_reported
                && !(it.restored && pods.is_empty())
                && pods.index_of(&it.pod.uid).is_none()
                && self.is_populated(&it.pod.uid)
        };
        let terminating = self.engine.in_flight().iter().filter(is_terminating).map(|it| {
            let uid = &it.pod.uid;
            let known = self.state.terminating.get(uid).copied();
            let decided_ns = self.clock.mono_of(it.decided_at);
            let ends_ns = decided_ns.saturating_add(nanos(grace_of(it))).max(now_ns);
            let until_ns =
                known.unwrap_or(ends_ns.saturating_add(TERMINATION_TIMEOUT.as_nanos().unsigned_abs()));
            (uid.clone(), until_ns)
        });
        terminating.filter(|(_, until_ns)| now_ns < *until_ns).collect()
    }
}
