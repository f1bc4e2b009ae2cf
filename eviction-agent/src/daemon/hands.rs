//! What ends victims, made from what users say.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::error::{Failure, chain};
use crate::telemetry::metrics::{Metrics, ResultLabels};
use eviction_config::ActionSettings;
use eviction_core::policy::VictimsPerSync;
use eviction_core::progress::KillUpdate;
use eviction_kill::CgroupDirs;
use eviction_kill::KillMode;
use eviction_kill::Killer;
use eviction_kill::KillerConfig;
use eviction_kill::MreleaseResult;
use eviction_kill::RateLimitPolicy;
use eviction_node::cgroup::node_root::NodeRoot;

/// The hand; the acting one takes the right to act on this node.
pub(super) fn executor(
    root: &NodeRoot,
    action: ActionSettings,
    pacing: RateLimitPolicy,
    told: mpsc::Sender<KillUpdate>,
    metrics: &Arc<Metrics>,
) -> Result<Killer, Failure> {
    // It holds the right to act also where it only acts if a policy says so.
    let hand = if action.is_dry() { KillMode::DryRun } else { KillMode::Kill };
    let NodeRoot { memory, pids, freezer, unified, version: _, whole_machine: _, partial: _ } = root.clone();
    let roots = CgroupDirs { id: None, memory: Some(memory), pids, freezer, unified };
    let config = KillerConfig { pacing, ..KillerConfig::new(hand, roots) };
    let releases = metrics.process_mrelease.clone();
    let count = move |reaped| {
        let result = match reaped {
            MreleaseResult::Released => "released",
            MreleaseResult::Ended => "ended",
            MreleaseResult::Refused => "failed",
        };
        releases.get_or_create(&ResultLabels { result }).inc();
    };
    Killer::new(config, told, count).map_err(|error| {
        let failure = Failure::failed(chain(&error));
        match error.help() {
            Some(help) => failure.help(help),
            None => failure,
        }
    })
}

/// How fast victims may follow each other.
pub(super) fn pacing(victims: VictimsPerSync) -> RateLimitPolicy {
    match victims {
        VictimsPerSync::One => RateLimitPolicy::default(),
        // Who waits for whom is decided by what each of them frees.
        VictimsPerSync::Sized { .. } => {
            RateLimitPolicy { victim_wait: Duration::ZERO, ..RateLimitPolicy::default() }
        }
    }
}
