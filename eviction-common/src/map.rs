//! Keys and values of the maps.

use crate::numbered_enum::numbered_enum;

/// The threshold on one cgroup; the value of map `THRESHOLDS`, whose key is the cgroup's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemcgThreshold {
    /// The number of this setting. Each number is used once.
    pub generation: u64,
    /// Fires when usage, plus the pages reclaimed since the setting, is at least this many pages; `u64::MAX`
    /// means never.
    pub usage_above: u64,
    /// Fires when usage is below this many pages; 0 means never.
    pub usage_below: u64,
    /// Fires when at least this many pages were charged since the setting; `u64::MAX` means never.
    pub gross_limit: u64,
    /// Pages charged since the setting, regardless of uncharges.
    pub gross: u64,
    /// Pages reclaimed since the setting, if a hook reports them: as many can be charged again without a
    /// change of usage.
    pub reclaimed: u64,
}

/// The number of words of map `THRESHOLD_BITS`.
pub const THRESHOLD_WORDS: u32 = 1024;

/// Returns the position of a cgroup's bit in map `THRESHOLD_BITS`: the index of the word, and the bit in it.
/// The bit is set while a threshold is set on the cgroup. The kernel assigns ids in sequence, so two cgroups
/// rarely share a bit; if they do, a charge makes one unnecessary lookup.
pub const fn threshold_bit(id: u64) -> (u32, u64) {
    ((id >> 6) as u32 % THRESHOLD_WORDS, 1 << (id & 63))
}

/// The token for firing once; the key of map `FIRE_TOKENS`. User space inserts one for each edge that it
/// sets. Of all CPUs that see the crossing, the one that removes the token pushes the record. (Kernels before
/// 5.12 have no compare-and-exchange for programs.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FireToken {
    /// The cgroup, or the device of a [`crate::DiskThreshold`].
    pub id: u64,
    /// [`MemcgThreshold::generation`] or [`crate::DiskThreshold::generation`].
    pub generation: u64,
    /// An [`crate::Edge`], or a [`crate::DiskResource`].
    pub edge: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// Index into map `LAST_SEEN` for the hook that is always attached.
pub const LAST_SEEN_CHARGE: u32 = 0;

/// Index into map `LAST_SEEN` for the frequent hook that is attached near a threshold.
pub const LAST_SEEN_NEAR: u32 = 1;

/// The number of elements of map `LAST_SEEN`.
pub const LAST_SEEN_SLOTS: u32 = 2;

/// The maximum number of pages that a CPU charges in advance (`MEMCG_CHARGE_BATCH` in linux/memcontrol.h).
pub const BATCH_PAGES: u64 = 64;

/// The pages of a huge page, for a page size of 4 KiB (`HPAGE_PMD_NR`, include/linux/huge_mm.h).
pub const HUGE_PAGES: u64 = 512;

/// The memory cgroup that a CPU inspected last; the value of map `LAST_SEEN`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LastSeen {
    /// Address of the memory cgroup.
    pub memcg: u64,
    /// Its usage at that time, pages.
    pub usage: u64,
}

/// The minimum change of usage, in pages, since this CPU last inspected a memory cgroup. A hook that fires
/// for each kernel page (64 times for a fork with an exec) and does not see every charge ignores smaller
/// changes. They are small compared to the granularity of such a hook.
pub const MIN_CHANGE_PAGES: u64 = 2 * BATCH_PAGES;

/// The event counts of a memory cgroup when a program last read them; the value of map `OOM_COUNTS`, whose
/// key is its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OomCounts {
    /// `MEMCG_OOM`.
    pub oom: u64,
    /// `MEMCG_OOM_KILL`.
    pub oom_kill: u64,
    /// The time of the reading if it was made at a charge. 0 if no kill can have been in progress at the
    /// reading: when the cgroup was created, or at an earlier kill.
    pub ktime_ns: u64,
}

impl OomCounts {
    /// A reading at a charge that is younger than this may have been made between the kernel's count and its
    /// kill. Such a reading is not used for that kill.
    pub const MIN_AGE_NS: u64 = 10_000_000;
}

/// The state of an out-of-memory kill in progress; the only value of map `OOM_CONTEXT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OomContext {
    /// The process and thread in whose context the kernel kills; 0 while no kill is in progress.
    pub trigger: u64,
    /// The address of the task that is about to be killed.
    pub victim: u64,
    /// The memory cgroup that reached its limit; 0 is the whole machine.
    pub owner_id: u64,
    /// The usage of that cgroup, pages.
    pub owner_usage: u64,
    /// The limit of that cgroup, pages.
    pub owner_max: u64,
    /// The memory cgroup of the victim; 0 if its counts are not available.
    pub memcg_id: u64,
    /// How many processes of the victim's cgroup had been killed before (`MEMCG_OOM_KILL`).
    pub oom_kill: u64,
}

numbered_enum! {
    /// A counter that the programs keep per CPU; the index into map `COUNTERS`.
    pub enum Counter: u32 {
        /// Records written or lost.
        Records = 0,
        /// `ThresholdCrossed` records that did not fit into the ring.
        LostThresholdCrossed = 1,
        /// `OomKill` records that did not fit.
        LostOomKill = 2,
        /// `CgroupCreated` records that did not fit.
        LostCgroupCreated = 3,
        /// `CgroupRemoved` records that did not fit.
        LostCgroupRemoved = 4,
        /// Charged cgroups for which `CHARGED_CGROUPS` had no free entry.
        ChargedCgroupsFull = 5,
        /// Cgroups for which `OOM_COUNTS` had no free entry.
        OomCountsFull = 6,
        /// Cgroups for which `TASK_STATS` had no free entry, and entries of it that could not be returned.
        TaskStatsFull = 7,
        /// Paths that ended before the root: the tree is too deep, or an interrupt ran the same program.
        PathTruncated = 8,
        /// How often the charge hook inspected a memory cgroup.
        Charges = 9,
        /// `TaskAlarm` records that did not fit.
        LostTaskAlarm = 10,
        /// Alarms for which `ALARMS_SENT` had no free entry. They were not sent.
        AlarmsSentFull = 11,
        /// Cgroups for which `RECLAIM_TIME` had no free entry.
        ReclaimTimeFull = 12,
        /// Tasks for which `RECLAIM_START` had no free entry.
        ReclaimStartFull = 13,
        /// Reclaims with two begins or with an end only, for example those that were in progress when the
        /// programs were attached.
        ReclaimUnpaired = 14,
        /// `DiskThresholdCrossed` records that did not fit.
        LostDiskThresholdCrossed = 15,
        /// Cgroups for which `DISK_USAGE` had no free entry.
        DiskUsageFull = 16,
    }
}

const _: () = {
    // Each number is an index into the map.
    let mut index = 0;
    while index < Counter::ALL.len() {
        assert!(Counter::ALL[index] as usize == index);
        index += 1;
    }
    assert!(size_of::<MemcgThreshold>() == 48);
    assert!(size_of::<FireToken>() == 24);
    assert!(size_of::<OomCounts>() == 24);
    assert!(size_of::<OomContext>() == 56);
    assert!(size_of::<LastSeen>() == 16);
};
