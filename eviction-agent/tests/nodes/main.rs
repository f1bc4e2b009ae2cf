//! The readers of `/proc` and control groups on recorded nodes of both versions.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod allocation;
mod bad;
mod large;
mod pods;
mod recorded;
mod sampling;
mod visibility;
