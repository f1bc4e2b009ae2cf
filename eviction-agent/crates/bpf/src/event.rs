//! The kernel's events, in the units of the rest of the agent: bytes, and nanoseconds of `CLOCK_MONOTONIC`.

use std::{borrow::Cow, ffi::OsStr, fmt, os::unix::ffi::OsStrExt as _};

use eviction_common::BATCH_PAGES;
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
    /// How often it ran out of memory by its own limit (`MEMCG_OOM`), where the kernel shows it.
    pub oom: Option<u64>,
    /// `oom` when a BPF program last read it; `None` if it never did, or if `oom` is not known.
    pub oom_before: Option<u64>,
    /// How many of its own processes were killed (`MEMCG_OOM_KILL`), where the kernel shows it.
    pub oom_kill: Option<u64>,
    /// `oom_kill` when a BPF program last read it; `None` if it never did, or if `oom_kill` is not known.
    pub oom_kill_before: Option<u64>,
    /// Whether the kernel kills all of its processes together (`memory.oom.group`).
    pub oom_group: bool,
}

impl Ancestor {
    /// Returns whether its own count `oom` has changed; `None` if the count was never read before, or this
    /// kernel does not show it.
    fn has_new_oom(&self) -> Option<bool> {
        match (self.oom?, self.oom_before) {
            (now, Some(before)) if before <= now => Some(before < now),
            // The count was never read; or on cgroup v2 the controller was turned off for the cgroup and on
            // again, and the count restarted.
            (0, _) => Some(false),
            _ => None,
        }
    }
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
    /// Its resident anonymous memory, in bytes. The programs read `anon`, `file`, `shmem` and `swap` together: all
    /// four are known, or none. They are exact except for what each CPU has not yet added (at most 32 pages or
    /// twice the number of CPUs), like the kernel's own log line.
    pub anon: Option<u64>,
    /// Its resident memory of files, in bytes.
    pub file: Option<u64>,
    /// Its resident shared memory, in bytes.
    pub shmem: Option<u64>,
    /// Its swapped out memory, in bytes.
    pub swap: Option<u64>,
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
        let own = self.chain.first()?;
        match (own.oom_kill?, own.oom_kill_before) {
            (now, Some(before)) => Some(before != now),
            (0, None) => Some(false),
            (_, None) => None,
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

    /// Returns the owner of the limit according to the counts of events, on a machine with pages of `page_bytes`,
    /// and whether it was inferred from usage and limits, since the counts were not known or not conclusive.
    ///
    /// The kernel raises the owner's own `MEMCG_OOM` count before it searches for a victim (`mem_cgroup_oom` in
    /// mm/memcontrol.c), and raises no count when the machine is out of memory (`out_of_memory` in
    /// mm/oom_kill.c). So the owner is the ancestor of the victim whose count changed, and if none changed it was
    /// the machine. The BPF programs keep each count as they last read it, and put it into the record next to the
    /// current one, so that a lost record does no harm.
    pub(super) fn owner_by_counts(&self, page_bytes: u64) -> (OomLimitOwner, bool) {
        // The root has no limit of its own.
        let limited = match self.chain.split_last() {
            None => return (OomLimitOwner::Unknown, true),
            Some((_, below_root)) if !self.truncated => below_root,
            Some(_) => self.chain.as_slice(),
        };
        // A charge fails if it would exceed the limit, and each CPU charges a batch at once.
        let at_limit = |ancestor: &&Ancestor| {
            ancestor.max.is_some_and(|max| max.saturating_sub(ancestor.usage) < BATCH_PAGES * page_bytes)
        };
        let with = |new_oom| limited.iter().filter(move |ancestor| ancestor.has_new_oom() == new_oom);
        let mut changed = with(Some(true));
        match (changed.next(), changed.next()) {
            // The count changes with each charge that fails, also if no process is killed for it. The count of a
            // cgroup that is not at its limit may have changed long ago.
            (Some(owner), None) => return (OomLimitOwner::Memcg(*owner), !at_limit(&owner)),
            (Some(nearest), Some(_)) => {
                let owner = with(Some(true)).find(at_limit).unwrap_or(nearest);
                return (OomLimitOwner::Memcg(*owner), true);
            }
            (None, _) => {}
        }
        match with(None).find(at_limit) {
            Some(owner) => (OomLimitOwner::Memcg(*owner), true),
            // If the chain is not the victim's own, the owner may be in another chain.
            None => {
                let inferred = self.truncated || self.pid_only || with(None).next().is_some();
                (OomLimitOwner::Global, inferred)
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const MIB: u64 = 1 << 20;

    fn kill(chain: &[Ancestor]) -> OomKill {
        OomKill {
            ktime_ns: 1,
            tgid: 10,
            pid: 10,
            comm: [0; 16],
            oom_score_adj: None,
            anon: None,
            file: None,
            shmem: None,
            swap: None,
            trigger_tgid: 10,
            trigger_comm: [0; 16],
            trigger_memcg: None,
            owner: OomLimitOwner::Unknown,
            owner_inferred: false,
            truncated: false,
            pid_only: false,
            chain: chain.to_vec(),
            names: Vec::new(),
        }
    }

    fn memcg(id: u64, usage: u64, max: u64, oom: u64, before: Option<u64>) -> Ancestor {
        Ancestor {
            id,
            usage,
            max: (max != 0).then_some(max),
            oom: Some(oom),
            oom_before: before,
            oom_kill: Some(0),
            oom_kill_before: before.map(|_| 0),
            oom_group: false,
        }
    }

    fn root() -> Ancestor {
        memcg(1, 900 * MIB, 0, 0, Some(0))
    }

    fn owner_id(kill: &OomKill) -> (Option<u64>, bool) {
        let (owner, inferred) = kill.owner_by_counts(PAGE);
        match owner {
            OomLimitOwner::Memcg(ancestor) => (Some(ancestor.id), inferred),
            OomLimitOwner::Global => (None, inferred),
            OomLimitOwner::Unknown => (Some(0), inferred),
        }
    }

    #[test]
    fn chain_of_another_task_proves_a_limit_but_not_its_absence() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 1, Some(0));
        let mut foreign = kill(&[container, root()]);
        foreign.pid_only = true;
        assert_eq!(owner_id(&foreign), (Some(3), false));
        foreign.chain[0].oom_before = Some(1);
        assert_eq!(owner_id(&foreign), (None, true));
    }

    #[test]
    fn owner_below_its_limit_with_a_changed_count_is_inferred() {
        // Charges failed while the victim before was still exiting; no process was killed for those.
        let container = memcg(3, 32 * MIB, 64 * MIB, 4, Some(1));
        assert_eq!(owner_id(&kill(&[container, root()])), (Some(3), true));
    }

    #[test]
    fn changed_count_names_the_owner_also_above_a_cgroup_at_its_limit() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 0, Some(0));
        let pod = memcg(2, 64 * MIB, 64 * MIB, 1, Some(0));
        assert_eq!(owner_id(&kill(&[container, pod, root()])), (Some(2), false));
    }

    #[test]
    fn unchanged_counts_name_the_machine_despite_a_cgroup_at_its_limit() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 7, Some(7));
        assert_eq!(owner_id(&kill(&[container, root()])), (None, false));
    }

    #[test]
    fn count_of_zero_is_unchanged_even_without_a_previous_value() {
        let container = memcg(3, 64 * MIB, 64 * MIB, 0, None);
        assert_eq!(owner_id(&kill(&[container, root()])), (None, false));
    }

    #[test]
    fn restarted_count_is_inconclusive_unless_it_is_zero() {
        let pod = memcg(2, 64 * MIB, 64 * MIB, 1, Some(5));
        assert_eq!(owner_id(&kill(&[pod, root()])), (Some(2), true));
        let pod = memcg(2, 64 * MIB, 64 * MIB, 0, Some(5));
        assert_eq!(owner_id(&kill(&[pod, root()])), (None, false));
    }

    #[test]
    fn owner_without_previous_counts_is_inferred_from_the_limit() {
        let container = memcg(3, 10 * MIB, 64 * MIB, 2, None);
        let pod = memcg(2, 64 * MIB - 63 * PAGE, 64 * MIB, 2, None);
        assert_eq!(owner_id(&kill(&[container, pod, root()])), (Some(2), true));
    }

    #[test]
    fn usage_one_batch_below_the_limit_is_not_at_the_limit() {
        let pod = memcg(2, 64 * MIB - 64 * PAGE, 64 * MIB, 2, None);
        assert_eq!(owner_id(&kill(&[pod, root()])), (None, true));
    }

    #[test]
    fn of_two_changed_counts_the_cgroup_at_its_limit_is_inferred() {
        let container = memcg(3, 10 * MIB, 64 * MIB, 3, Some(2));
        let pod = memcg(2, 64 * MIB, 64 * MIB, 2, Some(1));
        assert_eq!(owner_id(&kill(&[container, pod, root()])), (Some(2), true));
    }

    #[test]
    fn truncated_chain_gives_only_an_inferred_owner() {
        let mut cut = kill(&[memcg(3, MIB, 0, 0, Some(0))]);
        cut.truncated = true;
        assert_eq!(owner_id(&cut), (None, true));
    }

    #[test]
    fn owner_is_inferred_without_counts_and_unknown_without_a_chain() {
        let mut pod = memcg(2, 64 * MIB, 64 * MIB, 0, None);
        (pod.oom, pod.oom_kill) = (None, None);
        assert_eq!(owner_id(&kill(&[pod, root()])), (Some(2), true));
        assert_eq!(owner_id(&kill(&[])), (Some(0), true));
    }
}
