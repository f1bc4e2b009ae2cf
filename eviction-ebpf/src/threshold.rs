//! Armed levels: compared at each charge, fired once.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use eviction_common::{
    Counter, Edge, FireToken, Kind, MAX_ANCESTORS, MemcgThreshold, ThresholdCrossed, threshold_bit,
};

use crate::{
    ancestors::AncestorPath,
    events::{URGENT, header, lost},
    maps::{EVENTS, FIRE_TOKENS, THRESHOLD_BITS, THRESHOLDS, add},
    memcg::{Memcg, counter_above, usage_of},
    probe_read::Means,
};

/// What a hook knows when it looks at a level.
pub(crate) struct LevelUsage {
    /// The level's cgroup.
    pub(crate) cgroup_id: u64,
    /// The one that was charged.
    pub(crate) leaf_id: u64,
    /// The level's usage, pages.
    pub(crate) usage: u64,
    /// Pages of this charge, where the hook sees every charge.
    pub(crate) charged: Option<u64>,
    /// Pages that reclaim just took of it, where that is what the hook is told.
    pub(crate) reclaimed: Option<u64>,
}

/// Meets what is armed on the way up from `memcg`: itself, whose it is, and the usage there in pages.
#[inline(always)]
pub(crate) fn each_armed<M: Means>(
    memcg: &Memcg,
    way: &AncestorPath,
    mut meet: impl FnMut(*mut MemcgThreshold, u64, u64),
) {
    let mut counter = memcg.counter();
    for level in 0..MAX_ANCESTORS {
        let Some(cgroup_id) = way.id(level) else { return };
        if let Some(armed) = armed(cgroup_id) {
            // SAFETY: a page counter.
            meet(armed, cgroup_id, unsafe { usage_of::<M>(counter) });
        }
        // SAFETY: a page counter; null beyond the root, and not read.
        counter = unsafe { counter_above::<M>(counter) };
    }
}

/// What is armed on the cgroup with this id.
#[inline(always)]
fn armed(id: u64) -> Option<*mut MemcgThreshold> {
    let (word, bit) = threshold_bit(id);
    // SAFETY: the map's value; volatile, since user space writes it.
    let bits = unsafe { core::ptr::read_volatile(THRESHOLD_BITS.get_ptr(word)?) };
    if bits & bit == 0 {
        return None;
    }
    THRESHOLDS.get_ptr_mut(id)
}

/// Compares with what is armed and fires what was crossed; says whether anything was.
#[inline(always)]
pub(crate) fn compare(armed: *mut MemcgThreshold, seen: &LevelUsage) -> bool {
    // SAFETY: `armed` is the map's value. User space replaces it as a whole, never in place,
    // so that its fields belong together. It may be reused for another cgroup under us: then
    // its generation is another, and its ticket decides.
    let (generation, above, below, limit, reclaimed) = unsafe {
        if let Some(pages) = seen.charged {
            add(&raw mut (*armed).gross, pages);
        }
        if let Some(pages) = seen.reclaimed {
            add(&raw mut (*armed).reclaimed, pages);
        }
        (
            (*armed).generation,
            (*armed).usage_above,
            (*armed).usage_below,
            (*armed).gross_limit,
            core::ptr::read_volatile(&raw const (*armed).reclaimed),
        )
    };
    let mut fired = false;
    if seen.usage.saturating_add(reclaimed) >= above {
        fired |= fire(armed, generation, Edge::UsageAbove, seen);
    }
    if seen.usage < below {
        fired |= fire(armed, generation, Edge::UsageBelow, seen);
    }
    if seen.charged.is_some() {
        // SAFETY: the map's value; volatile, since other CPUs add to it.
        let gross = unsafe { core::ptr::read_volatile(&raw const (*armed).gross) };
        if gross >= limit {
            fired |= fire(armed, generation, Edge::Gross, seen);
        }
    }
    fired
}

/// Pushes the record if nobody did for this arming. When it does not fit, the level stays
/// armed, and the next charge tries again.
#[inline(always)]
fn fire(armed: *mut MemcgThreshold, generation: u64, edge: Edge, seen: &LevelUsage) -> bool {
    // SAFETY: the map's value; the index is below 3.
    let fired = unsafe { &raw mut (*armed).fired[edge as usize] };
    // SAFETY: the map's value; volatile, since other CPUs write it.
    if unsafe { core::ptr::read_volatile(fired) } == generation {
        return false;
    }
    let Some(mut record) = EVENTS.reserve::<ThresholdCrossed>(0) else {
        lost(Counter::LostThresholdCrossed);
        return false;
    };
    let ticket = FireToken { id: seen.cgroup_id, generation, edge: edge as u32, pad: 0 };
    if FIRE_TOKENS.remove(ticket).is_err() {
        record.discard(aya_ebpf::bindings::BPF_RB_NO_WAKEUP as u64);
        return false;
    }
    // Only by whom the ticket was for: the element may be another level's by now, and this its generation.
    // SAFETY: as above.
    unsafe { core::ptr::write_volatile(fired, generation) };
    let task = bpf_get_current_pid_tgid();
    // SAFETY: the map's value.
    let gross = unsafe { core::ptr::read_volatile(&raw const (*armed).gross) };
    record.write(ThresholdCrossed {
        header: header::<ThresholdCrossed>(Kind::ThresholdCrossed),
        cgroup_id: seen.cgroup_id,
        leaf_id: seen.leaf_id,
        generation,
        usage: seen.usage,
        gross,
        tgid: (task >> 32) as u32,
        pid: task as u32,
        edge: edge as u32,
        pad: 0,
    });
    record.submit(URGENT);
    true
}
