//! Keys and values of the maps.

/// What is armed on one cgroup; the value of map `THRESHOLDS`, whose key is the cgroup's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemcgThreshold {
    /// Number of this arming; none is used twice.
    pub generation: u64,
    /// Fires when usage, and what reclaim took since the arming, are at least so many pages; `u64::MAX` never.
    pub usage_above: u64,
    /// Fires when usage is less than so many pages; 0 never.
    pub usage_below: u64,
    /// Fires when so many pages were charged since the arming; `u64::MAX` never.
    pub gross_limit: u64,
    /// Pages charged since the arming, whatever was uncharged meanwhile.
    pub gross: u64,
    /// Pages that reclaim took since the arming, where a hook tells that: so much can be charged anew, and usage
    /// stands still.
    pub reclaimed: u64,
    /// For each [`crate::Edge`] the generation that fired last. It only saves the look at
    /// `FIRE_TOKENS`, which decides: this element may be reused for another cgroup under a program
    /// that still holds it, and a foreign generation does no harm.
    pub fired: [u64; 3],
}

/// Words of map `THRESHOLD_BITS`.
pub const THRESHOLD_WORDS: u32 = 1024;

/// Where in map `THRESHOLD_BITS` it stands that something is armed on the cgroup with this id: the
/// word, and the bit in it. Ids are given one after the other, so that hardly two share a place;
/// where they do, one is looked up in vain.
pub const fn threshold_bit(id: u64) -> (u32, u64) {
    ((id >> 6) as u32 % THRESHOLD_WORDS, 1 << (id & 63))
}

/// The right to fire once; the key of map `FIRE_TOKENS`. User space puts one in for each edge that
/// it arms, and of all the CPUs that see the crossing the one that takes it out pushes the
/// record. (Kernels before 5.12 have no compare-and-exchange for programs.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FireToken {
    /// The cgroup, or the device of a [`crate::DiskThreshold`].
    pub id: u64,
    /// [`MemcgThreshold::generation`], or that of the other.
    pub generation: u64,
    /// An [`crate::Edge`], or a [`crate::DiskResource`].
    pub edge: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// A memory cgroup that charged since the last look; the value of map `CHARGED_CGROUPS`, whose key is its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ChargedCgroup {
    /// Pages charged since; 0 on backends that do not see every charge.
    pub gross: u64,
    /// How often the hook fired for it.
    pub fired: u64,
    /// Usage at the first firing, pages.
    pub usage_first: u64,
    /// Usage at the last one, pages.
    pub usage_last: u64,
}

/// Indices into map `LAST_SEEN`: the hook that is always there.
pub const LAST_SEEN_CHARGE: u32 = 0;

/// The dense one, near a line.
pub const LAST_SEEN_NEAR: u32 = 1;

/// How many there are.
pub const LAST_SEEN_SLOTS: u32 = 2;

/// The most pages that a CPU charges ahead of what is touched (`MEMCG_CHARGE_BATCH` in
/// linux/memcontrol.h).
pub const BATCH_PAGES: u64 = 64;

/// What a huge page takes at once where a page has 4 KiB (`HPAGE_PMD_NR`, include/linux/huge_mm.h).
pub const HUGE_PAGES: u64 = 512;

/// Where a CPU looked last; the value of map `LAST_SEEN`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LastSeen {
    /// Address of the memory cgroup.
    pub memcg: u64,
    /// Its usage, pages.
    pub usage: u64,
}

/// A hook that fires for each kernel page (64 times for a fork with an exec) and does not see every
/// charge passes over a memory cgroup whose usage moved by less than so many pages since
/// this CPU last looked at it: little beside the grain of such a hook.
pub const MIN_CHANGE_PAGES: u64 = 2 * BATCH_PAGES;

/// Event counts of a memory cgroup when a program last looked at it; the value of map
/// `OOM_COUNTS`, whose key is its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OomCounts {
    /// `MEMCG_OOM`.
    pub oom: u64,
    /// `MEMCG_OOM_KILL`.
    pub oom_kill: u64,
    /// When it was, if it was at a charge; 0 if it was when nothing can have been under way: at the
    /// cgroup's making or at an earlier kill.
    pub ktime_ns: u64,
}

impl OomCounts {
    /// A look at a charge that is not older than this may have fallen between the kernel's
    /// count and its kill, and says nothing about that kill.
    pub const MIN_AGE_NS: u64 = 10_000_000;
}

/// What the kernel is about while it kills for want of memory; the one value of map `OOM_CONTEXT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OomContext {
    /// The task in whose context it kills, process and thread; 0 while nobody is killed.
    pub trigger: u64,
    /// When it had chosen.
    pub ktime_ns: u64,
    /// Address of the task that it is about to kill.
    pub victim: u64,
    /// The memory cgroup whose limit it is; 0 is the machine itself.
    pub owner_id: u64,
    /// Its usage, pages.
    pub owner_usage: u64,
    /// Its limit, pages.
    pub owner_max: u64,
    /// The memory cgroup of the victim; 0 where its counts are not to be had.
    pub memcg_id: u64,
    /// How many of its processes had been killed before (`MEMCG_OOM_KILL`).
    pub oom_kill: u64,
}

/// What the programs count per CPU; the index into map `COUNTERS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Counter {
    /// Records written or lost, which is the next record's sequence number.
    Records = 0,
    /// `ThresholdCrossed` records that did not fit into the ring.
    LostThresholdCrossed = 1,
    /// `OomKill` records that did not fit.
    LostOomKill = 2,
    /// `CgroupMade` records that did not fit.
    LostCgroupCreated = 3,
    /// `CgroupGone` records that did not fit.
    LostCgroupRemoved = 4,
    /// Charging cgroups that found no room in `CHARGED_CGROUPS`.
    ChargedCgroupsFull = 5,
    /// Cgroups that found no room in `OOM_COUNTS`.
    OomCountsFull = 6,
    /// Cgroups that found no room in `TASK_STATS`, and places in it that could not be given back.
    TaskStatsFull = 7,
    /// Walks that ended before the root: the tree is too deep, or an interrupt ran the same program.
    PathTruncated = 8,
    /// How often the charge hook looked at a memory cgroup.
    Charges = 9,
    /// `TaskAlarm` records that did not fit.
    LostTaskAlarm = 10,
    /// Alarms that found no room in `ALARMS_SENT`, and were not told.
    AlarmsSentFull = 11,
    /// Cgroups that found no room in `RECLAIM_TIME`.
    ReclaimTimeFull = 12,
    /// Tasks that found no room in `RECLAIM_START`.
    ReclaimStartFull = 13,
    /// Reclaims that began twice or ended without a beginning, as those that were under way when the
    /// programs were attached.
    ReclaimUnpaired = 14,
    /// `DiskThresholdCrossed` records that did not fit.
    LostDiskThresholdCrossed = 15,
    /// Cgroups that found no room in `DISK_USAGE`.
    DiskUsageFull = 16,
}

impl Counter {
    /// How many there are.
    pub const COUNT: u32 = 17;
}

const _: () = {
    assert!(size_of::<MemcgThreshold>() == 72);
    assert!(size_of::<FireToken>() == 24);
    assert!(size_of::<ChargedCgroup>() == 32);
    assert!(size_of::<OomCounts>() == 24);
    assert!(size_of::<OomContext>() == 64);
    assert!(size_of::<LastSeen>() == 16);
};
