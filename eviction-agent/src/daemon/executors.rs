//! Makes the executors from the configuration.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::error::{Failure, chain};
use crate::telemetry::metrics::Metrics;
use eviction_config::ActionSettings;
use eviction_core::progress::KillUpdate;
use eviction_kill::{CgroupDirs, KillMode, Killer, KillerConfig, MreleaseResult};
use eviction_node::cgroup::node_root::NodeRoot;

/// The killer. One that acts takes the lock of this node.
pub(super) fn killer(
    root: &NodeRoot,
    action: ActionSettings,
    updates: mpsc::Sender<KillUpdate>,
    metrics: &Arc<Metrics>,
) -> Result<Killer, Failure> {
    // It takes the lock also where only some policies have it act.
    let mode = if action.is_dry() { KillMode::DryRun } else { KillMode::Kill };
    let NodeRoot { memory, pids, freezer, unified, version: _, whole_machine: _, partial: _ } = root.clone();
    let roots = CgroupDirs { id: None, memory: Some(memory), pids, freezer, unified };
    let config = KillerConfig::new(mode, roots);
    let releases = metrics.process_mrelease.clone();
    let count = move |result| {
        let result = match result {
            MreleaseResult::Released => "released",
            MreleaseResult::Ended => "ended",
            MreleaseResult::Refused => "failed",
        };
        releases.with([result]).inc();
    };
    Killer::new(config, updates, count).map_err(|error| {
        let failure = Failure::failed(chain(&error));
        match error.help() {
            Some(help) => failure.help(help),
            None => failure,
        }
    })
}
