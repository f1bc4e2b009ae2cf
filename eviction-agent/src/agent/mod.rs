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

mod capacities;
mod check;
mod clock;
mod cluster;
mod config_reload;
mod configuration;
mod configz;
mod container_init;
mod container_status;
mod control_loop;
mod decision_id;
mod decision_log;
mod effective_config;
mod error;
pub mod event;
mod event_batch;
mod exporter;
mod failover;
mod file_watch;
mod hands;
mod in_flight;
mod kernel_kill;
mod limit_monitor;
mod log_writer;
mod memcg_v1;
mod monitor;
mod notify_plan;
mod on_demand;
mod oom_attribution;
mod oom_counters;
mod persisted;
mod place;
mod pod_activity;
mod pod_index;
mod pod_memory;
mod pod_rates;
mod pod_source;
mod pods_root;
mod psi_triggers;
mod realtime;
mod run;
mod sampler;
mod saved_config;
mod spsc;
mod startup;
mod state;
mod status;
mod stdout;
mod telemetry_queue;
mod threshold_levels;
mod token_bucket;
mod watchdog;
mod watermarks;

pub use capacities::NodeFacts;
pub use check::{Findings, check};
pub use cluster::{Clean, CleanOptions, Cleaned, ClusterOptions, clean_nodes};
pub use configuration::ConfigurationFiles;
pub use configz::Caller;
pub use effective_config::{EffectiveConfig, EffectiveThreshold, configured};
pub use log_writer::{LogQueue, LogWriter};
pub use run::{Options, Output, run};

pub use error::Failure;
pub use startup::NO_RUNG as NO_BACKEND;

pub use eviction_config::{Action, ActionSettings, DryRun};
pub use eviction_node::backend_selection::BackendSelection;
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
    eviction_bpf::attach_methods::names().chain(realtime::LADDER)
}
