//! Reading Linux: cgroups, /proc, pressure stall information, and what the kernel announces.
//!
//! Whatever is read is either a value or [`Unknown`](eviction_core::reading::Reading)
//! with the reason: nothing that is missing, cut off or implausible ever counts as zero.

pub mod cgroup;
pub mod choice;
pub mod clock;
pub mod eventfd;
pub mod file;
pub mod info;
pub mod oom_notice;
pub mod pace;
pub mod proc;
pub mod stall;
pub mod text;
pub mod timer;
pub mod trigger;
pub mod wait;
