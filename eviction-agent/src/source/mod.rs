//! Where values and events come from, beside the kernel.
//!
//! Whatever is read here is either a value or [`Unknown`](eviction_core::reading::Reading)
//! with the reason: nothing that is missing, cut off or absurd ever counts as zero.

pub mod pods;
pub mod summary;
