//! Where figures and events come from. Never sees `action`.
//!
//! Whatever is read here is either a figure or [`Unknown`](eviction_core::reading::Reading)
//! with the reason: nothing that is missing, cut off or absurd ever counts as zero.

pub mod api;
pub mod bpf;
pub mod cgroup;
pub mod choice;
pub mod clock;
pub mod eventfd;
pub mod file;
pub mod info;
mod nullable;
pub mod oom_notice;
pub mod pace;
pub mod pods;
pub mod pods_file;
pub mod probe;
pub mod proc;
pub mod stall;
pub mod summary;
pub mod text;
pub mod timer;
pub mod trigger;
pub mod wait;
