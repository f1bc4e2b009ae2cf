//! Why a process outlives SIGKILL.
#![forbid(unsafe_code)]

use procfs::process::{Process, StatFlags};

use super::cgroup_scope::PinnedCgroup;
use super::group::file_says;
use eviction_core::progress::{UnkillableProcess, UnkillableReason};

/// Looks at a process that should have ended. `is_denied`: no signal could be sent to it.
pub(super) fn look_at(pid: u32, is_denied: bool, group: &PinnedCgroup) -> UnkillableProcess {
    let id = i32::try_from(pid).unwrap_or(i32::MAX);
    let stat = Process::new(id).and_then(|process| process.stat());
    let why = match stat {
        Ok(stat) if stat.flags & StatFlags::PF_KTHREAD.bits() != 0 => UnkillableReason::KernelThread,
        Ok(_) if is_denied => UnkillableReason::Denied,
        Ok(stat) if stat.state == 'Z' => UnkillableReason::Zombie,
        Ok(_) if is_frozen_above(group) => UnkillableReason::Frozen,
        Ok(stat) if stat.state == 'D' => UnkillableReason::Uninterruptible,
        Ok(_) | Err(_) => UnkillableReason::Running,
    };
    UnkillableProcess { pid, why }
}

/// Version 1: whether the pod's group is frozen because one above it is.
fn is_frozen_above(group: &PinnedCgroup) -> bool {
    let Some((dir, _)) = &group.freezer else {
        return false;
    };
    file_says(dir, c"freezer.parent_freezing", b"1")
}
