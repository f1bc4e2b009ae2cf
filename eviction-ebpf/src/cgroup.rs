//! Cgroups that are created and removed in the memory controller's hierarchy.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use aya_log_ebpf::debug;
use eviction_common::{Alarm, AlarmKey, CgroupChange, Counter, Kind, OomCounts};

use crate::{
    config::{abi_matches, hierarchy, offset},
    disk,
    events::{header, lost, routine},
    maps::{ALARMS_SENT, CHARGED_CGROUPS, EVENTS, OOM_COUNTS, RECLAIM_TIME, TASK_STATS, THRESHOLDS, count},
    memcg::id_of_cgroup,
    probe_read::{Direct, Read},
};

/// A cgroup was created.
#[btf_tracepoint(function = "cgroup_mkdir")]
pub(crate) fn cgroup_mkdir(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: a `cgroup`, which the loader checks in BTF.
    if let Some(id) = unsafe { on_change(ctx.arg(0), Kind::CgroupCreated) } {
        // None of its processes was killed yet, so the first kill will be detected.
        let none = OomCounts { oom: 0, oom_kill: 0, ktime_ns: 0 };
        if OOM_COUNTS.insert(id, none, 0).is_err() {
            count(Counter::OomCountsFull);
        }
        debug!(&ctx, "cgroup {} made", id);
    }
    0
}

/// A cgroup was removed. The program cleans the maps itself, because the record may be lost.
#[btf_tracepoint(function = "cgroup_rmdir")]
pub(crate) fn cgroup_rmdir(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: a `cgroup`, which the loader checks in BTF.
    if let Some(id) = unsafe { on_change(ctx.arg(0), Kind::CgroupRemoved) } {
        // SAFETY: the same `cgroup`.
        unsafe { disk::move_usage_to_parent(ctx.arg(0), id) };
        // Most maps have no entry of the cgroup.
        let _ = OOM_COUNTS.remove(id);
        let _ = TASK_STATS.remove(id);
        let _ = RECLAIM_TIME.remove(id);
        let _ = THRESHOLDS.remove(id);
        let _ = CHARGED_CGROUPS.remove(id);
        let _ = ALARMS_SENT.remove(AlarmKey { id, alarm: Alarm::ForkStorm as u32, pad: 0 });
        // On cgroup v1 the keys of pids limits belong to another hierarchy. User space removes them.
        if hierarchy() == 0 {
            let _ = ALARMS_SENT.remove(AlarmKey { id, alarm: Alarm::PidsLimit as u32, pad: 0 });
        }
        debug!(&ctx, "cgroup {} removed", id);
    }
    0
}

/// Records the change and returns the cgroup's id, if it is in the memory controller's hierarchy.
///
/// # Safety
/// `cgroup` is a pointer to a `cgroup`.
#[inline(always)]
unsafe fn on_change(cgroup: *const u8, kind: Kind) -> Option<u64> {
    if !abi_matches() {
        return None;
    }
    // SAFETY: the caller's promise, and the types of the members.
    let (id, its_hierarchy): (u64, i32) = unsafe {
        let root: usize = Direct::at(cgroup, offset!(cgroup_root));
        if root == 0 {
            return None;
        }
        (id_of_cgroup::<Direct>(cgroup), Direct::at(root as *const u8, offset!(root_hierarchy)))
    };
    if its_hierarchy != hierarchy() {
        return None;
    }
    let Some(mut entry) = EVENTS.reserve::<CgroupChange>(0) else {
        lost(match kind {
            Kind::CgroupCreated => Counter::LostCgroupCreated,
            _ => Counter::LostCgroupRemoved,
        });
        return Some(id);
    };
    let record = entry.as_mut_ptr();
    // SAFETY: `record` points to a record inside the ring; all its fields are written here.
    unsafe {
        (*record).header = header::<CgroupChange>(kind);
        (*record).id = id;
    }
    entry.submit(routine());
    Some(id)
}
