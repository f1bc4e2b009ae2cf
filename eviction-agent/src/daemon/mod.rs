//! The daemon: the control loop that owns the engine, its supervision and the shutdown.
//!
//! ```text
//! control loop:     memory notifier ─► sampler ─► engine ─► executor   
//!                        ▲                         │ telemetry events (bounded, no lock)
//!                        │ commands                ▼
//! main thread:      API server or pods file,  metrics, HTTP, watchdog
//!                   signals
//!                                                  │ lines (bounded)
//!                                                  ▼
//! printer, log:                               standard output and error
//! ```
//! Nothing on the main thread can delay the control loop. A slow reader of the output can delay neither thread.

pub(crate) mod check;
mod cleanup;
pub(crate) mod cluster;
pub(crate) mod config_reload;
pub(crate) mod configuration;
pub(crate) mod control_loop;
pub(crate) mod kubelet_api;
pub(crate) mod limit_monitor;
pub(crate) mod memory_notifier;
pub(crate) mod oom_attribution;
pub(crate) mod oom_counters;
pub(crate) mod pod_source;
pub(crate) mod rate_limit;
mod realtime;
pub(crate) mod reclaim;
mod saved_config;
pub(crate) mod service_manager;
pub(crate) mod startup;
pub(crate) mod state;
pub(crate) mod supervise;
pub(crate) mod watchdog;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub use check::{Findings, await_daemon_set, check, find_capacities};
pub use cleanup::{CleanedDir, clean_nodes, clean_state_dir};
pub use configuration::{ConfigurationFiles, EffectiveConfig, EffectiveThreshold, Options};
pub use eviction_config::{Action, ActionSettings, DryRun};
pub use eviction_node::backend::BackendSelection;
pub use eviction_node::notify::timer::NAME as TIMER;
pub use supervise::run;

pub use crate::error::Failure;
pub use crate::telemetry::event_log::NO_BACKEND;
pub use crate::telemetry::line_writer::LineWriter;

/// The version, the commit and the version of the BPF ABI.
pub const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("EVICTION_AGENT_COMMIT"),
    ", BPF ABI ",
    env!("EVICTION_AGENT_ABI"),
    ")"
);

/// The commit that this binary was built from.
pub const COMMIT: &str = env!("EVICTION_AGENT_COMMIT");

/// The version of the layout of BPF records and maps.
pub const BPF_ABI: &str = env!("EVICTION_AGENT_ABI");

/// Returns the names of all backends that an option can select or disable.
pub fn backend_names() -> impl Iterator<Item = &'static str> {
    eviction_bpf::attach_methods::names().chain(realtime::BACKENDS)
}

/// Returns the signals of this kind from now on. Needs a tokio runtime.
///
/// # Errors
/// If the signal cannot be watched.
pub(crate) fn watch_signal(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::because("watch for signals", &error))
}

/// The signals that end a process.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Watches the signals from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// If they cannot be watched.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let terminate = watch_signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: watch_signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one. Returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Returns a tokio runtime for the calling thread.
///
/// # Errors
/// If the kernel refuses a resource that the runtime needs.
pub(crate) fn start_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::because("start a runtime", &error))
}

/// Runs a future on a new runtime.
///
/// # Errors
/// If the runtime cannot be created.
pub(crate) fn run_once<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = start_runtime()?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(result)
}
