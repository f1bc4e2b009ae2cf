//! Types that the BPF programs and the user-space side of eviction-agent share: records, map keys and values,
//! the read-only global with which the programs are loaded, and the conditions of a kernel kill.
//!
//! All types are `#[repr(C)]` with explicit padding, since two programs that were built by different
//! compilers read them. A change of layout requires a change of [`ABI_VERSION`]. Memory values are in pages,
//! as in the kernel's page counters. Times are nanoseconds of `CLOCK_MONOTONIC` (`bpf_ktime_get_ns`). The id
//! of a cgroup is the inode number of its directory in the memory controller's hierarchy.
#![no_std]
#![forbid(unsafe_code)]

mod charge_decision;
mod config;
mod disk;
mod disk_kill;
mod event;
mod kernel_kill;
mod map;
mod numbered_enum;
mod task;

pub use charge_decision::{Charge, ChargingProcess, KillDecision};
pub use config::{ABSENT, MAX_ANCESTORS, MAX_CHAIN, Offsets, ProgramConfig};
pub use disk::{DISKS, DiskResource, DiskThreshold, DiskThresholdCrossed, DiskTotal, DiskUsage, DiskUser};
pub use disk_kill::DiskKillOrder;
pub use event::{
    Ancestor, CgroupChange, Edge, Header, Kind, NAME_BYTES, OomKill, ThresholdCrossed, UNLIMITED_BYTES,
    ancestor_flag, oom_flag,
};
pub use kernel_kill::{
    GrowthBaseline, KernelKill, KernelKillCause, KillOrder, MARK_EPOCH, MARK_LEVEL, MARKS, Suppressed,
    SuppressedCount,
};
pub use map::{
    BATCH_PAGES, Counter, FireToken, HUGE_PAGES, LAST_SEEN_CHARGE, LAST_SEEN_NEAR, LAST_SEEN_SLOTS, LastSeen,
    MIN_CHANGE_PAGES, MemcgThreshold, OomContext, OomCounts, THRESHOLD_WORDS, threshold_bit,
};
pub use task::{
    Alarm, AlarmKey, HostTasks, PIDS_CACHE_NS, PIDS_LIMIT_MAX, PIDS_NEAR_FRACTION, PidThreshold, PidsCache,
    ReclaimStart, ReclaimTime, STORM_WINDOW_NS, TaskAlarm, TaskStats,
};

/// The version of the layout of all types in this crate. The programs do nothing if their configuration has
/// another version, and the reader rejects records of another version.
pub const ABI_VERSION: u16 = 19;
