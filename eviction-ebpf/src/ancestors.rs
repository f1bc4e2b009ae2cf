//! Caches the path from a memory cgroup up to the root. Each program keeps one path per CPU, so that it does
//! not read the ids of all ancestors again at the next charge, which nearly always is of the same cgroup.
//! Reading the ids takes four reads per level, by address if the hook provides a page counter.
//!
//! The serial number of the css, which is never reused, shows whether the cgroup is still the same. Its
//! ancestors are then the same too, since a memory cgroup is never moved.
//!
//! A program does not run again on a CPU while it runs there, so the cache entry of that CPU is its own.
//! Before 5.12 an interrupt may still run it, if it is attached to the exit of a function. One of the two
//! runs detects this and goes no further up. This is counted, and the next sample finds what this run missed.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use eviction_common::{ABSENT, Counter, MAX_ANCESTORS};

use crate::{
    config::offset,
    maps::count,
    memcg::{CssState, Memcg},
    probe_read::{Probe, ReadStrategy},
};

/// A program that caches a path.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum CacheUser {
    /// The charge hook that is always attached, or the hook on charges that may fail.
    Charge,
    /// The hook on charges that never fail.
    Forced,
    /// The frequent hook near a threshold, or the hook on uncharges.
    Near,
}

const CACHE_USERS: u32 = 3;

/// The cached paths of each CPU.
#[map]
static CACHED_PATHS: PerCpuArray<CachedPath> = PerCpuArray::with_max_entries(CACHE_USERS, 0);

#[derive(Clone, Copy)]
#[repr(C)]
struct CachedPath {
    /// A sequence number, which is odd while the entry is being written.
    sequence: u64,
    /// The address of the page counter of the memory cgroup.
    counter: u64,
    /// The serial number of the css.
    serial: u64,
    /// The number of levels from the cgroup up to the root, both included; more than [`MAX_ANCESTORS`] if the
    /// path is longer.
    levels: u64,
    /// The ids of these cgroups, the cgroup's own first.
    ids: [u64; MAX_ANCESTORS],
}

/// The memory cgroup to which a cached path belongs.
struct PathOwner {
    sequence: u64,
    counter: u64,
    serial: u64,
}

impl PathOwner {
    /// Reads the owner of a cached path. Volatile, since a program in an interrupt may write it at the same
    /// time.
    ///
    /// # Safety
    /// `entry` is the map's value, of this CPU.
    #[inline(always)]
    unsafe fn of(entry: *const CachedPath) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                sequence: core::ptr::read_volatile(&raw const (*entry).sequence),
                counter: core::ptr::read_volatile(&raw const (*entry).counter),
                serial: core::ptr::read_volatile(&raw const (*entry).serial),
            }
        }
    }
}

/// The ids of a memory cgroup and its ancestors.
#[derive(Clone, Copy)]
pub(crate) struct AncestorPath {
    entry: *const CachedPath,
    sequence: u64,
    levels: u64,
    /// See [`CssState::is_online`].
    pub(crate) is_online: bool,
}

impl AncestorPath {
    /// Returns the path up from `memcg`, from the cache or newly read.
    #[inline(always)]
    pub(crate) fn of<M: ReadStrategy>(memcg: &Memcg, user: CacheUser) -> Option<Self> {
        Self::cached::<M>(memcg, user).or_else(|| Self::read_path::<M>(memcg, user))
    }

    /// Returns the path up from `memcg` if it is the cached one.
    #[inline(always)]
    pub(crate) fn cached<M: ReadStrategy>(memcg: &Memcg, user: CacheUser) -> Option<Self> {
        let entry = CACHED_PATHS.get_ptr(user as u32)?;
        // SAFETY: the map's value.
        let owner = unsafe { PathOwner::of(entry) };
        // SAFETY: as above; volatile, as there.
        let levels = unsafe { core::ptr::read_volatile(&raw const (*entry).levels) };
        if owner.sequence & 1 != 0 || owner.counter != memcg.counter as u64 || owner.serial == 0 {
            return None;
        }
        let CssState { serial, is_online } = memcg.css_state::<M>();
        (owner.serial == serial).then_some(Self { entry, sequence: owner.sequence, levels, is_online })
    }

    /// Reads and caches the path up from `memcg`. Returns `None` while another run of this program writes the
    /// entry; this is counted.
    #[inline(always)]
    pub(crate) fn read_path<M: ReadStrategy>(memcg: &Memcg, user: CacheUser) -> Option<Self> {
        let entry = CACHED_PATHS.get_ptr_mut(user as u32)?;
        // SAFETY: as above. The order matters for a run that interrupts this one.
        let sequence = unsafe { core::ptr::read_volatile(&raw const (*entry).sequence) };
        if sequence & 1 != 0 {
            count(Counter::PathTruncated);
            return None;
        }
        let CssState { serial, is_online } = memcg.css_state::<M>();
        // SAFETY: as above.
        unsafe {
            core::ptr::write_volatile(&raw mut (*entry).sequence, sequence + 1);
            core::ptr::write_volatile(&raw mut (*entry).counter, memcg.counter as u64);
            core::ptr::write_volatile(&raw mut (*entry).serial, serial);
        }
        let levels = write_ids::<M>(memcg, entry);
        let sequence = sequence + 2;
        // SAFETY: as above. Read back, so that the verifier does not follow each number of levels on its own.
        let levels = unsafe {
            core::ptr::write_volatile(&raw mut (*entry).levels, levels);
            core::ptr::write_volatile(&raw mut (*entry).sequence, sequence);
            core::ptr::read_volatile(&raw const (*entry).levels)
        };
        Some(Self { entry, sequence, levels, is_online })
    }

    /// Returns the id of the memory cgroup `level` levels up, where 0 is the cgroup itself; `None` above the
    /// root.
    #[inline(always)]
    pub(crate) fn id(&self, level: usize) -> Option<u64> {
        if level >= MAX_ANCESTORS || level as u64 >= self.levels {
            return None;
        }
        // SAFETY: the map's value; volatile, since an interrupt's program may write it meanwhile.
        let id = unsafe { core::ptr::read_volatile(&raw const (*self.entry).ids[level]) };
        self.is_current().then_some(id)
    }

    /// Whether the path leads up to the root.
    #[inline(always)]
    pub(crate) fn is_whole(&self) -> bool {
        self.levels <= MAX_ANCESTORS as u64 && self.is_current()
    }

    /// Whether the cache entry still holds this path.
    #[inline(always)]
    fn is_current(&self) -> bool {
        // SAFETY: the map's value.
        unsafe { core::ptr::read_volatile(&raw const (*self.entry).sequence) == self.sequence }
    }
}

/// Writes the ids of `memcg` and its ancestors to the cache entry. Returns the number of levels.
#[inline(always)]
fn write_ids<M: ReadStrategy>(memcg: &Memcg, entry: *mut CachedPath) -> u64 {
    let mut memcg = *memcg;
    for level in 0..MAX_ANCESTORS {
        let id = memcg.id::<M>();
        // SAFETY: the map's value, of this CPU.
        unsafe { core::ptr::write_volatile(&raw mut (*entry).ids[level], id) };
        match memcg.parent::<M>() {
            Some(parent) => memcg = parent,
            None => return level as u64 + 1,
        }
    }
    MAX_ANCESTORS as u64 + 1
}

/// Whether this page counter is the memory+swap or kernel memory counter of the memory cgroup that was
/// charged last on this CPU. On cgroup v1 each charge updates these counters as well. The cgroup still exists
/// if its css has the same serial number: a freed css is not online.
#[inline(always)]
pub(crate) fn is_companion_counter(counter: u64) -> bool {
    let Some(entry) = CACHED_PATHS.get_ptr(CacheUser::Charge as u32) else { return false };
    // SAFETY: the map's value. If a program in an interrupt changes it, it matches no memory cgroup.
    let owner = unsafe { PathOwner::of(entry) };
    let memory = owner.counter;
    let first = memory.wrapping_sub(offset!(memcg_memory) as u64);
    let is = |offset: u32| offset != ABSENT && counter == first.wrapping_add(offset as u64);
    if owner.sequence & 1 != 0 || owner.serial == 0 || !(is(offset!(memcg_memsw)) || is(offset!(memcg_kmem)))
    {
        return false;
    }
    // SAFETY: the address of a memory cgroup's page counter when it was cached; any address can be read.
    let CssState { serial, is_online } =
        unsafe { Memcg::of_counter(memory as *const u8, memory) }.css_state::<Probe>();
    is_online && serial == owner.serial
}

/// Returns the address of a page counter as a plain number if it is the cached one. The verifier knows the
/// type of the hook's own pointer, and does not allow to step back from it to the enclosing structure.
#[inline(always)]
pub(crate) fn address_of(counter: *const u8, user: CacheUser) -> Option<u64> {
    let entry = CACHED_PATHS.get_ptr(user as u32)?;
    // SAFETY: the map's value.
    let address = unsafe { core::ptr::read_volatile(&raw const (*entry).counter) };
    (address == counter as u64).then_some(address)
}
