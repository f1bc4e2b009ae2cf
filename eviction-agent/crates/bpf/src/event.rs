//! What the kernel told, in the units of the rest of the house: bytes, and nanoseconds of
//! `CLOCK_MONOTONIC`.

use std::{borrow::Cow, ffi::OsStr, fmt, os::unix::ffi::OsStrExt as _};

pub use eviction_common::{Alarm, DiskResource, Edge, KernelKillCause};

/// When and where the kernel side wrote a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds of `CLOCK_MONOTONIC` when the program ran.
    pub ktime_ns: u64,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// Number of the record among those of its CPU, lost ones counted.
    pub seq: u64,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An armed level was crossed.
    ThresholdCrossed(ThresholdCrossed),
    /// The kernel kills a process, out of memory. Also when it is not known whether it does
    /// ([`OomKill::was_killed`]).
    OomKill(OomKill),
    /// The kernel ran out of memory, and marked a task that was about to end of itself; it killed
    /// nobody. So end processes at their limit that somebody else sent SIGKILL.
    OomMark(OomKill),
    /// A cgroup of the memory controller's hierarchy was made.
    CgroupCreated(CgroupChange),
    /// A cgroup of the memory controller's hierarchy was removed.
    CgroupRemoved(CgroupChange),
    /// There are, or come, too many tasks.
    TaskAlarm(TaskAlarm),
    /// The armed kill order was carried out.
    KernelKill(KernelKill),
    /// A threshold on a file system was crossed.
    DiskThresholdCrossed(DiskThresholdCrossed),
}

impl Event {
    /// When and where it was written.
    pub fn stamp(&self) -> Stamp {
        match self {
            Self::ThresholdCrossed(crossed) => crossed.stamp,
            Self::OomKill(kill) | Self::OomMark(kill) => kill.stamp,
            Self::CgroupCreated(change) | Self::CgroupRemoved(change) => change.stamp,
            Self::TaskAlarm(alarm) => alarm.stamp,
            Self::KernelKill(kill) => kill.stamp,
            Self::DiskThresholdCrossed(crossed) => crossed.stamp,
        }
    }
}

/// An armed level was crossed. Comes once for each arming and edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThresholdCrossed {
    /// When and where.
    pub stamp: Stamp,
    /// The cgroup whose level it is.
    pub cgroup_id: u64,
    /// The cgroup that was charged: the level's own, or one below it.
    pub leaf_id: u64,
    /// Which arming it was: [`Generation`](super::Generation) as [`set_threshold`](super::BpfHandle::set_threshold) gave it.
    pub generation: u64,
    /// What was crossed.
    pub edge: Edge,
    /// Usage of the level's cgroup then, bytes.
    pub usage: u64,
    /// Bytes charged since the arming; 0 on methods that do not see every charge.
    pub gross: u64,
    /// The process that ran then: who charged, mostly.
    pub tgid: u32,
    /// Its thread.
    pub pid: u32,
}

impl ThresholdCrossed {
    /// Whether usage had grown to the line, and not sunk under it.
    pub fn is_rise(&self) -> bool {
        match self.edge {
            Edge::UsageAbove | Edge::Gross => true,
            Edge::UsageBelow => false,
        }
    }

    /// One upwards of that level, by that arming.
    #[cfg(any(test, feature = "fixture"))]
    pub fn upwards(cgroup_id: u64, generation: u64) -> Self {
        let stamp = Stamp { ktime_ns: 0, cpu: 0, seq: 0 };
        let (leaf_id, edge) = (cgroup_id, Edge::UsageAbove);
        Self { stamp, cgroup_id, leaf_id, generation, edge, usage: 0, gross: 0, tgid: 1, pid: 1 }
    }
}

/// A threshold on a file system was crossed. Comes once for each setting and resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskThresholdCrossed {
    /// When and where.
    pub stamp: Stamp,
    /// The file system, as `st_dev` of its files has it.
    pub device: u64,
    /// What of it.
    pub resource: DiskResource,
    /// Which setting it was: [`Generation`](super::Generation) as
    /// [`set_disk_threshold`](super::BpfHandle::set_disk_threshold) gave it.
    pub generation: u64,
    /// How much more than the headroom was taken, bytes or inodes.
    pub beyond: u64,
    /// The memory cgroup that took what crossed it; 0 if that is not known.
    pub leaf_id: u64,
    /// The process that ran then: who wrote, or a worker of the kernel.
    pub tgid: u32,
    /// Its thread.
    pub pid: u32,
}

/// A kill order was carried out: a process of the victim was sent SIGKILL at its own charge of memory or write, in
/// the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelKill {
    /// When and where.
    pub stamp: Stamp,
    /// Which order: [`OrderNumber`](super::OrderNumber) as [`arm_kill`](super::BpfHandle::arm_kill) or
    /// [`arm_disk_kill`](super::BpfHandle::arm_disk_kill) gave it.
    pub order: u64,
    /// For memory or for a disk.
    pub cause: KernelKillCause,
    /// The victim's cgroup.
    pub victim_id: u64,
    /// The cgroup that was charged: the victim's or one below it.
    pub leaf_id: u64,
    /// Usage of the level then, bytes. For a disk 0.
    pub usage: u64,
    /// By how much the process had grown since the sample, bytes. For a disk what was taken of it since then, by
    /// whomever.
    pub grown: u64,
    /// The process.
    pub tgid: u32,
    /// Its thread.
    pub pid: u32,
    /// The error with which the kernel refused to send the signal, if it did.
    pub error: Option<i32>,
    /// The process's name, zero-padded.
    pub comm: [u8; 16],
}

impl KernelKill {
    /// The process's name with what is not UTF-8 replaced.
    pub fn comm_lossy(&self) -> impl fmt::Display + '_ {
        lossy(&self.comm)
    }
}

/// A memory cgroup between a victim and the root of the hierarchy, as it was at the kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ancestor {
    /// Its id.
    pub id: u64,
    /// Usage, bytes.
    pub usage: u64,
    /// Limit, bytes; `None` is unlimited.
    pub max: Option<u64>,
    /// What its event counts say, where the kernel has them.
    pub events: Option<OomEvents>,
    /// The kernel kills all of its processes together (`memory.oom.group`).
    pub oom_group: bool,
}

/// A memory cgroup's own event counts at a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomEvents {
    /// How often it ran out of memory by its own limit (`MEMCG_OOM`).
    pub oom: u64,
    /// How many of its own processes were killed (`MEMCG_OOM_KILL`).
    pub oom_kill: u64,
    /// `oom` when the kernel side last looked; `None` when it never did.
    pub oom_before: Option<u64>,
    /// `oom_kill` then.
    pub oom_kill_before: Option<u64>,
}

/// What the kernel was about when it chose its victim (`struct oom_control` in linux/oom.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomContext {
    /// The memory cgroup whose limit it was; `None` is the machine itself.
    pub owner: Option<Ancestor>,
    /// When it had chosen: the same for all that it killed at once.
    pub ktime_ns: u64,
}

/// The kernel chose a victim and is about to kill it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomKill {
    /// When and where.
    pub stamp: Stamp,
    /// The victim's process.
    pub tgid: u32,
    /// The thread of it that the kernel named.
    pub pid: u32,
    /// Its name, zero-padded, as the kernel has it; empty where only the pid was to be had.
    pub comm: [u8; 16],
    /// Its owner.
    pub uid: Option<u32>,
    /// Its `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
    /// Its resident memory.
    pub rss: Option<Rss>,
    /// The process in whose context the kernel killed.
    pub trigger_tgid: u32,
    /// Its thread.
    pub trigger_pid: u32,
    /// That thread's name, zero-padded.
    pub trigger_comm: [u8; 16],
    /// The memory cgroup that it was in.
    pub trigger_memcg: Option<u64>,
    /// What the kernel itself said of the owner, where it can be asked.
    pub context: Option<OomContext>,
    /// The tree was deeper than the record: the chain ends before the root.
    pub truncated: bool,
    /// The kernel gave only the victim's pid: the chain is that of the triggering task.
    pub pid_only: bool,
    /// The memory cgroups from the victim's own up to the root; empty where the kernel gave none.
    pub chain: Vec<Ancestor>,
    /// The names of their directories; empty where one is not known. The root's is of no use.
    pub names: Vec<Box<[u8]>>,
}

/// Resident memory of a victim, bytes. Exact but for what each CPU has not yet folded in
/// (at most 32 pages or twice the number of CPUs), like the kernel's own log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// Anonymous.
    pub anon: u64,
    /// Of files.
    pub file: u64,
    /// Shared memory.
    pub shmem: u64,
    /// Swapped out.
    pub swap: u64,
}

impl OomKill {
    /// The victim's memory cgroup, where it is known.
    pub fn memcg_id(&self) -> Option<u64> {
        match self.pid_only {
            true => None,
            false => self.chain.first().map(|ancestor| ancestor.id),
        }
    }

    /// Whether the kernel killed it. It also marks a task as its victim that is about to end of
    /// itself, to speed it up, and counts no kill then (`task_will_free_mem` in mm/oom_kill.c): a
    /// process that was sent SIGKILL at its limit is no out-of-memory kill. `None` where the kernel
    /// side did not know the count before.
    pub fn was_killed(&self) -> Option<bool> {
        if self.pid_only {
            return None;
        }
        let events = self.chain.first()?.events?;
        match events.oom_kill_before {
            Some(before) => Some(before != events.oom_kill),
            None if events.oom_kill == 0 => Some(false),
            None => None,
        }
    }

    /// The victim's name with what is not UTF-8 replaced.
    pub fn comm_lossy(&self) -> impl fmt::Display + '_ {
        lossy(&self.comm)
    }

    /// The same of the task in whose context the kernel killed.
    pub fn trigger_comm_lossy(&self) -> impl fmt::Display + '_ {
        lossy(&self.trigger_comm)
    }

    /// The memory cgroups on the way from the one with the id `top` down to the first of the chain,
    /// `top` left out: the id and the directory's name of each, as they were at the kill. `None`
    /// where `top` is not on the way or a name is not known.
    pub fn path_below(&self, top: u64) -> Option<Vec<(u64, &OsStr)>> {
        let end = self.chain.iter().position(|ancestor| ancestor.id == top)?;
        let below = self.chain.iter().zip(&self.names).take(end).rev();
        let named = below.map(|(ancestor, name)| Some((ancestor.id, OsStr::from_bytes(name))));
        named.map(|step| step.filter(|(_, name)| !name.is_empty())).collect()
    }
}

fn lossy(comm: &[u8; 16]) -> Cow<'_, str> {
    String::from_utf8_lossy(comm.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// A cgroup was made or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupChange {
    /// When and where.
    pub stamp: Stamp,
    /// Its id.
    pub id: u64,
}

/// There are, or come, too many tasks. Comes once for each cgroup or line, until it is armed again
/// ([`BpfHandle::reset_alarms`](super::BpfHandle::reset_alarms)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskAlarm {
    /// When and where.
    pub stamp: Stamp,
    /// What about them.
    pub alarm: Alarm,
    /// The memory cgroup of the new task.
    pub memcg_id: u64,
    /// [`Alarm::PidsLimit`]: the group of the pids controller, whose id on cgroup v1 is that of its
    /// directory in the controller's own hierarchy. [`Alarm::NodeTasks`]: the arming.
    pub key_id: u64,
    /// [`Alarm::ForkStorm`]: tasks made within [`STORM_WINDOW_NS`](eviction_common::STORM_WINDOW_NS).
    /// Else how many there are; of the whole machine forks less exits since the programs were attached.
    pub tasks: i64,
    /// What `tasks` reached: the bound, the limit (of which it came near), the line.
    pub bound: i64,
    /// The process that forked.
    pub tgid: u32,
    /// [`Alarm::PidsLimit`]: how deep the limited group is below the root of its hierarchy.
    pub depth: u32,
}
