//! What the kernel side tells, sorted by what is to be done about it.

use std::collections::VecDeque;

use eviction_bpf::{DiskThresholdCrossed, Event, KernelKill, OomKill, TaskAlarm, ThresholdCrossed};

use super::failover::BackendFailure;

/// So many crossings are put aside; each armed group has two at the most until it is looked at. Where
/// there are more, a full sample finds the rest.
const MOST_BESIDE: usize = 1024;

/// What the kernel side told in one go.
#[derive(Debug, Default)]
pub(crate) struct EventBatch {
    /// The last crossing of a level at which is decided.
    pub(crate) crossed: Option<ThresholdCrossed>,
    /// It was, or one before it was, that of the group of all pods.
    pub(crate) of_pods: bool,
    /// The standing verdict was carried out. One stands at a time, and a look follows.
    pub(crate) kernel_kill: Option<KernelKill>,
    /// The last crossing of a threshold on a file system.
    pub(crate) disk_crossed: Option<DiskThresholdCrossed>,
    /// Cgroups came or went.
    pub(crate) tree_changed: bool,
    /// Processes that the kernel killed.
    pub(crate) kills: Vec<OomKill>,
    /// Too many tasks.
    pub(crate) alarms: Vec<TaskAlarm>,
    /// Records are missing or make no sense: what they told has to be looked for.
    pub(crate) missed: bool,
    /// The ring cannot be read any more.
    pub(crate) lost: Option<BackendFailure>,
}

impl EventBatch {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Crossed(crossed) => self.crossed = Some(crossed),
            Event::OomKill(kill) => self.kills.push(kill),
            Event::OomMark(mark) => {
                tracing::debug!(pid = mark.tgid, comm = %mark.comm_lossy(), "out of memory while it was ending anyway");
            }
            Event::CgroupMade(_) | Event::CgroupGone(_) => self.tree_changed = true,
            Event::TaskAlarm(alarm) => self.alarms.push(alarm),
            Event::KernelKill(kill) => self.kernel_kill = Some(kill),
            Event::DiskCrossed(crossed) => self.disk_crossed = Some(crossed),
        }
    }
}

/// Crossings at which nothing is decided: they wait until there is time for them.
#[derive(Debug)]
pub(crate) struct DeferredEvents {
    /// The groups of all others.
    pub(crate) decisive: [u64; 2],
    pub(crate) crossed: VecDeque<ThresholdCrossed>,
}

impl Default for DeferredEvents {
    fn default() -> Self {
        Self { decisive: [0; 2], crossed: VecDeque::with_capacity(MOST_BESIDE) }
    }
}

impl DeferredEvents {
    /// Sorts what was told. Never asks the allocator for the sake of a crossing.
    pub(crate) fn take(&mut self, event: Event<'_>, told: &mut EventBatch) {
        match event {
            Event::Crossed(crossed) if !self.decisive.contains(&crossed.level_id) => {
                if self.crossed.len() < MOST_BESIDE {
                    self.crossed.push_back(crossed);
                } else {
                    told.missed = true;
                }
            }
            event => {
                let level = if let Event::Crossed(crossed) = &event { crossed.level_id } else { 0 };
                told.of_pods |= level != 0 && level == self.decisive[1];
                told.take(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crossed(level_id: u64) -> Event<'static> {
        Event::Crossed(ThresholdCrossed::upwards(level_id, 1))
    }

    #[test]
    fn only_where_is_decided_a_crossing_causes_a_look() {
        let mut beside = DeferredEvents { decisive: [1, 2], ..DeferredEvents::default() };
        let mut told = EventBatch::default();
        for id in [3, 1, 4, 2, 3] {
            beside.take(crossed(id), &mut told);
        }
        assert_eq!(told.crossed.map(|crossed| crossed.level_id), Some(2));
        let waiting: Vec<_> = beside.crossed.iter().map(|crossed| crossed.level_id).collect();
        assert_eq!((waiting, told.missed, told.of_pods), (vec![3, 4, 3], false, true));
    }

    #[test]
    fn more_than_there_is_room_for_is_looked_for() {
        let mut beside = DeferredEvents::default();
        let mut told = EventBatch::default();
        for id in 1..=MOST_BESIDE as u64 {
            beside.take(crossed(id), &mut told);
        }
        assert!(!told.missed);
        beside.take(crossed(7), &mut told);
        assert!(told.missed && beside.crossed.len() == MOST_BESIDE && told.crossed.is_none());
    }
}
