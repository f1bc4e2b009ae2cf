//! What a kill does its work with.

use super::cgroup_procs::CgroupProcesses;
use eviction_core::progress::KillProgress;

/// Buffers, the receiver of what happened, and the time, for one step of a kill.
pub(super) struct KillContext<'a> {
    pub(super) members: &'a mut CgroupProcesses,
    pub(super) report: &'a mut dyn FnMut(KillProgress),
    pub(super) now_ns: u64,
}
