//! The BPF programs, loaded into this kernel and fed by real processes.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod attach_methods;
mod cgroups;
mod charge;
mod churn;
mod disk;
mod fixture;
mod groups;
mod kernel_kill;
mod kernel_thresholds;
mod load;
mod on_demand;
mod oom;
mod reclaim;
mod storm;
mod tasks;
