//! The reflex: carries out the standing verdict on the process that charges.
//!
//! Nothing here looks for a process. What runs is the task that charges, in its own context, and all
//! conditions are on that very task: its cgroup, its memory, its growth. A signal sent to it is
//! taken before it touches another page. An interrupt's charge finds the interrupted task; then too
//! the conditions are on the one that would be signalled.
//!
//! Cost while no line is near: one look into an array; while one is near: a few reads and the walk up
//! to the level, for each look at a charge.

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST, BPF_RB_NO_WAKEUP},
    helpers::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns,
        generated::bpf_send_signal,
    },
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray},
};
use eviction_common::{
    ABSENT, BATCH_PAGES, Growth, Kind, MAX_ANCESTORS, Struck, Verdict, Withheld, WithheldCount,
};

use crate::{
    emit::{URGENT, header},
    maps::{RING, add},
    memcg::{Memcg, id_of_task},
    read::{Means, Probe, Read},
    setup::{offset, reflex_is_on},
};

const SIGKILL: u32 = 9;

/// The mark of the last sample; 0 while no line is near.
#[map]
static EPOCH: Array<u64> = Array::with_max_entries(1, 0);

/// What stands.
#[map]
static VERDICT: Array<Verdict> = Array::with_max_entries(1, 0);

/// Who takes the verdict's number out carries it out.
#[map]
static VERDICT_TICKET: HashMap<u64, u8> = HashMap::with_max_entries(8, 0);

/// What processes had at the last two marks; the least recently seen makes room.
#[map]
static GROWTH: LruHashMap<u32, Growth> = LruHashMap::with_max_entries(4096, 0);

/// See [`Withheld`].
#[map]
static WITHHELD: PerCpuArray<WithheldCount> = PerCpuArray::with_max_entries(Withheld::COUNT, 0);

/// The running task.
struct Running {
    task: *const u8,
    tgid: u32,
    pid: u32,
    /// 0 for a task of the kernel.
    mm: u64,
    /// Its anonymous pages.
    anon: u64,
}

/// The level of a verdict and the way to it.
struct Way {
    usage: u64,
    max: u64,
    /// The victim is on it.
    through_victim: bool,
}

/// `memcg`, whose id is `leaf_id`, was charged.
#[inline(always)]
pub(crate) fn look<M: Means>(memcg: Memcg, leaf_id: u64) {
    if !reflex_is_on() || offset!(task_mm) == ABSENT || offset!(mm_anon) == ABSENT {
        return;
    }
    let Some(epoch) = EPOCH.get(0) else { return };
    // SAFETY: the map's value; volatile, since user space writes it.
    let epoch = unsafe { core::ptr::read_volatile(epoch) };
    if epoch == 0 {
        return;
    }
    let running = running();
    if running.mm != 0 {
        mark(&running, epoch);
    }
    let Some(verdict) = VERDICT.get(0) else { return };
    // SAFETY: the map's value; volatile, since user space writes it.
    let verdict = unsafe { core::ptr::read_volatile(verdict) };
    if verdict.generation == 0 {
        return;
    }
    if verdict.check != verdict.checked() {
        return withhold(Withheld::Torn, verdict.generation);
    }
    if let Some(why) = judge::<M>(&verdict, &running, memcg, leaf_id) {
        withhold(why, verdict.generation);
    }
}

/// Carries it out, or says why not; nothing where the line does not seem to be crossed.
#[inline(always)]
fn judge<M: Means>(verdict: &Verdict, running: &Running, memcg: Memcg, leaf_id: u64) -> Option<Withheld> {
    let way = walk::<M>(verdict, memcg)?;
    if way.usage < verdict.usage_least {
        return None;
    }
    let grown = grown(running, verdict.epoch);
    let has_risen = way.usage >= verdict.usage_risen;
    if !has_risen && grown < verdict.growth {
        return None;
    }
    if running.mm == 0 {
        return Some(Withheld::KernelThread);
    }
    if !way.through_victim {
        return Some(Withheld::NotTheVictim);
    }
    if running.tgid == 1 {
        return Some(Withheld::FirstProcess);
    }
    // SAFETY: the running task.
    if unsafe { id_of_task::<Probe>(running.task) } != leaf_id {
        return Some(Withheld::Remote);
    }
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if now_ns >= verdict.expires_ns {
        return Some(Withheld::Expired);
    }
    if grown < verdict.growth {
        return Some(Withheld::NotGrown);
    }
    let is_full = way.usage.saturating_add(2 * BATCH_PAGES) >= way.max;
    if !has_risen && !(is_full && now_ns < verdict.still_until_ns) {
        return Some(Withheld::UsageStill);
    }
    strike(verdict, running, &way, leaf_id, grown)
}

/// Sends the signal, if nobody did for this verdict.
#[inline(always)]
fn strike(verdict: &Verdict, running: &Running, way: &Way, leaf_id: u64, grown: u64) -> Option<Withheld> {
    let Some(mut entry) = RING.reserve::<Struck>(0) else {
        return Some(Withheld::NoRoom);
    };
    if VERDICT_TICKET.remove(verdict.generation).is_err() {
        entry.discard(BPF_RB_NO_WAKEUP as u64);
        return Some(Withheld::Spent);
    }
    let comm = bpf_get_current_comm().unwrap_or_default();
    // SAFETY: a helper that takes any number.
    let error = unsafe { bpf_send_signal(SIGKILL) };
    entry.write(Struck {
        header: header::<Struck>(Kind::Struck),
        generation: verdict.generation,
        victim_id: verdict.victim_id,
        leaf_id,
        usage: way.usage,
        grown,
        tgid: running.tgid,
        pid: running.pid,
        error: error as i32,
        pad: 0,
        comm,
    });
    entry.submit(URGENT);
    (error != 0).then_some(Withheld::Refused)
}

/// Who runs.
#[inline(always)]
fn running() -> Running {
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
    let Some(growth) = GROWTH.get_ptr_mut(running.tgid) else {
        let first = Growth { mm: running.mm, epoch, anon: running.anon, before_epoch: 0, before_anon: 0 };
        // Another thread may be first; where there is no room, it has not grown.
        let _ = GROWTH.insert(running.tgid, first, BPF_NOEXIST as u64);
        return;
    };
    // SAFETY: the map's value. Threads on other CPUs may write it at the same time: then each has
    // what it had after the mark, and the mark before is lost, or is what they share. A value that
    // is reused for another process has another memory.
    unsafe {
        if (*growth).mm != running.mm {
            let anew = Growth { mm: running.mm, epoch, anon: running.anon, before_epoch: 0, before_anon: 0 };
            let _ = GROWTH.insert(running.tgid, anew, BPF_ANY as u64);
            return;
        }
        let last = core::ptr::read_volatile(&raw const (*growth).epoch);
        if last == epoch {
            return;
        }
        let anon = core::ptr::read_volatile(&raw const (*growth).anon);
        core::ptr::write_volatile(&raw mut (*growth).epoch, 0);
        core::ptr::write_volatile(&raw mut (*growth).before_epoch, last);
        core::ptr::write_volatile(&raw mut (*growth).before_anon, anon);
        core::ptr::write_volatile(&raw mut (*growth).anon, running.anon);
        core::ptr::write_volatile(&raw mut (*growth).epoch, epoch);
    }
}

/// By how much the process has grown since the mark; nothing if it was not seen then.
#[inline(always)]
fn grown(running: &Running, epoch: u64) -> u64 {
    if running.mm == 0 {
        return 0;
    }
    let Some(growth) = GROWTH.get_ptr_mut(running.tgid) else { return 0 };
    // SAFETY: the map's value, which other CPUs may write.
    let (mm, at, anon, before, before_anon) = unsafe {
        (
            core::ptr::read_volatile(&raw const (*growth).mm),
            core::ptr::read_volatile(&raw const (*growth).epoch),
            core::ptr::read_volatile(&raw const (*growth).anon),
            core::ptr::read_volatile(&raw const (*growth).before_epoch),
            core::ptr::read_volatile(&raw const (*growth).before_anon),
        )
    };
    if mm != running.mm {
        return 0;
    }
    if at == epoch {
        return running.anon.saturating_sub(anon);
    }
    if before == epoch {
        return running.anon.saturating_sub(before_anon);
    }
    0
}

/// From the charged memory cgroup up to the verdict's level; nothing if it is not below it.
#[inline(always)]
fn walk<M: Means>(verdict: &Verdict, memcg: Memcg) -> Option<Way> {
    let mut memcg = memcg;
    let mut through_victim = false;
    for _ in 0..MAX_ANCESTORS {
        let id = memcg.id::<M>();
        through_victim |= id == verdict.victim_id;
        if id == verdict.level_id {
            return Some(Way { usage: memcg.usage::<M>(), max: memcg.max::<M>(), through_victim });
        }
        memcg = memcg.parent::<M>()?;
    }
    None
}

/// Counts it, once for each verdict and CPU.
#[inline(always)]
fn withhold(why: Withheld, generation: u64) {
    let Some(count) = WITHHELD.get_ptr_mut(why as u32) else { return };
    // SAFETY: the map's value, of this CPU.
    unsafe {
        if core::ptr::read_volatile(&raw const (*count).generation) == generation {
            return;
        }
        core::ptr::write_volatile(&raw mut (*count).generation, generation);
        add(&raw mut (*count).count, 1);
    }
}
