//! The killer on real cgroups with real processes: all processes inside end, none outside is signalled.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod bystanders;
mod fixture;
mod forks;
mod frozen;
mod growth;
mod guards;
mod memory;
mod modes;
mod signals;
mod unified;
