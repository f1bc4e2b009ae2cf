//! Helpers of the test programs in this package: cgroup subtrees, processes, workloads.
//!
//! Nothing here uses the agent's own code, so that checks of the agent do not share its faults.

pub mod agent;
pub mod allocations;
pub mod bench;
pub mod binary;
pub mod cgroup;
pub mod clock;
pub mod cluster;
pub mod containerd;
pub mod death;
pub mod empty_program;
pub mod fdinfo;
pub mod file_system;
pub mod folder;
pub mod growth;
pub mod helm;
#[cfg(target_arch = "x86_64")]
pub mod inject;
pub mod interrupt;
pub mod meminfo;
pub mod metrics;
pub mod mounts;
pub mod node;
pub mod privileges;
pub mod process;
pub mod program;
pub mod prometheus;
pub mod random;
pub mod simulated_node;
mod skip;
pub mod stamps;
pub mod storm;
pub mod story;
pub mod terminal;
pub mod workload;

pub use skip::{report as report_skip, report_finding};
