//! What is done: evictions and their outcomes. Never sees `source`.
//!
//! [`Executor::begin`] takes a decision as plain data, [`KillTarget`], and answers at once: begun,
//! or [`Refused`] with the reason. What comes of it arrives as [`Outcome`]s. Nothing outside the
//! node's root cgroup is touched, no process outside the pod's cgroup is signalled, and what is
//! stopped for a while (forking, running) goes on again, also after the agent was killed.

mod ahead;
mod boundary;
mod clock;
mod executor;
mod group;
mod growth;
mod hold;
mod job;
mod lock;
mod members;
mod pacing;
mod reaper;
mod survivors;
mod target;
mod victim;
mod worker;

pub use boundary::OpenError;
pub use executor::{Begun, Executor, ExecutorConfig, Hand, StartError};
pub use lock::{ActingLock, Holder, LockError};
pub use pacing::{Admitted, Flight, Kill, Pacing, PacingPolicy};
pub use reaper::Reaped;
pub use target::{GroupDirs, KillTarget};
