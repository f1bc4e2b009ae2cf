//! The kernel side's user side: finds out what this kernel offers ([`probe`]), chooses the
//! rungs to try ([`plan`]), loads and attaches them ([`mod@load`]), and then is told what happened
//! through one ring buffer ([`ring`], [`event`]).
//!
//! ```text
//! probe::facts ─► plan::plan ─► load::load ─► Kernel { arm, disarm, take_dirty, task_counts, lost }
//!                                     └─────► Ring   { drain(|Event|) }  AsFd, or ring::AsyncRing
//! ```
//! Nothing is pinned: when [`Kernel`] is dropped every program is detached. When the kernel
//! refuses BPF as a whole, [`load`](load::load) says why for each source, and the agent runs
//! on its fallbacks.

mod attach;
mod brief;
pub mod btf;
mod climb;
pub mod decode;
pub mod event;
pub mod ids;
mod kernel;
pub mod load;
mod lost;
mod near;
mod object;
pub mod offsets;
pub mod owner;
pub mod plan;
pub mod preflight;
pub mod probe;
mod reflex;
pub mod ring;
pub mod rungs;
pub mod sequence;
pub mod size;
mod switch;
mod sys;
pub mod tally;

/// How many CPUs are online. A quota or an affinity of this process, which the standard library counts in, says nothing of
/// how fast others fill the memory.
pub fn online_cpus() -> usize {
    let all = aya::util::online_cpus().map_or(0, |cpus| cpus.len());
    all.max(std::thread::available_parallelism().map_or(1, Into::into))
}

/// What a CPU charges ahead at once (`MEMCG_CHARGE_BATCH` in linux/memcontrol.h), of each group that it holds back of
/// ([`offsets::Resolved::stocks`]).
pub fn batch_bytes() -> u64 {
    eviction_common::BATCH_PAGES * rustix::param::page_size() as u64
}

pub use event::{
    Alarm, Ancestor, CgroupChange, Choice, Crossed, Edge, Event, OomKill, Stamp, Struck, TaskAlarm,
};
pub use kernel::{ArmError, Charged, Detached, DirtyLeaf, Generation, Kernel, Level};
pub use load::{LoadOptions, Loaded, ProgramLog, ProgramLogReader, Refused, load};
pub use lost::Lost;
pub use plan::{Family, SourceInfo, When};
pub use reflex::{
    Epoch, LastNumbers, StandError, Standing, VerdictNumber, WITHHELD_REASONS, withheld_reasons,
};
pub use ring::{AsyncRing, Drained, Ring};
pub use tally::{NodeLine, Stall, TaskCount};
