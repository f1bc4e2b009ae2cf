//! The user-space side of the BPF programs: finds out what this kernel offers ([`capabilities`]), chooses the
//! methods to try ([`plan`]), loads and attaches them ([`mod@load`]), and then receives events through one ring
//! buffer ([`ring`], [`event`]).
//!
//! ```text
//! capabilities::facts ─► plan::plan ─► load::load ─┬─► BpfHandle { set_threshold, take_charged, task_counts, lost }
//!                                                  └─► Ring { drain(|Event|) }  AsFd, or ring::watch
//! ```
//! Nothing is pinned: when [`BpfHandle`] is dropped every program is detached. If the kernel refuses BPF as a
//! whole, [`load`](load::load) returns the reason for each source, and the agent runs on its fallbacks.

mod attach;
pub mod attach_methods;
pub mod btf;
pub mod capabilities;
pub mod decode;
pub mod event;
mod handle;
pub mod load;
pub mod offsets;
mod on_demand;
pub mod plan;
pub mod preflight;
pub mod ring;
mod sys;

/// Returns how many CPUs are online. The standard library also considers a quota or an affinity of this
/// process, which do not limit how fast other processes fill the memory.
pub fn online_cpus() -> usize {
    let all = aya::util::online_cpus().map_or(0, |cpus| cpus.len());
    all.max(std::thread::available_parallelism().map_or(1, Into::into))
}

/// Returns the bytes that a CPU charges in advance at once (`MEMCG_CHARGE_BATCH` in linux/memcontrol.h), for
/// each cgroup whose charges it caches ([`offsets::BtfFacts::charge_caches`]).
pub fn batch_bytes() -> u64 {
    eviction_common::BATCH_PAGES * rustix::param::page_size() as u64
}

pub use attach_methods::{AttachWhen, EventClass};
pub use event::{
    Alarm, Ancestor, DiskThresholdCrossed, Edge, Event, KernelKill, KernelKillCause, OomKill, OomLimitOwner,
    TaskAlarm, ThresholdCrossed,
};
pub use eviction_common::{
    Counter, DiskResource, DiskTotal, DiskUsage, MemcgThreshold, ReclaimTime, Suppressed, TaskStats,
};
pub use handle::disk::DiskUsageKey;
pub use handle::kernel_kill::{ArmError, ArmedDiskOrder, ArmedOrder};
pub use handle::task_counters::NodePidThreshold;
pub use handle::{BpfHandle, KernelThreshold};
pub use load::{LoadError, LoadOptions, Loaded, ProgramLogReader, load};
pub use plan::BackendInfo;
pub use ring::{Drained, LossCounters, Ring};
