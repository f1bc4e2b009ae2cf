//! Kernel kill: carries out the armed kill order on the process that charges.
//!
//! Nothing here looks for a process. What runs is the task that charges, in its own context, and all
//! conditions ([`Verdict::judge`]) are on that very task: its cgroup, its memory, its growth. A signal sent to it is
//! taken before it touches another page. An interrupt's charge finds the interrupted task; then too
//! the conditions are on the one that would be signalled.
//!
//! Cost while no threshold is near: one lookup in an array; while one is near: a few reads and the way up
//! to the level, for each inspected charge.

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
    ABSENT, Charge, GrowthBaseline, Judgement, KernelKill, KernelKillCause, KillOrder, Kind, MARK_EPOCH,
    MARK_LEVEL, MARKS, MAX_ANCESTORS, Suppressed, SuppressedCount,
};

use crate::{
    ancestors::AncestorPath,
    config::{has_kernel_kill, offset},
    events::{URGENT, header},
    maps::{EVENTS, add},
    memcg::{Memcg, counter_above, id_of_task, max_of, usage_of},
    probe_read::{Means, Probe, Read},
};

const SIGKILL: u32 = 9;

/// See [`MARK_EPOCH`].
#[map]
static SAMPLE_EPOCH: Array<u64> = Array::with_max_entries(MARKS, 0);

/// The armed kill order.
#[map]
static KILL_ORDER: Array<KillOrder> = Array::with_max_entries(1, 0);

/// Numbers of armed kill orders: whoever takes one out carries it out.
#[map]
pub(crate) static KILL_ORDER_TOKEN: HashMap<u64, u8> = HashMap::with_max_entries(8, 0);

/// What processes had at the last two marks; the least recently seen makes room.
#[map]
static GROWTH_BASELINE: LruHashMap<u32, GrowthBaseline> = LruHashMap::with_max_entries(4096, 0);

/// What the level's page counter said at the last two marks.
#[map]
static USAGE_BASELINE: Array<GrowthBaseline> = Array::with_max_entries(1, 0);

/// See [`Suppressed`].
#[map]
static SUPPRESSED: PerCpuArray<SuppressedCount> = PerCpuArray::with_max_entries(Suppressed::COUNT, 0);

/// The running task.
pub(crate) struct Running {
    pub(crate) task: *const u8,
    pub(crate) tgid: u32,
    pub(crate) pid: u32,
    /// 0 for a task of the kernel.
    pub(crate) mm: u64,
    /// Its anonymous pages.
    anon: u64,
}

/// The level of the kill order, above the memory cgroup that was charged.
struct GuardedLevel {
    usage: u64,
    max: u64,
    /// The victim is on the way to it.
    through_victim: bool,
}

/// `memcg`, whose id is `leaf_id`, was charged; `way` leads up from it.
#[inline(always)]
pub(crate) fn judge_charge<M: Means>(memcg: &Memcg, way: &AncestorPath, leaf_id: u64) {
    if !has_kernel_kill() || offset!(task_mm) == ABSENT || offset!(mm_anon) == ABSENT {
        return;
    }
    let (epoch, level_id) = (marked(MARK_EPOCH), marked(MARK_LEVEL));
    if epoch == 0 {
        return;
    }
    let Some(order) = KILL_ORDER.get(0) else { return };
    // SAFETY: the map's value; volatile, since user space writes it.
    let order = unsafe { core::ptr::read_volatile(order) };
    let Some(level) = level::<M>(memcg, way, level_id, order.victim_id) else { return };
    let running = running();
    if running.mm != 0 {
        mark(&running, epoch);
    }
    if let Some(rise) = USAGE_BASELINE.get_ptr_mut(0) {
        note(rise, level_id, epoch, level.usage);
    }
    let why = match order.judge(&ChargeFacts { level_id, level: &level, leaf_id, running: &running }) {
        Judgement::Pass => return,
        Judgement::Suppress(why) => Some(why),
        Judgement::Kill(grown) => {
            let KillOrder { generation, victim_id, .. } = order;
            let (cause, usage) = (KernelKillCause::Memory, level.usage);
            send_kill(&CarriedOut { cause, generation, victim_id, leaf_id, usage, grown }, &running)
        }
    };
    if let Some(why) = why {
        count_suppressed(why, order.generation);
    }
}

/// A word of user space's marks.
#[inline(always)]
fn marked(index: u32) -> u64 {
    match SAMPLE_EPOCH.get(index) {
        // SAFETY: the map's value; volatile, since user space writes it.
        Some(mark) => unsafe { core::ptr::read_volatile(mark) },
        None => 0,
    }
}

/// A charge near the threshold; each fact is looked up when the kill order asks for it.
struct ChargeFacts<'a> {
    level_id: u64,
    level: &'a GuardedLevel,
    leaf_id: u64,
    running: &'a Running,
}

impl Charge for ChargeFacts<'_> {
    #[inline(always)]
    fn level_id(&self) -> u64 {
        self.level_id
    }

    #[inline(always)]
    fn usage(&self) -> u64 {
        self.level.usage
    }

    #[inline(always)]
    fn max(&self) -> u64 {
        self.level.max
    }

    #[inline(always)]
    fn usage_then(&self, epoch: u64) -> Option<u64> {
        at_mark(USAGE_BASELINE.get_ptr_mut(0)?, self.level_id, epoch)
    }

    /// Asked of the victim alone, which was looked for on the way up.
    #[inline(always)]
    fn is_within(&self, _victim_id: u64) -> bool {
        self.level.through_victim
    }

    #[inline(always)]
    fn tgid(&self) -> u32 {
        self.running.tgid
    }

    #[inline(always)]
    fn has_memory(&self) -> bool {
        self.running.mm != 0
    }

    #[inline(always)]
    fn grown(&self, epoch: u64) -> u64 {
        let Running { tgid, mm, anon, .. } = *self.running;
        match GROWTH_BASELINE.get_ptr_mut(tgid) {
            Some(growth) if mm != 0 => at_mark(growth, mm, epoch).map_or(0, |then| anon.saturating_sub(then)),
            _ => 0,
        }
    }

    #[inline(always)]
    fn is_in_what_is_charged(&self) -> bool {
        // SAFETY: the running task.
        unsafe { id_of_task::<Probe>(self.running.task) == self.leaf_id }
    }

    #[inline(always)]
    fn now_ns(&self) -> u64 {
        // SAFETY: a helper without arguments.
        unsafe { bpf_ktime_get_ns() }
    }
}

/// An order that is carried out.
pub(crate) struct CarriedOut {
    pub(crate) cause: KernelKillCause,
    pub(crate) generation: u64,
    pub(crate) victim_id: u64,
    pub(crate) leaf_id: u64,
    pub(crate) usage: u64,
    pub(crate) grown: u64,
}

/// Sends the signal to the running process, if this order was not carried out before.
#[inline(always)]
pub(crate) fn send_kill(order: &CarriedOut, running: &Running) -> Option<Suppressed> {
    let Some(mut entry) = EVENTS.reserve::<KernelKill>(0) else {
        return Some(Suppressed::NoRoom);
    };
    if KILL_ORDER_TOKEN.remove(order.generation).is_err() {
        entry.discard(BPF_RB_NO_WAKEUP as u64);
        return Some(Suppressed::Spent);
    }
    let comm = bpf_get_current_comm().unwrap_or_default();
    // SAFETY: a helper that takes any number.
    let error = unsafe { bpf_send_signal(SIGKILL) };
    entry.write(KernelKill {
        header: header::<KernelKill>(Kind::KernelKill),
        generation: order.generation,
        victim_id: order.victim_id,
        leaf_id: order.leaf_id,
        usage: order.usage,
        grown: order.grown,
        tgid: running.tgid,
        pid: running.pid,
        error: error as i32,
        cause: order.cause as u32,
        comm,
    });
    entry.submit(URGENT);
    (error != 0).then_some(Suppressed::Refused)
}

/// Who runs.
#[inline(always)]
pub(crate) fn running() -> Running {
    let ids = bpf_get_current_pid_tgid();
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() } as *const u8;
    // SAFETY: the running task and its memory; any address goes.
    let (mm, anon) = unsafe {
        let mm: u64 = Probe::at(task, offset!(task_mm));
        match mm {
            0 => (0, 0),
            mm => (mm, Probe::at(mm as *const u8, offset!(mm_anon))),
        }
    };
    // The count is below zero for a moment where CPUs hold back what they counted.
    let anon = if (anon as i64) < 0 { 0 } else { anon };
    Running { task, tgid: (ids >> 32) as u32, pid: ids as u32, mm, anon }
}

/// Notes what the process has, if it was not seen since the mark.
#[inline(always)]
fn mark(running: &Running, epoch: u64) {
    match GROWTH_BASELINE.get_ptr_mut(running.tgid) {
        Some(growth) => note(growth, running.mm, epoch, running.anon),
        None => {
            let Running { mm, anon, .. } = *running;
            let first = GrowthBaseline { of: mm, epoch, pages: anon, before_epoch: 0, before_pages: 0 };
            // Another thread may be first; where there is no room, it has not grown.
            let _ = GROWTH_BASELINE.insert(running.tgid, first, BPF_NOEXIST as u64);
        }
    }
}

/// Notes what somebody has, if that was not done since the mark.
#[inline(always)]
fn note(growth: *mut GrowthBaseline, of: u64, epoch: u64, pages: u64) {
    // SAFETY: the map's value. Other CPUs may write it at the same time, for the same owner: then
    // each notes what there was after the mark, and the mark before may be lost.
    unsafe {
        let last = core::ptr::read_volatile(&raw const (*growth).epoch);
        let is_same = core::ptr::read_volatile(&raw const (*growth).of) == of;
        if is_same && last == epoch {
            return;
        }
        let (before, before_pages) = match is_same {
            true => (last, core::ptr::read_volatile(&raw const (*growth).pages)),
            false => (0, 0),
        };
        core::ptr::write_volatile(&raw mut (*growth).epoch, 0);
        core::ptr::write_volatile(&raw mut (*growth).before_epoch, before);
        core::ptr::write_volatile(&raw mut (*growth).before_pages, before_pages);
        core::ptr::write_volatile(&raw mut (*growth).of, of);
        core::ptr::write_volatile(&raw mut (*growth).pages, pages);
        core::ptr::write_volatile(&raw mut (*growth).epoch, epoch);
    }
}

/// What somebody had at a mark; nothing if that was not seen.
#[inline(always)]
fn at_mark(growth: *const GrowthBaseline, of: u64, epoch: u64) -> Option<u64> {
    // SAFETY: the map's value, which other CPUs may write.
    let (whose, at, then, before, before_then) = unsafe {
        (
            core::ptr::read_volatile(&raw const (*growth).of),
            core::ptr::read_volatile(&raw const (*growth).epoch),
            core::ptr::read_volatile(&raw const (*growth).pages),
            core::ptr::read_volatile(&raw const (*growth).before_epoch),
            core::ptr::read_volatile(&raw const (*growth).before_pages),
        )
    };
    if whose != of {
        return None;
    }
    if at == epoch {
        return Some(then);
    }
    if before == epoch {
        return Some(before_then);
    }
    None
}

/// The level with this id; nothing if it is not on the way up.
#[inline(always)]
fn level<M: Means>(memcg: &Memcg, way: &AncestorPath, level_id: u64, victim_id: u64) -> Option<GuardedLevel> {
    let mut counter = memcg.counter();
    let mut through_victim = false;
    for place in 0..MAX_ANCESTORS {
        let id = way.id(place)?;
        through_victim |= id == victim_id;
        if id == level_id {
            // SAFETY: a page counter.
            let (usage, max) = unsafe { (usage_of::<M>(counter), max_of::<M>(counter)) };
            return Some(GuardedLevel { usage, max, through_victim });
        }
        // SAFETY: a page counter.
        counter = unsafe { counter_above::<M>(counter) };
    }
    None
}

/// Counts it, once for each kill order and CPU.
#[inline(always)]
pub(crate) fn count_suppressed(why: Suppressed, generation: u64) {
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
