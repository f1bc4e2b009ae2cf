//! Tasks and time spent in reclaim: keys and values of their maps, and the record for alarms about tasks.

use crate::{Header, numbered_enum::numbered_enum};

/// The tasks of a memory cgroup since the programs were attached; the value of map `TASK_STATS`, whose key is
/// the cgroup's id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskStats {
    /// Tasks created, including threads.
    pub forks: u64,
    /// Tasks that ended.
    pub exits: u64,
    /// Programs started in a process (`execve`).
    pub execs: u64,
    /// The start of the present window of [`STORM_WINDOW_NS`]. Two CPUs may start one at the same time. Then
    /// neither contains a few of the forks.
    pub window_since_ns: u64,
    /// Tasks created since the start of the window, on all CPUs.
    pub window_forks: u64,
}

/// The window for the fork rate, in nanoseconds.
pub const STORM_WINDOW_NS: u64 = 100_000_000;

/// The tasks of the whole machine since the programs were attached; the only value of array `HOST_TASKS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HostTasks {
    /// Tasks created.
    pub forks: u64,
    /// Tasks that ended.
    pub exits: u64,
}

impl HostTasks {
    /// Returns the number of tasks minus the number when the programs were attached.
    pub const fn net(self) -> i64 {
        self.forks.wrapping_sub(self.exits) as i64
    }
}

/// The result of the last walk of a fork on this CPU up the pids cgroups; the only value of map `PIDS_CACHE`.
/// The next fork from the same cgroup skips the walk while it cannot be near a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PidsCache {
    /// The address of the lowest pids cgroup.
    pub group: u64,
    /// [`HostTasks::forks`] from which on one of the cgroups may be near its limit, or the node at its
    /// threshold.
    pub until_forks: u64,
    /// The time (`CLOCK_MONOTONIC`) from which on the next fork walks again, however few tasks were created:
    /// a limit may have been set, or tasks may have been moved.
    pub until_ns: u64,
    /// [`PidThreshold::generation`] at the time of the walk.
    pub generation: u64,
}

/// How long a [`PidsCache`] entry is valid, in nanoseconds.
pub const PIDS_CACHE_NS: u64 = 10_000_000;

/// A pids limit above this value means no limit: the value of `max` is the maximum number of process ids of a
/// machine plus one (`PIDS_MAX` in kernel/cgroup/pids.c).
pub const PIDS_LIMIT_MAX: u64 = 4 << 20;

/// The tasks are near a limit when less than this fraction of it (one in 8) is left.
pub const PIDS_NEAR_FRACTION: u64 = 8;

numbered_enum! {
    /// A condition of tasks that the programs report at once.
    pub enum Alarm: u32 {
        /// A memory cgroup created more tasks in [`STORM_WINDOW_NS`] than the bound.
        ForkStorm = 0,
        /// A cgroup of the pids controller is near its limit ([`PIDS_NEAR_FRACTION`]).
        PidsLimit = 1,
        /// The number of tasks on the node reached its threshold ([`PidThreshold`]).
        NodeTasks = 2,
    }
}

impl Alarm {
    /// Returns the name that events use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForkStorm => "fork_storm",
            Self::PidsLimit => "pids_limit",
            Self::NodeTasks => "node_tasks",
        }
    }
}

/// An alarm that was already sent; the key of map `ALARMS_SENT`. The program that inserts the key pushes the
/// record. No program sends the alarm again until user space removes the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct AlarmKey {
    /// [`Alarm::ForkStorm`]: the memory cgroup. [`Alarm::PidsLimit`]: the pids cgroup, which has another id
    /// on cgroup v1. [`Alarm::NodeTasks`]: [`PidThreshold::generation`].
    pub id: u64,
    /// An [`Alarm`].
    pub alarm: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// The number of tasks on the node at which an alarm is sent; the only value of array `PID_THRESHOLD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PidThreshold {
    /// The number of this setting.
    pub generation: u64,
    /// The threshold for the whole machine, compared with [`HostTasks::net`]; `i64::MAX` means never.
    pub host_threshold: i64,
    /// The id of the node's cgroup in the pids controller's hierarchy, if the node is a cgroup; else 0.
    pub cgroup_id: u64,
    /// The threshold for the tasks of that cgroup; `u64::MAX` means never.
    pub cgroup_threshold: u64,
}

impl PidThreshold {
    /// No threshold is set.
    pub const NONE: Self =
        Self { generation: 0, host_threshold: i64::MAX, cgroup_id: 0, cgroup_threshold: u64::MAX };
}

/// A task limit is reached or near, or a cgroup forks too fast. The record is pushed at once with a wake-up,
/// once for each [`AlarmKey`] until user space removes the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskAlarm {
    /// [`crate::Kind::TaskAlarm`].
    pub header: Header,
    /// The memory cgroup of the created task.
    pub memcg_id: u64,
    /// [`AlarmKey::id`].
    pub key_id: u64,
    /// [`Alarm::ForkStorm`]: the tasks created in the window so far. Else the number of tasks; for the whole
    /// machine, forks minus exits since the programs were attached.
    pub tasks: u64,
    /// The value that `tasks` reached or came near: the bound for forks, the limit of the pids cgroup, or the
    /// threshold of the node.
    pub bound: u64,
    /// The process that forked.
    pub tgid: u32,
    /// An [`Alarm`].
    pub alarm: u32,
}

/// A task in memcg direct reclaim; the value of map `RECLAIM_START`, whose key is its thread id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ReclaimStart {
    /// The time at which the reclaim began.
    pub ktime_ns: u64,
    /// The memory cgroup of the task at that time.
    pub memcg_id: u64,
}

/// The reclaim statistics of a memory cgroup's tasks (memcg direct reclaim) since the programs were attached;
/// the value of map `RECLAIM_TIME`, whose key is the cgroup's id. It counts for the cgroup of the waiting task;
/// the limit may be that of a cgroup above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ReclaimTime {
    /// The number of reclaims.
    pub count: u64,
    /// The time spent in reclaim, the sum over all tasks, in nanoseconds: it may exceed the time that passed.
    pub ns: u64,
    /// Pages that were reclaimed.
    pub reclaimed: u64,
}

const _: () = {
    assert!(size_of::<TaskStats>() == 40);
    assert!(size_of::<HostTasks>() == 16);
    assert!(size_of::<PidsCache>() == 32);
    assert!(size_of::<AlarmKey>() == 16);
    assert!(size_of::<PidThreshold>() == 32);
    assert!(size_of::<TaskAlarm>() == 56);
    assert!(size_of::<ReclaimStart>() == 16);
    assert!(size_of::<ReclaimTime>() == 24);
};
