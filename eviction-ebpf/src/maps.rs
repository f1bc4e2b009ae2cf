//! All maps. Their sizes are those of the loader's defaults; it overrides them.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    macros::map,
    maps::{Array, HashMap, PerCpuArray, RingBuf},
};
use eviction_common::{
    AlarmKey, ChargedCgroup, Counter, DISKS, DiskThreshold, DiskTotal, DiskUsage, DiskUser, FireToken,
    HostTasks, LAST_SEEN_SLOTS, LastSeen, MemcgThreshold, OomContext, OomCounts, PidThreshold, PidsCache,
    ReclaimStart, ReclaimTime, THRESHOLD_WORDS, TaskCount,
};

/// Everything that is told to user space.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(256 * 1024, 0);

/// What is armed, by the id of the cgroup.
#[map]
pub(crate) static THRESHOLDS: HashMap<u64, MemcgThreshold> = HashMap::with_max_entries(1024, 0);

/// On which cgroups something is armed, so that a charge looks up no others: by [`threshold_bit`]. A
/// word of an array is had without a call.
///
/// [`threshold_bit`]: eviction_common::threshold_bit
#[map]
pub(crate) static THRESHOLD_BITS: Array<u64> = Array::with_max_entries(THRESHOLD_WORDS, 0);

/// Who takes a ticket out fires.
#[map]
pub(crate) static FIRE_TOKENS: HashMap<FireToken, u8> = HashMap::with_max_entries(8192, 0);

/// Tries to charge that have not returned yet, by the address of the task. No more can be under
/// way than there are CPUs, but for tasks that lost theirs in the middle of it.
#[map]
pub(crate) static PENDING_CHARGES: HashMap<u64, PendingCharge> = HashMap::with_max_entries(1024, 0);

/// What a task tries to charge.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PendingCharge {
    /// Address of the page counter.
    pub(crate) counter: u64,
    pub(crate) pages: u64,
}

/// Memory cgroups that charged since user space last took them out.
#[map]
pub(crate) static CHARGED_CGROUPS: HashMap<u64, ChargedCgroup> = HashMap::with_max_entries(4096, 0);

/// Where each CPU looked last, for each hook.
#[map]
pub(crate) static LAST_SEEN: PerCpuArray<LastSeen> = PerCpuArray::with_max_entries(LAST_SEEN_SLOTS, 0);

/// Event counts of memory cgroups as they were last seen.
#[map]
pub(crate) static OOM_COUNTS: HashMap<u64, OomCounts> = HashMap::with_max_entries(4096, 0);

/// What the kernel is about while it kills.
#[map]
pub(crate) static OOM_CONTEXT: Array<OomContext> = Array::with_max_entries(1, 0);

/// What the tasks of memory cgroups did, by the id of the cgroup.
#[map]
pub(crate) static TASK_STATS: HashMap<u64, TaskCount> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// What was told of tasks and when, so that it is told once.
#[map]
pub(crate) static ALARMS_SENT: HashMap<AlarmKey, u64> = HashMap::with_max_entries(1024, 0);

/// See [`HostTasks`].
#[map]
pub(crate) static HOST_TASKS: Array<HostTasks> = Array::with_max_entries(1, 0);

/// See [`PidsCache`].
#[map]
pub(crate) static PIDS_CACHE: PerCpuArray<PidsCache> = PerCpuArray::with_max_entries(1, 0);

/// What the node is told of its tasks.
#[map]
pub(crate) static PID_THRESHOLD: Array<PidThreshold> = Array::with_max_entries(1, 0);

/// Tasks in reclaim, by thread id. Allocated ahead: memory is short where it is used.
#[map]
pub(crate) static RECLAIM_START: HashMap<u32, ReclaimStart> = HashMap::with_max_entries(2048, 0);

/// How many there are in [`RECLAIM_START`], so that a task's end looks for none where there is none.
#[map]
pub(crate) static RECLAIM_ACTIVE: Array<u64> = Array::with_max_entries(1, 0);

/// Time spent in reclaim, by the id of the memory cgroup. Memory is taken at its first reclaim's end.
#[map]
pub(crate) static RECLAIM_TIME: HashMap<u64, ReclaimTime> =
    HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// Thresholds on file systems.
#[map]
pub(crate) static DISK_THRESHOLDS: Array<DiskThreshold> = Array::with_max_entries(DISKS, 0);

/// See [`DiskTotal`].
#[map]
pub(crate) static DISK_TOTALS: Array<DiskTotal> = Array::with_max_entries(DISKS, 0);

/// What memory cgroups took of those file systems. Memory is taken at the first of it.
#[map]
pub(crate) static DISK_USAGE: HashMap<DiskUser, DiskUsage> =
    HashMap::with_max_entries(8192, BPF_F_NO_PREALLOC);

/// See [`Counter`].
#[map]
pub(crate) static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::COUNT, 0);

/// Adds to a word that others add to as well. The result is not asked for, and the order does
/// not matter: so it is the one atomic instruction that kernels before 5.12 have.
///
/// # Safety
/// `word` points to an aligned u64 inside a map's value or the ring.
#[inline(always)]
pub(crate) unsafe fn add(word: *mut u64, amount: u64) {
    // SAFETY: the caller's promise.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, amount) };
}

/// Counts one more.
#[inline(always)]
pub(crate) fn count(counter: Counter) {
    if let Some(word) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the map's value.
        unsafe { add(word, 1) };
    }
}

/// How often it was counted on this CPU.
#[inline(always)]
pub(crate) fn counted(counter: Counter) -> u64 {
    match COUNTERS.get(counter as u32) {
        Some(count) => *count,
        None => 0,
    }
}
