//! The BPF programs, loaded into this kernel and fed by real processes.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod arming;
mod attach_methods;
mod cgroups;
mod charge;
mod churn;
mod disk;
mod fixture;
mod groups;
mod kernel_kill;
mod load;
mod near;
mod oom;
mod reclaim;
mod storm;
mod tasks;
