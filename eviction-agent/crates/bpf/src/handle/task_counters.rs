//! What the kernel side counts per cgroup: tasks made and ended, time spent in reclaim; what it is to
//! tell of too many tasks; and the sweep of what is left of cgroups that are absent.

use std::collections::HashSet;

use aya::{
    Ebpf, Pod,
    maps::{Array, HashMap as BpfHashMap, Map, MapData, MapError, MapKeys},
};
use eviction_common::{
    Alarm, AlarmKey, HostTasks, OomCounts, PidThreshold, ReclaimStart, ReclaimTime as RawReclaimTime,
    STORM_WINDOW_NS, TaskCount as RawTaskCount,
};

use super::BpfHandle;
use crate::sys::MapEntry;

/// Tasks that a cgroup made and ended since the programs were attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCount {
    /// Tasks (threads included) made.
    pub forks: u64,
    /// Tasks ended.
    pub exits: u64,
    /// Processes made.
    pub process_forks: u64,
    /// Processes whose first thread ended.
    pub process_exits: u64,
    /// Programs started (`execve`).
    pub execs: u64,
}

/// What the tasks of a cgroup spent in memcg direct reclaim since the programs were attached. It is
/// theirs who waited; the limit may be that of a cgroup above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimTime {
    /// How often.
    pub count: u64,
    /// Nanoseconds, all tasks together: it may be more than the time that passed.
    pub ns: u64,
    /// Bytes that were reclaimed.
    pub reclaimed: u64,
}

/// How many tasks the node may have before it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePidThreshold {
    /// The whole machine: so many more than now.
    More(u64),
    /// A group of the pids controller, by the id of its directory there: so many in all.
    Group {
        /// The group.
        id: u64,
        /// How many.
        tasks: u64,
    },
}

/// How many forks in a window are so many in a second.
pub(crate) fn forks_in_window(per_second: u32) -> u32 {
    let windows = 1_000_000_000 / STORM_WINDOW_NS as u32;
    match per_second {
        0 => 0,
        // One fork alone is in no hurry.
        some => (some / windows).max(2),
    }
}

pub(crate) struct TaskCounterMaps {
    task_stats: BpfHashMap<MapData, u64, MapEntry<RawTaskCount>>,
    reclaim_time: BpfHashMap<MapData, u64, MapEntry<RawReclaimTime>>,
    reclaim_start: BpfHashMap<MapData, u32, MapEntry<ReclaimStart>>,
    oom_counts: BpfHashMap<MapData, u64, MapEntry<OomCounts>>,
    alarms_sent: BpfHashMap<MapData, MapEntry<AlarmKey>, u64>,
    pid_threshold: Array<MapData, MapEntry<PidThreshold>>,
    host_tasks: Array<MapData, MapEntry<HostTasks>>,
    generation: u64,
    /// What the sweep before found of cgroups that are not there.
    absent_before: HashSet<u64>,
}

impl TaskCounterMaps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapError> {
        let mut take = |name: &str| -> Result<Map, MapError> {
            ebpf.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })
        };
        Ok(Self {
            task_stats: take("TASK_STATS")?.try_into()?,
            reclaim_time: take("RECLAIM_TIME")?.try_into()?,
            reclaim_start: take("RECLAIM_START")?.try_into()?,
            oom_counts: take("OOM_COUNTS")?.try_into()?,
            alarms_sent: take("ALARMS_SENT")?.try_into()?,
            pid_threshold: take("PID_THRESHOLD")?.try_into()?,
            host_tasks: take("HOST_TASKS")?.try_into()?,
            generation: 0,
            absent_before: HashSet::new(),
        })
    }
}

impl BpfHandle {
    /// What the tasks of this memory cgroup did since the programs were attached; zero for a
    /// cgroup that did nothing. Those of cgroups below it are not counted in.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn task_count(&self, id: u64) -> Result<TaskCount, MapError> {
        match self.maps.task_counters.task_stats.get(&id, 0) {
            Ok(counted) => Ok(to_task_count(counted)),
            Err(MapError::KeyNotFound) => Ok(TaskCount::default()),
            Err(error) => Err(error),
        }
    }

    /// The same of every memory cgroup that did anything, in no order, into `out` (which is cleared).
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn task_counts(&self, out: &mut Vec<(u64, TaskCount)>) -> Result<(), MapError> {
        out.clear();
        for entry in self.maps.task_counters.task_stats.iter() {
            let (id, counted) = entry?;
            out.push((id, to_task_count(counted)));
        }
        Ok(())
    }

    /// What the tasks of this memory cgroup spent in reclaim; zero for one that did not. Those of
    /// cgroups below it are not counted in.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn reclaim_time(&self, id: u64) -> Result<ReclaimTime, MapError> {
        match self.maps.task_counters.reclaim_time.get(&id, 0) {
            Ok(time) => Ok(self.to_reclaim_time(time)),
            Err(MapError::KeyNotFound) => Ok(ReclaimTime::default()),
            Err(error) => Err(error),
        }
    }

    /// The same of every memory cgroup whose tasks reclaimed, in no order, into `out` (which is
    /// cleared).
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn reclaim_times(&self, out: &mut Vec<(u64, ReclaimTime)>) -> Result<(), MapError> {
        out.clear();
        for entry in self.maps.task_counters.reclaim_time.iter() {
            let (id, time) = entry?;
            out.push((id, self.to_reclaim_time(time)));
        }
        Ok(())
    }

    /// How many tasks that were in this memory cgroup when they began to reclaim are at it.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn reclaiming(&self, id: u64) -> Result<usize, MapError> {
        let mut count = 0;
        for entry in self.maps.task_counters.reclaim_start.iter() {
            let (_, MapEntry(start)) = entry?;
            count += usize::from(start.memcg_id == id);
        }
        Ok(count)
    }

    fn to_reclaim_time(&self, MapEntry(time): MapEntry<RawReclaimTime>) -> ReclaimTime {
        let RawReclaimTime { count, ns, reclaimed } = time;
        ReclaimTime { count, ns, reclaimed: reclaimed.saturating_mul(self.page_bytes) }
    }

    /// Forks and exits of the whole machine since the programs were attached.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn host_tasks(&self) -> Result<HostTasks, MapError> {
        self.maps.task_counters.host_tasks.get(&0, 0).map(|MapEntry(tasks)| tasks)
    }

    /// Arms the node's own line instead of the one before: it is told once, at the first fork that
    /// finds so many tasks. `None` disarms it.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn set_pid_threshold(&mut self, line: Option<NodePidThreshold>) -> Result<(), MapError> {
        let net = self.host_tasks()?.net();
        let maps = &mut self.maps.task_counters;
        let before = alarm_key(maps.generation, Alarm::NodeTasks);
        maps.generation += 1;
        let armed = PidThreshold { generation: maps.generation, ..PidThreshold::NONE };
        let armed = match line {
            None => PidThreshold::NONE,
            Some(NodePidThreshold::More(tasks)) => {
                PidThreshold { host_threshold: net.saturating_add_unsigned(tasks), ..armed }
            }
            Some(NodePidThreshold::Group { id, tasks }) => {
                PidThreshold { cgroup_id: id, cgroup_threshold: tasks, ..armed }
            }
        };
        maps.pid_threshold.set(0, MapEntry(armed), 0)?;
        forget(&mut maps.alarms_sent, &before)
    }

    /// Lets alarms that were told before `before_ns` (nanoseconds of `CLOCK_MONOTONIC`) be told
    /// again, if there still is a reason.
    ///
    /// # Errors
    /// If the map cannot be read or written.
    pub fn reset_alarms(&mut self, before_ns: u64) -> Result<(), MapError> {
        let maps = &mut self.maps.task_counters;
        let node = Alarm::NodeTasks as u32;
        let old = maps.alarms_sent.iter().filter_map(|entry| match entry {
            // The node's own goes with its arming.
            Ok((MapEntry(key), sent_ns)) => {
                (sent_ns < before_ns && key.alarm != node).then_some(Ok(MapEntry(key)))
            }
            Err(error) => Some(Err(error)),
        });
        let old: Vec<_> = old.collect::<Result<_, _>>()?;
        old.iter().try_for_each(|key| forget(&mut maps.alarms_sent, key))
    }

    /// Takes out what is kept of memory cgroups that are absent: rmdir does it too, but a task that
    /// was moved may put something in behind it. Only what two sweeps in a row find of a cgroup that is
    /// not there goes, since `exists` may know less than the kernel for a moment. Gives how
    /// many entries went.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn sweep(&mut self, exists: impl Fn(u64) -> bool) -> Result<u64, MapError> {
        let Self { maps, .. } = self;
        let task_counters = &mut maps.task_counters;
        let mut absent = HashSet::new();
        let mut note_absent = |keys: MapKeys<'_, u64>| -> Result<(), MapError> {
            for id in keys {
                let id = id?;
                if !exists(id) {
                    absent.insert(id);
                }
            }
            Ok(())
        };
        note_absent(task_counters.task_stats.keys())?;
        note_absent(task_counters.reclaim_time.keys())?;
        note_absent(task_counters.oom_counts.keys())?;
        let mut removed = 0;
        let absent_before = std::mem::take(&mut task_counters.absent_before);
        for id in absent.intersection(&absent_before) {
            removed += removed_count(task_counters.task_stats.remove(id))?;
            removed += removed_count(task_counters.reclaim_time.remove(id))?;
            removed += removed_count(task_counters.oom_counts.remove(id))?;
            let storm = alarm_key(*id, Alarm::ForkStorm);
            forget(&mut task_counters.alarms_sent, &storm)?;
        }
        absent.retain(|id| !absent_before.contains(id));
        task_counters.absent_before = absent;
        Ok(removed)
    }

    /// Whether any of the maps that [`Self::sweep`] cleans holds something of this memory cgroup.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn has_entries(&self, id: u64) -> Result<bool, MapError> {
        let task_counters = &self.maps.task_counters;
        let holds = |found: Result<(), MapError>| match found {
            Ok(()) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        };
        Ok(holds(task_counters.task_stats.get(&id, 0).map(drop))?
            || holds(task_counters.reclaim_time.get(&id, 0).map(drop))?
            || holds(task_counters.oom_counts.get(&id, 0).map(drop))?)
    }
}

fn to_task_count(MapEntry(counted): MapEntry<RawTaskCount>) -> TaskCount {
    let RawTaskCount { forks, exits, process_forks, process_exits, execs, rate: _ } = counted;
    TaskCount { forks, exits, process_forks, process_exits, execs }
}

fn alarm_key(id: u64, alarm: Alarm) -> MapEntry<AlarmKey> {
    MapEntry(AlarmKey { id, alarm: alarm as u32, pad: 0 })
}

/// How many went: none where the kernel's own cleaning was first.
fn removed_count(removed: Result<(), MapError>) -> Result<u64, MapError> {
    match removed {
        Ok(()) => Ok(1),
        Err(error) if is_absent(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

fn forget<K, V: Pod>(map: &mut BpfHashMap<MapData, K, V>, key: &K) -> Result<(), MapError>
where
    K: Pod,
{
    removed_count(map.remove(key)).map(drop)
}

fn is_absent(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound => true,
        MapError::SyscallError(error) => error.io_error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_of_forks_is_taken_over_a_window_and_none_is_no_storm() {
        assert_eq!([0, 1, 5_000, u32::MAX].map(forks_in_window), [0, 2, 500, u32::MAX / 10]);
    }
}
