//! Pods on their way out whose objects are gone before what they hold is: a forced deletion takes the
//! object away at once, and an agent may have ended in between.
//!
//! As long as somebody is in such a pod's cgroup it is on its way, so that nobody else goes for the same
//! shortage; and no longer than the kubelet waits for a victim once it has had its grace period.
//!
//! No directory comes or goes when a process ends, so it is looked for after each look, by what is kept
//! open for it: what follows from it takes memory, and a decision must not wait for that.

use std::path::PathBuf;

use eviction_core::in_flight::{InFlightEviction, TERMINATION_TIMEOUT};
use eviction_core::input::{Event, Input};
use eviction_core::time::nanos;
use eviction_kill::CgroupDirs;
use eviction_node::cgroup::cgroup_events::{PopulatedWatch, is_populated};
use eviction_node::cgroup::names::PodUid;
use eviction_node::cgroup::pods::Pod as CgroupPod;

use super::ControlLoop;
use super::evictions::grace_of;
use eviction_node::clock::mono_ns;

/// A pod on its way out whose object is gone.
#[derive(Debug)]
pub(super) struct TerminatingPod {
    uid: Box<str>,
    /// By then its cgroup is of no interest any more.
    until_ns: u64,
    groups: PopulatedWatch,
}

impl TerminatingPod {
    /// Whose.
    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    /// What another one is told apart by.
    fn told(&self) -> (&str, u64) {
        (&self.uid, self.until_ns)
    }
}

impl ControlLoop {
    /// Tells the engine who is leaving, if others are than before. Before it is told of the pods.
    pub(super) fn tell_leaving(&mut self) {
        let leaving = self.find_leaving(mono_ns());
        let before = std::mem::replace(&mut self.state.terminating, leaving);
        if self.state.terminating.iter().map(TerminatingPod::told).eq(before.iter().map(TerminatingPod::told))
        {
            return;
        }
        let uids = self.state.terminating.iter().map(|it| it.uid.clone()).collect();
        let at = self.clock.now().wall;
        self.step(Input { at, event: Event::Terminating(uids) });
    }

    /// Whether a pod is on its way out without its object.
    pub(super) fn is_leaving(&self, uid: &str) -> bool {
        self.state.terminating.iter().any(|it| *it.uid == *uid)
    }

    /// Whether somebody is in the cgroup of a pod, with or without its object.
    pub(super) fn is_populated(&self, uid: &str) -> bool {
        self.memory_folders(uid).any(|folder| is_populated(&folder))
    }

    /// Waits no longer for those that are gone, or should be. Whether that is to be looked at now.
    pub(super) fn review_leaving(&mut self, now_ns: u64) -> bool {
        let is_populated = |it: &TerminatingPod| it.groups.are_populated() || self.is_populated(&it.uid);
        let is_over = |it: &TerminatingPod| it.until_ns <= now_ns || !is_populated(it);
        let is_over = self.state.terminating.iter().any(is_over);
        if is_over {
            self.tell_pods();
        }
        is_over
    }

    fn memory_folders(&self, uid: &str) -> impl Iterator<Item = PathBuf> {
        let root = self.node_sampler.cgroups.root();
        let paths = self.cgroups_by_uid(uid).flat_map(|group| {
            let containers = group.containers.iter().map(|container| &container.path);
            let misplaced = containers.filter(|path| !path.starts_with(&group.path));
            std::iter::once(&group.path).chain(misplaced)
        });
        paths.map(|path| root.paths_of(path).memory)
    }

    fn watched(&self, uid: &str) -> PopulatedWatch {
        let mut watched = PopulatedWatch::default();
        self.memory_folders(uid).for_each(|folder| watched.add(&folder));
        watched
    }

    /// The folders of a pod's groups, also without its object.
    pub(super) fn groups_by_uid(&self, uid: &str) -> Vec<CgroupDirs> {
        self.folders_of(self.cgroups_by_uid(uid))
    }

    fn cgroups_by_uid(&self, uid: &str) -> impl Iterator<Item = &CgroupPod> {
        let uid = PodUid::new(uid);
        self.node_sampler.cgroups.pods().pods.iter().filter(move |cgroup| cgroup.uid == uid)
    }

    fn find_leaving(&self, now_ns: u64) -> Vec<TerminatingPod> {
        let pods = self.pod_index.active();
        let is_leaving = |it: &&InFlightEviction| {
            // Before the pods are known nobody can be missed.
            it.is_executing()
                && !it.reported_gone
                && !(it.restored && pods.is_empty())
                && pods.index_of(&it.pod.uid).is_none()
                && self.is_populated(&it.pod.uid)
        };
        let leaving = self.engine.in_flight().iter().filter(is_leaving).map(|it| {
            let uid = &it.pod.uid;
            let known = self.state.terminating.iter().find(|it| it.uid == *uid).map(|it| it.until_ns);
            let decided_ns = self.clock.mono_of(it.decided_at);
            let ends_ns = decided_ns.saturating_add(nanos(grace_of(it))).max(now_ns);
            let until_ns =
                known.unwrap_or(ends_ns.saturating_add(TERMINATION_TIMEOUT.as_nanos().unsigned_abs()));
            TerminatingPod { uid: uid.clone(), until_ns, groups: self.watched(uid) }
        });
        leaving.filter(|it| now_ns < it.until_ns).collect()
    }
}
