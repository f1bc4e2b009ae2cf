//! What the kernel is about while it kills: `oom_kill_process`, from its beginning to its end.
//!
//! It kills under `oom_lock`, so one place is enough and nobody else writes it. The tracepoint
//! `mark_victim` fires in between, once for each process that dies. Costs nothing but at a kill.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::{fentry, fexit, kprobe, kretprobe},
    programs::{FEntryContext, FExitContext, ProbeContext, RetProbeContext},
};
use eviction_common::OomContext;

use crate::{
    config::{is_ours, offset},
    maps::OOM_CONTEXT,
    memcg::Memcg,
    probe_read::{Probe, Read},
};

/// A victim is chosen.
#[fentry(function = "oom_kill_process")]
pub(crate) fn oom_kill_process_entry(ctx: FEntryContext) -> i32 {
    // SAFETY: the first argument is an `oom_control`, which the loader checks in BTF.
    unsafe { begin(ctx.arg(0)) };
    0
}

/// The same.
#[kprobe]
pub(crate) fn oom_kill_process_entry_probe(ctx: ProbeContext) -> u32 {
    if let Some(oc) = ctx.arg::<*const u8>(0) {
        // SAFETY: as above.
        unsafe { begin(oc) };
    }
    0
}

/// All who are to die with it are dealt with.
#[fexit(function = "oom_kill_process")]
pub(crate) fn oom_kill_process_exit(_ctx: FExitContext) -> i32 {
    end();
    0
}

/// The same.
#[kretprobe]
pub(crate) fn oom_kill_process_exit_probe(_ctx: RetProbeContext) -> u32 {
    end();
    0
}

/// Another process of a group that is killed together: for kernels whose `mark_victim` gives
/// nothing but a pid.
#[fentry(function = "oom_kill_memcg_member")]
pub(crate) fn oom_kill_process_member(ctx: FEntryContext) -> i32 {
    // SAFETY: the first argument is a `task_struct`, which the loader checks in BTF.
    unsafe { next(ctx.arg(0)) };
    0
}

/// The same.
#[kprobe]
pub(crate) fn oom_kill_process_member_probe(ctx: ProbeContext) -> u32 {
    if let Some(task) = ctx.arg::<*const u8>(0) {
        // SAFETY: as above.
        unsafe { next(task) };
    }
    0
}

/// The choice that the running task is carrying out; null if there is none.
#[inline(always)]
pub(crate) fn current() -> *mut OomContext {
    match OOM_CONTEXT.get_ptr_mut(0) {
        // SAFETY: the map's value.
        Some(choice) if unsafe { (*choice).trigger } == bpf_get_current_pid_tgid() => choice,
        _ => core::ptr::null_mut(),
    }
}

/// # Safety
/// `oc` is a pointer to an `oom_control`.
#[inline(always)]
unsafe fn begin(oc: *const u8) {
    let Some(choice) = OOM_CONTEXT.get_ptr_mut(0).filter(|_| is_ours()) else {
        return;
    };
    // SAFETY: the caller's promise, the types of the members, and the map's value.
    unsafe {
        let memcg: usize = Probe::at(oc, offset!(oc_memcg));
        (*choice).owner_id = 0;
        (*choice).owner_usage = 0;
        (*choice).owner_max = 0;
        if memcg != 0 {
            let memcg = Memcg::new(memcg as *const u8);
            (*choice).owner_id = memcg.id::<Probe>();
            (*choice).owner_usage = memcg.usage::<Probe>();
            (*choice).owner_max = memcg.max::<Probe>();
        }
        let chosen: usize = Probe::at(oc, offset!(oc_chosen));
        choose(choice, chosen as *const u8);
        (*choice).ktime_ns = bpf_ktime_get_ns();
        (*choice).trigger = bpf_get_current_pid_tgid();
    }
}

/// # Safety
/// `task` is a pointer to a `task_struct`.
#[inline(always)]
unsafe fn next(task: *const u8) {
    let choice = current();
    if !choice.is_null() {
        // SAFETY: the caller's promise, and the map's value.
        unsafe { choose(choice, task) };
    }
}

/// Notes how often its group was killed in, so that a victim is told from a task that the kernel
/// only marks.
///
/// # Safety
/// `choice` points to the map's value and `task` to a `task_struct`.
#[inline(always)]
unsafe fn choose(choice: *mut OomContext, task: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        (*choice).victim = task as u64;
        (*choice).memcg_id = 0;
        let memcg = Memcg::of_task(task);
        if !memcg.is_null()
            && let Some((_, oom_kill)) = memcg.oom_events()
        {
            (*choice).memcg_id = memcg.id::<Probe>();
            (*choice).oom_kill = oom_kill;
        }
    }
}

#[inline(always)]
fn end() {
    if let Some(choice) = OOM_CONTEXT.get_ptr_mut(0) {
        // SAFETY: the map's value.
        unsafe { (*choice).trigger = 0 };
    }
}
