//! Forks, execs and exits, counted per memory cgroup.
//!
//! A fork costs a look-up and four additions, beside the way up the groups of the pids controller
//! ([`crate::task_alarm`]), which it need not go mostly; an exec one addition, an exit three.

use aya_ebpf::{bindings::BPF_NOEXIST, macros::btf_tracepoint, programs::BtfTracePointContext};
use eviction_common::{Counter, TaskCount};

use crate::{
    config::{is_ours, offset},
    maps::{TASK_STATS, add, count},
    memcg::{css_of_task, id_or_none},
    probe_read::{Direct, Read},
    reclaim, task_alarm,
};

/// A task was made; the second argument is the new one, which is in its cgroups already.
#[btf_tracepoint(function = "sched_process_fork")]
pub(crate) fn task_fork(ctx: BtfTracePointContext) -> i32 {
    if is_ours() {
        let task = ctx.arg(1);
        // SAFETY: a `task_struct`, which the loader checks in BTF, and a map's value.
        unsafe {
            let (id, counts) = on_task(task, TaskEvent::Fork);
            match counts.is_null() {
                true => task_alarm::on_fork(task, id, None),
                false => task_alarm::on_fork(task, id, Some(&raw mut (*counts).rate)),
            }
        }
    }
    0
}

/// A process became another program; the first argument is its only thread.
#[btf_tracepoint(function = "sched_process_exec")]
pub(crate) fn task_exec(ctx: BtfTracePointContext) -> i32 {
    if is_ours() {
        // SAFETY: a `task_struct`, which the loader checks in BTF.
        unsafe { on_task(ctx.arg(0), TaskEvent::Exec) };
    }
    0
}

/// A task is about to end, and still in its cgroups.
#[btf_tracepoint(function = "sched_process_exit")]
pub(crate) fn task_exit(ctx: BtfTracePointContext) -> i32 {
    if is_ours() {
        let task: *const u8 = ctx.arg(0);
        // SAFETY: a `task_struct`, which the loader checks in BTF.
        unsafe {
            on_task(task, TaskEvent::Exit);
            task_alarm::on_exit();
            reclaim::on_exit(Direct::at(task, offset!(task_pid)));
        }
    }
    0
}

/// What there is to count, by a program each.
#[derive(Clone, Copy)]
enum TaskEvent {
    Fork,
    Exec,
    Exit,
}

/// Counts it; returns the id of the task's memory cgroup, 0 for none, and the map's value for it, or null.
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn on_task(task: *const u8, what: TaskEvent) -> (u64, *mut TaskCount) {
    // SAFETY: the caller's promise.
    let id = unsafe { id_or_none::<Direct>(css_of_task::<Direct>(task)) };
    let counts = counts_of(id);
    if counts.is_null() {
        return (id, counts);
    }
    // SAFETY: the map's value, the caller's promise, and the types of the members. An addition of 0 is never made: the
    // compiler would turn it into an instruction that old kernels have not.
    unsafe {
        let (tasks, processes) = match what {
            TaskEvent::Fork => (&raw mut (*counts).forks, &raw mut (*counts).process_forks),
            TaskEvent::Exec => {
                add(&raw mut (*counts).execs, 1);
                return (id, counts);
            }
            TaskEvent::Exit => (&raw mut (*counts).exits, &raw mut (*counts).process_exits),
        };
        add(tasks, 1);
        let (pid, tgid): (u32, u32) =
            (Direct::at(task, offset!(task_pid)), Direct::at(task, offset!(task_tgid)));
        if pid == tgid {
            add(processes, 1);
        }
    }
    (id, counts)
}

/// What is counted of the memory cgroup with this id; null if there is no room for it.
#[inline(never)]
fn counts_of(id: u64) -> *mut TaskCount {
    if id == 0 {
        return core::ptr::null_mut();
    }
    if let Some(counts) = TASK_STATS.get_ptr_mut(id) {
        return counts;
    }
    // Another CPU may be first.
    let _ = TASK_STATS.insert(id, TaskCount::NONE, BPF_NOEXIST as u64);
    match TASK_STATS.get_ptr_mut(id) {
        Some(counts) => counts,
        None => {
            count(Counter::TaskStatsFull);
            core::ptr::null_mut()
        }
    }
}

/// A memory cgroup is removed.
#[inline(always)]
pub(crate) fn forget(id: u64) {
    let _ = TASK_STATS.remove(id);
}
