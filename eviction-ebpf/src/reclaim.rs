//! Time spent in memcg direct reclaim: a task that charges over a limit has to give memory back
//! itself before it goes on.
//!
//! It is told by task, since a task that reclaims may sleep and wake on another CPU. The kernel
//! never begins it twice (`set_task_reclaim_state` in mm/vmscan.c warns of it, and what is charged
//! meanwhile does not reclaim), and leaves it in one way only; so a beginning that is found is one
//! whose end was missed, and is overwritten. Each of the two costs some hundred nanoseconds, beside
//! the tens of microseconds of the shortest reclaim.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use eviction_common::{Counter, ReclaimStart, ReclaimTime};

use crate::{
    config::is_ours,
    maps::{RECLAIM_ACTIVE, RECLAIM_START, RECLAIM_TIME, add, count},
    memcg::id_of_task,
    probe_read::Probe,
};

/// The running task begins to reclaim. What the arguments are differs between kernels; who waits is
/// the same in all.
#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_begin")]
pub(crate) fn reclaim_begin(_ctx: BtfTracePointContext) -> i32 {
    if !is_ours() {
        return 0;
    }
    // SAFETY: helpers without arguments, and the running task.
    let start = unsafe {
        ReclaimStart {
            ktime_ns: bpf_ktime_get_ns(),
            memcg_id: id_of_task::<Probe>(bpf_get_current_task() as *const u8),
        }
    };
    let tid = bpf_get_current_pid_tgid() as u32;
    let is_new = RECLAIM_START.get_ptr(tid).is_none();
    if !is_new {
        count(Counter::ReclaimUnpaired);
    }
    match RECLAIM_START.insert(tid, start, 0) {
        Ok(()) if is_new => reclaimers(1),
        Ok(()) => {}
        Err(_) => count(Counter::ReclaimStartFull),
    }
    0
}

/// The thread with this id ends. Whoever ends is not in reclaim: if its end was missed, its beginning must not stay.
#[inline(always)]
pub(crate) fn on_exit(tid: u32) {
    let Some(count) = RECLAIM_ACTIVE.get_ptr(0) else { return };
    // SAFETY: the map's value; volatile, since others write it. What this thread added to it is in it.
    if unsafe { core::ptr::read_volatile(count) } != 0 && RECLAIM_START.get_ptr(tid).is_some() {
        forget(tid);
    }
}

#[inline(always)]
fn forget(tid: u32) {
    if RECLAIM_START.remove(tid).is_ok() {
        // One less, as two's complement has it.
        reclaimers(u64::MAX);
    }
}

#[inline(always)]
fn reclaimers(more: u64) {
    if let Some(count) = RECLAIM_ACTIVE.get_ptr_mut(0) {
        // SAFETY: the map's value.
        unsafe { add(count, more) };
    }
}

/// It goes on; the first argument is how many pages it got.
#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_end")]
pub(crate) fn reclaim_end(ctx: BtfTracePointContext) -> i32 {
    if !is_ours() {
        return 0;
    }
    let pages: u64 = ctx.arg(0);
    let tid = bpf_get_current_pid_tgid() as u32;
    let Some(start) = RECLAIM_START.get_ptr(tid) else {
        count(Counter::ReclaimUnpaired);
        return 0;
    };
    // SAFETY: the map's value, which nobody but this task's own programs writes; a helper.
    let (start, now_ns) = unsafe { (*start, bpf_ktime_get_ns()) };
    forget(tid);
    if start.memcg_id != 0 {
        add_stall(start.memcg_id, now_ns.saturating_sub(start.ktime_ns), pages);
    }
    0
}

/// Adds to what the memory cgroup has spent. It is made with nothing in it, so that no CPU that
/// comes at the same time has anything to lose.
#[inline(always)]
fn add_stall(id: u64, ns: u64, pages: u64) {
    let found = RECLAIM_TIME.get_ptr_mut(id).or_else(|| {
        let _ = RECLAIM_TIME.insert(id, ReclaimTime { count: 0, ns: 0, reclaimed: 0 }, BPF_NOEXIST as u64);
        RECLAIM_TIME.get_ptr_mut(id)
    });
    let Some(stall) = found else {
        count(Counter::ReclaimTimeFull);
        return;
    };
    // SAFETY: the map's value.
    unsafe {
        add(&raw mut (*stall).count, 1);
        add(&raw mut (*stall).ns, ns);
        add(&raw mut (*stall).reclaimed, pages);
    }
}
