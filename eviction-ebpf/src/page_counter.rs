//! Charges at the page counters themselves: each batch that a CPU takes, and what it gives back.
//!
//! A CPU charges 64 pages at once, so these fire once for 64 page faults; what it gives back comes
//! in batches as well. Measured in a loop of page faults: 0.5 % for the charges by fexit, 2 % more
//! for what is given back, and 2.5 % for both by kprobes.

use aya_ebpf::{
    EbpfContext,
    helpers::bpf_get_current_task,
    macros::{fexit, kprobe, kretprobe},
    programs::{FExitContext, ProbeContext, RetProbeContext},
};

use crate::{
    ancestors::{self, AncestorPath, CacheUser},
    config::is_ours,
    maps::{PENDING_CHARGES, PendingCharge},
    memcg::{Memcg, is_of_memory},
    memcg_charge::on_charge,
    probe_read::{ByCounter, Means, Probe, Read},
    threshold::{LevelUsage, compare, each_armed},
};

/// A batch was charged, or would not fit.
#[fexit(function = "page_counter_try_charge")]
pub(crate) fn counter_try_charge_exit(ctx: FExitContext) -> i32 {
    // The returned value stands behind the arguments; kernels before 5.17 have no helper for it. Of
    // a bool the callee sets the lowest byte.
    let charged = ctx.arg::<u64>(3) as u8 != 0;
    if charged {
        on_exit(&ctx, CacheUser::Charge);
    }
    0
}

/// A batch was charged, whatever the limit.
#[fexit(function = "page_counter_charge")]
pub(crate) fn counter_charge_exit(ctx: FExitContext) -> i32 {
    on_exit(&ctx, CacheUser::Forced);
    0
}

/// A batch was given back.
#[fexit(function = "page_counter_uncharge")]
pub(crate) fn counter_uncharge_exit(ctx: FExitContext) -> i32 {
    // SAFETY: the first argument is a `page_counter`, which the loader checks in BTF.
    let found = unsafe { of_counter::<ByCounter>(ctx.arg(0), CacheUser::Near, || address(&ctx)) };
    if let Some((memcg, way)) = found {
        on_uncharge::<ByCounter>(memcg, &way, 0);
    }
    0
}

#[inline(always)]
fn on_exit(ctx: &FExitContext, keeper: CacheUser) {
    // SAFETY: the first argument is a `page_counter`, which the loader checks in BTF.
    if let Some((memcg, way)) = unsafe { of_counter::<ByCounter>(ctx.arg(0), keeper, || address(ctx)) } {
        on_charge::<ByCounter, _>(ctx, memcg, &way, Some(ctx.arg(1)));
    }
}

/// Whose page counter this is and the way up from there, if it counts memory. Most are those of the last time: then
/// that is known without a look at what they count.
///
/// # Safety
/// `counter` is a pointer to a page counter, and what `address` gives is its address.
#[inline(always)]
unsafe fn of_counter<M: Means>(
    counter: *const u8,
    keeper: CacheUser,
    address: impl Fn() -> u64,
) -> Option<(Memcg, AncestorPath)> {
    if !is_ours() {
        return None;
    }
    if let Some(address) = ancestors::address_of(counter, keeper) {
        // SAFETY: the caller's promise; that it counts memory was seen when it was kept, and is so of what is there now
        // if the css is the same.
        let memcg = unsafe { Memcg::of_counter(counter, address) };
        if let Some(way) = AncestorPath::kept::<M>(&memcg, keeper) {
            return Some((memcg, way));
        }
    }
    let address = address();
    if !counts_memory(address) {
        return None;
    }
    // SAFETY: the caller's promise, and as seen.
    let memcg = unsafe { Memcg::of_counter(counter, address) };
    AncestorPath::found::<M>(&memcg, keeper).map(|way| (memcg, way))
}

/// Whether the page counter at this address counts the memory of a memory cgroup.
#[inline(always)]
fn counts_memory(address: u64) -> bool {
    !ancestors::is_beside(address) && is_of_memory(address)
}

/// The first argument as a plain number, which the verifier does not take for a pointer.
#[inline(always)]
fn address(ctx: &FExitContext) -> u64 {
    // SAFETY: the context is an array of the arguments in kernel memory.
    unsafe { Probe::at(ctx.as_ptr().cast(), 0) }
}

/// A batch is to be charged: whether it was shows when the function returns.
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
    let mut unanswered = PendingCharge { counter: 0, pages: 0 };
    // The return of the one before was missed, or an interrupt charges in its midst: it counts as
    // charged, which makes a record come early.
    // SAFETY: the map's value, of this task alone.
    if let Some(left) = unsafe { PENDING_CHARGES.get(task) } {
        unanswered = *left;
    }
    let this = PendingCharge { counter, pages };
    if PENDING_CHARGES.insert(task, this, 0).is_err() {
        unanswered = this;
    }
    if unanswered.counter != 0 {
        on_probed(&ctx, &unanswered, CacheUser::Charge);
    }
    0
}

/// See [`counter_try_charge_probe`].
#[kretprobe(function = "page_counter_try_charge")]
pub(crate) fn counter_try_charge_return(ctx: RetProbeContext) -> u32 {
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    // SAFETY: the map's value, of this task alone.
    let Some(tried) = (unsafe { PENDING_CHARGES.get(task) }) else {
        return 0;
    };
    let tried = *tried;
    let _ = PENDING_CHARGES.remove(task);
    // Of a bool the callee sets the lowest byte.
    if ctx.ret::<u64>() as u8 != 0 {
        on_probed(&ctx, &tried, CacheUser::Charge);
    }
    0
}

/// A batch is about to be charged, whatever the limit; usage is still without it.
#[kprobe(function = "page_counter_charge")]
pub(crate) fn counter_charge_probe(ctx: ProbeContext) -> u32 {
    if let (Some(counter), Some(pages)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1)) {
        on_probed(&ctx, &PendingCharge { counter, pages }, CacheUser::Forced);
    }
    0
}

/// A batch is about to be given back.
#[kprobe(function = "page_counter_uncharge")]
pub(crate) fn counter_uncharge_probe(ctx: ProbeContext) -> u32 {
    let (Some(counter), Some(pages)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1)) else {
        return 0;
    };
    // SAFETY: it is a page counter.
    let found = unsafe { of_counter::<Probe>(counter as *const u8, CacheUser::Near, || counter) };
    if let Some((memcg, way)) = found {
        on_uncharge::<Probe>(memcg, &way, pages);
    }
    0
}

#[inline(always)]
fn on_probed<C: EbpfContext>(ctx: &C, charged: &PendingCharge, keeper: CacheUser) {
    let PendingCharge { counter, pages } = *charged;
    // SAFETY: it is a page counter.
    if let Some((memcg, way)) = unsafe { of_counter::<Probe>(counter as *const u8, keeper, || counter) } {
        on_charge::<Probe, _>(ctx, memcg, &way, Some(pages));
    }
}

/// Pages of `memcg` were given back; `still` of them are not yet taken off its usage. Nothing is
/// counted: only the way down is looked at.
#[inline(always)]
fn on_uncharge<M: Means>(memcg: Memcg, way: &AncestorPath, still: u64) {
    let Some(leaf_id) = way.id(0) else { return };
    each_armed::<M>(&memcg, way, |armed, cgroup_id, usage| {
        let usage = usage.saturating_sub(still);
        compare(armed, &LevelUsage { cgroup_id, leaf_id, usage, charged: None, reclaimed: None });
    });
}
