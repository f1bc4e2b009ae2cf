//! Changing Linux: ends the processes of pods, and undoes what was changed for that.
//!
//! [`Killer::begin`] takes a decision as plain data, [`KillTarget`], and returns at once: begun, or
//! `KillRejection` with the reason. What comes of it arrives as `KillUpdate`s. [`Killer::freeze`] stops a pod
//! until the [`FrozenPod`] is dropped. Nothing outside the
//! node's root cgroup is touched, no process outside the pod's cgroup is signalled, and what is
//! stopped for a while (forking, running) goes on again, also after the agent was killed.

mod cgroup_procs;
mod cgroup_scope;
mod growth;
mod job;
mod kill_worker;
mod killer;
mod mrelease;
mod node_lock;
mod pod_processes;
mod scoped_write;
mod thread;

pub use cgroup_scope::CgroupDirs;
pub use job::KillTarget;
pub use killer::{FrozenPod, KillMode, Killer, KillerConfig, StartError, UNDO_LOG, undo};
pub use mrelease::MreleaseResult;
pub use node_lock::{LockError, LockHolder, NodeLock};
