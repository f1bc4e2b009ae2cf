//! Kernel kill: carries out the armed kill order on the charging process.
//!
//! The programs do not search for a process. They run in the context of the charging task, and all conditions
//! ([`KillOrder::decide`]) apply to that task: its cgroup, its memory, its growth. The task handles the
//! signal before it touches another page. A charge in an interrupt sees the interrupted task; the conditions
//! then apply to that task, which would also receive the signal.
//!
//! Cost while no threshold is near: one array lookup. Cost near a threshold: a few reads and the ancestor
//! path up to the level, for each inspected charge.

use aya_ebpf::{
    bindings::{BPF_NOEXIST, BPF_RB_NO_WAKEUP},
    helpers::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns,
        generated::bpf_send_signal,
    },
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray},
};
use eviction_common::{
    Charge, ChargingProcess, GrowthBaseline, KernelKill, KernelKillCause, KillDecision, KillOrder, Kind,
    MARK_EPOCH, MARK_LEVEL, MARKS, MAX_ANCESTORS, Suppressed, SuppressedCount,
};

use crate::{
    ancestors::AncestorPath,
    config::{has_kernel_kill, offset},
    events::{URGENT, header},
    maps::{EVENTS, add},
    memcg::{Memcg, id_of_task, max_of, parent_counter, usage_of},
    probe_read::{Probe, Read, ReadStrategy},
};

const SIGKILL: u32 = 9;

/// See [`MARK_EPOCH`].
#[map]
static SAMPLE_EPOCH: Array<u64> = Array::with_max_entries(MARKS, 0);

/// The armed kill order.
#[map]
static KILL_ORDER: Array<KillOrder> = Array::with_max_entries(1, 0);

/// The generations of armed kill orders. The program that removes one carries out the order.
#[map]
pub(crate) static KILL_ORDER_TOKEN: HashMap<u64, u8> = HashMap::with_max_entries(8, 0);

/// The pages of processes in the last two epochs. The least recently used entry is replaced.
#[map]
static GROWTH_BASELINE: LruHashMap<u32, GrowthBaseline> = LruHashMap::with_max_entries(4096, 0);

/// The level's page counter in the last two epochs.
#[map]
static USAGE_BASELINE: Array<GrowthBaseline> = Array::with_max_entries(1, 0);

/// See [`Suppressed`].
#[map]
static SUPPRESSED: PerCpuArray<SuppressedCount> =
    PerCpuArray::with_max_entries(Suppressed::ALL.len() as u32, 0);

/// The running task.
pub(crate) struct Running {
    pub(crate) task: *const u8,
    pub(crate) tgid: u32,
    /// The address of the `mm_struct`; 0 for a kernel thread.
    pub(crate) mm: u64,
    /// Anonymous pages of the process.
    anon: u64,
}

/// The level of the kill order, an ancestor of the charged memory cgroup or that cgroup itself.
struct GuardedLevel {
    usage: u64,
    max: u64,
    /// Whether the victim is on the path to the level.
    through_victim: bool,
}

/// Applies the kill order to a charge of `memcg`, whose id is `leaf_id`; `path` is its ancestor path.
#[inline(always)]
pub(crate) fn apply_kill_order<M: ReadStrategy>(memcg: &Memcg, path: &AncestorPath, leaf_id: u64) {
    if !has_kernel_kill() {
        return;
    }
    let (epoch, level_id) = (sample_epoch_element(MARK_EPOCH), sample_epoch_element(MARK_LEVEL));
    if epoch == 0 {
        return;
    }
    let Some(order) = KILL_ORDER.get(0) else { return };
    // SAFETY: the map's value; volatile, since user space writes it.
    let order = unsafe { core::ptr::read_volatile(order) };
    let Some(level) = find_level::<M>(memcg, path, level_id, order.victim_id) else { return };
    let running = running();
    let grown = store_growth_baseline(&running, epoch, order.epoch);
    let Some(baseline) = USAGE_BASELINE.get_ptr_mut(0) else { return };
    store_baseline(baseline, level_id, epoch, level.usage);
    let charge = Charge {
        level_id,
        usage: level.usage,
        max: level.max,
        baseline: baseline_at(baseline, level_id, order.epoch),
        grown,
    };
    let decision = order.decide(&charge, || ChargingProcess {
        is_within_victim: level.through_victim,
        tgid: running.tgid,
        has_memory: running.mm != 0,
        // SAFETY: the running task.
        is_in_charged_cgroup: unsafe { id_of_task::<Probe>(running.task) == leaf_id },
        // SAFETY: a helper without arguments.
        now_ns: unsafe { bpf_ktime_get_ns() },
    });
    let KillOrder { generation, victim_id, .. } = order;
    let (cause, usage) = (KernelKillCause::Memory, level.usage);
    carry_out(decision, &DecidedOrder { cause, generation, victim_id, leaf_id, usage });
}

/// Reads an element of map `SAMPLE_EPOCH`.
#[inline(always)]
fn sample_epoch_element(index: u32) -> u64 {
    match SAMPLE_EPOCH.get(index) {
        // SAFETY: the map's value; volatile, since user space writes it.
        Some(value) => unsafe { core::ptr::read_volatile(value) },
        None => 0,
    }
}

/// An order that was decided on.
pub(crate) struct DecidedOrder {
    pub(crate) cause: KernelKillCause,
    pub(crate) generation: u64,
    pub(crate) victim_id: u64,
    pub(crate) leaf_id: u64,
    pub(crate) usage: u64,
}

/// Carries out the decision on the running process, or counts why it is not killed.
#[inline(always)]
pub(crate) fn carry_out(decision: KillDecision, order: &DecidedOrder) {
    let why = match decision {
        KillDecision::Pass => return,
        KillDecision::Suppress(why) => Some(why),
        KillDecision::Kill(grown) => send_kill(order, grown),
    };
    if let Some(why) = why {
        count_suppressed(why, order.generation);
    }
}

/// Sends the signal to the running process, if the order was not carried out before.
#[inline(always)]
fn send_kill(order: &DecidedOrder, grown: u64) -> Option<Suppressed> {
    let Some(mut entry) = EVENTS.reserve::<KernelKill>(0) else {
        return Some(Suppressed::NoRoom);
    };
    if KILL_ORDER_TOKEN.remove(order.generation).is_err() {
        entry.discard(BPF_RB_NO_WAKEUP as u64);
        return Some(Suppressed::Spent);
    }
    let (task, comm) = (bpf_get_current_pid_tgid(), bpf_get_current_comm().unwrap_or_default());
    // SAFETY: a helper that takes any number.
    let error = unsafe { bpf_send_signal(SIGKILL) };
    entry.write(KernelKill {
        header: header::<KernelKill>(Kind::KernelKill),
        generation: order.generation,
        victim_id: order.victim_id,
        leaf_id: order.leaf_id,
        usage: order.usage,
        grown,
        tgid: (task >> 32) as u32,
        pid: task as u32,
        error: error as i32,
        cause: order.cause as u32,
        comm,
    });
    entry.submit(URGENT);
    (error != 0).then_some(Suppressed::Refused)
}

/// Returns the running task.
#[inline(always)]
pub(crate) fn running() -> Running {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() } as *const u8;
    // SAFETY: the running task and its memory; any address can be read.
    let (mm, anon) = unsafe {
        let mm: u64 = Probe::at(task, offset!(task_mm));
        match mm {
            0 => (0, 0),
            mm => (mm, Probe::at(mm as *const u8, offset!(mm_anon))),
        }
    };
    // The count can be negative for a moment, while CPUs have not flushed their own counts.
    let anon = if (anon as i64) < 0 { 0 } else { anon };
    Running { task, tgid, mm, anon }
}

/// Stores the pages of the process, if it was not seen in this epoch. Returns its growth since the epoch of the
/// kill order; 0 if not known.
#[inline(always)]
fn store_growth_baseline(running: &Running, epoch: u64, order_epoch: u64) -> u64 {
    let Running { tgid, mm, anon, .. } = *running;
    if mm == 0 {
        return 0;
    }
    match GROWTH_BASELINE.get_ptr_mut(tgid) {
        Some(baseline) => {
            store_baseline(baseline, mm, epoch, anon);
            baseline_at(baseline, mm, order_epoch).map_or(0, |then| anon.saturating_sub(then))
        }
        None => {
            let first = GrowthBaseline { of: mm, epoch, pages: anon, before_epoch: 0, before_pages: 0 };
            // Another thread may insert it first. If the map is full, the process counts as not grown.
            let _ = GROWTH_BASELINE.insert(tgid, first, BPF_NOEXIST as u64);
            0
        }
    }
}

/// Stores the pages of an owner, if that was not done in this epoch.
#[inline(always)]
fn store_baseline(baseline: *mut GrowthBaseline, of: u64, epoch: u64, pages: u64) {
    // SAFETY: the map's value. Other CPUs may write it at the same time, for the same owner. Then each stores
    // the pages of this epoch, and the previous epoch may be lost.
    unsafe {
        let last = core::ptr::read_volatile(&raw const (*baseline).epoch);
        let is_same = core::ptr::read_volatile(&raw const (*baseline).of) == of;
        if is_same && last == epoch {
            return;
        }
        let (before, before_pages) = match is_same {
            true => (last, core::ptr::read_volatile(&raw const (*baseline).pages)),
            false => (0, 0),
        };
        core::ptr::write_volatile(&raw mut (*baseline).epoch, 0);
        core::ptr::write_volatile(&raw mut (*baseline).before_epoch, before);
        core::ptr::write_volatile(&raw mut (*baseline).before_pages, before_pages);
        core::ptr::write_volatile(&raw mut (*baseline).of, of);
        core::ptr::write_volatile(&raw mut (*baseline).pages, pages);
        core::ptr::write_volatile(&raw mut (*baseline).epoch, epoch);
    }
}

/// Returns the pages of an owner when it was first seen in this epoch or a later one, as far as the two epochs
/// that are stored show it; `None` if it was not.
#[inline(always)]
fn baseline_at(baseline: *const GrowthBaseline, of: u64, epoch: u64) -> Option<u64> {
    // SAFETY: the map's value, which other CPUs may write.
    let (owner, at, then, before, before_then) = unsafe {
        (
            core::ptr::read_volatile(&raw const (*baseline).of),
            core::ptr::read_volatile(&raw const (*baseline).epoch),
            core::ptr::read_volatile(&raw const (*baseline).pages),
            core::ptr::read_volatile(&raw const (*baseline).before_epoch),
            core::ptr::read_volatile(&raw const (*baseline).before_pages),
        )
    };
    if owner != of || at < epoch {
        return None;
    }
    // Nothing was charged between an epoch and the first later one in which the owner was seen. If that one is
    // not stored any more, growth is undercounted, which kills no process too early.
    Some(if before >= epoch { before_then } else { then })
}

/// Returns the level with this id; `None` if it is not on the path up.
#[inline(always)]
fn find_level<M: ReadStrategy>(
    memcg: &Memcg,
    path: &AncestorPath,
    level_id: u64,
    victim_id: u64,
) -> Option<GuardedLevel> {
    let mut counter = memcg.counter;
    let mut through_victim = false;
    for depth in 0..MAX_ANCESTORS {
        let id = path.id(depth)?;
        through_victim |= id == victim_id;
        if id == level_id {
            // SAFETY: a page counter.
            let (usage, max) = unsafe { (usage_of::<M>(counter), max_of::<M>(counter)) };
            return Some(GuardedLevel { usage, max, through_victim });
        }
        // SAFETY: a page counter.
        counter = unsafe { parent_counter::<M>(counter) };
    }
    None
}

/// Counts the reason, once for each kill order and CPU.
#[inline(always)]
fn count_suppressed(why: Suppressed, generation: u64) {
    let Some(count) = SUPPRESSED.get_ptr_mut(why as u32) else { return };
    // SAFETY: the map's value, of this CPU.
    unsafe {
        if core::ptr::read_volatile(&raw const (*count).generation) == generation {
            return;
        }
        core::ptr::write_volatile(&raw mut (*count).generation, generation);
        add(&raw mut (*count).count, 1);
    }
}
