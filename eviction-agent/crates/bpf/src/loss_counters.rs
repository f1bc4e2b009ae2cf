//! What did not get through: counted by the programs, and runs of them that the kernel left out.

use aya::maps::MapError;
use eviction_common::{Counter, Kind};

use super::attach_methods::EventClass;
use super::handle::BpfHandle;
use super::on_demand::OnDemandProbe;

/// What the programs counted since they were loaded: what they lost, and what they saw in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCounters([u64; Counter::COUNT as usize]);

impl LossCounters {
    /// One of the counts.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Records of any kind that did not fit into the ring.
    pub fn records_lost(&self) -> u64 {
        self.by_record().iter().map(|(_, lost)| lost).sum()
    }

    /// Records that did not fit, by what they tell.
    pub fn by_record(&self) -> [(&'static str, u64); 6] {
        [
            (Kind::Crossed, Counter::LostCrossed),
            (Kind::OomKill, Counter::LostOomKill),
            (Kind::CgroupMade, Counter::LostCgroupMade),
            (Kind::CgroupGone, Counter::LostCgroupGone),
            (Kind::TaskAlarm, Counter::LostTaskAlarm),
            (Kind::DiskCrossed, Counter::LostDiskCrossed),
        ]
        .map(|(kind, counter)| (kind.name(), self.get(counter)))
    }

    /// What found no room, by the map.
    pub fn by_map(&self) -> [(&'static str, u64); 7] {
        [
            ("charged_cgroups", Counter::DirtyFull),
            ("oom_counts", Counter::SeenFull),
            ("task_stats", Counter::TasksFull),
            ("alarms_sent", Counter::AlarmedFull),
            ("reclaim_time", Counter::StallsFull),
            ("reclaim_start", Counter::ReclaimingFull),
            ("disk_usage", Counter::DiskUsageFull),
        ]
        .map(|(map, counter)| (map, self.get(counter)))
    }
}

impl BpfHandle {
    /// How often the programs of each class were not run although their place was reached: the kernel runs no
    /// program while it is at work on the same CPU. Where it preempts tasks in the kernel (from 7.0 on it does), that
    /// happens on a busy node. Counts of tasks are too small by as much, and a crossing shows at the next charge
    /// or sample. What cannot be asked is 0, and so are kernels before 5.12.
    pub fn runs_missed(&self) -> [(EventClass, u64); EventClass::ALL.len()] {
        EventClass::ALL.map(|class| {
            let links = self.links.iter().filter(|(its, _)| *its == class);
            let always: u64 = links.filter_map(|(_, link)| link.program.runs_missed().ok()).sum();
            let near = self.near.iter().filter(|near| near.class == class);
            (class, always.saturating_add(near.map(OnDemandProbe::runs_missed).sum()))
        })
    }

    /// What the programs counted and lost.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn lost(&self) -> Result<LossCounters, MapError> {
        let mut counters = LossCounters::default();
        for (index, count) in (0..).zip(&mut counters.0) {
            *count = self.maps.counters.get(&index, 0)?.iter().sum();
        }
        Ok(counters)
    }
}
