//! Terminating pods whose objects are removed while processes remain: a forced deletion removes the object at
//! once, and the previous agent may have ended in between.
//!
//! While there are processes in the cgroup of such a pod it counts as terminating, so that no other pod is
//! evicted for the same shortage. It counts no longer than the kubelet waits for a victim after its grace
//! period.
//!
//! No directory is created or removed when a process ends, so the cgroup is checked after each sync. The check
//! allocates memory, and a decision must not wait for that.

use std::collections::BTreeMap;

use eviction_core::in_flight::{InFlightEviction, TERMINATION_TIMEOUT};
use eviction_core::input::Event;
use eviction_core::time::nanos;
use eviction_kill::CgroupDirs;
use eviction_node::cgroup::cgroup_events::is_populated;
use eviction_node::cgroup::names::PodUid;

use super::ControlLoop;
use super::evictions::grace_of;
use eviction_node::clock::mono_ns;

impl ControlLoop {
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

    /// Returns the pods for [`State::terminating`](super::State::terminating).
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
