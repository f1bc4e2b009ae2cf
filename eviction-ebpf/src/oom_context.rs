//! The state of an out-of-memory kill in progress, from the entry of `oom_kill_process` to its exit.
//!
//! The kernel kills under `oom_lock`, so one map element is enough and there is only one writer. The
//! tracepoint `mark_victim` fires in between, once for each process that is killed. The programs cost nothing
//! except at a kill.

use aya_ebpf::{
    helpers::bpf_get_current_pid_tgid,
    macros::{fentry, fexit, kprobe, kretprobe},
    programs::{FEntryContext, FExitContext, ProbeContext, RetProbeContext},
};
use eviction_common::OomContext;

use crate::{
    config::{abi_matches, offset},
    maps::OOM_CONTEXT,
    memcg::Memcg,
    probe_read::{Probe, Read},
};

/// A victim is chosen.
#[fentry(function = "oom_kill_process")]
pub(crate) fn oom_kill_process_entry(ctx: FEntryContext) -> i32 {
    // SAFETY: the first argument is an `oom_control`, which the loader checks in BTF.
    unsafe { on_entry(ctx.arg(0)) };
    0
}

/// The kprobe variant of [`oom_kill_process_entry`].
#[kprobe]
pub(crate) fn oom_kill_process_entry_probe(ctx: ProbeContext) -> u32 {
    if let Some(oc) = ctx.arg::<*const u8>(0) {
        // SAFETY: as above.
        unsafe { on_entry(oc) };
    }
    0
}

/// The victim and the other processes of its group are handled.
#[fexit(function = "oom_kill_process")]
pub(crate) fn oom_kill_process_exit(_ctx: FExitContext) -> i32 {
    on_exit();
    0
}

/// The kprobe variant of [`oom_kill_process_exit`].
#[kretprobe]
pub(crate) fn oom_kill_process_exit_probe(_ctx: RetProbeContext) -> u32 {
    on_exit();
    0
}

/// Another process of a group that is killed together, for kernels whose `mark_victim` passes only a pid.
#[fentry(function = "oom_kill_memcg_member")]
pub(crate) fn oom_kill_process_member(ctx: FEntryContext) -> i32 {
    // SAFETY: the first argument is a `task_struct`, which the loader checks in BTF.
    unsafe { on_member(ctx.arg(0)) };
    0
}

/// The kprobe variant of [`oom_kill_process_member`].
#[kprobe]
pub(crate) fn oom_kill_process_member_probe(ctx: ProbeContext) -> u32 {
    if let Some(task) = ctx.arg::<*const u8>(0) {
        // SAFETY: as above.
        unsafe { on_member(task) };
    }
    0
}

/// Returns the context of the kill that the running task is carrying out; null if there is none.
#[inline(always)]
pub(crate) fn current() -> *mut OomContext {
    match OOM_CONTEXT.get_ptr_mut(0) {
        // SAFETY: the map's value.
        Some(context) if unsafe { (*context).trigger } == bpf_get_current_pid_tgid() => context,
        _ => core::ptr::null_mut(),
    }
}

/// # Safety
/// `oc` is a pointer to an `oom_control`.
#[inline(always)]
unsafe fn on_entry(oc: *const u8) {
    let Some(context) = OOM_CONTEXT.get_ptr_mut(0).filter(|_| abi_matches()) else {
        return;
    };
    // SAFETY: the caller's promise, the types of the members, and the map's value.
    unsafe {
        let memcg: usize = Probe::at(oc, offset!(oc_memcg));
        (*context).owner_id = 0;
        (*context).owner_usage = 0;
        (*context).owner_max = 0;
        if memcg != 0 {
            let memcg = Memcg::new(memcg as *const u8);
            (*context).owner_id = memcg.id::<Probe>();
            (*context).owner_usage = memcg.usage::<Probe>();
            (*context).owner_max = memcg.max::<Probe>();
        }
        let chosen: usize = Probe::at(oc, offset!(oc_chosen));
        store_victim(context, chosen as *const u8);
        (*context).trigger = bpf_get_current_pid_tgid();
    }
}

/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn on_member(task: *const u8) {
    let context = current();
    if !context.is_null() {
        // SAFETY: the caller's promise, and the map's value.
        unsafe { store_victim(context, task) };
    }
}

/// Stores the victim and the number of kills in its cgroup, so that a victim can be distinguished from a task
/// that the kernel only marks.
///
/// # Safety
/// `context` points to the map's value and `task` to a `task_struct`.
#[inline(always)]
unsafe fn store_victim(context: *mut OomContext, task: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        (*context).victim = task as u64;
        (*context).memcg_id = 0;
        let memcg = Memcg::of_task(task);
        if !memcg.is_null()
            && let Some((_, oom_kill)) = memcg.oom_events()
        {
            (*context).memcg_id = memcg.id::<Probe>();
            (*context).oom_kill = oom_kill;
        }
    }
}

#[inline(always)]
fn on_exit() {
    if let Some(context) = OOM_CONTEXT.get_ptr_mut(0) {
        // SAFETY: the map's value.
        unsafe { (*context).trigger = 0 };
    }
}
