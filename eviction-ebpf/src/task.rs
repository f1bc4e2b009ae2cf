//! Forks, execs and exits, counted per memory cgroup.
//!
//! A fork costs a lookup of its group, two additions and the way up the groups of the pids controller
//! ([`crate::alarm`]); an exec and an exit a lookup and an addition.

use aya_ebpf::{bindings::BPF_NOEXIST, macros::btf_tracepoint, programs::BtfTracePointContext};
use eviction_common::{Counter, TaskCount};

use crate::{
    alarm,
    maps::{TASKS, add, count},
    memcg::id_of_task,
    read::{Direct, Read},
    reclaim,
    setup::{is_ours, offset},
};

/// A task was made; the second argument is the new one, which is in its cgroups already.
#[btf_tracepoint(function = "sched_process_fork")]
pub(crate) fn task_fork(ctx: BtfTracePointContext) -> i32 {
    if is_ours() {
        let task = ctx.arg(1);
        // SAFETY: a `task_struct`, which the loader checks in BTF.
        unsafe {
            let id = on_task(task, What::Fork);
            alarm::on_fork(task, id);
        }
    }
    0
}

/// A process became another program; the first argument is its only thread.
#[btf_tracepoint(function = "sched_process_exec")]
pub(crate) fn task_exec(ctx: BtfTracePointContext) -> i32 {
    if is_ours() {
        // SAFETY: a `task_struct`, which the loader checks in BTF.
        unsafe { on_task(ctx.arg(0), What::Exec) };
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
            on_task(task, What::Exit);
            alarm::on_exit();
            reclaim::on_exit(Direct::at(task, offset!(task_pid)));
        }
    }
    0
}

#[derive(Clone, Copy)]
enum What {
    Fork,
    Exec,
    Exit,
}

/// Counts nothing yet of a memory cgroup that was not met before; null if there is no room. Apart, as all that is seldom:
/// a fork leaves nothing of a program in the processor's caches, so each line of it that is passed by is fetched anew.
#[inline(never)]
fn begin(id: u64) -> *mut TaskCount {
    // It fails also when another CPU was first.
    let _ = TASKS.insert(id, TaskCount::NONE, BPF_NOEXIST as u64);
    let counts = TASKS.get_ptr_mut(id).unwrap_or(core::ptr::null_mut());
    if counts.is_null() {
        count(Counter::TasksFull);
    }
    counts
}

/// Counts it; gives the memory cgroup of the task, 0 if it has none.
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn on_task(task: *const u8, what: What) -> u64 {
    // SAFETY: the caller's promise, and the types of the members.
    let (pid, tgid, id): (u32, u32, u64) = unsafe {
        (
            Direct::at(task, offset!(task_pid)),
            Direct::at(task, offset!(task_tgid)),
            id_of_task::<Direct>(task),
        )
    };
    let is_process = pid == tgid;
    if id == 0 {
        return 0;
    }
    let counts = TASKS.get_ptr_mut(id).unwrap_or_else(|| begin(id));
    if counts.is_null() {
        return id;
    }
    // SAFETY: the map's value, of this CPU. An addition of 0 is never made: the compiler would
    // turn it into an instruction that old kernels have not.
    unsafe {
        let (tasks, processes) = match what {
            What::Fork => (&raw mut (*counts).forks, &raw mut (*counts).process_forks),
            What::Exec => {
                add(&raw mut (*counts).execs, 1);
                return id;
            }
            What::Exit => (&raw mut (*counts).exits, &raw mut (*counts).process_exits),
        };
        add(tasks, 1);
        if is_process {
            add(processes, 1);
        }
    }
    id
}
