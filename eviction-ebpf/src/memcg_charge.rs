//! Charges of memory cgroups: thresholds and the set of charged cgroups.

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
    Counter, LAST_SEEN_CHARGE, LAST_SEEN_NEAR, MAX_ANCESTORS, MIN_CHANGE_PAGES, OomCounts,
};

use crate::{
    ancestors::{AncestorPath, CacheUser},
    config::{abi_matches, is_reclaim},
    kernel_kill,
    maps::{CHARGED_CGROUPS, LAST_SEEN, OOM_COUNTS, count},
    memcg::Memcg,
    probe_read::{Direct, Probe, ReadStrategy},
    threshold::{LevelUsage, compare, for_each_threshold},
};

/// Fires when the kernel accounts its own pages to a memory cgroup. These are mostly page tables, so it fires
/// once for each 2 MiB of new memory. It sees usage, not charges, and it sees nothing if the page tables
/// already exist.
#[btf_tracepoint(function = "mod_memcg_state")]
pub(crate) fn charge_mod_memcg_state(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the first argument is a `mem_cgroup`, which the loader checks in BTF.
    let memcg = unsafe { Memcg::new(ctx.arg(0)) };
    if has_usage_changed(LAST_SEEN_CHARGE, ctx.arg(0), memcg.usage::<Direct>(), MIN_CHANGE_PAGES) {
        on_usage_change(ctx.as_ptr(), ctx.arg(0), CacheUser::Charge);
    }
    0
}

/// Fires when a thread's counts of resident pages are added to those of its process, on kernels that do this
/// once per 64 page faults. It does not see page cache. The program takes the running task as the one that
/// grew, which is wrong only in reclaim.
#[btf_tracepoint(function = "rss_stat")]
pub(crate) fn charge_rss_stat(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the helper gives the running task.
    let memcg = unsafe { Memcg::of_task(bpf_get_current_task() as *const u8) };
    if !memcg.is_null() && has_usage_changed(LAST_SEEN_CHARGE, memcg.address(), memcg.usage::<Probe>(), 0) {
        on_charge_of_unknown_size::<Probe, _>(&ctx, memcg, CacheUser::Charge);
    }
    0
}

/// Fires at each page fault, also if the page tables already exist, and when reclaim has freed pages. It
/// fires too often to be attached except near a threshold. A CPU charges in batches, so most faults do not
/// change usage.
#[btf_tracepoint(function = "count_memcg_events")]
pub(crate) fn near_count_memcg_events(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the first argument is a `mem_cgroup`, which the loader checks in BTF.
    let memcg = unsafe { Memcg::new(ctx.arg(0)) };
    if is_reclaim(ctx.arg::<i32>(1) as u32) {
        on_reclaimed(ctx.arg(0), ctx.arg(2));
    } else if has_usage_changed(LAST_SEEN_NEAR, ctx.arg(0), memcg.usage::<Direct>(), 0) {
        on_usage_change(ctx.as_ptr(), ctx.arg(0), CacheUser::Near);
    }
    0
}

/// Handles a charge of unknown size to `memcg`, a `mem_cgroup`. It is a separate function because most
/// firings find nothing new. The hooks then need only two or three cache lines, and between two firings the
/// kernel evicts the program from the cache.
#[inline(never)]
fn on_usage_change(ctx: *mut c_void, memcg: *const u8, user: CacheUser) {
    // SAFETY: the hooks' promise.
    let memcg = unsafe { Memcg::new(memcg) };
    on_charge_of_unknown_size::<Direct, _>(&BtfTracePointContext::new(ctx), memcg, user);
}

/// Handles the reclaim of `pages` pages from `memcg`, a `mem_cgroup`. While page cache is reclaimed for new
/// charges, usage does not change, so this is the only sign of them.
#[inline(never)]
fn on_reclaimed(memcg: *const u8, pages: u64) {
    if !abi_matches() {
        return;
    }
    // SAFETY: the hook's promise.
    let memcg = unsafe { Memcg::new(memcg) };
    let Some(path) = AncestorPath::of::<Direct>(&memcg, CacheUser::Near) else { return };
    let Some(leaf_id) = path.id(0) else { return };
    for_each_threshold::<Direct>(&memcg, &path, |threshold, cgroup_id, usage| {
        compare(threshold, &LevelUsage { cgroup_id, leaf_id, usage, charged: None, reclaimed: Some(pages) });
    });
}

/// Whether the usage of the memory cgroup at this address moved by more than `tolerance` pages since this CPU
/// last inspected it for this hook. Also true if the CPU last inspected another memory cgroup.
#[inline(always)]
fn has_usage_changed(hook: u32, memcg: u64, usage: u64, tolerance: u64) -> bool {
    let Some(last) = LAST_SEEN.get_ptr_mut(hook) else {
        return true;
    };
    // SAFETY: the map's value, of this CPU. A program in an interrupt may write it in between. Then one
    // inspection is unnecessary, or is left to the next firing.
    unsafe {
        let changed = usage.wrapping_sub((*last).usage).wrapping_add(tolerance) > 2 * tolerance;
        if (*last).memcg == memcg && !changed {
            return false;
        }
        (*last).memcg = memcg;
        (*last).usage = usage;
    }
    true
}

/// Handles a charge of unknown size to `memcg`.
#[inline(always)]
fn on_charge_of_unknown_size<M: ReadStrategy, C: EbpfContext>(ctx: &C, memcg: Memcg, user: CacheUser) {
    if !abi_matches() {
        return;
    }
    if let Some(path) = AncestorPath::of::<M>(&memcg, user) {
        on_charge::<M, _>(ctx, memcg, &path, None);
    }
}

/// Handles a charge to `memcg`, whose ancestor path is `path`. `charged` is the number of pages, if the hook
/// sees every charge.
#[inline(always)]
pub(crate) fn on_charge<M: ReadStrategy, C: EbpfContext>(
    ctx: &C,
    memcg: Memcg,
    path: &AncestorPath,
    charged: Option<u64>,
) {
    count(Counter::Charges);
    let Some(leaf_id) = path.id(0) else {
        count(Counter::PathTruncated);
        return;
    };
    kernel_kill::apply_kill_order::<M>(&memcg, path, leaf_id);
    if path.is_online && add_charged_cgroup(leaf_id) {
        store_event_counts::<M>(memcg, path);
    }
    for_each_threshold::<M>(&memcg, path, |threshold, cgroup_id, usage| {
        if compare(threshold, &LevelUsage { cgroup_id, leaf_id, usage, charged, reclaimed: None }) {
            debug!(ctx, "crossed the level of cgroup {}", cgroup_id);
        }
    });
    if !path.is_whole() {
        count(Counter::PathTruncated);
        warn!(ctx, "cgroup {}: its upper ancestors are not seen", leaf_id);
    }
}

/// Adds the cgroup to the charged cgroups. Returns whether it is new there.
#[inline(always)]
fn add_charged_cgroup(id: u64) -> bool {
    if CHARGED_CGROUPS.get_ptr(id).is_some() {
        return false;
    }
    if CHARGED_CGROUPS.insert(id, 1_u8, BPF_NOEXIST as u64).is_err() {
        // Another CPU was first, or the map is full.
        if CHARGED_CGROUPS.get_ptr(id).is_none() {
            count(Counter::ChargedCgroupsFull);
        }
        return false;
    }
    true
}

/// Stores the event counts of the cgroups on the path that have none stored.
#[inline(always)]
fn store_event_counts<M: ReadStrategy>(memcg: Memcg, path: &AncestorPath) {
    let mut memcg = memcg;
    for level in 0..MAX_ANCESTORS {
        let Some(id) = path.id(level) else { return };
        store_event_counts_of(id, &memcg);
        match memcg.parent::<M>() {
            Some(parent) => memcg = parent,
            None => return,
        }
    }
}

/// Stores the event counts of a cgroup that has none stored, so that an out-of-memory kill shows whether they
/// changed. It does not update stored counts, since another CPU may get here between the kernel's count and
/// its kill.
#[inline(always)]
fn store_event_counts_of(id: u64, memcg: &Memcg) {
    if OOM_COUNTS.get_ptr(id).is_some() {
        return;
    }
    let Some((oom, oom_kill)) = memcg.oom_events() else {
        return;
    };
    // SAFETY: a helper without arguments.
    let ktime_ns = unsafe { bpf_ktime_get_ns() };
    let counts = OomCounts { oom, oom_kill, ktime_ns };
    if OOM_COUNTS.insert(id, counts, BPF_NOEXIST as u64).is_err() && OOM_COUNTS.get_ptr(id).is_none() {
        count(Counter::OomCountsFull);
    }
}
