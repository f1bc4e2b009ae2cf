//! Counters per cgroup: tasks created and ended, time spent in reclaim. Also the alarms about too many tasks,
//! and the cleanup of entries of removed cgroups.

use std::collections::HashSet;

use aya::Ebpf;
use aya::maps::{Array, HashMap as BpfHashMap, MapData, MapError};
use eviction_common::{
    Alarm, AlarmKey, HostTasks, OomCounts, PidThreshold, ReclaimStart, ReclaimTime, STORM_WINDOW_NS,
    TaskStats,
};

use super::{BpfHandle, take_map, was_present};
use crate::sys::MapEntry;

/// The number of tasks that the node may have before it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePidThreshold {
    /// For the whole machine: so many more than now.
    More(u64),
    /// For a cgroup of the pids controller, by the id of its directory there: so many in total.
    Group {
        /// The cgroup.
        id: u64,
        /// The number of tasks.
        tasks: u64,
    },
}

/// Converts forks per second to forks per window.
pub(crate) fn forks_in_window(per_second: u32) -> u32 {
    let windows = 1_000_000_000 / STORM_WINDOW_NS as u32;
    match per_second {
        0 => 0,
        // A single fork is not a storm.
        forks => (forks / windows).max(2),
    }
}

pub(crate) struct TaskCounterMaps {
    task_stats: BpfHashMap<MapData, u64, MapEntry<TaskStats>>,
    reclaim_time: BpfHashMap<MapData, u64, MapEntry<ReclaimTime>>,
    reclaim_start: BpfHashMap<MapData, u32, MapEntry<ReclaimStart>>,
    oom_counts: BpfHashMap<MapData, u64, MapEntry<OomCounts>>,
    alarms_sent: BpfHashMap<MapData, MapEntry<AlarmKey>, u64>,
    pid_threshold: Array<MapData, MapEntry<PidThreshold>>,
    host_tasks: Array<MapData, MapEntry<HostTasks>>,
    generation: u64,
    /// The ids that the previous sweep found without a cgroup.
    absent_before: HashSet<u64>,
}

impl TaskCounterMaps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapError> {
        Ok(Self {
            task_stats: take_map(ebpf, "TASK_STATS")?,
            reclaim_time: take_map(ebpf, "RECLAIM_TIME")?,
            reclaim_start: take_map(ebpf, "RECLAIM_START")?,
            oom_counts: take_map(ebpf, "OOM_COUNTS")?,
            alarms_sent: take_map(ebpf, "ALARMS_SENT")?,
            pid_threshold: take_map(ebpf, "PID_THRESHOLD")?,
            host_tasks: take_map(ebpf, "HOST_TASKS")?,
            generation: 0,
            absent_before: HashSet::new(),
        })
    }

    fn remove_alarm(&mut self, key: &MapEntry<AlarmKey>) -> Result<(), MapError> {
        was_present(self.alarms_sent.remove(key)).map(drop)
    }
}

impl BpfHandle {
    /// Reads what the tasks of each memory cgroup did since the programs were attached, in no order, into `out`
    /// (which is cleared). Cgroups that did nothing are missing. Cgroups below a cgroup are not included in it.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn task_counts(&self, out: &mut Vec<(u64, TaskStats)>) -> Result<(), MapError> {
        out.clear();
        for entry in self.task_counters.task_stats.iter() {
            let (id, MapEntry(stats)) = entry?;
            out.push((id, stats));
        }
        Ok(())
    }

    /// Reads the reclaim time of each memory cgroup whose tasks reclaimed, in no order, into `out` (which is
    /// cleared). Cgroups below a cgroup are not included in it.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn reclaim_times(&self, out: &mut Vec<(u64, ReclaimTime)>) -> Result<(), MapError> {
        out.clear();
        for entry in self.task_counters.reclaim_time.iter() {
            let (id, MapEntry(time)) = entry?;
            out.push((id, time));
        }
        Ok(())
    }

    /// Returns how many tasks are reclaiming that were in this memory cgroup when they began.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn reclaiming(&self, id: u64) -> Result<usize, MapError> {
        let mut count = 0;
        for entry in self.task_counters.reclaim_start.iter() {
            let (_, MapEntry(start)) = entry?;
            count += usize::from(start.memcg_id == id);
        }
        Ok(count)
    }

    /// Returns the forks and exits of the whole machine since the programs were attached.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn host_tasks(&self) -> Result<HostTasks, MapError> {
        self.task_counters.host_tasks.get(&0, 0).map(|MapEntry(tasks)| tasks)
    }

    /// Sets the node's threshold in place of the one before. It is reported once, at the first fork that finds
    /// so many tasks. `None` removes it.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn set_pid_threshold(&mut self, threshold: Option<NodePidThreshold>) -> Result<(), MapError> {
        let net = self.host_tasks()?.net();
        let maps = &mut self.task_counters;
        let before = alarm_key(maps.generation, Alarm::NodeTasks);
        maps.generation += 1;
        let armed = PidThreshold { generation: maps.generation, ..PidThreshold::NONE };
        let armed = match threshold {
            None => PidThreshold::NONE,
            Some(NodePidThreshold::More(tasks)) => {
                PidThreshold { host_threshold: net.saturating_add_unsigned(tasks), ..armed }
            }
            Some(NodePidThreshold::Group { id, tasks }) => {
                PidThreshold { cgroup_id: id, cgroup_threshold: tasks, ..armed }
            }
        };
        maps.pid_threshold.set(0, MapEntry(armed), 0)?;
        maps.remove_alarm(&before)
    }

    /// Lets alarms that were sent before `before_ns` (nanoseconds of `CLOCK_MONOTONIC`) be sent again, if there
    /// still is a reason.
    ///
    /// # Errors
    /// If the map cannot be read or written.
    pub fn reset_alarms(&mut self, before_ns: u64) -> Result<(), MapError> {
        let maps = &mut self.task_counters;
        let mut old = Vec::new();
        for entry in maps.alarms_sent.iter() {
            let (key, sent_ns) = entry?;
            // The alarm of the node is removed with its threshold.
            if sent_ns < before_ns && key.0.alarm != Alarm::NodeTasks as u32 {
                old.push(key);
            }
        }
        old.iter().try_for_each(|key| maps.remove_alarm(key))
    }

    /// Removes the entries of memory cgroups that do not exist. rmdir removes them too, but a task that was
    /// moved may add an entry afterwards. Only entries that two sweeps in a row find without a cgroup are
    /// removed, since `exists` may be behind the kernel for a moment. Returns how many entries were removed.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn sweep(&mut self, exists: impl Fn(u64) -> bool) -> Result<u64, MapError> {
        let maps = &mut self.task_counters;
        let mut absent = HashSet::new();
        for id in maps.task_stats.keys().chain(maps.reclaim_time.keys()).chain(maps.oom_counts.keys()) {
            let id = id?;
            if !exists(id) {
                absent.insert(id);
            }
        }
        let mut removed = 0;
        let absent_before = std::mem::take(&mut maps.absent_before);
        for id in absent.intersection(&absent_before) {
            // An entry is missing if the kernel's own cleanup was first.
            removed += u64::from(was_present(maps.task_stats.remove(id))?);
            removed += u64::from(was_present(maps.reclaim_time.remove(id))?);
            removed += u64::from(was_present(maps.oom_counts.remove(id))?);
            maps.remove_alarm(&alarm_key(*id, Alarm::ForkStorm))?;
        }
        absent.retain(|id| !absent_before.contains(id));
        maps.absent_before = absent;
        Ok(removed)
    }

    /// Returns whether any of the maps that [`Self::sweep`] cleans has an entry of this memory cgroup.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn has_entries(&self, id: u64) -> Result<bool, MapError> {
        let task_counters = &self.task_counters;
        Ok(was_present(task_counters.task_stats.get(&id, 0).map(drop))?
            || was_present(task_counters.reclaim_time.get(&id, 0).map(drop))?
            || was_present(task_counters.oom_counts.get(&id, 0).map(drop))?)
    }
}

fn alarm_key(id: u64, alarm: Alarm) -> MapEntry<AlarmKey> {
    MapEntry(AlarmKey { id, alarm: alarm as u32, pad: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_per_second_are_converted_to_forks_per_window() {
        assert_eq!([0, 1, 5_000, u32::MAX].map(forks_in_window), [0, 2, 500, u32::MAX / 10]);
    }
}
