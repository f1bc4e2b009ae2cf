//! The events of the BPF programs, sorted by how they are handled, and counts of what was not reported.

use std::collections::{BTreeMap, VecDeque};

use eviction_bpf::{
    BpfHandle, Counter as LossCounter, Drained, Event, EventClass, KernelKill, OomKill, TaskAlarm,
    ThresholdCrossed,
};
use prometheus_client::metrics::counter::Counter;

use crate::telemetry::event_log;
use crate::telemetry::metrics::Metrics;

/// The maximum number of pending crossings of memory limits; each cgroup has two until it is sampled. A full
/// sample finds the rest.
const MAX_LIMIT_CROSSINGS: usize = 1024;

/// A crossing older than this is not compared with the present sample.
const MAX_CROSSING_AGE_NS: u64 = 10_000_000;

/// The events that the BPF programs reported in one batch.
#[derive(Debug, Default)]
pub(crate) struct EventBatch {
    /// The kernel's timestamp of the last crossing of an eviction threshold.
    pub(crate) crossed_ns: Option<u64>,
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
    /// The kernel's timestamp of the last crossing of a threshold on a file system.
    pub(crate) disk_crossed_ns: Option<u64>,
    /// Whether events were lost or cannot be decoded: a full sample has to find what they reported.
    pub(crate) missed: bool,
    /// Whether other programs were loaded: they count from zero, and no threshold is set in them.
    pub(crate) programs_loaded: bool,
}

/// Sorts events. Never allocates for a crossing.
#[derive(Debug)]
pub(super) struct EventSorter {
    /// The cgroups with eviction thresholds: the node's and that of all pods. Crossings of others are about limits.
    pub(super) eviction_cgroups: [u64; 2],
    /// The last crossing of a threshold on the node's cgroup, until a sample is compared with it.
    node_crossed: Option<ThresholdCrossed>,
    /// By how much the machine's root page counter exceeds the sampled usage, bytes; negative if it is lower.
    root_excess: i64,
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
            root_excess: 0,
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
                batch.crossed_ns = Some(crossed.ktime_ns);
            }
            Event::ThresholdCrossed(_) if self.limit_crossings.len() == MAX_LIMIT_CROSSINGS => {
                batch.missed = true
            }
            Event::ThresholdCrossed(crossed) => self.limit_crossings.push_back(crossed),
            Event::DiskThresholdCrossed(crossed) => batch.disk_crossed_ns = Some(crossed.ktime_ns),
            Event::OomKill(kill) if kill.ktime_ns < self.kills_since_ns => {}
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

    /// Returns the usage of the machine's root page counter at a sample with this usage, bytes.
    ///
    /// The BPF programs compare that counter with thresholds on usage. It includes the kernel's memory for cgroups, and
    /// lacks pages that are charged to no cgroup. No file contains it, but each crossing does.
    pub(super) fn root_counter_usage(&mut self, usage: u64, now_ns: u64) -> u64 {
        let is_recent = |it: &ThresholdCrossed| now_ns.saturating_sub(it.ktime_ns) <= MAX_CROSSING_AGE_NS;
        if let Some(crossed) = self.node_crossed.take().filter(is_recent) {
            self.root_excess = crossed.usage.cast_signed().saturating_sub(usage.cast_signed());
        }
        usage.saturating_add_signed(self.root_excess)
    }
}

/// The counters of the programs as they were exported last.
#[derive(Debug, Default)]
pub(super) struct ProgramCounters {
    /// The exported totals of these programs, by metric and label.
    exported: BTreeMap<(&'static str, &'static str), u64>,
    /// How many of the events that could not be decoded were published.
    invalid_published: u64,
    /// How many events were lost when that was read last: a full sample has found what they reported, or will.
    records_lost: u64,
    /// Losses that are not published yet. The numbers are totals.
    pub(super) event: Option<event_log::Event>,
    /// Whether some charges were not followed up to the root recently: thresholds above do not see every
    /// charge.
    pub(super) is_truncating: bool,
}

impl ProgramCounters {
    /// Restarts the counters for programs that were just loaded.
    pub(super) fn restart(&mut self) {
        self.exported.clear();
        (self.records_lost, self.is_truncating) = (0, false);
    }

    /// Adds to a counter by how much the total of the programs has grown since the last call, and returns that. A
    /// smaller total was not read in full, and the missing part was counted before.
    fn export(&mut self, counter: &Counter, metric: &'static str, label: &'static str, total: u64) -> u64 {
        let exported = self.exported.entry((metric, label)).or_default();
        let more = total.saturating_sub(*exported);
        *exported += more;
        counter.inc_by(more);
        more
    }

    /// Exports the reasons for which an armed kill order was not carried out.
    pub(super) fn export_suppressed(&mut self, handle: &BpfHandle, metrics: &Metrics) {
        let Ok(suppressed) = handle.suppressed() else { return };
        for (reason, total) in suppressed {
            let counter = metrics.kernel_kill_suppressed.with([reason]);
            self.export(&counter, "kernel_kill_suppressed", reason, total);
        }
    }

    /// Exports losses, missed program runs and truncated paths. Returns true if a change of the cgroup tree may
    /// not have been reported.
    pub(super) fn export_losses(&mut self, handle: &BpfHandle, metrics: &Metrics) -> bool {
        let mut is_tree_missed = false;
        for (class, total) in handle.runs_missed() {
            let counter = metrics.bpf_program_runs_missed.with([class.name()]);
            let more = self.export(&counter, "bpf_program_runs_missed", class.name(), total);
            is_tree_missed |= more > 0 && class == EventClass::Cgroup;
        }
        let Ok(lost) = handle.lost() else { return is_tree_missed };
        self.records_lost = lost.records_lost();
        let truncated = lost.get(LossCounter::PathTruncated);
        self.is_truncating =
            self.export(&metrics.bpf_paths_truncated, "bpf_paths_truncated", "", truncated) > 0;
        let invalid = metrics.bpf_events_invalid.get();
        let mut has_grown = std::mem::replace(&mut self.invalid_published, invalid) < invalid;
        for (r#type, total) in lost.by_record() {
            let counter = metrics.bpf_events_lost.with([r#type]);
            has_grown |= self.export(&counter, "bpf_events_lost", r#type, total) > 0;
        }
        for (map, total) in lost.by_map() {
            let counter = metrics.bpf_map_full.with([map]);
            has_grown |= self.export(&counter, "bpf_map_full", map, total) > 0;
        }
        if has_grown {
            let map_full = lost.by_map().iter().map(|(_, count)| count).sum();
            self.event = Some(event_log::Event::BpfEventsLost { lost: self.records_lost, invalid, map_full });
        }
        is_tree_missed
    }

    /// Counts events of these programs. Returns true if others were lost or could not be decoded.
    pub(super) fn count(&mut self, drained: Drained, handle: &BpfHandle, metrics: &Metrics) -> bool {
        let Drained { events, malformed, why, may_have_lost } = drained;
        metrics.bpf_events.inc_by(events);
        if malformed > 0 {
            metrics.bpf_events_invalid.inc_by(malformed);
            let why = why.unwrap_or_default();
            tracing::warn!(malformed, why, "BPF events that cannot be decoded");
        }
        // The counters are read only if this may be so, since reading them allocates.
        let read_total = || handle.lost().ok().map(|lost| lost.records_lost());
        let has_lost = may_have_lost && self.has_new_losses(read_total());
        if has_lost {
            tracing::warn!(total = self.records_lost, "BPF events were lost: a full sample follows");
        }
        has_lost || malformed > 0
    }

    /// Returns whether events were lost since that was read last, or may have been: `total` is `None` if it cannot be
    /// read.
    fn has_new_losses(&mut self, total: Option<u64>) -> bool {
        total.is_none_or(|total| std::mem::replace(&mut self.records_lost, total) < total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_bpf::Edge;

    fn crossed(cgroup_id: u64) -> Event {
        let ktime_ns = 10 * cgroup_id;
        Event::ThresholdCrossed(ThresholdCrossed { ktime_ns, ..ThresholdCrossed::upwards(cgroup_id, 1) })
    }

    #[test]
    fn only_a_crossing_of_an_eviction_threshold_causes_a_sync() {
        let mut sorter = EventSorter { eviction_cgroups: [1, 2], ..EventSorter::default() };
        let mut batch = EventBatch::default();
        for id in [3, 1, 4, 2, 3] {
            sorter.add(crossed(id), &mut batch);
        }
        assert_eq!(batch.crossed_ns, Some(20));
        let waiting: Vec<_> = sorter.limit_crossings.iter().map(|crossed| crossed.cgroup_id).collect();
        assert_eq!((waiting, batch.missed, batch.pods_crossed), (vec![3, 4, 3], false, true));
        assert_eq!(sorter.node_crossed.map(|crossed| crossed.cgroup_id), Some(1));
        let fall = ThresholdCrossed { edge: Edge::UsageBelow, ..ThresholdCrossed::upwards(1, 1) };
        sorter.add(Event::ThresholdCrossed(fall), &mut batch);
        assert_eq!(sorter.node_crossed, None, "usage goes on falling");
    }

    #[test]
    fn a_crossing_shows_by_how_much_the_root_counter_differs_from_the_sampled_usage() {
        const MIB: u64 = 1 << 20;
        const SECOND: u64 = 1_000_000_000;
        let crossed =
            |usage, ktime_ns| Some(ThresholdCrossed { ktime_ns, usage, ..ThresholdCrossed::upwards(1, 1) });
        let mut sorter = EventSorter::default();
        let mut usage_at = |usage, crossed, now_ns| {
            sorter.node_crossed = crossed;
            sorter.root_counter_usage(usage, now_ns)
        };
        assert_eq!(usage_at(500 * MIB, None, 0), 500 * MIB, "not known so far");
        assert_eq!(usage_at(500 * MIB, crossed(620 * MIB, 0), 1), 620 * MIB);
        assert_eq!(usage_at(510 * MIB, None, SECOND), 630 * MIB, "until the next crossing");
        assert_eq!(usage_at(510 * MIB, crossed(MIB, 0), SECOND), 630 * MIB, "of an earlier sample");
        assert_eq!(usage_at(510 * MIB, crossed(400 * MIB, SECOND), SECOND), 400 * MIB);
        assert_eq!(usage_at(MIB, None, SECOND), 0);
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
        assert!(batch.missed && batch.crossed_ns.is_none());
        assert_eq!(sorter.limit_crossings.len(), MAX_LIMIT_CROSSINGS);
    }

    #[test]
    fn each_loss_is_noticed_once_and_one_that_cannot_be_read_is_assumed() {
        let mut counters = ProgramCounters::default();
        let totals = [Some(0), Some(3), Some(3), None, Some(3), Some(4)];
        let noticed = totals.map(|total| counters.has_new_losses(total));
        assert_eq!(noticed, [false, true, false, true, false, true]);
        counters.restart();
        assert!(counters.has_new_losses(Some(1)), "other programs count from zero");
    }

    #[test]
    fn a_smaller_sum_does_not_count_events_twice() {
        let (mut counters, counter) = (ProgramCounters::default(), Counter::default());
        let more = [3, 3, 0, 5, 2, 6].map(|total| counters.export(&counter, "metric", "label", total));
        assert_eq!((more, counter.get()), ([3, 0, 0, 2, 0, 1], 6));
        counters.restart();
        counters.export(&counter, "metric", "label", 2);
        assert_eq!(counter.get(), 8, "other programs count from zero");
    }
}
