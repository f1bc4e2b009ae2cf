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
use crate::telemetry::event_log::{self, PodFreeze};

/// The pod that was frozen last in this outage.
#[derive(Debug)]
pub(crate) struct FreezeState {
    pod: Arc<PodName>,
    /// When the pod is thawed at the latest, in nanoseconds of `CLOCK_MONOTONIC`.
    until_ns: u64,
    /// `None` once the pod is thawed, and for a dry run.
    frozen: Option<FrozenPod>,
}

impl ControlLoop {
    /// Freezes the pod that this decision would have evicted if the API server were available.
    pub(super) fn freeze_victim(&mut self, decision: &Decision) {
        let Some(evaluation) = decision.evaluation() else { return };
        let is_frozen = self.freeze.as_ref().is_some_and(|state| state.frozen.is_some());
        if evaluation.end != EvaluationEnd::ApiUnreachable || !self.freezes() || is_frozen {
            return;
        }
        let at = self.clock.now().wall;
        if let Some(pod) = self.engine.victim_without_outage(at, &evaluation.snapshot) {
            self.freeze(&pod);
        }
    }

    /// Thaws the frozen pod if its time is over or the reason for the freeze does not apply any more.
    pub(super) fn thaw_if_due(&mut self) {
        let Some(state) = &self.freeze else { return };
        let why = if self.state.reachability == ApiReachability::Reachable {
            "api_server_reachable"
        } else if !self.freezes() {
            "configuration"
        } else if self.engine.pods().index_of(&state.pod.uid).is_none() {
            "pod_gone"
        } else {
            // The pod is not frozen again in this outage.
            if state.until_ns <= mono_ns() {
                self.thaw("timeout");
            }
            return;
        };
        self.thaw(why);
        self.freeze = None;
    }

    /// Returns in how many nanoseconds the frozen pod is thawed at the latest.
    pub(super) fn thaw_due_in_ns(&self, now_ns: u64) -> Option<u64> {
        let state = self.freeze.as_ref().filter(|state| state.frozen.is_some())?;
        Some(state.until_ns.saturating_sub(now_ns))
    }

    fn freezes(&self) -> bool {
        self.engine.policy().eviction.when_api_server_down == WhenApiServerDown::Freeze
    }

    fn freeze(&mut self, pod: &Arc<PodName>) {
        // One pod at a time, and each once: a freeze releases nothing, so the same pod would be chosen again
        // and again.
        if self.freeze.as_ref().is_some_and(|it| it.frozen.is_some() || it.pod.uid == pod.uid) {
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
        self.freeze = Some(FreezeState { pod: Arc::clone(pod), until_ns, frozen });
        self.publish_freeze(PodFreeze::new(pod, state, reason));
    }

    fn thaw(&mut self, why: &str) {
        let Some(state) = self.freeze.as_mut().filter(|state| state.frozen.is_some()) else { return };
        state.frozen = None;
        let event = PodFreeze::new(&state.pod, "thawed", Some(why.to_owned()));
        self.publish_freeze(event);
    }

    fn publish_freeze(&mut self, event: PodFreeze) {
        self.telemetry.publish(event_log::Event::PodFreeze(event), self.clock.now().wall);
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
        self.state.reachability = reachability;
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
            let is_unanswered = matches!(it.api, Some(ApiPhase::Asked | ApiPhase::Unconfirmed));
            it.hard && is_unanswered && !it.killing && pods.index_of(&it.pod.uid).is_some()
        };
        self.executing().filter(is_meant).cloned().collect()
    }

    /// Kills the pods of these evictions: they were chosen already, so no other pod has to be.
    fn kill_unanswered(&mut self) {
        for it in self.unanswered() {
            let Some(target) = self.target_to_resume(&it, grace_of(&it)) else { continue };
            match self.executor.begin(&target) {
                Ok(()) => self.update(target.decision, ExecutorUpdate::KillStarted),
                Err(refused) => self.publish_kill_rejection(&it, &refused),
            }
        }
    }
}
