//! Time spent in memcg direct reclaim: a task that charges over a limit must reclaim memory itself before it
//! continues.
//!
//! The start is stored per task, since a task in reclaim may sleep and wake up on another CPU. The kernel
//! never nests these reclaims (`set_task_reclaim_state` in mm/vmscan.c warns about it, and charges during
//! reclaim do not reclaim), and each has one exit. So if a start already exists, its end was missed, and the
//! start is overwritten. Each of the two programs costs about a hundred nanoseconds, while the shortest
//! reclaim takes tens of microseconds.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use eviction_common::{Counter, ReclaimStart, ReclaimTime};

use crate::{
    config::abi_matches,
    maps::{RECLAIM_START, RECLAIM_TIME, add, count},
    memcg::id_of_task,
    probe_read::Probe,
};

/// The running task begins to reclaim. The arguments differ between kernels, but the running task is the
/// reclaiming one on all of them.
#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_begin")]
pub(crate) fn reclaim_begin(_ctx: BtfTracePointContext) -> i32 {
    if !abi_matches() {
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
    if RECLAIM_START.get_ptr(tid).is_some() {
        count(Counter::ReclaimUnpaired);
    }
    if RECLAIM_START.insert(tid, start, 0).is_err() {
        count(Counter::ReclaimStartFull);
    }
    0
}

/// The thread with this id ends. An exiting thread is not in reclaim. If the end of its reclaim was missed,
/// the stored start must be removed.
#[inline(always)]
pub(crate) fn on_exit(tid: u32) {
    // A lookup takes no lock, unlike a removal.
    if RECLAIM_START.get_ptr(tid).is_some() {
        let _ = RECLAIM_START.remove(tid);
    }
}

/// The reclaim ends. The first argument is the number of reclaimed pages.
#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_end")]
pub(crate) fn reclaim_end(ctx: BtfTracePointContext) -> i32 {
    if !abi_matches() {
        return 0;
    }
    let pages: u64 = ctx.arg(0);
    let tid = bpf_get_current_pid_tgid() as u32;
    let Some(start) = RECLAIM_START.get_ptr(tid) else {
        count(Counter::ReclaimUnpaired);
        return 0;
    };
    // SAFETY: the map's value, which only this task's own programs write; a helper.
    let (start, now_ns) = unsafe { (*start, bpf_ktime_get_ns()) };
    let _ = RECLAIM_START.remove(tid);
    if start.memcg_id != 0 {
        add_reclaim_time(start.memcg_id, now_ns.saturating_sub(start.ktime_ns), pages);
    }
    0
}

/// Adds to the reclaim time of the memory cgroup. A new entry is created empty, so that concurrent additions
/// of other CPUs are not lost.
#[inline(always)]
fn add_reclaim_time(id: u64, ns: u64, pages: u64) {
    let found = RECLAIM_TIME.get_ptr_mut(id).or_else(|| {
        let _ = RECLAIM_TIME.insert(id, ReclaimTime { count: 0, ns: 0, reclaimed: 0 }, BPF_NOEXIST as u64);
        RECLAIM_TIME.get_ptr_mut(id)
    });
    let Some(entry) = found else {
        count(Counter::ReclaimTimeFull);
        return;
    };
    // SAFETY: the map's value.
    unsafe {
        add(&raw mut (*entry).count, 1);
        add(&raw mut (*entry).ns, ns);
        add(&raw mut (*entry).reclaimed, pages);
    }
}
