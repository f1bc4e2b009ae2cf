//! Forks, execs and exits, counted per memory cgroup.
//!
//! A fork costs a lookup and three additions, plus the walk up the pids cgroups ([`crate::task_alarm`]), which
//! is usually skipped. An exec costs one addition, an exit two.

use aya_ebpf::{bindings::BPF_NOEXIST, macros::btf_tracepoint, programs::BtfTracePointContext};
use eviction_common::{Counter, TaskStats};

use crate::{
    config::{abi_matches, offset},
    maps::{TASK_STATS, add, count},
    memcg::{css_of_task, id_or_none},
    probe_read::{Direct, Read},
    reclaim, task_alarm,
};

/// A task was created. The second argument is the new task, which is already in its cgroups.
#[btf_tracepoint(function = "sched_process_fork")]
pub(crate) fn task_fork(ctx: BtfTracePointContext) -> i32 {
    if abi_matches() {
        let task = ctx.arg(1);
        // SAFETY: a `task_struct`, which the loader checks in BTF, and a map's value.
        unsafe {
            let (id, stats) = stats_of_task(task);
            if stats.is_null() {
                task_alarm::on_fork(task, id, None);
            } else {
                add(&raw mut (*stats).forks, 1);
                task_alarm::on_fork(task, id, Some(stats));
            }
        }
    }
    0
}

/// A process executed another program. The first argument is its only thread.
#[btf_tracepoint(function = "sched_process_exec")]
pub(crate) fn task_exec(ctx: BtfTracePointContext) -> i32 {
    if abi_matches() {
        // SAFETY: a `task_struct`, which the loader checks in BTF, and a map's value.
        unsafe {
            let (_, stats) = stats_of_task(ctx.arg(0));
            if !stats.is_null() {
                add(&raw mut (*stats).execs, 1);
            }
        }
    }
    0
}

/// A task is about to end. It is still in its cgroups.
#[btf_tracepoint(function = "sched_process_exit")]
pub(crate) fn task_exit(ctx: BtfTracePointContext) -> i32 {
    if abi_matches() {
        let task: *const u8 = ctx.arg(0);
        // SAFETY: a `task_struct`, which the loader checks in BTF, and a map's value.
        unsafe {
            let (_, stats) = stats_of_task(task);
            if !stats.is_null() {
                add(&raw mut (*stats).exits, 1);
            }
            task_alarm::on_exit();
            reclaim::on_exit(Direct::at(task, offset!(task_pid)));
        }
    }
    0
}

/// Returns the id of the task's memory cgroup (0 if none), and the map's value for it (or null).
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn stats_of_task(task: *const u8) -> (u64, *mut TaskStats) {
    // SAFETY: the caller's promise.
    let id = unsafe { id_or_none::<Direct>(css_of_task::<Direct>(task)) };
    (id, stats_of(id))
}

/// Returns the counters of the memory cgroup with this id; null if the map is full.
#[inline(never)]
fn stats_of(id: u64) -> *mut TaskStats {
    if id == 0 {
        return core::ptr::null_mut();
    }
    if let Some(stats) = TASK_STATS.get_ptr_mut(id) {
        return stats;
    }
    // Another CPU may insert it first.
    let _ = TASK_STATS.insert(id, TaskStats::default(), BPF_NOEXIST as u64);
    match TASK_STATS.get_ptr_mut(id) {
        Some(stats) => stats,
        None => {
            count(Counter::TaskStatsFull);
            core::ptr::null_mut()
        }
    }
}
