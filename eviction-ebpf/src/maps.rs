//! All maps. Their sizes are the loader's defaults, which it overrides.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    macros::map,
    maps::{Array, HashMap, PerCpuArray, RingBuf},
};
use eviction_common::{
    AlarmKey, Counter, DISKS, DiskThreshold, DiskTotal, DiskUsage, DiskUser, FireToken, HostTasks,
    LAST_SEEN_SLOTS, LastSeen, MemcgThreshold, OomContext, OomCounts, PidThreshold, PidsCache, ReclaimStart,
    ReclaimTime, THRESHOLD_WORDS, TaskStats,
};

/// All records for user space.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(256 * 1024, 0);

/// The thresholds, by cgroup id.
#[map]
pub(crate) static THRESHOLDS: HashMap<u64, MemcgThreshold> = HashMap::with_max_entries(1024, 0);

/// A bit per cgroup on which a threshold is set ([`threshold_bit`]), so that a charge looks up no other
/// cgroups. Reading an array element needs no call.
///
/// [`threshold_bit`]: eviction_common::threshold_bit
#[map]
pub(crate) static THRESHOLD_BITS: Array<u64> = Array::with_max_entries(THRESHOLD_WORDS, 0);

/// The program that removes a token fires.
#[map]
pub(crate) static FIRE_TOKENS: HashMap<FireToken, u8> = HashMap::with_max_entries(8192, 0);

/// Charge attempts that have not returned yet, by the address of the task. There are no more of them than
/// CPUs, except for tasks that were preempted during an attempt.
#[map]
pub(crate) static PENDING_CHARGES: HashMap<u64, PendingCharge> = HashMap::with_max_entries(1024, 0);

/// A charge attempt of a task.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PendingCharge {
    /// Address of the page counter.
    pub(crate) counter: u64,
    pub(crate) pages: u64,
}

/// The ids of memory cgroups that were charged since user space last removed them.
#[map]
pub(crate) static CHARGED_CGROUPS: HashMap<u64, u8> = HashMap::with_max_entries(4096, 0);

/// The memory cgroup that each CPU inspected last, for each hook.
#[map]
pub(crate) static LAST_SEEN: PerCpuArray<LastSeen> = PerCpuArray::with_max_entries(LAST_SEEN_SLOTS, 0);

/// The event counts of memory cgroups when a program last read them.
#[map]
pub(crate) static OOM_COUNTS: HashMap<u64, OomCounts> = HashMap::with_max_entries(4096, 0);

/// The out-of-memory kill in progress.
#[map]
pub(crate) static OOM_CONTEXT: Array<OomContext> = Array::with_max_entries(1, 0);

/// The task counters of memory cgroups, by the cgroup's id.
#[map]
pub(crate) static TASK_STATS: HashMap<u64, TaskStats> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// The alarms that were sent, with their time, so that each is sent once.
#[map]
pub(crate) static ALARMS_SENT: HashMap<AlarmKey, u64> = HashMap::with_max_entries(1024, 0);

/// See [`HostTasks`].
#[map]
pub(crate) static HOST_TASKS: Array<HostTasks> = Array::with_max_entries(1, 0);

/// See [`PidsCache`].
#[map]
pub(crate) static PIDS_CACHE: PerCpuArray<PidsCache> = PerCpuArray::with_max_entries(1, 0);

/// The thresholds for the number of tasks on the node.
#[map]
pub(crate) static PID_THRESHOLD: Array<PidThreshold> = Array::with_max_entries(1, 0);

/// Tasks in reclaim, by thread id. Preallocated, since memory is short when it is used.
#[map]
pub(crate) static RECLAIM_START: HashMap<u32, ReclaimStart> = HashMap::with_max_entries(2048, 0);

/// Time spent in reclaim, by the id of the memory cgroup. An entry is allocated at the end of its first
/// reclaim.
#[map]
pub(crate) static RECLAIM_TIME: HashMap<u64, ReclaimTime> =
    HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// Thresholds on file systems.
#[map]
pub(crate) static DISK_THRESHOLDS: Array<DiskThreshold> = Array::with_max_entries(DISKS, 0);

/// See [`DiskTotal`].
#[map]
pub(crate) static DISK_TOTALS: Array<DiskTotal> = Array::with_max_entries(DISKS, 0);

/// The usage of those file systems by memory cgroups. An entry is allocated at the first use.
#[map]
pub(crate) static DISK_USAGE: HashMap<DiskUser, DiskUsage> =
    HashMap::with_max_entries(8192, BPF_F_NO_PREALLOC);

/// See [`Counter`].
#[map]
pub(crate) static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::ALL.len() as u32, 0);

/// Adds to a value that other CPUs add to as well. The result is not used, and the order does not matter.
/// This is the one atomic instruction of kernels before 5.12.
///
/// # Safety
/// `word` points to an aligned u64 inside a map's value or the ring.
#[inline(always)]
pub(crate) unsafe fn add(word: *mut u64, amount: u64) {
    // SAFETY: the caller's promise.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, amount) };
}

/// Increments a counter.
#[inline(always)]
pub(crate) fn count(counter: Counter) {
    if let Some(word) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the map's value.
        unsafe { add(word, 1) };
    }
}
