//! Makes the executors from the configuration.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::error::{Failure, chain};
use crate::telemetry::metrics::{Metrics, ResultLabels};
use eviction_config::ActionSettings;
use eviction_core::policy::Rules;
use eviction_core::progress::KillUpdate;
use eviction_kill::CgroupDirs;
use eviction_kill::KillMode;
use eviction_kill::Killer;
use eviction_kill::KillerConfig;
use eviction_kill::MreleaseResult;
use eviction_kill::RateLimitPolicy;
use eviction_node::cgroup::node_root::NodeRoot;

/// The killer. One that acts takes the lock of this node.
pub(super) fn killer(
    root: &NodeRoot,
    action: ActionSettings,
    rate_limits: RateLimitPolicy,
    updates: mpsc::Sender<KillUpdate>,
    metrics: &Arc<Metrics>,
) -> Result<Killer, Failure> {
    // It takes the lock also where only some policies have it act.
    let mode = if action.is_dry() { KillMode::DryRun } else { KillMode::Kill };
    let NodeRoot { memory, pids, freezer, unified, version: _, whole_machine: _, partial: _ } = root.clone();
    let roots = CgroupDirs { id: None, memory: Some(memory), pids, freezer, unified };
    let config = KillerConfig { pacing: rate_limits, ..KillerConfig::new(mode, roots) };
    let releases = metrics.process_mrelease.clone();
    let count = move |reaped| {
        let result = match reaped {
            MreleaseResult::Released => "released",
            MreleaseResult::Ended => "ended",
            MreleaseResult::Refused => "failed",
        };
        releases.get_or_create(&ResultLabels { result }).inc();
    };
    Killer::new(config, updates, count).map_err(|error| {
        let failure = Failure::failed(chain(&error));
        match error.help() {
            Some(help) => failure.help(help),
            None => failure,
        }
    })
}

/// How fast pods may be evicted one after the other.
///
/// Where evictions are sized, who waits for whom is decided by what each of them frees.
pub(super) fn rate_limits(rules: &Rules) -> RateLimitPolicy {
    let kubelet = RateLimitPolicy::default();
    if rules.are_kubelets() { kubelet } else { RateLimitPolicy { victim_wait: Duration::ZERO, ..kubelet } }
}
