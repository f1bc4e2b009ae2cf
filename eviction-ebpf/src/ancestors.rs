//! The way up from the memory cgroup that a program saw last on this CPU: who its ancestors are need not be read again
//! at the next charge, which is of the same one nearly always. To read the ids of all levels takes four reads a level,
//! by address where a hook gives a page counter.
//!
//! That it is still the same shows by the number of its css, which no other ever gets. Its ancestors are the same then,
//! since no memory cgroup is ever moved.
//!
//! A program does not run again on a CPU while it runs there, so what it keeps there is its own. Before 5.12 an
//! interrupt may run it all the same, where it is at a function's exit. Then one of the two sees it, and goes no
//! further up: that is counted, and the next sample finds what it would have.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use eviction_common::{ABSENT, Counter, MAX_ANCESTORS};

use crate::{
    config::offset,
    maps::count,
    memcg::{Mark, Memcg},
    probe_read::{Means, Probe},
};

/// A program that keeps a way.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum CacheUser {
    /// The hook on charges that is always there, or that on those that may fail.
    Charge,
    /// The hook on charges that never fail.
    Forced,
    /// The dense hook near a line, or that on what is given back.
    Near,
}

const KEEPERS: u32 = 3;

/// What programs keep on each CPU.
#[map]
static CACHED_PATHS: PerCpuArray<CachedPath> = PerCpuArray::with_max_entries(KEEPERS, 0);

#[derive(Clone, Copy)]
#[repr(C)]
struct CachedPath {
    /// Odd while it is being written.
    turn: u64,
    /// Address of the page counter of the memory cgroup.
    counter: u64,
    /// Its css' number.
    serial: u64,
    /// How many it has above it up to the root, and itself; more than [`MAX_ANCESTORS`] if there are.
    levels: u64,
    /// Theirs, its own first.
    ids: [u64; MAX_ANCESTORS],
}

/// Whose way it is.
struct PathOwner {
    turn: u64,
    counter: u64,
    serial: u64,
}

impl PathOwner {
    /// Volatile, since an interrupt's program may write it meanwhile.
    ///
    /// # Safety
    /// `kept` is the map's value, of this CPU.
    #[inline(always)]
    unsafe fn of(kept: *const CachedPath) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                turn: core::ptr::read_volatile(&raw const (*kept).turn),
                counter: core::ptr::read_volatile(&raw const (*kept).counter),
                serial: core::ptr::read_volatile(&raw const (*kept).serial),
            }
        }
    }
}

/// A memory cgroup and those above it, by their ids.
#[derive(Clone, Copy)]
pub(crate) struct AncestorPath {
    kept: *const CachedPath,
    turn: u64,
    levels: u64,
    /// See [`Mark::is_online`].
    pub(crate) is_online: bool,
}

impl AncestorPath {
    /// The way up from `memcg`, kept or found anew.
    #[inline(always)]
    pub(crate) fn of<M: Means>(memcg: &Memcg, keeper: CacheUser) -> Option<Self> {
        Self::kept::<M>(memcg, keeper).or_else(|| Self::found::<M>(memcg, keeper))
    }

    /// The way up from `memcg` if it is the one that was kept.
    #[inline(always)]
    pub(crate) fn kept<M: Means>(memcg: &Memcg, keeper: CacheUser) -> Option<Self> {
        let kept = CACHED_PATHS.get_ptr(keeper as u32)?;
        // SAFETY: the map's value.
        let whose = unsafe { PathOwner::of(kept) };
        // SAFETY: as above; volatile, as there.
        let levels = unsafe { core::ptr::read_volatile(&raw const (*kept).levels) };
        if whose.turn & 1 != 0 || whose.counter != memcg.counter() as u64 || whose.serial == 0 {
            return None;
        }
        let Mark { serial, is_online } = memcg.mark::<M>();
        (whose.serial == serial).then_some(Self { kept, turn: whose.turn, levels, is_online })
    }

    /// The way up from `memcg`, which is kept; nothing while another run of this program finds its own, which is
    /// counted.
    #[inline(always)]
    pub(crate) fn found<M: Means>(memcg: &Memcg, keeper: CacheUser) -> Option<Self> {
        let kept = CACHED_PATHS.get_ptr_mut(keeper as u32)?;
        // SAFETY: as above. In this order, for whoever interrupts it.
        let turn = unsafe { core::ptr::read_volatile(&raw const (*kept).turn) };
        if turn & 1 != 0 {
            count(Counter::PathTruncated);
            return None;
        }
        let Mark { serial, is_online } = memcg.mark::<M>();
        // SAFETY: as above.
        unsafe {
            core::ptr::write_volatile(&raw mut (*kept).turn, turn + 1);
            core::ptr::write_volatile(&raw mut (*kept).counter, memcg.counter() as u64);
            core::ptr::write_volatile(&raw mut (*kept).serial, serial);
        }
        let levels = climb::<M>(memcg, kept);
        let turn = turn + 2;
        // SAFETY: as above. Read back, so that the verifier does not follow each number of levels on its own.
        let levels = unsafe {
            core::ptr::write_volatile(&raw mut (*kept).levels, levels);
            core::ptr::write_volatile(&raw mut (*kept).turn, turn);
            core::ptr::read_volatile(&raw const (*kept).levels)
        };
        Some(Self { kept, turn, levels, is_online })
    }

    /// The id of the memory cgroup that is so many levels up, itself at 0; nothing beyond the root.
    #[inline(always)]
    pub(crate) fn id(&self, level: usize) -> Option<u64> {
        if level >= MAX_ANCESTORS || level as u64 >= self.levels {
            return None;
        }
        // SAFETY: the map's value; volatile, since an interrupt's program may write it meanwhile.
        let id = unsafe { core::ptr::read_volatile(&raw const (*self.kept).ids[level]) };
        self.is_kept().then_some(id)
    }

    /// Whether it leads up to the root.
    #[inline(always)]
    pub(crate) fn is_whole(&self) -> bool {
        self.levels <= MAX_ANCESTORS as u64 && self.is_kept()
    }

    /// Whether it is still there.
    #[inline(always)]
    fn is_kept(&self) -> bool {
        // SAFETY: the map's value.
        unsafe { core::ptr::read_volatile(&raw const (*self.kept).turn) == self.turn }
    }
}

/// Puts down the ids of `memcg` and of those above it; how many levels that are.
#[inline(always)]
fn climb<M: Means>(memcg: &Memcg, kept: *mut CachedPath) -> u64 {
    let mut memcg = *memcg;
    for level in 0..MAX_ANCESTORS {
        let id = memcg.id::<M>();
        // SAFETY: the map's value, of this CPU.
        unsafe { core::ptr::write_volatile(&raw mut (*kept).ids[level], id) };
        match memcg.parent::<M>() {
            Some(parent) => memcg = parent,
            None => return level as u64 + 1,
        }
    }
    MAX_ANCESTORS as u64 + 1
}

/// Whether this page counter counts memory with swap, or the kernel's, of the memory cgroup that was charged last on this
/// CPU: on cgroup v1 each charge comes by these as well. That one is there still if its css has the number that it had:
/// what is freed is online no more.
#[inline(always)]
pub(crate) fn is_beside(counter: u64) -> bool {
    let Some(kept) = CACHED_PATHS.get_ptr(CacheUser::Charge as u32) else { return false };
    // SAFETY: the map's value. What an interrupt's program makes of it meanwhile is of no memory cgroup.
    let whose = unsafe { PathOwner::of(kept) };
    let memory = whose.counter;
    let first = memory.wrapping_sub(offset!(memcg_memory) as u64);
    let is = |offset: u32| offset != ABSENT && counter == first.wrapping_add(offset as u64);
    if whose.turn & 1 != 0 || whose.serial == 0 || !(is(offset!(memcg_memsw)) || is(offset!(memcg_kmem))) {
        return false;
    }
    // SAFETY: the counter of memory of a memory cgroup when it was kept; any address goes.
    let Mark { serial, is_online } =
        unsafe { Memcg::of_counter(memory as *const u8, memory) }.mark::<Probe>();
    is_online && serial == whose.serial
}

/// The address of a page counter as a plain number, if it is the one that was kept: the hook's own is a pointer of which
/// the verifier knows the type, and one cannot step back from it to what is around it.
#[inline(always)]
pub(crate) fn address_of(counter: *const u8, keeper: CacheUser) -> Option<u64> {
    let kept = CACHED_PATHS.get_ptr(keeper as u32)?;
    // SAFETY: the map's value.
    let address = unsafe { core::ptr::read_volatile(&raw const (*kept).counter) };
    (address == counter as u64).then_some(address)
}
