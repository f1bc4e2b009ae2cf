//! All maps. Their sizes are those of the loader's defaults; it overrides them.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    macros::map,
    maps::{Array, HashMap, PerCpuArray, Queue, RingBuf},
};
use eviction_common::{
    ARMED_WORDS, AlarmKey, Armed, Choice, Counter, Dirty, LAST_GROUPS, LAST_HOOKS, Last, LastGroup, LastPids,
    MachineTasks, NodeTasks, ReclaimStart, SeenOom, Stall, TaskCount, Ticket,
};

/// Everything that is told to user space.
#[map]
pub(crate) static RING: RingBuf = RingBuf::with_byte_size(256 * 1024, 0);

/// What is armed, by the id of the cgroup.
#[map]
pub(crate) static ARMED: HashMap<u64, Armed> = HashMap::with_max_entries(1024, 0);

/// On which cgroups something is armed, so that a charge looks up no others: by [`armed_bit`]. A
/// word of an array is had without a call.
///
/// [`armed_bit`]: eviction_common::armed_bit
#[map]
pub(crate) static ARMED_BITS: Array<u64> = Array::with_max_entries(ARMED_WORDS, 0);

/// Who takes a ticket out fires.
#[map]
pub(crate) static TICKETS: HashMap<Ticket, u8> = HashMap::with_max_entries(8192, 0);

/// Tries to charge that have not returned yet, by the address of the task. No more can be under
/// way than there are CPUs, but for tasks that lost theirs in the middle of it.
#[map]
pub(crate) static TRIES: HashMap<u64, Try> = HashMap::with_max_entries(1024, 0);

/// What a task tries to charge.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Try {
    /// Address of the page counter.
    pub(crate) counter: u64,
    pub(crate) pages: u64,
}

/// Memory cgroups that charged since user space last took them out.
#[map]
pub(crate) static DIRTY: HashMap<u64, Dirty> = HashMap::with_max_entries(4096, 0);

/// Where each CPU looked last, for each hook.
#[map]
pub(crate) static LAST: PerCpuArray<Last> = PerCpuArray::with_max_entries(LAST_HOOKS, 0);

/// Event counts of memory cgroups as they were last seen.
#[map]
pub(crate) static SEEN_OOM: HashMap<u64, SeenOom> = HashMap::with_max_entries(4096, 0);

/// What the kernel is about while it kills.
#[map]
pub(crate) static CHOICE: Array<Choice> = Array::with_max_entries(1, 0);

/// What the tasks of memory cgroups did: an array, since an element of it is had without a call, and one
/// that could be mapped, since it begins with a line of the processor's cache then, and so does each element.
#[map]
pub(crate) static TASKS: Array<TaskCount> = Array::with_max_entries(4096, BPF_F_MMAPABLE);

/// Where in [`TASKS`], by the id of the memory cgroup.
#[map]
pub(crate) static TASK_PLACES: HashMap<u64, u32> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// The places of [`TASKS`] that are nobody's. Who takes a cgroup out of [`TASK_PLACES`] puts its place in
/// here; the loader put all in.
#[map]
pub(crate) static FREE_PLACES: Queue<u32> = Queue::with_max_entries(4096, 0);

/// See [`LastGroup`].
#[map]
pub(crate) static LAST_GROUP: PerCpuArray<LastGroup> = PerCpuArray::with_max_entries(LAST_GROUPS, 0);

/// What was told of tasks and when, so that it is told once.
#[map]
pub(crate) static ALARMED: HashMap<AlarmKey, u64> = HashMap::with_max_entries(1024, 0);

/// See [`MachineTasks`].
#[map]
pub(crate) static MACHINE_TASKS: Array<MachineTasks> = Array::with_max_entries(1, 0);

/// See [`LastPids`].
#[map]
pub(crate) static LAST_PIDS: PerCpuArray<LastPids> = PerCpuArray::with_max_entries(1, 0);

/// What the node is told of its tasks.
#[map]
pub(crate) static NODE_TASKS: Array<NodeTasks> = Array::with_max_entries(1, 0);

/// Tasks in reclaim, by thread id. Allocated ahead: memory is short where it is used.
#[map]
pub(crate) static RECLAIMING: HashMap<u32, ReclaimStart> = HashMap::with_max_entries(2048, 0);

/// How many there are in [`RECLAIMING`], so that a task's end looks for none where there is none.
#[map]
pub(crate) static RECLAIMERS: Array<u64> = Array::with_max_entries(1, 0);

/// Time spent in reclaim, by the id of the memory cgroup. Memory is taken at its first reclaim's end.
#[map]
pub(crate) static STALLS: HashMap<u64, Stall> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

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
