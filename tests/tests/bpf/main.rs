//! The BPF programs, loaded into this kernel and fed by real processes.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod cgroups;
mod charge;
mod ladder;
mod load;
mod oom;
mod rig;
mod tasks;
