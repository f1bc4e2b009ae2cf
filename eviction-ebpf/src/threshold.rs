//! Memory thresholds: compared at each charge, and each fires once.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use eviction_common::{
    Counter, Edge, FireToken, Kind, MAX_ANCESTORS, MemcgThreshold, ThresholdCrossed, threshold_bit,
};

use crate::{
    ancestors::AncestorPath,
    events::{URGENT, header, reserve_once},
    maps::{THRESHOLD_BITS, THRESHOLDS, add},
    memcg::{Memcg, parent_counter, usage_of},
    probe_read::ReadStrategy,
};

/// The usage of a level as a hook sees it.
pub(crate) struct LevelUsage {
    /// The cgroup of the level.
    pub(crate) cgroup_id: u64,
    /// The charged cgroup.
    pub(crate) leaf_id: u64,
    /// The usage of the level, in pages.
    pub(crate) usage: u64,
    /// The pages of this charge, if the hook sees every charge.
    pub(crate) charged: Option<u64>,
    /// The pages that were just reclaimed, if the hook reports reclaim.
    pub(crate) reclaimed: Option<u64>,
}

/// Calls `visit` for each threshold on the path up from `memcg`, with the threshold, the id of its cgroup and
/// that cgroup's usage in pages.
#[inline(always)]
pub(crate) fn for_each_threshold<M: ReadStrategy>(
    memcg: &Memcg,
    path: &AncestorPath,
    mut visit: impl FnMut(*mut MemcgThreshold, u64, u64),
) {
    let mut counter = memcg.counter;
    for level in 0..MAX_ANCESTORS {
        let Some(cgroup_id) = path.id(level) else { return };
        if let Some(threshold) = threshold_on(cgroup_id) {
            // SAFETY: a page counter.
            visit(threshold, cgroup_id, unsafe { usage_of::<M>(counter) });
        }
        // SAFETY: a page counter; null beyond the root, and not read.
        counter = unsafe { parent_counter::<M>(counter) };
    }
}

/// Returns the threshold on the cgroup with this id.
#[inline(always)]
fn threshold_on(id: u64) -> Option<*mut MemcgThreshold> {
    let (word, bit) = threshold_bit(id);
    // SAFETY: the map's value; volatile, since user space writes it.
    let bits = unsafe { core::ptr::read_volatile(THRESHOLD_BITS.get_ptr(word)?) };
    if bits & bit == 0 {
        return None;
    }
    THRESHOLDS.get_ptr_mut(id)
}

/// Compares usage with the threshold and fires the edges that were crossed. Returns whether one fired.
#[inline(always)]
pub(crate) fn compare(threshold: *mut MemcgThreshold, level_usage: &LevelUsage) -> bool {
    // SAFETY: `threshold` is the map's value. User space replaces it as a whole, never in place, so its
    // fields are consistent. The kernel may reuse it for another cgroup at the same time. Then its generation
    // is another one, and the token of that generation decides.
    let (generation, above, below, limit, reclaimed) = unsafe {
        if let Some(pages) = level_usage.charged {
            add(&raw mut (*threshold).gross, pages);
        }
        if let Some(pages) = level_usage.reclaimed {
            add(&raw mut (*threshold).reclaimed, pages);
        }
        (
            (*threshold).generation,
            (*threshold).usage_above,
            (*threshold).usage_below,
            (*threshold).gross_limit,
            core::ptr::read_volatile(&raw const (*threshold).reclaimed),
        )
    };
    let mut fired = false;
    if level_usage.usage.saturating_add(reclaimed) >= above {
        fired |= fire(threshold, generation, Edge::UsageAbove, level_usage);
    }
    if level_usage.usage < below {
        fired |= fire(threshold, generation, Edge::UsageBelow, level_usage);
    }
    if level_usage.charged.is_some() {
        // SAFETY: the map's value; volatile, since other CPUs add to it.
        let gross = unsafe { core::ptr::read_volatile(&raw const (*threshold).gross) };
        if gross >= limit {
            fired |= fire(threshold, generation, Edge::Gross, level_usage);
        }
    }
    fired
}

/// Pushes the record if no program has done so for this setting.
#[inline(always)]
fn fire(threshold: *const MemcgThreshold, generation: u64, edge: Edge, level_usage: &LevelUsage) -> bool {
    let token = FireToken { id: level_usage.cgroup_id, generation, edge: edge as u32, pad: 0 };
    let Some(mut record) = reserve_once::<ThresholdCrossed>(token, Counter::LostThresholdCrossed) else {
        return false;
    };
    let task = bpf_get_current_pid_tgid();
    // SAFETY: the map's value.
    let gross = unsafe { core::ptr::read_volatile(&raw const (*threshold).gross) };
    record.write(ThresholdCrossed {
        header: header::<ThresholdCrossed>(Kind::ThresholdCrossed),
        cgroup_id: level_usage.cgroup_id,
        leaf_id: level_usage.leaf_id,
        generation,
        usage: level_usage.usage,
        gross,
        tgid: (task >> 32) as u32,
        pid: task as u32,
        edge: edge as u32,
        pad: 0,
    });
    record.submit(URGENT);
    true
}
