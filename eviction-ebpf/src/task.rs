//! Forks, execs and exits, counted per memory cgroup.
//!
//! A fork costs a lookup and four additions, plus the walk up the pids cgroups ([`crate::task_alarm`]), which
//! is usually skipped. An exec costs one addition, an exit three.

use aya_ebpf::{bindings::BPF_NOEXIST, macros::btf_tracepoint, programs::BtfTracePointContext};
use eviction_common::{Counter, TaskCount};

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
            let (id, counts) = on_task(task, TaskEvent::Fork);
            match counts.is_null() {
                true => task_alarm::on_fork(task, id, None),
                false => task_alarm::on_fork(task, id, Some(&raw mut (*counts).rate)),
            }
        }
    }
    0
}

/// A process executed another program. The first argument is its only thread.
#[btf_tracepoint(function = "sched_process_exec")]
pub(crate) fn task_exec(ctx: BtfTracePointContext) -> i32 {
    if abi_matches() {
        // SAFETY: a `task_struct`, which the loader checks in BTF.
        unsafe { on_task(ctx.arg(0), TaskEvent::Exec) };
    }
    0
}

/// A task is about to end. It is still in its cgroups.
#[btf_tracepoint(function = "sched_process_exit")]
pub(crate) fn task_exit(ctx: BtfTracePointContext) -> i32 {
    if abi_matches() {
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

/// The event that is counted; there is one program for each.
#[derive(Clone, Copy)]
enum TaskEvent {
    Fork,
    Exec,
    Exit,
}

/// Counts the event. Returns the id of the task's memory cgroup (0 if none), and the map's value for it (or
/// null).
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn on_task(task: *const u8, event: TaskEvent) -> (u64, *mut TaskCount) {
    // SAFETY: the caller's promise.
    let id = unsafe { id_or_none::<Direct>(css_of_task::<Direct>(task)) };
    let counts = counts_of(id);
    if counts.is_null() {
        return (id, counts);
    }
    // SAFETY: the map's value, the caller's promise, and the types of the members. It never adds 0: the compiler
    // would turn that into an instruction that old kernels do not have.
    unsafe {
        let (tasks, processes) = match event {
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

/// Returns the counters of the memory cgroup with this id; null if the map is full.
#[inline(never)]
fn counts_of(id: u64) -> *mut TaskCount {
    if id == 0 {
        return core::ptr::null_mut();
    }
    if let Some(counts) = TASK_STATS.get_ptr_mut(id) {
        return counts;
    }
    // Another CPU may insert it first.
    let _ = TASK_STATS.insert(id, TaskCount::NONE, BPF_NOEXIST as u64);
    match TASK_STATS.get_ptr_mut(id) {
        Some(counts) => counts,
        None => {
            count(Counter::TaskStatsFull);
            core::ptr::null_mut()
        }
    }
}

/// Removes the counters of a memory cgroup that is removed.
#[inline(always)]
pub(crate) fn remove_counts(id: u64) {
    let _ = TASK_STATS.remove(id);
}
