//! Tasks and time spent in reclaim: keys and values of their maps, and the record that tells of too
//! many tasks.

use crate::Header;

/// What a memory cgroup's tasks did since the programs were attached: map `TASK_STATS`, by the cgroup's id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskCount {
    /// Tasks (threads included) made.
    pub forks: u64,
    /// Tasks ended.
    pub exits: u64,
    /// Processes made.
    pub process_forks: u64,
    /// Processes whose first thread ended.
    pub process_exits: u64,
    /// Programs started in a process (`execve`).
    pub execs: u64,
    /// How fast it forks.
    pub rate: ForkRate,
}

impl TaskCount {
    /// Nothing yet.
    pub const NONE: Self = Self {
        forks: 0,
        exits: 0,
        process_forks: 0,
        process_exits: 0,
        execs: 0,
        rate: ForkRate { since_ns: 0, forks: 0 },
    };
}

/// Over how long the rate of forks is taken.
pub const STORM_WINDOW_NS: u64 = 100_000_000;

/// Forks of a memory cgroup in a window of time, on all CPUs. Two CPUs may begin a window at once, and a
/// few forks are in neither then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ForkRate {
    /// When the window began.
    pub since_ns: u64,
    /// Tasks made since.
    pub forks: u64,
}

/// Tasks of the whole machine since the programs were attached; the one value of array `HOST_TASKS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HostTasks {
    /// Made.
    pub forks: u64,
    /// Ended.
    pub exits: u64,
}

impl HostTasks {
    /// How many more there are than when the programs were attached.
    pub const fn net(self) -> i64 {
        self.forks.wrapping_sub(self.exits) as i64
    }
}

/// Where a fork on this CPU last went up the groups of the pids controller; the one value of map `PIDS_CACHE`.
/// The next one from the same group needs not while it cannot have come near a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PidsCache {
    /// Address of the lowest group.
    pub group: u64,
    /// [`HostTasks::forks`] from which on one of the groups may be near its limit, or at the node's line.
    pub until_forks: u64,
    /// When it is looked at again however few were made, by `CLOCK_MONOTONIC`: a limit may be set, and tasks
    /// may be moved.
    pub until_ns: u64,
    /// [`PidThreshold::generation`] then.
    pub generation: u64,
}

/// For how long [`PidsCache`] holds.
pub const PIDS_CACHE_NS: u64 = 10_000_000;

/// A limit of the pids controller above this is none: its `max` is the greatest number of process
/// ids that a machine can have, and one (`PIDS_MAX` in kernel/cgroup/pids.c).
pub const PIDS_LIMIT_MAX: u64 = 4 << 20;

/// Tasks are near a limit when less than one in so many is left.
pub const PIDS_NEAR_FRACTION: u64 = 8;

/// What about tasks is told at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Alarm {
    /// A memory cgroup made more tasks in [`STORM_WINDOW_NS`] than the bound.
    ForkStorm = 0,
    /// A group of the pids controller is near its limit ([`PIDS_NEAR_FRACTION`]).
    PidsLimit = 1,
    /// The node has as many tasks as were armed ([`PidThreshold`]).
    NodeTasks = 2,
}

impl Alarm {
    /// How it is called in events.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForkStorm => "fork_storm",
            Self::PidsLimit => "pids_limit",
            Self::NodeTasks => "node_tasks",
        }
    }

    /// The alarm with this number.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::ForkStorm),
            1 => Some(Self::PidsLimit),
            2 => Some(Self::NodeTasks),
            _ => None,
        }
    }
}

/// What was told already; the key of map `ALARMS_SENT`. The program that puts it in pushes the record,
/// and nobody tells it again until user space takes it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct AlarmKey {
    /// [`Alarm::ForkStorm`]: the memory cgroup. [`Alarm::PidsLimit`]: the group of the pids
    /// controller, whose id is another on cgroup v1. [`Alarm::NodeTasks`]: the number of the arming.
    pub id: u64,
    /// An [`Alarm`].
    pub alarm: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// How many tasks the node may have before it is told; the one value of array `PID_THRESHOLD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PidThreshold {
    /// Number of the arming.
    pub generation: u64,
    /// Of the whole machine: [`HostTasks::net`]; `i64::MAX` never.
    pub host_threshold: i64,
    /// Of a node that is a group: its id in the pids controller's hierarchy, else 0.
    pub cgroup_id: u64,
    /// How many tasks that group may have; `u64::MAX` any number.
    pub cgroup_threshold: u64,
}

impl PidThreshold {
    /// Nothing is armed.
    pub const NONE: Self =
        Self { generation: 0, host_threshold: i64::MAX, cgroup_id: 0, cgroup_threshold: u64::MAX };
}

/// There are, or come, too many tasks. Pushed at once and with a wake-up, once for each
/// [`AlarmKey`] until it is taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskAlarm {
    /// [`crate::Kind::TaskAlarm`].
    pub header: Header,
    /// The memory cgroup of the task that was made.
    pub memcg_id: u64,
    /// [`AlarmKey::id`].
    pub key_id: u64,
    /// [`Alarm::ForkStorm`]: tasks made in the window so far. Else how many tasks there are; of
    /// the whole machine forks less exits since the programs were attached.
    pub tasks: u64,
    /// What `tasks` reached: the bound, the group's limit (of which it came near), the line.
    pub bound: u64,
    /// The process that forked.
    pub tgid: u32,
    /// [`Alarm::PidsLimit`]: how deep the limited group is below the root of its hierarchy.
    pub depth: u32,
    /// An [`Alarm`].
    pub alarm: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// A task in memcg direct reclaim; the value of map `RECLAIM_START`, whose key is its thread id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ReclaimStart {
    /// When it began.
    pub ktime_ns: u64,
    /// The memory cgroup that the task was in then.
    pub memcg_id: u64,
}

/// What the tasks of a memory cgroup spent in memcg direct reclaim since the programs were attached;
/// the value of map `RECLAIM_TIME`, whose key is its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ReclaimTime {
    /// How often a task reclaimed.
    pub count: u64,
    /// For how long, all tasks together.
    pub ns: u64,
    /// Pages that were reclaimed.
    pub reclaimed: u64,
}

const _: () = {
    assert!(size_of::<TaskCount>() == 56);
    assert!(size_of::<ForkRate>() == 16);
    assert!(size_of::<HostTasks>() == 16);
    assert!(size_of::<PidsCache>() == 32);
    assert!(size_of::<AlarmKey>() == 16);
    assert!(size_of::<PidThreshold>() == 32);
    assert!(size_of::<TaskAlarm>() == 80);
    assert!(size_of::<ReclaimStart>() == 16);
    assert!(size_of::<ReclaimTime>() == 24);
};
