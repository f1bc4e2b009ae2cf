//! Charges at the page counters: each batch that a CPU charges or uncharges.
//!
//! A CPU charges 64 pages at once, so the hooks fire once per 64 page faults. Uncharges come in batches as
//! well. Measured overhead in a loop of page faults: 0.5 % for charges by fexit, 2 % more for uncharges, and
//! 2.5 % for both by kprobes.

use aya_ebpf::{
    EbpfContext,
    helpers::bpf_get_current_task,
    macros::{fexit, kprobe, kretprobe},
    programs::{FExitContext, ProbeContext, RetProbeContext},
};

use crate::{
    ancestors::{self, AncestorPath, CacheUser},
    config::abi_matches,
    maps::{PENDING_CHARGES, PendingCharge},
    memcg::{Memcg, is_memory_counter},
    memcg_charge::on_charge,
    probe_read::{ByCounter, Probe, Read, ReadStrategy},
    threshold::{LevelUsage, compare, for_each_threshold},
};

/// A batch was charged, or did not fit.
#[fexit(function = "page_counter_try_charge")]
pub(crate) fn counter_try_charge_exit(ctx: FExitContext) -> i32 {
    // The return value follows the arguments in the context; kernels before 5.17 have no helper for it. For a
    // bool the callee sets only the lowest byte.
    let charged = ctx.arg::<u64>(3) as u8 != 0;
    if charged {
        on_exit(&ctx, CacheUser::Charge);
    }
    0
}

/// A batch was charged regardless of the limit.
#[fexit(function = "page_counter_charge")]
pub(crate) fn counter_charge_exit(ctx: FExitContext) -> i32 {
    on_exit(&ctx, CacheUser::Forced);
    0
}

/// A batch was uncharged.
#[fexit(function = "page_counter_uncharge")]
pub(crate) fn counter_uncharge_exit(ctx: FExitContext) -> i32 {
    // SAFETY: the first argument is a `page_counter`, which the loader checks in BTF.
    let found = unsafe { of_counter::<ByCounter>(ctx.arg(0), CacheUser::Near, || address(&ctx)) };
    if let Some((memcg, path)) = found {
        on_uncharge::<ByCounter>(memcg, &path, 0);
    }
    0
}

#[inline(always)]
fn on_exit(ctx: &FExitContext, user: CacheUser) {
    // SAFETY: the first argument is a `page_counter`, which the loader checks in BTF.
    if let Some((memcg, path)) = unsafe { of_counter::<ByCounter>(ctx.arg(0), user, || address(ctx)) } {
        on_charge::<ByCounter, _>(ctx, memcg, &path, Some(ctx.arg(1)));
    }
}

/// Returns the memory cgroup of a page counter and its ancestor path, if the page counter counts memory. Most
/// page counters are the same as last time. Then the program knows what it counts from the cache.
///
/// # Safety
/// `counter` is a pointer to a page counter, and what `address` gives is its address.
#[inline(always)]
unsafe fn of_counter<M: ReadStrategy>(
    counter: *const u8,
    user: CacheUser,
    address: impl Fn() -> u64,
) -> Option<(Memcg, AncestorPath)> {
    if !abi_matches() {
        return None;
    }
    if let Some(address) = ancestors::address_of(counter, user) {
        // SAFETY: the caller's promise. When the address was cached, it was checked that the counter counts memory.
        // This still holds if the css is the same.
        let memcg = unsafe { Memcg::of_counter(counter, address) };
        if let Some(path) = AncestorPath::cached::<M>(&memcg, user) {
            return Some((memcg, path));
        }
    }
    let address = address();
    if !counts_memory(address) {
        return None;
    }
    // SAFETY: the caller's promise, and the check above.
    let memcg = unsafe { Memcg::of_counter(counter, address) };
    AncestorPath::read_path::<M>(&memcg, user).map(|path| (memcg, path))
}

/// Whether the page counter at this address counts the memory of a memory cgroup.
#[inline(always)]
fn counts_memory(address: u64) -> bool {
    !ancestors::is_companion_counter(address) && is_memory_counter(address)
}

/// Returns the first argument as a plain number, which the verifier does not treat as a pointer.
#[inline(always)]
fn address(ctx: &FExitContext) -> u64 {
    // SAFETY: the context is an array of the arguments in kernel memory.
    unsafe { Probe::at(ctx.as_ptr().cast(), 0) }
}

/// A batch is about to be charged. Whether it fits is known when the function returns.
#[kprobe(function = "page_counter_try_charge")]
pub(crate) fn counter_try_charge_probe(ctx: ProbeContext) -> u32 {
    let (Some(counter), Some(pages)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1)) else {
        return 0;
    };
    if ancestors::address_of(counter as *const u8, CacheUser::Charge).is_none() && !counts_memory(counter) {
        return 0;
    }
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    let mut missed = PendingCharge { counter: 0, pages: 0 };
    // The return of the previous charge was missed, or an interrupt charges in the middle of it. It counts as
    // charged, so a record may come early.
    // SAFETY: the map's value, of this task alone.
    if let Some(previous) = unsafe { PENDING_CHARGES.get(task) } {
        missed = *previous;
    }
    let this = PendingCharge { counter, pages };
    if PENDING_CHARGES.insert(task, this, 0).is_err() {
        missed = this;
    }
    if missed.counter != 0 {
        on_probed(&ctx, &missed, CacheUser::Charge);
    }
    0
}

/// See [`counter_try_charge_probe`].
#[kretprobe(function = "page_counter_try_charge")]
pub(crate) fn counter_try_charge_return(ctx: RetProbeContext) -> u32 {
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    // SAFETY: the map's value, of this task alone.
    let Some(attempt) = (unsafe { PENDING_CHARGES.get(task) }) else {
        return 0;
    };
    let attempt = *attempt;
    let _ = PENDING_CHARGES.remove(task);
    // For a bool the callee sets only the lowest byte.
    if ctx.ret::<u64>() as u8 != 0 {
        on_probed(&ctx, &attempt, CacheUser::Charge);
    }
    0
}

/// A batch is about to be charged regardless of the limit. Usage does not include it yet.
#[kprobe(function = "page_counter_charge")]
pub(crate) fn counter_charge_probe(ctx: ProbeContext) -> u32 {
    if let (Some(counter), Some(pages)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1)) {
        on_probed(&ctx, &PendingCharge { counter, pages }, CacheUser::Forced);
    }
    0
}

/// A batch is about to be uncharged.
#[kprobe(function = "page_counter_uncharge")]
pub(crate) fn counter_uncharge_probe(ctx: ProbeContext) -> u32 {
    let (Some(counter), Some(pages)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1)) else {
        return 0;
    };
    // SAFETY: it is a page counter.
    let found = unsafe { of_counter::<Probe>(counter as *const u8, CacheUser::Near, || counter) };
    if let Some((memcg, path)) = found {
        on_uncharge::<Probe>(memcg, &path, pages);
    }
    0
}

#[inline(always)]
fn on_probed<C: EbpfContext>(ctx: &C, charged: &PendingCharge, user: CacheUser) {
    let PendingCharge { counter, pages } = *charged;
    // SAFETY: it is a page counter.
    if let Some((memcg, path)) = unsafe { of_counter::<Probe>(counter as *const u8, user, || counter) } {
        on_charge::<Probe, _>(ctx, memcg, &path, Some(pages));
    }
}

/// Handles an uncharge of `memcg`. Usage still includes `included_pages` of the pages. Nothing is
/// counted; only the thresholds are compared.
#[inline(always)]
fn on_uncharge<M: ReadStrategy>(memcg: Memcg, path: &AncestorPath, included_pages: u64) {
    let Some(leaf_id) = path.id(0) else { return };
    for_each_threshold::<M>(&memcg, path, |threshold, cgroup_id, usage| {
        let usage = usage.saturating_sub(included_pages);
        compare(threshold, &LevelUsage { cgroup_id, leaf_id, usage, charged: None, reclaimed: None });
    });
}
