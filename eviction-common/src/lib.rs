//! What the kernel side and the user side of eviction-agent share: records, map keys and
//! values, the one read-only global that the programs are loaded with, and the conditions of a kernel kill.
//!
//! Everything here is `#[repr(C)]` with explicit padding, and is read by two programs that
//! were built by different compilers: a change of layout is a change of [`ABI_VERSION`].
//! Figures of memory are in pages, as the kernel's page counters have them; times are
//! nanoseconds of `CLOCK_MONOTONIC` (`bpf_ktime_get_ns`); a cgroup's id is the inode number
//! of its directory in the memory controller's hierarchy.
#![no_std]
#![forbid(unsafe_code)]

mod config;
mod disk;
mod disk_kill;
mod event;
mod judge;
mod kernel_kill;
mod map;
mod task;

pub use config::{ABSENT, MAX_ANCESTORS, MAX_CHAIN, Offsets, ProgramConfig};
pub use disk::{DISKS, DiskResource, DiskThreshold, DiskThresholdCrossed, DiskTotal, DiskUsage, DiskUser};
pub use disk_kill::{DiskKillOrder, Write, WriteJudgement};
pub use event::{
    Ancestor, CgroupChange, Edge, Header, Kind, NAME_BYTES, OomKill, ThresholdCrossed, UNLIMITED_BYTES,
    ancestor_flag, oom_flag,
};
pub use judge::{Charge, Judgement};
pub use kernel_kill::{
    GrowthBaseline, KernelKill, KernelKillCause, KillOrder, MARK_EPOCH, MARK_LEVEL, MARKS, Suppressed,
    SuppressedCount,
};
pub use map::{
    BATCH_PAGES, ChargedCgroup, Counter, FireToken, HUGE_PAGES, LAST_SEEN_CHARGE, LAST_SEEN_NEAR,
    LAST_SEEN_SLOTS, LastSeen, MIN_CHANGE_PAGES, MemcgThreshold, OomContext, OomCounts, THRESHOLD_WORDS,
    threshold_bit,
};
pub use task::{
    Alarm, AlarmKey, ForkRate, HostTasks, PIDS_CACHE_NS, PIDS_LIMIT_MAX, PIDS_NEAR_FRACTION, PidThreshold,
    PidsCache, ReclaimStart, ReclaimTime, STORM_WINDOW_NS, TaskAlarm, TaskCount,
};

/// Version of the layout of everything in this crate. The programs do nothing when the
/// setup that they were loaded with has another one, and the reader refuses records of
/// another one.
pub const ABI_VERSION: u16 = 16;
