//! Sources of values other than the kernel.
//!
//! Each reading is either a value or [`Unknown`](eviction_core::reading::Reading) with the reason:
//! a missing, truncated or implausible value never counts as zero.

pub mod pods;
pub mod summary;
