//! The events of the BPF programs, sorted by how they are handled, and counts of what was not reported.

use std::collections::VecDeque;

use eviction_bpf::{
    BpfHandle, Counter, DiskThresholdCrossed, Drained, Event, EventClass, KernelKill, LossCounters, OomKill,
    SUPPRESSED_REASONS, TaskAlarm, ThresholdCrossed,
};

use crate::telemetry::event_log::BpfEventsLost;
use crate::telemetry::metrics::Metrics;

/// The maximum number of pending crossings of memory limits; each cgroup has two until it is sampled. A full
/// sample finds the rest.
const MAX_LIMIT_CROSSINGS: usize = 1024;

/// The events that the BPF programs reported in one batch.
#[derive(Debug, Default)]
pub(crate) struct EventBatch {
    /// The last crossing of an eviction threshold.
    pub(crate) crossed: Option<ThresholdCrossed>,
    /// Whether a threshold of the cgroup of all pods was crossed.
    pub(crate) pods_crossed: bool,
    /// Kill orders that were carried out; a sync follows.
    pub(crate) kernel_kills: Vec<KernelKill>,
    /// Whether cgroups were created or removed.
    pub(crate) tree_changed: bool,
    /// Processes that the kernel killed.
    pub(crate) kills: Vec<OomKill>,
    /// Alarms about too many tasks.
    pub(crate) alarms: Vec<TaskAlarm>,
    /// The last crossing of a threshold on a file system.
    pub(crate) disk_crossed: Option<DiskThresholdCrossed>,
    /// Whether events are missing or cannot be decoded: a full sample has to find what they reported.
    pub(crate) missed: bool,
}

/// Sorts events. Never allocates for a crossing.
#[derive(Debug)]
pub(super) struct EventSorter {
    /// The cgroups with eviction thresholds: the node's and that of all pods. Crossings of others are about limits.
    pub(super) eviction_cgroups: [u64; 2],
    /// The last crossing of a threshold on the node's cgroup, until a sample is compared with it.
    pub(super) node_crossed: Option<ThresholdCrossed>,
    /// Crossings of memory limits, which wait until a sync is done.
    pub(super) limit_crossings: VecDeque<ThresholdCrossed>,
    /// Kills before this are dropped: the programs that were loaded before reported them. While programs are
    /// replaced, both are attached for a moment.
    pub(super) kills_since_ns: u64,
}

impl Default for EventSorter {
    fn default() -> Self {
        Self {
            eviction_cgroups: [0; 2],
            node_crossed: None,
            limit_crossings: VecDeque::with_capacity(MAX_LIMIT_CROSSINGS),
            kills_since_ns: 0,
        }
    }
}

impl EventSorter {
    pub(super) fn add(&mut self, event: Event, batch: &mut EventBatch) {
        match event {
            Event::ThresholdCrossed(crossed) if self.eviction_cgroups.contains(&crossed.cgroup_id) => {
                let [node, pods] = self.eviction_cgroups;
                batch.pods_crossed |= crossed.cgroup_id == pods;
                if crossed.cgroup_id == node {
                    // After a fall or a kill usage goes on falling until the sample: the next threshold would
                    // be set too high.
                    let is_usable = crossed.is_rise() && batch.kernel_kills.is_empty();
                    self.node_crossed = is_usable.then_some(crossed);
                }
                batch.crossed = Some(crossed);
            }
            Event::ThresholdCrossed(_) if self.limit_crossings.len() == MAX_LIMIT_CROSSINGS => {
                batch.missed = true
            }
            Event::ThresholdCrossed(crossed) => self.limit_crossings.push_back(crossed),
            Event::DiskThresholdCrossed(crossed) => batch.disk_crossed = Some(crossed),
            Event::OomKill(kill) if kill.stamp.ktime_ns < self.kills_since_ns => {}
            Event::OomKill(kill) => batch.kills.push(kill),
            Event::OomMark(mark) => {
                tracing::debug!(pid = mark.tgid, comm = %mark.comm_lossy(), "the OOM victim was exiting already");
            }
            Event::CgroupCreated(_) | Event::CgroupRemoved(_) => batch.tree_changed = true,
            Event::TaskAlarm(alarm) => batch.alarms.push(alarm),
            Event::KernelKill(kill) => {
                self.node_crossed = None;
                batch.kernel_kills.push(kill);
            }
        }
    }
}

/// The counters of the programs as they were exported last.
#[derive(Debug, Default)]
pub(super) struct ProgramCounters {
    /// How often programs were loaded: each time they count from zero.
    pub(super) loads: u32,
    lost: LossCounters,
    /// Events that could not be decoded, of all programs; and how many of them were published.
    invalid: u64,
    invalid_published: u64,
    /// Losses that are not published yet. The numbers are totals.
    pub(super) event: Option<BpfEventsLost>,
    suppressed: [u64; SUPPRESSED_REASONS],
    runs_missed: [u64; EventClass::ALL.len()],
    /// Whether some charges were not followed up to the root recently: thresholds above do not see every
    /// charge.
    pub(super) is_truncating: bool,
}

impl ProgramCounters {
    /// Restarts the counters for programs that were just loaded.
    pub(super) fn restart(&mut self) {
        let Self { loads, invalid, invalid_published, event, .. } = *self;
        *self = Self { loads: loads + 1, invalid, invalid_published, event, ..Self::default() };
    }

    /// Exports the reasons for which an armed kill order was not carried out.
    pub(super) fn export_suppressed(&mut self, handle: &BpfHandle, metrics: &Metrics) {
        let Ok(suppressed) = handle.suppressed() else { return };
        for ((reason, sum), before) in suppressed.into_iter().zip(&mut self.suppressed) {
            let more = increase(sum, before);
            if more > 0 {
                metrics.kernel_kill_suppressed.with([reason]).inc_by(more);
            }
        }
    }

    /// Exports losses, missed program runs and truncated paths. Returns true if a change of the cgroup tree may
    /// not have been reported.
    pub(super) fn export_losses(&mut self, handle: &BpfHandle, metrics: &Metrics) -> bool {
        let mut is_tree_missed = false;
        for ((class, sum), before) in handle.runs_missed().into_iter().zip(&mut self.runs_missed) {
            let more = increase(sum, before);
            if more > 0 {
                metrics.bpf_program_runs_missed.with([class.name()]).inc_by(more);
                is_tree_missed |= class == EventClass::Cgroup;
            }
        }
        let Ok(lost) = handle.lost() else { return is_tree_missed };
        let before = std::mem::replace(&mut self.lost, lost);
        let more = lost.get(Counter::PathTruncated).saturating_sub(before.get(Counter::PathTruncated));
        metrics.bpf_paths_truncated.inc_by(more);
        self.is_truncating = more > 0;
        let mut has_grown = self.invalid > self.invalid_published;
        self.invalid_published = self.invalid;
        for ((r#type, now), (_, before)) in lost.by_record().into_iter().zip(before.by_record()) {
            metrics.bpf_events_lost.with([r#type]).inc_by(now.saturating_sub(before));
            has_grown |= now > before;
        }
        for ((map, now), (_, before)) in lost.by_map().into_iter().zip(before.by_map()) {
            metrics.bpf_map_full.with([map]).inc_by(now.saturating_sub(before));
            has_grown |= now > before;
        }
        if has_grown {
            let map_full = lost.by_map().iter().map(|(_, count)| count).sum();
            let (lost, invalid) = (lost.records_lost(), self.invalid);
            self.event = Some(BpfEventsLost { lost, invalid, map_full });
        }
        is_tree_missed
    }

    /// Counts events. Returns true if others are missing or could not be decoded.
    pub(super) fn count(&mut self, drained: Drained, metrics: &Metrics) -> bool {
        let Drained { events, malformed, why, missed } = drained;
        metrics.bpf_events.inc_by(events);
        if malformed > 0 {
            metrics.bpf_events_invalid.inc_by(malformed);
            self.invalid += malformed;
            tracing::warn!(malformed, why = ?why, "BPF events that cannot be decoded");
        }
        if missed > 0 {
            tracing::warn!(missed, "BPF events are missing: a full sample follows");
        }
        missed > 0 || malformed > 0
    }
}

/// Returns by how much a sum has grown since the last call. A smaller sum was not read in full, and the missing
/// part was counted before.
fn increase(sum: u64, before: &mut u64) -> u64 {
    let more = sum.saturating_sub(*before);
    *before = sum.max(*before);
    more
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_bpf::Edge;

    fn crossed(cgroup_id: u64) -> Event {
        Event::ThresholdCrossed(ThresholdCrossed::upwards(cgroup_id, 1))
    }

    #[test]
    fn only_a_crossing_of_an_eviction_threshold_causes_a_sync() {
        let mut sorter = EventSorter { eviction_cgroups: [1, 2], ..EventSorter::default() };
        let mut batch = EventBatch::default();
        for id in [3, 1, 4, 2, 3] {
            sorter.add(crossed(id), &mut batch);
        }
        assert_eq!(batch.crossed.map(|crossed| crossed.cgroup_id), Some(2));
        let waiting: Vec<_> = sorter.limit_crossings.iter().map(|crossed| crossed.cgroup_id).collect();
        assert_eq!((waiting, batch.missed, batch.pods_crossed), (vec![3, 4, 3], false, true));
        assert_eq!(sorter.node_crossed.map(|crossed| crossed.cgroup_id), Some(1));
        let fall = ThresholdCrossed { edge: Edge::UsageBelow, ..ThresholdCrossed::upwards(1, 1) };
        sorter.add(Event::ThresholdCrossed(fall), &mut batch);
        assert_eq!(sorter.node_crossed, None, "usage goes on falling");
    }

    #[test]
    fn limit_crossings_beyond_the_capacity_are_missed() {
        let mut sorter = EventSorter::default();
        let mut batch = EventBatch::default();
        for id in 1..=MAX_LIMIT_CROSSINGS as u64 {
            sorter.add(crossed(id), &mut batch);
        }
        assert!(!batch.missed);
        sorter.add(crossed(7), &mut batch);
        assert!(batch.missed && batch.crossed.is_none());
        assert_eq!(sorter.limit_crossings.len(), MAX_LIMIT_CROSSINGS);
    }

    #[test]
    fn a_smaller_sum_does_not_count_events_twice() {
        let mut before = 0;
        let more = [3, 3, 0, 5, 2, 6].map(|sum| increase(sum, &mut before));
        assert_eq!(more, [3, 0, 0, 2, 0, 1]);
    }
}
