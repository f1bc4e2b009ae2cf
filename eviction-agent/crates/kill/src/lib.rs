//! Actions on the system: terminates the processes of pods, and undoes its temporary changes.
//!
//! [`Killer::begin`] takes a decision as plain data, [`KillTarget`], and returns at once: either the kill has
//! started, or it returns a `KillRejection` with the reason. The results arrive as `KillUpdate`s.
//! [`Killer::freeze`] stops a pod until the [`FrozenPod`] is dropped. The crate changes nothing outside the
//! node's root cgroup and signals no process outside the pod's cgroup. Temporary stops (of forks, of running
//! processes) are undone, also after the agent was killed.

mod cgroup;
mod cgroup_procs;
mod growth;
mod job;
mod kill_worker;
mod killer;
mod mrelease;
mod node_lock;
mod pod_processes;
mod scoped_write;

pub use cgroup::{CgroupDirs, CgroupScope};
pub use job::KillTarget;
pub use killer::{FrozenPod, Killer, UNDO_LOG, undo};
pub use mrelease::MreleaseResult;
pub use node_lock::{LockError, NodeLock};
