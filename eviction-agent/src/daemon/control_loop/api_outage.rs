//! API server outages: the engine pauses evictions that have to wait. A request without a response stays open
//! until its result is known. By `eviction.whenAPIServerDown` the agent kills the pods of such requests, or
//! freezes the pod that would be evicted until the API server is available again.

use std::sync::Arc;

use eviction_core::decision::Decision;
use eviction_core::eviction::EvaluationEnd;
use eviction_core::in_flight::{ApiPhase, ExecutorUpdate, InFlightEviction};
use eviction_core::input::{ApiReachability, Event};
use eviction_core::pod::PodName;
use eviction_core::policy::eviction_settings::WhenApiServerDown;
use eviction_core::progress::KillRejection;
use eviction_core::signal::Resource;
use eviction_kill::{CgroupDirs, FrozenPod};
use eviction_node::clock::mono_ns;

use super::ControlLoop;
use super::evictions::grace_of;
use crate::telemetry::event_log::{self, PodRef};

/// The pod that is frozen.
#[derive(Debug)]
pub(super) struct FrozenVictim {
    pod: Arc<PodName>,
    /// When the pod is thawed at the latest, in nanoseconds of `CLOCK_MONOTONIC`.
    until_ns: u64,
    /// Thaws the pod when it is dropped.
    guard: FrozenPod,
}

impl ControlLoop {
    /// Freezes the pod that this decision would have evicted if the API server were available.
    pub(super) fn freeze_victim(&mut self, decision: &Decision) {
        let Some(evaluation) = decision.evaluation() else { return };
        let can_freeze = self.is_freezing_enabled() && self.state.frozen.is_none();
        // `end` is that of the threshold that was handled last.
        let mut ends = evaluation.deficits.iter().map(|deficit| deficit.end).chain([evaluation.end]);
        if !ends.any(|end| end == EvaluationEnd::ApiServerUnavailable) || !can_freeze {
            return;
        }
        let at = self.clock.now().wall;
        if let Some(pod) = self.engine.victim_without_outage(at, &evaluation.snapshot) {
            self.freeze(&pod);
        }
    }

    /// Thaws the frozen pod if its time is over or the reason for the freeze does not apply any more.
    pub(super) fn thaw_if_due(&mut self) {
        let outage_end = if self.engine.api_reachability() == ApiReachability::Reachable {
            Some("api_server_reachable")
        } else if !self.is_freezing_enabled() {
            Some("configuration")
        } else {
            None
        };
        if outage_end.is_some() {
            self.state.frozen_uids.clear();
        }
        let Some(FrozenVictim { pod, until_ns, .. }) = &self.state.frozen else { return };
        let gone = || self.engine.pods().index_of(&pod.uid).is_none().then_some("pod_gone");
        let timeout = || (*until_ns <= mono_ns()).then_some("timeout");
        if let Some(why) = outage_end.or_else(gone).or_else(timeout) {
            self.thaw(why);
        }
    }

    /// Returns in how many nanoseconds the frozen pod is thawed at the latest.
    pub(super) fn thaw_due_in_ns(&self, now_ns: u64) -> Option<u64> {
        Some(self.state.frozen.as_ref()?.until_ns.saturating_sub(now_ns))
    }

    fn is_freezing_enabled(&self) -> bool {
        self.engine.policy().eviction.when_api_server_down == WhenApiServerDown::Freeze
    }

    fn freeze(&mut self, pod: &Arc<PodName>) {
        if self.state.frozen.is_some() || self.state.frozen_uids.contains(&pod.uid) {
            return;
        }
        let groups = self.containers_of(&pod.uid);
        let (state, reason, frozen) = match self.executor.freeze(&groups) {
            Ok(Some(frozen)) => ("frozen", None, Some(frozen)),
            Ok(None) => ("dry_run", None, None),
            Err(KillRejection::Empty) => return,
            Err(rejection) => ("failed", Some(rejection.to_string()), None),
        };
        let timeout = self.engine.policy().eviction.freeze_timeout.as_nanos();
        let until_ns = mono_ns().saturating_add(timeout.max(0).unsigned_abs());
        self.state.frozen_uids.insert(pod.uid.clone());
        self.state.frozen = frozen.map(|guard| FrozenVictim { pod: Arc::clone(pod), until_ns, guard });
        self.publish_freeze(pod, state, reason);
    }

    fn thaw(&mut self, why: &str) {
        let Some(FrozenVictim { pod, guard, .. }) = self.state.frozen.take() else { return };
        drop(guard);
        self.publish_freeze(&pod, "thawed", Some(why.to_owned()));
    }

    fn publish_freeze(&mut self, pod: &PodName, state: &'static str, reason: Option<String>) {
        let (pod_uid, pod) = (pod.uid.to_string(), PodRef::from(pod));
        let event = event_log::Event::PodFreeze { pod, pod_uid, state, reason };
        self.telemetry.publish(event, self.clock.now().wall);
    }

    /// Returns the directories of a pod's containers, not of the pod: on cgroup v1 the container runtime could
    /// not end processes that are frozen by an ancestor of their cgroup.
    fn containers_of(&self, uid: &str) -> Vec<CgroupDirs> {
        let Some(place) = self.pod_index.active().index_of(uid) else { return Vec::new() };
        let groups = self.pod_index.cgroups_of(place, self.node_sampler.cgroups.pods());
        groups
            .flat_map(|group| &group.containers)
            .map(|container| self.dirs_of(container.cgroup_id, &container.path))
            .collect()
    }

    /// Handles that the API server became available or unavailable.
    pub(super) fn handle_reachability(&mut self, reachability: ApiReachability) {
        self.step_and_discard(Event::ApiServer(reachability));
        if reachability == ApiReachability::Reachable {
            // Before the next pod is evicted.
            return self.thaw_if_due();
        }
        match self.engine.policy().eviction.when_api_server_down {
            WhenApiServerDown::Wait => {}
            WhenApiServerDown::Kill => self.kill_unanswered(),
            WhenApiServerDown::Freeze => {
                if let Some(it) = self.unanswered().iter().find(|it| it.resource() == Resource::Memory) {
                    self.freeze(&it.pod);
                }
            }
        }
    }

    /// Returns the evictions for a hard threshold that the API server has not accepted.
    fn unanswered(&self) -> Vec<InFlightEviction> {
        let pods = self.engine.pods();
        let is_meant = |it: &&InFlightEviction| {
            let is_unanswered = matches!(it.api, Some(ApiPhase::Requested | ApiPhase::Unconfirmed));
            it.hard && is_unanswered && !it.killing && pods.index_of(&it.pod.uid).is_some()
        };
        self.executing().filter(is_meant).cloned().collect()
    }

    /// Kills the pods of these evictions: they were chosen already, so no other pod has to be.
    fn kill_unanswered(&mut self) {
        for it in self.unanswered() {
            let Some(target) = self.target(&it, mono_ns(), grace_of(&it)) else { continue };
            match self.executor.begin(&target) {
                Ok(()) => self.update(target.decision, ExecutorUpdate::KillStarted),
                Err(refused) => self.publish_kill_rejection(&it, &refused),
            }
        }
    }
}
