//! What is to be killed, as the loop hands it over.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eviction_core::pod::PodName;
use eviction_core::signal::Resource;

/// The directories of one cgroup, one for each hierarchy that it has; those of version 2 are one
/// and the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupDirs {
    /// The cgroup id (inode number) of the directory that decides, if known: if another group
    /// has taken the path since, nothing is killed.
    pub id: Option<u64>,
    /// In the hierarchy of the memory controller.
    pub memory: Option<PathBuf>,
    /// In the hierarchy of the pids controller.
    pub pids: Option<PathBuf>,
    /// In the hierarchy of the freezer; the unified one has a freezer in every group.
    pub freezer: Option<PathBuf>,
    /// In the unified hierarchy, also where that has no controllers.
    pub unified: Option<PathBuf>,
}

impl CgroupDirs {
    /// The directory whose processes are killed: where the memory is charged. Others only serve
    /// to stop forking and to freeze.
    pub fn deciding(&self) -> Option<&Path> {
        let dirs = [&self.memory, &self.pids, &self.unified];
        dirs.into_iter().find_map(Option::as_deref)
    }
}

/// A pod whose processes are to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillTarget {
    /// Number of the decision; outcomes carry it.
    pub decision: u64,
    /// When it was decided: CLOCK_MONOTONIC in nanoseconds.
    pub at_ns: u64,
    /// Which pod.
    pub pod: Arc<PodName>,
    /// The pod's cgroup, and groups of its containers that a runtime has put elsewhere.
    pub groups: Vec<CgroupDirs>,
    /// Between SIGTERM and SIGKILL. With zero there is no SIGTERM.
    pub grace: Duration,
    /// What the node is short of.
    pub resource: Resource,
    /// Whether the threshold is a hard one: then forking is stopped at once and what can be done
    /// on the caller's thread is done there.
    pub hard: bool,
    /// How many bytes the pod may grow by in its grace period, if there is a bound. Counts for hard memory
    /// thresholds only.
    pub kill_on_growth: Option<u64>,
}

impl KillTarget {
    /// How many bytes the pod may grow by between SIGTERM and SIGKILL, if there is a bound.
    pub(super) fn growth_limit(&self) -> Option<u64> {
        self.kill_on_growth.filter(|_| self.hard && self.resource == Resource::Memory)
    }

    /// Whether forking is stopped with the first signal already, at the price that handlers of
    /// SIGTERM cannot fork.
    pub fn stops_forks(&self) -> bool {
        self.hard || self.resource == Resource::Pids
    }
}
