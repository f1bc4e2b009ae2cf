//! While the API server cannot be asked: which evictions wait, and which pod is frozen meanwhile.

use std::sync::Arc;

use super::Engine;
use crate::decision::Action;
use crate::input::{ApiReachability, Event, Input};
use crate::pod::PodName;
use crate::policy::eviction_settings::WhenApiServerDown;
use crate::signal::Resource;
use crate::snapshot::Snapshot;
use crate::time::Timestamp;

impl Engine {
    /// Whether no pod may be evicted before the API server is back, for a hard threshold or a soft one.
    pub(super) fn waits_for_api(&self, hard: bool) -> bool {
        let kills = hard && self.policy.eviction.when_api_server_down == WhenApiServerDown::Kill;
        self.api == ApiReachability::Unreachable && !kills
    }

    /// The pod that would be evicted first for a hard threshold of memory on this sample, if the API server could be
    /// asked; changes nothing.
    pub fn victim_without_outage(&self, at: Timestamp, snapshot: &Arc<Snapshot>) -> Option<Arc<PodName>> {
        let mut trial = self.clone();
        trial.api = ApiReachability::Reachable;
        // The sample was decided on already.
        trial.thresholds.forget_observations();
        let decision = trial.step(Input { at, event: Event::Sample(Arc::clone(snapshot)) });
        let evaluation = decision.evaluation()?;
        decision.actions.iter().find_map(|action| {
            let Action::Evict(eviction) = action else { return None };
            let threshold = &evaluation.threshold_of(eviction.cause)?.threshold;
            let is_meant = threshold.is_hard() && threshold.signal.resource() == Resource::Memory;
            evaluation.pods.get(eviction.pod).filter(|_| is_meant).map(|known| Arc::clone(&known.name))
        })
    }
}
