//! The kernel's events, in the units of the rest of the agent: bytes, and nanoseconds of `CLOCK_MONOTONIC`.

use std::{borrow::Cow, ffi::OsStr, fmt, os::unix::ffi::OsStrExt as _};

pub use eviction_common::{Alarm, DiskResource, Edge, KernelKillCause};

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A memory threshold was crossed.
    ThresholdCrossed(ThresholdCrossed),
    /// The kernel kills a process because it is out of memory. Also used if it is not known whether it does
    /// ([`OomKill::was_killed`]).
    OomKill(OomKill),
    /// The kernel ran out of memory and marked a task that was about to exit by itself; it killed no process.
    /// Processes at their limit that were sent SIGKILL by another process end this way.
    OomMark(OomKill),
    /// A cgroup of the memory controller's hierarchy was created: its id.
    CgroupCreated(u64),
    /// A cgroup of the memory controller's hierarchy was removed: its id.
    CgroupRemoved(u64),
    /// There are too many tasks, or there soon will be.
    TaskAlarm(TaskAlarm),
    /// The armed kill order was carried out.
    KernelKill(KernelKill),
    /// A threshold on a file system was crossed.
    DiskThresholdCrossed(DiskThresholdCrossed),
}

/// A memory threshold was crossed. Reported once for each setting and edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThresholdCrossed {
    /// When the program ran.
    pub ktime_ns: u64,
    /// The cgroup that has the threshold.
    pub cgroup_id: u64,
    /// The cgroup that was charged: the one with the threshold, or one below it.
    pub leaf_id: u64,
    /// The setting of the threshold: the generation that
    /// [`set_threshold`](super::BpfHandle::set_threshold) returned.
    pub generation: u64,
    /// The edge that was crossed.
    pub edge: Edge,
    /// Usage then of the cgroup that has the threshold, in bytes.
    pub usage: u64,
    /// Bytes charged since the threshold was set; 0 on methods that do not see every charge.
    pub gross: u64,
    /// The process that ran then: mostly the one that charged.
    pub tgid: u32,
    /// Its thread.
    pub pid: u32,
}

impl ThresholdCrossed {
    /// Returns whether usage rose to the threshold, as opposed to falling below it.
    pub fn is_rise(&self) -> bool {
        match self.edge {
            Edge::UsageAbove | Edge::Gross => true,
            Edge::UsageBelow => false,
        }
    }

    /// Creates an upward crossing of this cgroup's threshold with this generation.
    #[cfg(any(test, feature = "fixture"))]
    pub fn upwards(cgroup_id: u64, generation: u64) -> Self {
        let (leaf_id, edge) = (cgroup_id, Edge::UsageAbove);
        Self { ktime_ns: 0, cgroup_id, leaf_id, generation, edge, usage: 0, gross: 0, tgid: 1, pid: 1 }
    }
}

/// A threshold on a file system was crossed. Reported once for each setting and resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskThresholdCrossed {
    /// When the program ran.
    pub ktime_ns: u64,
    /// The file system, as `st_dev` of its files.
    pub device: u64,
    /// The resource that was crossed.
    pub resource: DiskResource,
    /// The setting of the threshold: the generation that
    /// [`set_disk_threshold`](super::BpfHandle::set_disk_threshold) returned.
    pub generation: u64,
    /// How much more than the headroom was taken, in bytes or inodes.
    pub beyond: u64,
    /// The memory cgroup that crossed the threshold; 0 if it is not known.
    pub leaf_id: u64,
    /// The process that ran then: the writer, or a worker of the kernel.
    pub tgid: u32,
    /// Its thread.
    pub pid: u32,
}

/// A kill order was carried out: a BPF program sent SIGKILL to a process of the victim, when that process
/// charged memory or wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelKill {
    /// When the program ran.
    pub ktime_ns: u64,
    /// The kill order: the number that [`arm_kill`](super::BpfHandle::arm_kill) or
    /// [`arm_disk_kill`](super::BpfHandle::arm_disk_kill) returned.
    pub order: u64,
    /// Whether the order was for memory or for a disk.
    pub cause: KernelKillCause,
    /// The victim's cgroup.
    pub victim_id: u64,
    /// The cgroup that was charged: the victim's or one below it.
    pub leaf_id: u64,
    /// Usage then of the cgroup that has the threshold, in bytes; 0 for a disk.
    pub usage: u64,
    /// By how much the process had grown since the sample, in bytes. For a disk: what all processes took of it
    /// since then.
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
    /// Returns the process's name with non-UTF-8 bytes replaced.
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
    /// Its event counts, where the kernel has them.
    pub events: Option<OomEvents>,
    /// Whether the kernel kills all of its processes together (`memory.oom.group`).
    pub oom_group: bool,
}

/// A memory cgroup's own event counts at a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomEvents {
    /// How often it ran out of memory by its own limit (`MEMCG_OOM`).
    pub oom: u64,
    /// How many of its own processes were killed (`MEMCG_OOM_KILL`).
    pub oom_kill: u64,
    /// `oom` when a BPF program last read it; `None` if it never did.
    pub oom_before: Option<u64>,
    /// `oom_kill` at that time.
    pub oom_kill_before: Option<u64>,
}

/// The owner of the limit that led to a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomLimitOwner {
    /// A memory cgroup, by its own limit.
    Memcg(Ancestor),
    /// The machine.
    Global,
    /// It is not known.
    Unknown,
}

/// The kernel chose a victim and is about to kill it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomKill {
    /// When the program ran.
    pub ktime_ns: u64,
    /// The victim's process.
    pub tgid: u32,
    /// The thread of it that the kernel named.
    pub pid: u32,
    /// Its name, zero-padded, as the kernel has it; empty if only the pid was available.
    pub comm: [u8; 16],
    /// Its `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
    /// Its resident memory.
    pub rss: Option<Rss>,
    /// The process in whose context the kernel killed.
    pub trigger_tgid: u32,
    /// The name of its thread, zero-padded.
    pub trigger_comm: [u8; 16],
    /// The memory cgroup that it was in.
    pub trigger_memcg: Option<u64>,
    /// The owner of the limit, according to the kernel itself (`struct oom_control` in linux/oom.h) where that
    /// can be observed, and otherwise to counts of events; unknown if the record has no chain either.
    pub owner: OomLimitOwner,
    /// Whether the owner was inferred from usage and limits, since the counts were not known or not conclusive.
    pub owner_inferred: bool,
    /// Whether the tree was deeper than the record, so that the chain ends before the root.
    pub truncated: bool,
    /// Whether the kernel gave only the victim's pid, so that the chain is that of the triggering task.
    pub pid_only: bool,
    /// The memory cgroups from the victim's own up to the root; empty where the kernel gave none.
    pub chain: Vec<Ancestor>,
    /// The names of their directories; empty if one is not known. The root's is of no use.
    pub names: Vec<Box<[u8]>>,
}

/// Resident memory of a victim, in bytes. Exact except for what each CPU has not yet added (at most 32 pages or
/// twice the number of CPUs), like the kernel's own log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// Anonymous memory.
    pub anon: u64,
    /// Memory of files.
    pub file: u64,
    /// Shared memory.
    pub shmem: u64,
    /// Swapped out.
    pub swap: u64,
}

impl OomKill {
    /// Returns the victim's memory cgroup, if it is known.
    pub fn memcg_id(&self) -> Option<u64> {
        match self.pid_only {
            true => None,
            false => self.chain.first().map(|ancestor| ancestor.id),
        }
    }

    /// Returns whether the kernel killed the victim. The kernel also marks a task as its victim that is about
    /// to exit by itself, to speed it up, and counts no kill then (`task_will_free_mem` in mm/oom_kill.c): a
    /// process that was sent SIGKILL at its limit is no OOM kill. `None` if the count before is not known.
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

    /// Returns the victim's name with non-UTF-8 bytes replaced.
    pub fn comm_lossy(&self) -> impl fmt::Display + '_ {
        lossy(&self.comm)
    }

    /// Returns the name of the triggering task with non-UTF-8 bytes replaced.
    pub fn trigger_comm_lossy(&self) -> impl fmt::Display + '_ {
        lossy(&self.trigger_comm)
    }

    /// Returns the memory cgroups on the path from the one with the id `top` down to the first of the chain,
    /// without `top`: the id and the directory's name of each, as they were at the kill. `None` if `top` is not
    /// on the path or a name is not known.
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

/// There are too many tasks, or there soon will be. Reported once for each cgroup or threshold, until it is set
/// again ([`BpfHandle::reset_alarms`](super::BpfHandle::reset_alarms)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskAlarm {
    /// When the program ran.
    pub ktime_ns: u64,
    /// The kind of alarm.
    pub alarm: Alarm,
    /// The memory cgroup of the new task.
    pub memcg_id: u64,
    /// [`Alarm::PidsLimit`]: the cgroup of the pids controller; on v1 its id is that of its directory in the
    /// controller's own hierarchy. [`Alarm::NodeTasks`]: the setting of the threshold.
    pub key_id: u64,
    /// [`Alarm::ForkStorm`]: tasks created within [`STORM_WINDOW_NS`](eviction_common::STORM_WINDOW_NS).
    /// Otherwise the number of tasks; for the whole machine, forks less exits since the programs were attached.
    pub tasks: i64,
    /// What `tasks` reached: the bound, the limit (which it came near), or the threshold.
    pub bound: i64,
    /// The process that forked.
    pub tgid: u32,
}
