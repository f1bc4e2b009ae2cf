//! What the programs push into the ring buffer.

use crate::MAX_CHAIN;

/// Bytes of a cgroup's own name that an [`OomKill`] has room for, the closing zero included: those
/// of pods and containers have up to 90.
pub const NAME_BYTES: usize = 128;

/// A limit of at least so many bytes is none: the kernel's own greatest value is its
/// greatest `long`, rounded to pages (`PAGE_COUNTER_MAX` in linux/page_counter.h).
pub const UNLIMITED_BYTES: u64 = i64::MAX as u64 - 0xffff;

/// What a record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum Kind {
    /// An armed level was crossed: [`ThresholdCrossed`].
    ThresholdCrossed = 1,
    /// The kernel chose an out-of-memory victim: [`OomKill`].
    OomKill = 2,
    /// A cgroup was made: [`CgroupChange`].
    CgroupCreated = 3,
    /// A cgroup was removed: [`CgroupChange`].
    CgroupRemoved = 4,
    /// There are, or come, too many tasks: [`crate::TaskAlarm`].
    TaskAlarm = 5,
    /// A program carried out the armed kill order: [`crate::KernelKill`].
    KernelKill = 6,
    /// A threshold on a file system was crossed: [`crate::DiskThresholdCrossed`].
    DiskThresholdCrossed = 7,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::ThresholdCrossed,
        Self::OomKill,
        Self::CgroupCreated,
        Self::CgroupRemoved,
        Self::TaskAlarm,
        Self::KernelKill,
        Self::DiskThresholdCrossed,
    ];

    /// The kind with this number.
    pub const fn from_raw(raw: u16) -> Option<Self> {
        match raw {
            1 => Some(Self::ThresholdCrossed),
            2 => Some(Self::OomKill),
            3 => Some(Self::CgroupCreated),
            4 => Some(Self::CgroupRemoved),
            5 => Some(Self::TaskAlarm),
            6 => Some(Self::KernelKill),
            7 => Some(Self::DiskThresholdCrossed),
            _ => None,
        }
    }

    /// How it is called in logs and metrics.
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
}

/// How every record begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// A [`Kind`].
    pub kind: u16,
    /// [`crate::ABI_VERSION`] of the program that wrote it.
    pub abi: u16,
    /// Bytes of the whole record.
    pub len: u32,
    /// The CPU that wrote it.
    pub cpu: u32,
    /// Explicit padding.
    pub pad: u32,
    /// The how-manieth record of this CPU it is, those that did not fit counted. Two records
    /// of a CPU may come in the wrong order when an interrupt's program ran in between.
    pub seq: u64,
    /// When the program ran.
    pub ktime_ns: u64,
}

/// Which condition of an armed level was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Edge {
    /// Usage rose to the armed value or over it.
    UsageAbove = 0,
    /// Gross charges since the arming reached the armed sum.
    Gross = 1,
    /// Usage sank under the armed value.
    UsageBelow = 2,
}

impl Edge {
    /// Every edge.
    pub const ALL: [Self; 3] = [Self::UsageAbove, Self::Gross, Self::UsageBelow];

    /// The edge with this number.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::UsageAbove),
            1 => Some(Self::Gross),
            2 => Some(Self::UsageBelow),
            _ => None,
        }
    }
}

/// An armed level was crossed. Pushed at once and with a wake-up, once for each arming and edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ThresholdCrossed {
    /// [`Kind::ThresholdCrossed`].
    pub header: Header,
    /// The cgroup whose level it is.
    pub cgroup_id: u64,
    /// The cgroup that was charged: the level's own or one below it.
    pub leaf_id: u64,
    /// Which arming this was ([`crate::MemcgThreshold::generation`]).
    pub generation: u64,
    /// Usage of the level's cgroup then, pages.
    pub usage: u64,
    /// Gross charges since the arming, pages; 0 on backends that do not see every charge.
    pub gross: u64,
    /// The task that ran: the one that charged, mostly.
    pub tgid: u32,
    /// Its thread.
    pub pid: u32,
    /// An [`Edge`].
    pub edge: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// Bits of [`OomKill::flags`]: which of its figures were to be had.
pub mod oom_flag {
    /// `uid`.
    pub const UID: u32 = 1;
    /// `oom_score_adj`.
    pub const SCORE: u32 = 1 << 1;
    /// `anon`, `file`, `shmem`, `swap`.
    pub const RSS: u32 = 1 << 2;
    /// The chain ends before the root of the hierarchy: the tree is deeper than the record.
    pub const CUT: u32 = 1 << 3;
    /// The kernel gave only the victim's pid; comm is missing and the chain is of the task that
    /// ran into the limit.
    pub const PID_ONLY: u32 = 1 << 4;
    /// The kernel itself said whose limit it was: `owner_id`, `owner_usage`, `owner_max`, `episode`.
    pub const OWNER: u32 = 1 << 5;
}

/// Bits of [`Ancestor::flags`].
pub mod ancestor_flag {
    /// `oom_before` is known.
    pub const OOM_SEEN: u32 = 1;
    /// `oom` and `oom_kill` were to be had.
    pub const EVENTS: u32 = 1 << 1;
    /// `oom_kill_before` is known.
    pub const KILL_SEEN: u32 = 1 << 2;
    /// `memory.oom.group` is set.
    pub const GROUP: u32 = 1 << 3;
}

/// One memory cgroup on the way from a victim up to the root, as it was at the kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ancestor {
    /// Its id.
    pub id: u64,
    /// Usage, pages.
    pub usage: u64,
    /// Limit, pages; see [`UNLIMITED_BYTES`].
    pub max: u64,
    /// How often it ran out of memory by its own limit (`MEMCG_OOM` of `memory_events_local`).
    pub oom: u64,
    /// The same when the programs last looked at it.
    pub oom_before: u64,
    /// How many of its own processes were killed (`MEMCG_OOM_KILL` of `memory_events_local`).
    pub oom_kill: u64,
    /// The same when the programs last looked at it.
    pub oom_kill_before: u64,
    /// Bits of [`ancestor_flag`].
    pub flags: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// The kernel chose a victim and is about to kill it. Pushed at once and with a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct OomKill {
    /// [`Kind::OomKill`].
    pub header: Header,
    /// The victim's name, zero-padded.
    pub comm: [u8; 16],
    /// The name of the task in whose context the kernel killed.
    pub trigger_comm: [u8; 16],
    /// The victim's thread.
    pub pid: u32,
    /// The victim's process.
    pub tgid: u32,
    /// Its owner.
    pub uid: u32,
    /// What user space asked the kernel to think of it.
    pub oom_score_adj: i32,
    /// Anonymous pages, as the kernel's own log line has them: less what CPUs still hold back.
    pub anon: u64,
    /// Pages of files.
    pub file: u64,
    /// Pages of shared memory.
    pub shmem: u64,
    /// Pages swapped out.
    pub swap: u64,
    /// The process in whose context the kernel killed: who asked for the page too many.
    pub trigger_tgid: u32,
    /// Its thread.
    pub trigger_pid: u32,
    /// The memory cgroup of that task; 0 while it has none.
    pub trigger_memcg: u64,
    /// The memory cgroup whose limit it was; 0 is the machine itself.
    pub owner_id: u64,
    /// Its usage when the kernel had chosen a victim, pages.
    pub owner_usage: u64,
    /// Its limit, pages.
    pub owner_max: u64,
    /// When the kernel had chosen: the same for all that it killed at once.
    pub episode: u64,
    /// Bits of [`oom_flag`].
    pub flags: u32,
    /// How many of `chain` and `names` count.
    pub chain_len: u32,
    /// From the victim's own memory cgroup up to the root of the hierarchy.
    pub chain: [Ancestor; MAX_CHAIN],
    /// The names of their directories, closed with a zero unless they are longer: a cgroup may be
    /// gone when the record is read.
    pub names: [[u8; NAME_BYTES]; MAX_CHAIN],
}

/// A cgroup of the memory controller's hierarchy was made or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CgroupChange {
    /// [`Kind::CgroupCreated`] or [`Kind::CgroupRemoved`].
    pub header: Header,
    /// Its id.
    pub id: u64,
}

const _: () = {
    assert!(size_of::<Header>() == 32);
    assert!(size_of::<ThresholdCrossed>() == 88);
    assert!(size_of::<Ancestor>() == 64);
    assert!(size_of::<OomKill>() == 168 + (64 + NAME_BYTES) * MAX_CHAIN);
    // It has to fit into the smallest ring, a page.
    assert!(size_of::<OomKill>() < 4096 - 8);
    assert!(size_of::<CgroupChange>() == 40);
    assert!(align_of::<OomKill>() == 8 && align_of::<CgroupChange>() == 8);
};
