//! What ends victims, made from what users say.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::failure::{Failure, chain};
use crate::action::api::ApiHandConfig;
use crate::metrics::{Metrics, ResultLabels};
use eviction_config::{ActionSettings, EvictionRequests};
use eviction_core::policy::Victims;
use eviction_core::progress::Outcome;
use eviction_core::units::GoDuration;
use eviction_kill::Executor;
use eviction_kill::ExecutorConfig;
use eviction_kill::GroupDirs;
use eviction_kill::Hand;
use eviction_kill::PacingPolicy;
use eviction_kill::Reaped;
use eviction_node::cgroup::root::NodeRoot;

/// How the hand asks the API server.
pub(super) fn hand_config(requests: EvictionRequests, action: ActionSettings) -> ApiHandConfig {
    let EvictionRequests { max_in_flight, timeout, max_age } = requests;
    let time = |duration: GoDuration| Duration::from_nanos(duration.as_nanos().unsigned_abs());
    ApiHandConfig {
        in_flight: max_in_flight.into(),
        within: time(timeout),
        fresh: time(max_age),
        is_dry: action.is_dry(),
    }
}

/// The hand; the acting one takes the right to act on this node.
pub(super) fn executor(
    root: &NodeRoot,
    action: ActionSettings,
    pacing: PacingPolicy,
    told: mpsc::Sender<Outcome>,
    metrics: &Arc<Metrics>,
) -> Result<Executor, Failure> {
    // It holds the right to act also where it only acts if a policy says so.
    let hand = if action.is_dry() { Hand::DryRun } else { Hand::Kill };
    let NodeRoot { memory, pids, freezer, unified, version: _, whole_machine: _, partial: _ } = root.clone();
    let roots = GroupDirs { id: None, memory: Some(memory), pids, freezer, unified };
    let config = ExecutorConfig { pacing, ..ExecutorConfig::new(hand, roots) };
    let releases = metrics.process_mrelease.clone();
    let count = move |reaped| {
        let result = match reaped {
            Reaped::Released => "released",
            Reaped::Ended => "ended",
            Reaped::Refused => "failed",
        };
        releases.get_or_create(&ResultLabels { result }).inc();
    };
    Executor::new(config, told, count).map_err(|error| {
        let failure = Failure::failed(chain(&error));
        match error.help() {
            Some(help) => failure.help(help),
            None => failure,
        }
    })
}

/// How fast victims may follow each other.
pub(super) fn pacing(victims: Victims) -> PacingPolicy {
    match victims {
        Victims::One => PacingPolicy::default(),
        // Who waits for whom is decided by what each of them frees.
        Victims::Sized { .. } => PacingPolicy { victim_wait: Duration::ZERO, ..PacingPolicy::default() },
    }
}
