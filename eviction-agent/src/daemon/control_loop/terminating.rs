//! Terminating pods whose objects are removed while processes remain: a forced deletion removes the object at
//! once, and the previous agent may have ended in between.
//!
//! While there are processes in the cgroup of such a pod it counts as terminating, so that no other pod is
//! evicted for the same shortage. It counts no longer than the kubelet waits for a victim after its grace
//! period.
//!
//! No directory is created or removed when a process ends, so the cgroup is checked after each sync. The check
//! allocates memory, and a decision must not wait for that.

use eviction_core::in_flight::{InFlightEviction, TERMINATION_TIMEOUT};
use eviction_core::input::Event;
use eviction_core::time::nanos;
use eviction_kill::CgroupDirs;
use eviction_node::cgroup::cgroup_events::is_populated;
use eviction_node::cgroup::names::PodUid;

use super::ControlLoop;
use super::evictions::grace_of;
use eviction_node::clock::mono_ns;

/// A terminating pod without an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TerminatingPod {
    pub(super) uid: Box<str>,
    /// When its cgroup stops counting, in nanoseconds of `CLOCK_MONOTONIC`.
    until_ns: u64,
}

impl ControlLoop {
    /// Passes the terminating pods to the engine if they changed. Runs before the engine gets the pods.
    pub(super) fn step_terminating(&mut self) {
        let terminating = self.find_terminating(mono_ns());
        let before = std::mem::replace(&mut self.state.terminating, terminating);
        if self.state.terminating == before {
            return;
        }
        let uids = self.state.terminating.iter().map(|it| it.uid.clone()).collect();
        self.step_and_discard(Event::Terminating(uids));
    }

    /// Returns whether a pod is terminating without an object.
    pub(super) fn is_terminating(&self, uid: &str) -> bool {
        self.state.terminating.iter().any(|it| *it.uid == *uid)
    }

    /// Returns whether there are processes in the cgroup of a pod, with or without an object.
    pub(super) fn is_populated(&self, uid: &str) -> bool {
        self.groups_by_uid(uid).iter().any(|dirs| is_populated(&dirs.memory))
    }

    /// Stops waiting for pods without processes, and for those whose time is over. Returns whether a sync is
    /// due now.
    pub(super) fn update_terminating(&mut self, now_ns: u64) -> bool {
        let is_over = |it: &TerminatingPod| it.until_ns <= now_ns || !self.is_populated(&it.uid);
        let is_over = self.state.terminating.iter().any(is_over);
        if is_over {
            self.step_pods();
        }
        is_over
    }

    /// Returns the directories of a pod's cgroups, also if it has no object.
    pub(super) fn groups_by_uid(&self, uid: &str) -> Vec<CgroupDirs> {
        self.folders_of(self.node_sampler.cgroups.pods().by_uid(&PodUid::new(uid)))
    }

    fn find_terminating(&self, now_ns: u64) -> Vec<TerminatingPod> {
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
            let known = self.state.terminating.iter().find(|it| it.uid == *uid).map(|it| it.until_ns);
            let decided_ns = self.clock.mono_of(it.decided_at);
            let ends_ns = decided_ns.saturating_add(nanos(grace_of(it))).max(now_ns);
            let until_ns =
                known.unwrap_or(ends_ns.saturating_add(TERMINATION_TIMEOUT.as_nanos().unsigned_abs()));
            TerminatingPod { uid: uid.clone(), until_ns }
        });
        terminating.filter(|it| now_ns < it.until_ns).collect()
    }
}
