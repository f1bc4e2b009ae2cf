//! Reads Linux: cgroups, /proc, pressure stall information, and the kernel's notifications.
//!
//! Each reading is either a value or [`Unknown`](eviction_core::reading::Reading) with the reason. Nothing that
//! is missing, cut off or implausible ever counts as zero.

pub mod allocatable;
pub mod backend;
pub mod cgroup;
pub mod clock;
pub mod container_init;
pub mod file;
pub mod file_watch;
pub mod fs;
pub mod mountinfo;
pub mod notify;
pub mod pod_index;
pub mod pods_file;
pub mod proc;
pub mod psi;
pub mod sampler;
pub mod thread;
