//! What the kernel side counts per cgroup: tasks made and ended, time spent in reclaim; what it is to
//! tell of too many tasks; and the sweep of what is left of cgroups that are gone.

use std::collections::HashSet;

use aya::{
    Ebpf, Pod,
    maps::{Array, HashMap as BpfHashMap, Map, MapData, MapError, MapKeys},
};
use eviction_common::{
    Alarm, AlarmKey, HostTasks, OomCounts, PidThreshold, ReclaimStart, ReclaimTime as RawStall,
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
    tasks: BpfHashMap<MapData, u64, MapEntry<RawTaskCount>>,
    stalls: BpfHashMap<MapData, u64, MapEntry<RawStall>>,
    reclaiming: BpfHashMap<MapData, u32, MapEntry<ReclaimStart>>,
    seen_oom: BpfHashMap<MapData, u64, MapEntry<OomCounts>>,
    alarmed: BpfHashMap<MapData, MapEntry<AlarmKey>, u64>,
    node_tasks: Array<MapData, MapEntry<PidThreshold>>,
    machine_tasks: Array<MapData, MapEntry<HostTasks>>,
    generation: u64,
    /// What the sweep before found of cgroups that are not there.
    suspects: HashSet<u64>,
}

impl TaskCounterMaps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapError> {
        let mut take = |name: &str| -> Result<Map, MapError> {
            ebpf.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })
        };
        Ok(Self {
            tasks: take("TASK_STATS")?.try_into()?,
            stalls: take("RECLAIM_TIME")?.try_into()?,
            reclaiming: take("RECLAIM_START")?.try_into()?,
            seen_oom: take("OOM_COUNTS")?.try_into()?,
            alarmed: take("ALARMS_SENT")?.try_into()?,
            node_tasks: take("PID_THRESHOLD")?.try_into()?,
            machine_tasks: take("HOST_TASKS")?.try_into()?,
            generation: 0,
            suspects: HashSet::new(),
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
        match self.maps.tally.tasks.get(&id, 0) {
            Ok(counted) => Ok(as_count(counted)),
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
        for entry in self.maps.tally.tasks.iter() {
            let (id, counted) = entry?;
            out.push((id, as_count(counted)));
        }
        Ok(())
    }

    /// What the tasks of this memory cgroup spent in reclaim; zero for one that did not. Those of
    /// cgroups below it are not counted in.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn stall(&self, id: u64) -> Result<ReclaimTime, MapError> {
        match self.maps.tally.stalls.get(&id, 0) {
            Ok(stall) => Ok(self.as_stall(stall)),
            Err(MapError::KeyNotFound) => Ok(ReclaimTime::default()),
            Err(error) => Err(error),
        }
    }

    /// The same of every memory cgroup whose tasks reclaimed, in no order, into `out` (which is
    /// cleared).
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn stalls(&self, out: &mut Vec<(u64, ReclaimTime)>) -> Result<(), MapError> {
        out.clear();
        for entry in self.maps.tally.stalls.iter() {
            let (id, stall) = entry?;
            out.push((id, self.as_stall(stall)));
        }
        Ok(())
    }

    /// How many tasks that were in this memory cgroup when they began to reclaim are at it.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn reclaiming(&self, id: u64) -> Result<usize, MapError> {
        let mut count = 0;
        for entry in self.maps.tally.reclaiming.iter() {
            let (_, MapEntry(start)) = entry?;
            count += usize::from(start.memcg_id == id);
        }
        Ok(count)
    }

    fn as_stall(&self, MapEntry(stall): MapEntry<RawStall>) -> ReclaimTime {
        let RawStall { count, ns, reclaimed } = stall;
        ReclaimTime { count, ns, reclaimed: reclaimed.saturating_mul(self.page_bytes) }
    }

    /// Forks and exits of the whole machine since the programs were attached.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn machine_tasks(&self) -> Result<HostTasks, MapError> {
        self.maps.tally.machine_tasks.get(&0, 0).map(|MapEntry(tasks)| tasks)
    }

    /// Arms the node's own line instead of the one before: it is told once, at the first fork that
    /// finds so many tasks. `None` disarms it.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn arm_node_tasks(&mut self, line: Option<NodePidThreshold>) -> Result<(), MapError> {
        let net = self.machine_tasks()?.net();
        let maps = &mut self.maps.tally;
        let before = alarm_key(maps.generation, Alarm::NodeTasks);
        maps.generation += 1;
        let armed = PidThreshold { generation: maps.generation, ..PidThreshold::NONE };
        let armed = match line {
            None => PidThreshold::NONE,
            Some(NodePidThreshold::More(tasks)) => {
                PidThreshold { net_line: net.saturating_add_unsigned(tasks), ..armed }
            }
            Some(NodePidThreshold::Group { id, tasks }) => {
                PidThreshold { group_id: id, group_line: tasks, ..armed }
            }
        };
        maps.node_tasks.set(0, MapEntry(armed), 0)?;
        forget(&mut maps.alarmed, &before)
    }

    /// Lets alarms that were told before `before_ns` (nanoseconds of `CLOCK_MONOTONIC`) be told
    /// again, if there still is a reason.
    ///
    /// # Errors
    /// If the map cannot be read or written.
    pub fn rearm_alarms(&mut self, before_ns: u64) -> Result<(), MapError> {
        let maps = &mut self.maps.tally;
        let node = Alarm::NodeTasks as u32;
        let old = maps.alarmed.iter().filter_map(|entry| match entry {
            // The node's own goes with its arming.
            Ok((MapEntry(key), told_ns)) => {
                (told_ns < before_ns && key.alarm != node).then_some(Ok(MapEntry(key)))
            }
            Err(error) => Some(Err(error)),
        });
        let old: Vec<_> = old.collect::<Result<_, _>>()?;
        old.iter().try_for_each(|key| forget(&mut maps.alarmed, key))
    }

    /// Takes out what is kept of memory cgroups that are gone: rmdir does it too, but a task that
    /// was moved may put something in behind it. Only what two sweeps in a row find of a cgroup that is
    /// not there goes, since `exists` may know less than the kernel for a moment. Gives how
    /// many entries went.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn sweep(&mut self, exists: impl Fn(u64) -> bool) -> Result<u64, MapError> {
        let Self { maps, .. } = self;
        let tally = &mut maps.tally;
        let mut gone = HashSet::new();
        let mut take_note = |keys: MapKeys<'_, u64>| -> Result<(), MapError> {
            for id in keys {
                let id = id?;
                if !exists(id) {
                    gone.insert(id);
                }
            }
            Ok(())
        };
        take_note(tally.tasks.keys())?;
        take_note(tally.stalls.keys())?;
        take_note(tally.seen_oom.keys())?;
        let mut removed = 0;
        let suspects = std::mem::take(&mut tally.suspects);
        for id in gone.intersection(&suspects) {
            removed += take_out(tally.tasks.remove(id))?;
            removed += take_out(tally.stalls.remove(id))?;
            removed += take_out(tally.seen_oom.remove(id))?;
            let storm = alarm_key(*id, Alarm::ForkStorm);
            forget(&mut tally.alarmed, &storm)?;
        }
        gone.retain(|id| !suspects.contains(id));
        tally.suspects = gone;
        Ok(removed)
    }

    /// Whether any of the maps that [`Self::sweep`] cleans holds something of this memory cgroup.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn holds(&self, id: u64) -> Result<bool, MapError> {
        let tally = &self.maps.tally;
        let holds = |found: Result<(), MapError>| match found {
            Ok(()) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        };
        Ok(holds(tally.tasks.get(&id, 0).map(drop))?
            || holds(tally.stalls.get(&id, 0).map(drop))?
            || holds(tally.seen_oom.get(&id, 0).map(drop))?)
    }
}

fn as_count(MapEntry(counted): MapEntry<RawTaskCount>) -> TaskCount {
    let RawTaskCount { forks, exits, process_forks, process_exits, execs, rate: _ } = counted;
    TaskCount { forks, exits, process_forks, process_exits, execs }
}

fn alarm_key(id: u64, alarm: Alarm) -> MapEntry<AlarmKey> {
    MapEntry(AlarmKey { id, alarm: alarm as u32, pad: 0 })
}

/// How many went: none where the kernel's own cleaning was first.
fn take_out(removed: Result<(), MapError>) -> Result<u64, MapError> {
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
    take_out(map.remove(key)).map(drop)
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
