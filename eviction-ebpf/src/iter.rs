//! The iterator over cgroups: figures of all memory cgroups in one pass (from 6.1).
//!
//! The kernel walks the cgroups below the one that the link was made with, in a task's context and
//! under its mutex of cgroups, and calls the program for each. The rows go to a map and not to
//! the iterator's own output, which holds 32 KB and cannot be continued. Some 0.5 µs a cgroup,
//! and thrice that where nothing of it is in the processor's caches.

use core::{ffi::c_void, mem::MaybeUninit};

use aya_ebpf::{
    Global,
    helpers::{bpf_ktime_get_ns, generated::bpf_probe_read_kernel},
};
use eviction_common::{
    ABSENT, ACTIVE_GENERATIONS, GENERATIONS, MAX_LISTS, MAX_NODES, MAX_ZONES, Usage, UsageSetup,
};

use crate::{
    maps::USAGES,
    memcg::{Memcg, id_of_cgroup},
    read::{Direct, Probe, Read},
    setup::{is_ours, offset},
};

/// Overridden by the loader.
#[unsafe(no_mangle)]
static USAGE_SETUP: Global<UsageSetup> = Global::new(UsageSetup::NONE);

/// The value of one member of [`UsageSetup`].
macro_rules! told {
    ($member:ident) => {
        told_at(core::mem::offset_of!(UsageSetup, $member))
    };
}

#[inline(always)]
fn told_at(place: usize) -> u32 {
    let setup: *const u32 = (&raw const USAGE_SETUP).cast();
    // SAFETY: `told!` gives the place of a u32 inside it. Volatile, since the loader changes it.
    unsafe { core::ptr::read_volatile(setup.byte_add(place)) }
}

/// Called for each cgroup, each parent before its children, and once more at the end.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/cgroup")]
fn usages(ctx: *mut c_void) -> i32 {
    // SAFETY: `struct bpf_iter__cgroup`: two pointers, which the verifier knows the types of.
    let (meta, cgroup) = unsafe {
        let ctx = ctx.cast::<*const u8>();
        (core::ptr::read_volatile(ctx), core::ptr::read_volatile(ctx.add(1)))
    };
    if is_ours() {
        // SAFETY: the first is a `bpf_iter_meta`.
        let (session, number): (u64, u64) =
            unsafe { (Direct::at(meta, told!(meta_session)), Direct::at(meta, told!(meta_number))) };
        match cgroup.is_null() {
            true => note_end(session, number),
            false => note(session, number, cgroup),
        }
    }
    0
}

/// The pass is over; its last cgroup had this number.
#[inline(always)]
fn note_end(session: u64, number: u64) {
    if let Some(row) = USAGES.get_ptr_mut(0) {
        // SAFETY: the map's value.
        unsafe { *row = Usage { session, id: number.wrapping_add(1), ..Usage::EMPTY } };
    }
}

#[inline(always)]
fn note(session: u64, number: u64, cgroup: *const u8) {
    // SAFETY: `cgroup` is a cgroup that the verifier knows, and the types are those of the members.
    let (css, dying, level): (u64, u32, u32) = unsafe {
        (
            Direct::at(cgroup, told!(cgroup_memory)),
            Direct::at(cgroup, told!(cgroup_dying)),
            Direct::at(cgroup, offset!(cgroup_level)),
        )
    };
    // Removed meanwhile, or the controller is off there: its tasks are charged to a cgroup above.
    if css == 0 {
        return;
    }
    let Some(row) = USAGES.get_ptr_mut(number.wrapping_add(1) as u32) else {
        return;
    };
    let css = css as *const u8;
    // SAFETY: a css is the first member of its memory cgroup (the loader checks it).
    let memcg = unsafe { Memcg::new(css) };
    let inactive_file = inactive_file(css);
    // SAFETY: the map's value; members of the memory cgroup; a helper without arguments.
    unsafe {
        *row = Usage {
            session,
            id: id_of_cgroup::<Direct>(cgroup),
            usage: memcg.usage::<Probe>(),
            max: memcg.max::<Probe>(),
            failures: Probe::at(css.wrapping_add(offset!(memcg_memory) as usize), told!(counter_failures)),
            inactive_file,
            ktime_ns: bpf_ktime_get_ns(),
            dying,
            level: level as u16,
            has_inactive_file: has_inactive_file() as u16,
        };
    }
}

#[inline(always)]
fn has_inactive_file() -> bool {
    told!(zones) != 0 && told!(nodes) != 0 && told!(memcg_nodes) != ABSENT
}

/// The sizes of the memory cgroup's own lists. The kernel keeps them exactly, under the lists'
/// locks: unlike memory.stat they need no flush. Pages that wait in a CPU's batch to be put on a
/// list, some dozens for each CPU, are not in them yet.
///
/// A page is on a list or in a generation (MGLRU), never in both, and which of the two is used may
/// be switched while the kernel runs: their sum is right all the while.
#[inline(always)]
fn inactive_file(memcg: *const u8) -> u64 {
    let mut pages = 0_u64;
    if !has_inactive_file() {
        return pages;
    }
    for node in 0..MAX_NODES {
        if node >= told!(nodes) {
            break;
        }
        // SAFETY: any address goes.
        let lists: u64 = unsafe { Probe::at(memcg, told!(memcg_nodes) + node * 8) };
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
