//! Evictions by the API server: from the request to the end of the pod.

use std::time::Duration;

use eviction_core::in_flight::{ApiPhase, ExecutorUpdate, InFlightEviction};
use eviction_core::input::ApiReachability;
use eviction_core::policy::eviction_settings::HardMode;
use eviction_core::progress::{ApiOperation, ApiResult, KillProgress, KillRejection, KillUpdate, NotEvicted};
use eviction_core::signal::Resource;
use eviction_core::time::nanos;
use eviction_kill::KillTarget;

use super::super::cluster::NodeStatusSender;
use super::super::rate_limit::Admission;
use super::ControlLoop;
use eviction_node::clock::mono_ns;

/// The pause while a permission is missing: it has to be granted first.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(10);

/// The pause while requests are not sent or not authenticated.
const NOT_SENT_PAUSE: Duration = Duration::from_secs(1);

impl ControlLoop {
    /// Begins an eviction, or shortens the grace period of one in flight: by the API server where there is
    /// one, else by signals. Returns which was done, and whether the processes are being signalled.
    pub(super) fn begin(
        &mut self,
        target: &KillTarget,
        ignores_budget: bool,
        shortens: bool,
    ) -> Result<(Admission, bool), KillRejection> {
        let now_ns = mono_ns();
        let admission = self.rate_limit.admit(target, shortens, self.executing(), now_ns)?;
        let target = match admission {
            Admission::Begin => target.clone(),
            Admission::Shorten { decision } => KillTarget { decision, ..target.clone() },
        };
        let is_killing = self.execute(&target, ignores_budget)?;
        if admission == Admission::Begin {
            self.rate_limit.record_begin(&target, now_ns);
        }
        Ok((admission, is_killing))
    }

    /// Carries out an admitted eviction. Returns whether the processes are being signalled.
    fn execute(&mut self, target: &KillTarget, ignores_budget: bool) -> Result<bool, KillRejection> {
        let is_reachable = self.engine.api_reachability() == ApiReachability::Reachable;
        // If evictions must wait for the API server, the engine chooses no pod.
        let Some(evictions) = self.evictions.as_mut().filter(|_| is_reachable) else {
            return self.kill(target).map(|()| true);
        };
        let after_update = self.node.as_ref().map_or(0, NodeStatusSender::number);
        let revision = self.state_sender.next_number();
        evictions.begin(target, ignores_budget, after_update, revision)?;
        let wanted = self.engine.policy().eviction.hard_mode == HardMode::EvictAndKill;
        if !wanted || !target.hard || target.resource != Resource::Memory {
            return Ok(false);
        }
        // The kubelet grants the grace period; the processes are killed because there is no time for it.
        let target = KillTarget { grace: Duration::ZERO, ..target.clone() };
        match self.kill(&target) {
            Ok(()) => Ok(true),
            Err(refused) => {
                let (namespace, pod) = (&target.pod.namespace, &target.pod.name);
                tracing::warn!(%namespace, %pod, %refused, help = refused.help(), "evicted, but not killed");
                Ok(false)
            }
        }
    }

    /// Signals the processes of a pod. Shortens the grace period if they are being signalled for its decision
    /// already.
    fn kill(&mut self, target: &KillTarget) -> Result<(), KillRejection> {
        let is_killing = self.executing().any(|it| it.decision == Some(target.decision) && it.killing);
        if is_killing { self.executor.shorten(target) } else { self.executor.begin(target) }
    }

    /// Handles a response of the API server. Returns true if a sync may follow.
    pub(super) fn handle_api_result(&mut self, it: &InFlightEviction, update: KillUpdate) -> bool {
        let id = update.decision;
        let KillProgress::Answered { operation, answered, is_dry } = update.progress.clone() else {
            return false;
        };
        let is_without_object = matches!(answered, ApiResult::Terminated | ApiResult::Replaced);
        if is_without_object
            && !is_dry
            && operation != ApiOperation::Condition
            && self.is_populated(&it.pod.uid)
        {
            // The end of the eviction is reported when no process is left.
            self.update(id, ExecutorUpdate::ApiAccepted);
            return false;
        }
        // The end of the pod is published once.
        if !(is_without_object && it.termination_reported) {
            self.publish_step(it, update.at_ns, Ok(update.progress));
        }
        if operation == ApiOperation::Condition {
            return false;
        }
        if is_dry {
            self.update(id, ExecutorUpdate::ApiEnded);
            match answered {
                ApiResult::Throttled { pause } => self.pause_evictions_for(pause),
                _ => self.pause_for_monitoring_interval(mono_ns()),
            }
            return false;
        }
        let (result, pause) = match answered {
            ApiResult::Accepted => {
                self.update(id, ExecutorUpdate::ApiAccepted);
                return false;
            }
            // The evictor finds the result, however long that takes.
            ApiResult::Unknown { .. } => {
                self.update(id, ExecutorUpdate::ApiUnconfirmed);
                return false;
            }
            ApiResult::Terminated | ApiResult::Replaced => (Ok(()), None),
            ApiResult::PdbDenied { .. } => (Err(NotEvicted::PdbDenied), None),
            ApiResult::Rejected { why, .. } => (Err(NotEvicted::Failed(why)), None),
            ApiResult::Throttled { pause } => (Err(NotEvicted::NotAsked), Some(pause)),
            ApiResult::Forbidden { .. } => (Err(NotEvicted::NotAsked), Some(FORBIDDEN_PAUSE)),
            ApiResult::Unauthorized { .. } | ApiResult::NotSent { .. } => {
                (Err(NotEvicted::NotAsked), Some(NOT_SENT_PAUSE))
            }
        };
        // A request to shorten the grace period has failed: the pod is terminating all the same.
        let is_accepted = it.api == Some(ApiPhase::Accepted);
        if result.is_ok() {
            self.update(id, ExecutorUpdate::PodGone);
        } else if !is_accepted {
            // A kill that has ended the pod before the response counts too.
            if !it.killing && !it.termination_reported {
                self.rate_limit.discard(id);
            }
            self.update(id, ExecutorUpdate::ApiEnded);
        }
        // The processes of the pod are still being ended, or have ended: the pod is terminating until that is
        // over, and no other pod is evicted instead.
        let goes_on = result.is_err() && (is_accepted || it.killing || it.termination_reported);
        if let Some(pause) = pause.filter(|_| !(goes_on && self.waits_for_victims())) {
            self.pause_evictions_for(pause);
        }
        if goes_on {
            return false;
        }
        if matches!(result, Err(NotEvicted::Failed(_))) {
            self.pause_for_monitoring_interval(mono_ns());
        }
        self.report_result(&it.pod, result.clone());
        pause.is_none() && self.syncs_at_once(&result)
    }

    /// Pauses evictions.
    fn pause_evictions_for(&mut self, pause: Duration) {
        self.pause_evictions_until(mono_ns().saturating_add(nanos(pause)));
    }

    /// Ends evictions by the API server whose pods have neither an object nor processes.
    pub(super) fn end_evictions_of_removed_pods(&mut self) {
        let pods = self.engine.pods();
        let is_gone = |it: &&InFlightEviction| {
            it.api.is_some() && pods.index_of(&it.pod.uid).is_none() && !self.is_terminating(&it.pod.uid)
        };
        let gone: Vec<_> = self.executing().filter(is_gone).cloned().collect();
        for it in gone {
            let Some(id) = it.decision else { continue };
            self.update(id, ExecutorUpdate::PodGone);
            if !it.termination_reported {
                self.publish_terminated(&it);
            }
        }
    }
}
