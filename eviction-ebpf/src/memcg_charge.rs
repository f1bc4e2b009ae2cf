//! Charges of memory cgroups: armed levels and the dirty set.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_NOEXIST,
    helpers::{bpf_get_current_task, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use aya_log_ebpf::{debug, warn};
use eviction_common::{
    ChargedCgroup, Counter, LAST_SEEN_CHARGE, LAST_SEEN_NEAR, MAX_ANCESTORS, MIN_CHANGE_PAGES, OomCounts,
};

use crate::{
    ancestors::{AncestorPath, CacheUser},
    config::{is_ours, is_reclaim},
    kernel_kill,
    maps::{CHARGED_CGROUPS, LAST_SEEN, OOM_COUNTS, add, count},
    memcg::Memcg,
    probe_read::{Direct, Means, Probe},
    threshold::{LevelUsage, compare, each_armed},
};

/// Fires when pages of the kernel itself are accounted to a memory cgroup: page tables above
/// all, and so once for each 2 MiB of fresh memory. It sees usage, not charges, and nothing where
/// the page tables are there already.
#[btf_tracepoint(function = "mod_memcg_state")]
pub(crate) fn charge_mod_memcg_state(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the first argument is a `mem_cgroup`, which the loader checks in BTF.
    let memcg = unsafe { Memcg::new(ctx.arg(0)) };
    if has_moved(LAST_SEEN_CHARGE, ctx.arg(0), memcg.usage::<Direct>(), MIN_CHANGE_PAGES) {
        on_moved(ctx.as_ptr(), ctx.arg(0), CacheUser::Charge);
    }
    0
}

/// Fires when a thread's counts of resident pages are added to those of its process: on kernels
/// where that is done once for 64 page faults. Sees no page cache; the running task stands for the
/// one that grew, as it does in all but reclaim.
#[btf_tracepoint(function = "rss_stat")]
pub(crate) fn charge_rss_stat(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the helper gives the running task.
    let memcg = unsafe { Memcg::of_task(bpf_get_current_task() as *const u8) };
    if !memcg.is_null() && has_moved(LAST_SEEN_CHARGE, memcg.address(), memcg.usage::<Probe>(), 0) {
        on_charge_somewhere::<Probe, _>(&ctx, memcg, CacheUser::Charge);
    }
    0
}

/// Fires at each page fault, and so also where page tables are there already, and when reclaim has taken pages; too often
/// to be attached but near a line. A CPU charges in batches, so most faults leave usage as it is.
#[btf_tracepoint(function = "count_memcg_events")]
pub(crate) fn near_count_memcg_events(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the first argument is a `mem_cgroup`, which the loader checks in BTF.
    let memcg = unsafe { Memcg::new(ctx.arg(0)) };
    if is_reclaim(ctx.arg::<i32>(1) as u32) {
        on_reclaimed(ctx.arg(0), ctx.arg(2));
    } else if has_moved(LAST_SEEN_NEAR, ctx.arg(0), memcg.usage::<Direct>(), 0) {
        on_moved(ctx.as_ptr(), ctx.arg(0), CacheUser::Near);
    }
    0
}

/// Something was charged to `memcg`, a `mem_cgroup`; how much is not known. Apart from the hooks, nearly all of whose
/// looks find nothing new: what they are then is all in two or three lines of the processor's cache, where the kernel
/// leaves nothing of a program from one firing to the next.
#[inline(never)]
fn on_moved(ctx: *mut c_void, memcg: *const u8, keeper: CacheUser) {
    // SAFETY: the hooks' promise.
    let memcg = unsafe { Memcg::new(memcg) };
    on_charge_somewhere::<Direct, _>(&BtfTracePointContext::new(ctx), memcg, keeper);
}

/// Reclaim took so many pages of `memcg`, a `mem_cgroup`: where page cache makes room for what is charged, usage stands
/// still, and this is all that tells.
#[inline(never)]
fn on_reclaimed(memcg: *const u8, pages: u64) {
    if !is_ours() {
        return;
    }
    // SAFETY: the hook's promise.
    let memcg = unsafe { Memcg::new(memcg) };
    let Some(way) = AncestorPath::of::<Direct>(&memcg, CacheUser::Near) else { return };
    let Some(leaf_id) = way.id(0) else { return };
    each_armed::<Direct>(&memcg, &way, |armed, cgroup_id, usage| {
        compare(armed, &LevelUsage { cgroup_id, leaf_id, usage, charged: None, reclaimed: Some(pages) });
    });
}

/// Whether this CPU has not looked at the memory cgroup at this address, by this hook, since its
/// usage moved by more than `still` pages.
#[inline(always)]
fn has_moved(hook: u32, memcg: u64, usage: u64, still: u64) -> bool {
    let Some(last) = LAST_SEEN.get_ptr_mut(hook) else {
        return true;
    };
    // SAFETY: the map's value, of this CPU. An interrupt's program may write it in between: then
    // one look is made too many, or one is left to the next firing.
    unsafe {
        let moved = usage.wrapping_sub((*last).usage).wrapping_add(still) > 2 * still;
        if (*last).memcg == memcg && !moved {
            return false;
        }
        (*last).memcg = memcg;
        (*last).usage = usage;
    }
    true
}

/// Something was charged to `memcg`; how much is not known.
#[inline(always)]
fn on_charge_somewhere<M: Means, C: EbpfContext>(ctx: &C, memcg: Memcg, keeper: CacheUser) {
    if !is_ours() {
        return;
    }
    if let Some(way) = AncestorPath::of::<M>(&memcg, keeper) {
        on_charge::<M, _>(ctx, memcg, &way, None);
    }
}

/// Something was charged to `memcg`, from which that is the way up: how many pages, where the hook sees every charge.
#[inline(always)]
pub(crate) fn on_charge<M: Means, C: EbpfContext>(
    ctx: &C,
    memcg: Memcg,
    way: &AncestorPath,
    charged: Option<u64>,
) {
    count(Counter::Charges);
    let Some(leaf_id) = way.id(0) else {
        count(Counter::PathTruncated);
        return;
    };
    kernel_kill::judge_charge::<M>(&memcg, way, leaf_id);
    if way.is_online && mark_dirty(leaf_id, memcg.usage::<M>(), charged) {
        remember_events::<M>(memcg, way);
    }
    each_armed::<M>(&memcg, way, |armed, cgroup_id, usage| {
        if compare(armed, &LevelUsage { cgroup_id, leaf_id, usage, charged, reclaimed: None }) {
            debug!(ctx, "crossed the level of cgroup {}", cgroup_id);
        }
    });
    if !way.is_whole() {
        count(Counter::PathTruncated);
        warn!(ctx, "cgroup {}: its upper ancestors are not seen", leaf_id);
    }
}

/// Puts the cgroup into the dirty set; says whether it was not in it.
#[inline(always)]
fn mark_dirty(id: u64, usage: u64, charged: Option<u64>) -> bool {
    if let Some(dirty) = CHARGED_CGROUPS.get_ptr_mut(id) {
        // SAFETY: the map's value.
        unsafe {
            if let Some(pages) = charged {
                add(&raw mut (*dirty).gross, pages);
            }
            add(&raw mut (*dirty).fired, 1);
            core::ptr::write_volatile(&raw mut (*dirty).usage_last, usage);
        }
        return false;
    }
    let first =
        ChargedCgroup { gross: charged.unwrap_or(0), fired: 1, usage_first: usage, usage_last: usage };
    if CHARGED_CGROUPS.insert(id, first, BPF_NOEXIST as u64).is_err() {
        // Another CPU's was first, or there is no room.
        if CHARGED_CGROUPS.get_ptr(id).is_none() {
            count(Counter::ChargedCgroupsFull);
        }
        return false;
    }
    true
}

/// Notes the event counts of cgroups on that way that were not looked at before.
#[inline(always)]
fn remember_events<M: Means>(memcg: Memcg, way: &AncestorPath) {
    let mut memcg = memcg;
    for level in 0..MAX_ANCESTORS {
        let Some(id) = way.id(level) else { return };
        remember_events_of(id, &memcg);
        match memcg.parent::<M>() {
            Some(parent) => memcg = parent,
            None => return,
        }
    }
}

/// Notes the event counts of a cgroup that was not looked at before, so that it shows at an
/// out-of-memory kill whether they moved. Never of one that was: between the kernel's count and its
/// kill another CPU may come by here.
#[inline(always)]
fn remember_events_of(id: u64, memcg: &Memcg) {
    if OOM_COUNTS.get_ptr(id).is_some() {
        return;
    }
    let Some((oom, oom_kill)) = memcg.oom_events() else {
        return;
    };
    // SAFETY: a helper without arguments.
    let ktime_ns = unsafe { bpf_ktime_get_ns() };
    let seen = OomCounts { oom, oom_kill, ktime_ns };
    if OOM_COUNTS.insert(id, seen, BPF_NOEXIST as u64).is_err() && OOM_COUNTS.get_ptr(id).is_none() {
        count(Counter::OomCountsFull);
    }
}
