//! Wiring: the loop that owns the engine, supervision, shutdown.
//!
//! ```text
//! reaction thread:  hook, v1 threshold, timer ─► eyes ─► engine ─► executor
//!                        ▲                         │ notes (bounded, no lock)
//!                        │ commands                ▼
//! main thread:      API server or pods file,  metrics, HTTP, watchdog
//!                   signals
//!                                                  │ lines (bounded)
//!                                                  ▼
//! printer, log:                               standard output and error
//! ```
//! Nothing on the main thread can delay the reaction thread, and whoever reads the output can
//! delay neither.

mod allocatable;
mod arming;
mod capacities;
mod check;
mod clock;
mod cluster;
mod configuration;
mod configz;
pub mod event;
mod eyes;
mod failure;
mod file_watch;
mod flight;
mod hands;
mod hook;
mod kept;
mod kept_free;
mod ladder;
mod lane;
mod limits;
mod lines;
mod log;
mod mains;
mod names;
mod notes;
mod oom;
mod oom_counters;
mod place;
mod pod_memory;
mod pods;
mod printer;
mod range;
mod reaction;
mod recorder;
mod reflex;
mod reload;
mod remembered;
mod resolved;
mod roster;
mod run;
mod slow;
mod start;
mod state;
mod statuses;
mod tallies;
mod tasks;
mod thread;
mod told;
mod v1;
mod v2;
mod wakes;
mod watch;
mod watchdog;

pub use capacities::NodeFacts;
pub use check::{Findings, check};
pub use cluster::{Clean, CleanOptions, Cleaned, ClusterOptions, clean_nodes};
pub use configuration::ConfigurationFiles;
pub use configz::Caller;
pub use log::{LogQueue, LogWriter};
pub use resolved::{ActsBelow, Configured, configured};
pub use run::{Options, Output, run};

pub use failure::Failure;
pub use start::NO_RUNG as NO_BACKEND;

pub use eviction_config::{Action, ActionSettings, DryRun};
pub use eviction_node::choice::Choice;
pub use eviction_node::timer::RUNG as TIMER;

/// Version, commit and the layout of the kernel side's records.
pub const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("EVICTION_AGENT_COMMIT"),
    ", BPF ABI ",
    env!("EVICTION_AGENT_ABI"),
    ")"
);

/// The commit that this was built from.
pub const COMMIT: &str = env!("EVICTION_AGENT_COMMIT");

/// The version of the layout of BPF records and maps.
pub const BPF_ABI: &str = env!("EVICTION_AGENT_ABI");

/// Every rung that an option can name.
pub fn rung_names() -> impl Iterator<Item = &'static str> {
    eviction_bpf::rungs::names().chain(thread::LADDER)
}
