//! What the BPF programs report, sorted by what is to be done about it.

use std::collections::VecDeque;

use eviction_bpf::{DiskThresholdCrossed, Event, KernelKill, OomKill, TaskAlarm, ThresholdCrossed};

/// So many crossings of memory limits wait at most; each cgroup has two until it is sampled. A full sample finds the
/// rest.
const MAX_LIMIT_CROSSINGS: usize = 1024;

/// What the BPF programs reported in one go.
#[derive(Debug, Default)]
pub(crate) struct EventBatch {
    /// The last crossing of an eviction threshold.
    pub(crate) crossed: Option<ThresholdCrossed>,
    /// A threshold of the cgroup of all pods was crossed.
    pub(crate) of_pods: bool,
    /// The armed kill order was carried out. There is one at a time, and a sync follows.
    pub(crate) kernel_kill: Option<KernelKill>,
    /// Cgroups were created or removed.
    pub(crate) tree_changed: bool,
    /// Processes that the kernel killed.
    pub(crate) kills: Vec<OomKill>,
    /// Too many tasks.
    pub(crate) alarms: Vec<TaskAlarm>,
    /// The last crossing of a threshold on a file system.
    pub(crate) disk_crossed: Option<DiskThresholdCrossed>,
    /// Events are missing or cannot be decoded: a full sample has to find what they reported.
    pub(crate) missed: bool,
}

/// Sorts events. Never allocates for a crossing.
#[derive(Debug)]
pub(super) struct EventSorter {
    /// The cgroups with eviction thresholds: the node's and that of all pods. Crossings of others are about limits.
    pub(super) deciding: [u64; 2],
    /// Crossings of memory limits, which wait until a sync is done.
    pub(super) limit_crossings: VecDeque<ThresholdCrossed>,
}

impl Default for EventSorter {
    fn default() -> Self {
        Self { deciding: [0; 2], limit_crossings: VecDeque::with_capacity(MAX_LIMIT_CROSSINGS) }
    }
}

impl EventSorter {
    pub(super) fn add(&mut self, event: Event, batch: &mut EventBatch) {
        match event {
            Event::Crossed(crossed) if self.deciding.contains(&crossed.level_id) => {
                batch.of_pods |= crossed.level_id == self.deciding[1];
                batch.crossed = Some(crossed);
            }
            Event::Crossed(_) if self.limit_crossings.len() == MAX_LIMIT_CROSSINGS => batch.missed = true,
            Event::Crossed(crossed) => self.limit_crossings.push_back(crossed),
            Event::DiskCrossed(crossed) => batch.disk_crossed = Some(crossed),
            Event::OomKill(kill) => batch.kills.push(kill),
            Event::OomMark(mark) => {
                tracing::debug!(pid = mark.tgid, comm = %mark.comm_lossy(), "out of memory while it was ending anyway");
            }
            Event::CgroupMade(_) | Event::CgroupGone(_) => batch.tree_changed = true,
            Event::TaskAlarm(alarm) => batch.alarms.push(alarm),
            Event::KernelKill(kill) => batch.kernel_kill = Some(kill),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crossed(level_id: u64) -> Event {
        Event::Crossed(ThresholdCrossed::upwards(level_id, 1))
    }

    #[test]
    fn only_a_crossing_of_an_eviction_threshold_causes_a_sync() {
        let mut sorter = EventSorter { deciding: [1, 2], ..EventSorter::default() };
        let mut batch = EventBatch::default();
        for id in [3, 1, 4, 2, 3] {
            sorter.add(crossed(id), &mut batch);
        }
        assert_eq!(batch.crossed.map(|crossed| crossed.level_id), Some(2));
        let waiting: Vec<_> = sorter.limit_crossings.iter().map(|crossed| crossed.level_id).collect();
        assert_eq!((waiting, batch.missed, batch.of_pods), (vec![3, 4, 3], false, true));
    }

    #[test]
    fn more_crossings_than_there_is_room_for_are_missed() {
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
}
