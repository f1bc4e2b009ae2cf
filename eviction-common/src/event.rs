//! Records that the programs push into the ring buffer.

use crate::{MAX_CHAIN, numbered_enum::numbered_enum};

/// The size of a cgroup's name in an [`OomKill`], in bytes, including the terminating zero. The names of pod
/// and container cgroups have up to 90 bytes. Longer ones, such as those of misplaced containers, are cut off.
pub const NAME_BYTES: usize = 128;

/// A limit of at least this many bytes means no limit: the kernel's own maximum is the largest `long`,
/// rounded to pages (`PAGE_COUNTER_MAX` in linux/page_counter.h).
pub const UNLIMITED_BYTES: u64 = i64::MAX as u64 - 0xffff;

numbered_enum! {
    /// The kind of a record.
    pub enum Kind: u16 {
        /// A memory threshold was crossed: [`ThresholdCrossed`].
        ThresholdCrossed = 1,
        /// The kernel chose an out-of-memory victim: [`OomKill`].
        OomKill = 2,
        /// A cgroup was created: [`CgroupChange`].
        CgroupCreated = 3,
        /// A cgroup was removed: [`CgroupChange`].
        CgroupRemoved = 4,
        /// A task limit is reached or near, or a cgroup forks too fast: [`crate::TaskAlarm`].
        TaskAlarm = 5,
        /// A program carried out the armed kill order: [`crate::KernelKill`].
        KernelKill = 6,
        /// A threshold on a file system was crossed: [`crate::DiskThresholdCrossed`].
        DiskThresholdCrossed = 7,
    }
}

impl Kind {
    /// Returns the name that logs and metrics use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ThresholdCrossed => "threshold_crossed",
            Self::OomKill => "oom_kill",
            Self::CgroupCreated => "cgroup_created",
            Self::CgroupRemoved => "cgroup_removed",
            Self::TaskAlarm => "task_alarm",
            Self::KernelKill => "kernel_kill",
            Self::DiskThresholdCrossed => "disk_threshold_crossed",
        }
    }

    /// Returns the size of a record in bytes.
    pub const fn record_bytes(self) -> usize {
        match self {
            Self::ThresholdCrossed => size_of::<ThresholdCrossed>(),
            Self::OomKill => size_of::<OomKill>(),
            Self::CgroupCreated | Self::CgroupRemoved => size_of::<CgroupChange>(),
            Self::TaskAlarm => size_of::<crate::TaskAlarm>(),
            Self::KernelKill => size_of::<crate::KernelKill>(),
            Self::DiskThresholdCrossed => size_of::<crate::DiskThresholdCrossed>(),
        }
    }
}

/// The header of each record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// A [`Kind`].
    pub kind: u16,
    /// [`crate::ABI_VERSION`] of the program that wrote it.
    pub abi: u16,
    /// The size of the whole record in bytes.
    pub len: u32,
    /// The time at which the program ran.
    pub ktime_ns: u64,
}

numbered_enum! {
    /// The condition of a memory threshold that was met.
    pub enum Edge: u32 {
        /// Usage reached or exceeded the threshold.
        UsageAbove = 0,
        /// Gross charges since the threshold was set reached the limit.
        Gross = 1,
        /// Usage fell below the threshold.
        UsageBelow = 2,
    }
}

/// A memory threshold was crossed. The record is pushed at once with a wake-up, once for each setting and
/// edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ThresholdCrossed {
    /// [`Kind::ThresholdCrossed`].
    pub header: Header,
    /// The cgroup on which the threshold is set.
    pub cgroup_id: u64,
    /// The cgroup that was charged: the same one or one below it.
    pub leaf_id: u64,
    /// The setting of the threshold ([`crate::MemcgThreshold::generation`]).
    pub generation: u64,
    /// Usage of the threshold's cgroup at that time, in pages.
    pub usage: u64,
    /// Gross charges since the threshold was set, in pages; 0 on backends that do not see every charge.
    pub gross: u64,
    /// The process of the running task, which usually is the task that charged.
    pub tgid: u32,
    /// The thread of the running task.
    pub pid: u32,
    /// An [`Edge`].
    pub edge: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// Bits of [`OomKill::flags`]: which fields of the record are valid.
pub mod oom_flag {
    /// `oom_score_adj`.
    pub const SCORE: u32 = 1;
    /// `anon`, `file`, `shmem`, `swap`.
    pub const RSS: u32 = 1 << 1;
    /// `chain` ends before the root of the hierarchy: the tree is deeper than the record.
    pub const CUT: u32 = 1 << 2;
    /// The kernel provided only the pid of the victim. `comm` is missing, and `chain` is that of the task
    /// that reached the limit.
    pub const PID_ONLY: u32 = 1 << 3;
    /// The kernel provided the cgroup that reached its limit: `owner_id`, `owner_usage`, `owner_max`.
    pub const OWNER: u32 = 1 << 4;
}

/// Bits of [`Ancestor::flags`].
pub mod ancestor_flag {
    /// `oom_before` is known.
    pub const OOM_SEEN: u32 = 1;
    /// `oom` and `oom_kill` are valid.
    pub const EVENTS: u32 = 1 << 1;
    /// `oom_kill_before` is known.
    pub const KILL_SEEN: u32 = 1 << 2;
    /// `memory.oom.group` is set.
    pub const GROUP: u32 = 1 << 3;
}

/// One memory cgroup on the path from a victim up to the root, as it was at the kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ancestor {
    /// The id of the cgroup.
    pub id: u64,
    /// Usage, pages.
    pub usage: u64,
    /// Limit, pages; see [`UNLIMITED_BYTES`].
    pub max: u64,
    /// How often the cgroup ran out of memory because of its own limit (`MEMCG_OOM` of
    /// `memory_events_local`).
    pub oom: u64,
    /// `oom` when a program last read it.
    pub oom_before: u64,
    /// How many processes of this cgroup itself were killed (`MEMCG_OOM_KILL` of `memory_events_local`).
    pub oom_kill: u64,
    /// `oom_kill` when a program last read it.
    pub oom_kill_before: u64,
    /// Bits of [`ancestor_flag`].
    pub flags: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// The kernel chose a victim and is about to kill it. The record is pushed at once with a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct OomKill {
    /// [`Kind::OomKill`].
    pub header: Header,
    /// The name of the victim, zero-padded.
    pub comm: [u8; 16],
    /// The name of the task in whose context the kernel kills.
    pub trigger_comm: [u8; 16],
    /// The victim's thread.
    pub pid: u32,
    /// The victim's process.
    pub tgid: u32,
    /// `oom_score_adj` of the victim.
    pub oom_score_adj: i32,
    /// The process in whose context the kernel kills: its allocation exceeded the limit.
    pub trigger_tgid: u32,
    /// Anonymous pages of the victim, as in the kernel's log line: without the counts that CPUs have not
    /// flushed yet.
    pub anon: u64,
    /// File pages of the victim.
    pub file: u64,
    /// Shared memory pages of the victim.
    pub shmem: u64,
    /// Swapped-out pages of the victim.
    pub swap: u64,
    /// The memory cgroup of the task in whose context the kernel kills; 0 if it has none.
    pub trigger_memcg: u64,
    /// The memory cgroup that reached its limit; 0 is the whole machine.
    pub owner_id: u64,
    /// The usage of that cgroup after the kernel had chosen a victim, in pages.
    pub owner_usage: u64,
    /// The limit of that cgroup, in pages.
    pub owner_max: u64,
    /// Bits of [`oom_flag`].
    pub flags: u32,
    /// The number of valid elements of `chain` and `names`.
    pub chain_len: u32,
    /// The memory cgroups from the victim's own one up to the root of the hierarchy.
    pub chain: [Ancestor; MAX_CHAIN],
    /// The directory names of these cgroups, zero-terminated. A cgroup may be removed before the record is
    /// read.
    pub names: [[u8; NAME_BYTES]; MAX_CHAIN],
}

/// A cgroup of the memory controller's hierarchy was created or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CgroupChange {
    /// [`Kind::CgroupCreated`] or [`Kind::CgroupRemoved`].
    pub header: Header,
    /// The id of the cgroup.
    pub id: u64,
}

const _: () = {
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<ThresholdCrossed>() == 72);
    assert!(size_of::<Ancestor>() == 64);
    assert!(size_of::<OomKill>() == 136 + (64 + NAME_BYTES) * MAX_CHAIN);
    // The record must fit into the smallest ring, which is one page.
    assert!(size_of::<OomKill>() < 4096 - 8);
    assert!(size_of::<CgroupChange>() == 24);
    assert!(align_of::<OomKill>() == 8 && align_of::<CgroupChange>() == 8);
};
