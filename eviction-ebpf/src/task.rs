//! Forks and exits, counted per memory cgroup.

use aya_ebpf::{bindings::BPF_NOEXIST, macros::btf_tracepoint, programs::BtfTracePointContext};
use eviction_common::{Counter, TaskCount};

use crate::{
    maps::{TASKS, add, count},
    memcg::id_of_task,
    read::{Direct, Read},
    setup::{is_ours, offset},
};

/// A task was made; the second argument is the new one, which is in its cgroups already.
#[btf_tracepoint(function = "sched_process_fork")]
pub(crate) fn task_fork(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: a `task_struct`, which the loader checks in BTF.
    unsafe { on_task(ctx.arg(1), What::Fork) };
    0
}

/// A task is about to end, and still in its cgroups.
#[btf_tracepoint(function = "sched_process_exit")]
pub(crate) fn task_exit(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: a `task_struct`, which the loader checks in BTF.
    unsafe { on_task(ctx.arg(0), What::Exit) };
    0
}

#[derive(Clone, Copy)]
enum What {
    Fork,
    Exit,
}

/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn on_task(task: *const u8, what: What) {
    if !is_ours() {
        return;
    }
    // SAFETY: the caller's promise, and the types of the members.
    let (pid, tgid, id): (u32, u32, u64) = unsafe {
        (
            Direct::at(task, offset!(task_pid)),
            Direct::at(task, offset!(task_tgid)),
            id_of_task::<Direct>(task),
        )
    };
    let is_process = pid == tgid;
    count(match what {
        What::Fork => Counter::Forks,
        What::Exit => Counter::Exits,
    });
    if id == 0 {
        return;
    }
    let found = TASKS.get_ptr_mut(id).or_else(|| {
        // It fails also when another CPU was first.
        let _ = TASKS.insert(id, TaskCount::NONE, BPF_NOEXIST as u64);
        TASKS.get_ptr_mut(id)
    });
    let Some(counts) = found else {
        count(Counter::TasksFull);
        return;
    };
    // SAFETY: the map's value, of this CPU. An addition of 0 is never made: the compiler would
    // turn it into an instruction that old kernels have not.
    unsafe {
        let (tasks, processes) = match what {
            What::Fork => (&raw mut (*counts).forks, &raw mut (*counts).process_forks),
            What::Exit => (&raw mut (*counts).exits, &raw mut (*counts).process_exits),
        };
        add(tasks, 1);
        if is_process {
            add(processes, 1);
        }
    }
}
