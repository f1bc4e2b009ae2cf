//! What did not get through: counted by the programs, and runs of them that the kernel left out.

use aya::maps::MapError;
use eviction_common::{Counter, Kind};

use super::attach_methods::EventClass;
use super::handle::BpfHandle;
use super::on_demand::OnDemandProbe;

/// What the kernel side counted since it was loaded: what it lost, and what it saw in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCounters {
    /// Records written and lost.
    pub records: u64,
    /// Crossings that did not fit into the ring.
    pub crossed: u64,
    /// Kills that did not fit.
    pub oom_kill: u64,
    /// New cgroups that did not fit.
    pub cgroup_made: u64,
    /// Removed cgroups that did not fit.
    pub cgroup_gone: u64,
    /// Alarms about tasks that did not fit.
    pub task_alarm: u64,
    /// Crossings of disks that did not fit.
    pub disk_crossed: u64,
    /// Charging cgroups that found no room in the dirty set.
    pub dirty_full: u64,
    /// Cgroups whose event counts found no room.
    pub seen_full: u64,
    /// Cgroups whose task counts found no room.
    pub tasks_full: u64,
    /// Alarms about tasks that found no room, and were not told.
    pub alarmed_full: u64,
    /// Cgroups whose time in reclaim found no room.
    pub stalls_full: u64,
    /// Tasks in reclaim that found no room.
    pub reclaiming_full: u64,
    /// Cgroups whose usage of a disk found no room.
    pub disk_usage_full: u64,
    /// Reclaims that began twice or ended without a beginning, as those that were under way when
    /// the programs were attached.
    pub reclaim_odd: u64,
    /// Walks that ended before the root: the tree is too deep, or an interrupt ran the same program.
    pub walk_cut: u64,
    /// How often the charge hook looked at a memory cgroup.
    pub charges: u64,
}

impl LossCounters {
    /// Records of any kind that did not fit into the ring.
    pub fn records_lost(&self) -> u64 {
        self.by_record().iter().map(|(_, lost)| lost).sum()
    }

    /// Records that did not fit, by what they tell.
    pub fn by_record(&self) -> [(&'static str, u64); 6] {
        [
            (Kind::Crossed.name(), self.crossed),
            (Kind::OomKill.name(), self.oom_kill),
            (Kind::CgroupMade.name(), self.cgroup_made),
            (Kind::CgroupGone.name(), self.cgroup_gone),
            (Kind::TaskAlarm.name(), self.task_alarm),
            (Kind::DiskCrossed.name(), self.disk_crossed),
        ]
    }

    /// What found no room, by what it is about.
    pub fn by_map(&self) -> [(&'static str, u64); 7] {
        [
            ("charged_cgroups", self.dirty_full),
            ("oom_counts", self.seen_full),
            ("task_stats", self.tasks_full),
            ("alarms_sent", self.alarmed_full),
            ("reclaim_time", self.stalls_full),
            ("reclaim_start", self.reclaiming_full),
            ("disk_usage", self.disk_usage_full),
        ]
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
    pub fn lost(&self) -> Result<LossCounters, MapError> {
        let count = |counter: Counter| -> Result<u64, MapError> {
            Ok(self.maps.counters.get(&(counter as u32), 0)?.iter().sum())
        };
        Ok(LossCounters {
            records: count(Counter::Records)?,
            crossed: count(Counter::LostCrossed)?,
            oom_kill: count(Counter::LostOomKill)?,
            cgroup_made: count(Counter::LostCgroupMade)?,
            cgroup_gone: count(Counter::LostCgroupGone)?,
            task_alarm: count(Counter::LostTaskAlarm)?,
            disk_crossed: count(Counter::LostDiskCrossed)?,
            dirty_full: count(Counter::DirtyFull)?,
            seen_full: count(Counter::SeenFull)?,
            tasks_full: count(Counter::TasksFull)?,
            alarmed_full: count(Counter::AlarmedFull)?,
            stalls_full: count(Counter::StallsFull)?,
            reclaiming_full: count(Counter::ReclaimingFull)?,
            disk_usage_full: count(Counter::DiskUsageFull)?,
            reclaim_odd: count(Counter::ReclaimOdd)?,
            walk_cut: count(Counter::WalkCut)?,
            charges: count(Counter::Charges)?,
        })
    }
}
