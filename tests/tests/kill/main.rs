//! The killer on real cgroups with real processes: all processes inside end, none outside is signalled.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod fixture;
mod forks;
mod frozen;
mod growth;
mod memory;
mod modes;
mod pod_processes;
mod rejections;
mod signals;
mod unified;
