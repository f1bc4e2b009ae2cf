//! How much inactive page cache a memory cgroup has, by the sizes of its lists.

use core::mem::MaybeUninit;

use aya_ebpf::{Global, helpers::generated::bpf_probe_read_kernel};
use eviction_common::{ABSENT, ACTIVE_GENERATIONS, GENERATIONS, MAX_LISTS, MAX_NODES, MAX_ZONES, UsageSetup};

use crate::read::{Probe, Read};

/// Overridden by the loader.
#[unsafe(no_mangle)]
static USAGE_SETUP: Global<UsageSetup> = Global::new(UsageSetup::NONE);

/// The value of one member of [`UsageSetup`].
macro_rules! told {
    ($member:ident) => {
        crate::lists::told_at(core::mem::offset_of!(eviction_common::UsageSetup, $member))
    };
}
pub(crate) use told;

/// The word that lies `place` bytes into [`USAGE_SETUP`].
#[inline(always)]
pub(crate) fn told_at(place: usize) -> u32 {
    let setup: *const u32 = (&raw const USAGE_SETUP).cast();
    // SAFETY: `told!` gives the place of a u32 inside it. Volatile, since the loader changes it.
    unsafe { core::ptr::read_volatile(setup.byte_add(place)) }
}

/// Whether the page cache can be told.
#[inline(always)]
pub(crate) fn has_inactive_file() -> bool {
    told!(zones) != 0 && told!(nodes) != 0 && told!(memcg_nodes) != ABSENT
}

/// The sizes of the memory cgroup's own lists, of which those of its first memory node are known. The kernel keeps
/// them exactly, under the lists' locks: unlike memory.stat they need no flush. Pages that wait in a CPU's batch to
/// be put on a list, some dozens for each CPU, are not in them yet.
///
/// A page is on a list or in a generation (MGLRU), never in both, and which of the two is used may
/// be switched while the kernel runs: their sum is right all the while.
#[inline(always)]
pub(crate) fn inactive_file(memcg: *const u8, first: u64) -> u64 {
    let mut pages = 0_u64;
    if !has_inactive_file() {
        return pages;
    }
    for node in 0..MAX_NODES {
        if node >= told!(nodes) {
            break;
        }
        let lists = if node == 0 { first } else { lists_of(memcg, node) };
        if lists == 0 {
            continue;
        }
        let lists = lists as *const u8;
        pages = pages.wrapping_add(sum(lists, told!(node_inactive_file), told!(zone_stride)));
        if told!(generation) != ABSENT {
            pages = pages.wrapping_add(old_generations(lists));
        }
    }
    // The kernel's sums of generations may be below zero for a moment.
    if (pages as i64) < 0 { 0 } else { pages }
}

/// The lists of a memory cgroup's first memory node; 0 where the page cache cannot be told.
#[inline(always)]
pub(crate) fn first_lists(memcg: *const u8) -> u64 {
    if has_inactive_file() { lists_of(memcg, 0) } else { 0 }
}

#[inline(always)]
fn lists_of(memcg: *const u8, node: u32) -> u64 {
    // SAFETY: any address goes.
    unsafe { Probe::at(memcg, told!(memcg_nodes) + node * 8) }
}

/// File pages in the generations that do not count as active.
#[inline(always)]
fn old_generations(lists: *const u8) -> u64 {
    // SAFETY: any address goes.
    let youngest: u64 = unsafe { Probe::at(lists, told!(generation)) };
    let mut pages = 0_u64;
    // The oldest are those that come round next.
    for next in 1..=GENERATIONS - ACTIVE_GENERATIONS {
        let generation = (youngest as u32).wrapping_add(next) % GENERATIONS;
        let place = told!(generation_file) + generation * told!(generation_stride);
        pages = pages.wrapping_add(sum(lists, place, size_of::<u64>() as u32));
    }
    pages
}

/// A number for each zone, added up. One call fetches them all, with what lies between them: the price of a call
/// is that of dozens of bytes.
#[inline(always)]
fn sum(lists: *const u8, first: u32, stride: u32) -> u64 {
    const WORD: u32 = size_of::<u64>() as u32;
    let zones = told!(zones);
    // The loader keeps to it, and all of these are constants to the verifier, since the setup is frozen: so it knows
    // how much is fetched, and that only that is read. 320 of the 512 bytes of stack.
    if zones == 0 || zones > MAX_ZONES || stride > MAX_LISTS * WORD {
        return 0;
    }
    let mut fetched = MaybeUninit::<[u64; (MAX_ZONES * MAX_LISTS) as usize]>::uninit();
    let length = (zones - 1) * stride + WORD;
    let from = lists.wrapping_add(first as usize);
    // SAFETY: there is room for it, and any address goes.
    if unsafe { bpf_probe_read_kernel(fetched.as_mut_ptr().cast(), length, from.cast()) } != 0 {
        return 0;
    }
    let mut pages = 0_u64;
    for zone in 0..MAX_ZONES {
        if zone >= zones {
            break;
        }
        let size = fetched.as_ptr().cast::<u64>().wrapping_byte_add((zone * stride) as usize);
        // SAFETY: it was fetched.
        pages = pages.wrapping_add(unsafe { size.read_volatile() });
    }
    pages
}
