//! What the kernel side and the user side of eviction-agent share: records, map keys and
//! values, the one read-only global that the programs are loaded with, and the rule of the reflex.
//!
//! Everything here is `#[repr(C)]` with explicit padding, and is read by two programs that
//! were built by different compilers: a change of layout is a change of [`ABI_VERSION`].
//! Figures of memory are in pages, as the kernel's page counters have them; times are
//! nanoseconds of `CLOCK_MONOTONIC` (`bpf_ktime_get_ns`); a cgroup's id is the inode number
//! of its directory in the memory controller's hierarchy.
#![no_std]
#![forbid(unsafe_code)]

mod judge;
mod map;
mod record;
mod reflex;
mod setup;
mod task;

pub use judge::{Charge, Judgement};
pub use map::{
    ARMED_WORDS, Armed, BATCH_PAGES, Choice, Counter, Dirty, HUGE_PAGES, LAST_CHARGE, LAST_HOOKS, LAST_NEAR,
    Last, STILL_PAGES, SeenOom, Ticket, armed_bit,
};
pub use record::{
    Ancestor, CgroupChange, Crossed, Edge, Header, Kind, NAME_BYTES, OomKill, PATH_BYTES, RECORD_BYTES_MAX,
    UNLIMITED_BYTES, ancestor_flag, oom_flag,
};
pub use reflex::{Growth, MARK_EPOCH, MARK_LEVEL, MARKS, Struck, Verdict, Withheld, WithheldCount};
pub use setup::{ABSENT, MAX_ANCESTORS, MAX_CHAIN, Offsets, Setup};
pub use task::{
    Alarm, AlarmKey, ForkRate, LAST_GROUPS, LastGroup, LastPids, MachineTasks, NodeTasks, PIDS_LIMIT_MAX,
    PIDS_LOOK_NS, PIDS_NEAR, ReclaimStart, STORM_WINDOW_NS, Stall, TaskAlarm, TaskCount,
};

/// Version of the layout of everything in this crate. The programs do nothing when the
/// setup that they were loaded with has another one, and the reader refuses records of
/// another one.
pub const ABI_VERSION: u16 = 11;
