//! Where figures and events come from. Never sees `action`.
//!
//! Whatever is read here is either a figure or [`Unknown`](eviction_core::reading::Reading)
//! with the reason: nothing that is missing, cut off or absurd ever counts as zero.

pub mod api;
mod nullable;
pub mod pods;
pub mod pods_file;
pub mod summary;
