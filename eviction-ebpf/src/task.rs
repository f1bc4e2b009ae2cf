//! Forks, execs and exits, counted per memory cgroup.
//!
//! A task is mostly of the cgroup whose task this program counted last on this CPU. Then a fork costs four additions
//! beside the way up the groups of the pids controller ([`crate::task_alarm`]), which it need not go mostly; an exec one, an
//! exit three. What costs is memory that the kernel's own work has driven out of the processor's caches: so what is
//! counted of a cgroup is in one line of them, and what is seldom in functions of their own.

use aya_ebpf::{bindings::BPF_NOEXIST, macros::btf_tracepoint, programs::BtfTracePointContext};
use eviction_common::{ABSENT, Counter, TaskCgroupCache, TaskCount};

use crate::{
    config::{is_ours, offset},
    maps::{TASK_CGROUP_CACHE, TASK_STATS, TASK_STATS_FREE, TASK_STATS_INDEX, add, count},
    memcg::{css_of_task, id_of_css, id_or_none},
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
            let (css, counts) = on_task(task, TaskEvent::Fork);
            match counts.is_null() {
                true => task_alarm::on_fork(task, id_or_none::<Direct>(css), None),
                false => task_alarm::on_fork(task, (*counts).id, Some(&raw mut (*counts).rate)),
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
#[repr(u32)]
enum TaskEvent {
    Fork,
    Exec,
    Exit,
}

/// Counts it; gives the css of the task's memory cgroup and the map's value for it, or null for what is not there.
///
/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn on_task(task: *const u8, what: TaskEvent) -> (*const u8, *mut TaskCount) {
    // SAFETY: the caller's promise.
    let css = unsafe { css_of_task::<Direct>(task) };
    if css.is_null() {
        return (css, core::ptr::null_mut());
    }
    // SAFETY: a css.
    let counts = unsafe { counts_of(css, what) };
    if counts.is_null() {
        return (css, counts);
    }
    // SAFETY: the map's value, the caller's promise, and the types of the members. An addition of 0 is never made: the
    // compiler would turn it into an instruction that old kernels have not.
    unsafe {
        let (tasks, processes) = match what {
            TaskEvent::Fork => (&raw mut (*counts).forks, &raw mut (*counts).process_forks),
            TaskEvent::Exec => {
                add(&raw mut (*counts).execs, 1);
                return (css, counts);
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
    (css, counts)
}

/// What is counted of the memory cgroup with this css; null if there is no room for it.
///
/// # Safety
/// `css` is a pointer to a `cgroup_subsys_state`.
#[inline(always)]
unsafe fn counts_of(css: *const u8, what: TaskEvent) -> *mut TaskCount {
    if offset!(css_serial) != ABSENT
        && let Some(last) = TASK_CGROUP_CACHE.get_ptr(what as u32)
    {
        // SAFETY: the caller's promise, and the map's value: no program runs again on a CPU while it runs there.
        unsafe {
            let TaskCgroupCache { css: address, serial, id, place } = *last;
            if address == css as u64
                && serial == Direct::at(css, offset!(css_serial))
                && let Some(counts) = TASK_STATS.get_ptr_mut(place as u32)
                && (*counts).id == id
            {
                return counts;
            }
        }
    }
    find(css, what)
}

/// The same where it is another cgroup than the last.
#[inline(never)]
fn find(css: *const u8, what: TaskEvent) -> *mut TaskCount {
    // SAFETY: a css, as the caller of `counts_of` promises.
    let id = unsafe { id_of_css::<Direct>(css) };
    if id == 0 {
        return core::ptr::null_mut();
    }
    let place = match TASK_STATS_INDEX.get_ptr(id) {
        // SAFETY: the map's value.
        Some(place) => unsafe { *place },
        None => begin(id),
    };
    let Some(counts) = TASK_STATS.get_ptr_mut(place) else {
        return core::ptr::null_mut();
    };
    if offset!(css_serial) != ABSENT
        && let Some(last) = TASK_CGROUP_CACHE.get_ptr_mut(what as u32)
    {
        // SAFETY: a css, and the map's value, of this CPU.
        unsafe {
            let serial = Direct::at(css, offset!(css_serial));
            *last = TaskCgroupCache { css: css as u64, serial, id, place: place as u64 };
        }
    }
    counts
}

/// The place where a memory cgroup that was not met before is counted from now on; beyond all of them if none is left.
#[inline(never)]
fn begin(id: u64) -> u32 {
    let Ok(Some(place)) = TASK_STATS_FREE.pop() else {
        count(Counter::TasksFull);
        return u32::MAX;
    };
    if let Some(counts) = TASK_STATS.get_ptr_mut(place) {
        // SAFETY: the map's value, which is nobody's yet.
        unsafe { *counts = TaskCount { id, ..TaskCount::NONE } };
    }
    if TASK_STATS_INDEX.insert(id, place, BPF_NOEXIST as u64).is_ok() {
        return place;
    }
    give_back(place);
    match TASK_STATS_INDEX.get_ptr(id) {
        // Another CPU was first.
        // SAFETY: the map's value.
        Some(place) => unsafe { *place },
        None => {
            count(Counter::TasksFull);
            u32::MAX
        }
    }
}

/// A memory cgroup is removed.
#[inline(always)]
pub(crate) fn forget(id: u64) {
    let Some(place) = TASK_STATS_INDEX.get_ptr(id) else { return };
    // SAFETY: the map's value.
    let place = unsafe { *place };
    // Not if user space was first.
    if TASK_STATS_INDEX.remove(id).is_ok() {
        give_back(place);
    }
}

/// The place is nobody's, and the next one's.
#[inline(always)]
fn give_back(place: u32) {
    if let Some(counts) = TASK_STATS.get_ptr_mut(place) {
        // SAFETY: the map's value.
        unsafe { (*counts).id = 0 };
    }
    // There is room for all places; newer kernels refuse while another holds the queue. Then it is one less for good.
    if TASK_STATS_FREE.push(place, 0).is_err() {
        count(Counter::TasksFull);
    }
}
