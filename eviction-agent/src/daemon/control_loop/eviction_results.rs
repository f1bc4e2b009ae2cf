//! Evictions by the API server: begun, answered, and over when the pod is gone.

use std::time::Duration;

use eviction_core::in_flight::{ExecutorUpdate, InFlightEviction};
use eviction_core::input::ApiReachability;
use eviction_core::policy::eviction_settings::HardMode;
use eviction_core::progress::{ApiOperation, ApiResult, KillProgress, KillRejection, KillUpdate, NotEvicted};
use eviction_core::signal::Resource;
use eviction_core::time::nanos;
use eviction_kill::{KillStarted, KillTarget};

use super::super::cluster::NodeStatusSender;
use super::ControlLoop;
use crate::telemetry::queue::Step;
use eviction_node::clock::mono_ns;

/// While a right is missing it is not asked for more often: somebody has to grant it first.
const FORBIDDEN: Duration = Duration::from_secs(10);

/// While nobody can be asked, or nobody believes who asks.
const UNHEARD: Duration = Duration::from_secs(1);

impl ControlLoop {
    /// Begins an eviction: by the API server where there is one, else by the kill hand; and
    /// whether the kill hand acts.
    pub(super) fn begin(
        &mut self,
        target: &KillTarget,
        ignores_budget: bool,
    ) -> Result<(KillStarted, bool), KillRejection> {
        let unreachable = self.state.reach == ApiReachability::Unreachable;
        // Where the policy is to hold, the engine chooses nobody.
        let Some(evictions) = self.evictions.as_mut().filter(|_| !unreachable) else {
            return Ok((self.executor.begin(target)?, true));
        };
        let after_update = self.node.as_ref().map_or(0, NodeStatusSender::number);
        let revision = self.state_sender.next_number();
        let begun = evictions.begin(target, ignores_budget, after_update, revision, mono_ns())?;
        let wanted = self.engine.policy().eviction.hard_mode == HardMode::EvictAndKill;
        if !wanted || !target.hard || target.resource != Resource::Memory {
            return Ok((begun, false));
        }
        let decision = match begun {
            KillStarted::Started => target.decision,
            KillStarted::Hurried { decision } => decision,
        };
        // The kubelet grants the grace period; this hand is here because there is no time for it.
        let target = KillTarget { decision, grace: Duration::ZERO, ..target.clone() };
        match self.executor.begin(&target) {
            Ok(_) => Ok((begun, true)),
            Err(refused) => {
                let (namespace, pod) = (&target.pod.namespace, &target.pod.name);
                tracing::warn!(%namespace, %pod, %refused, help = refused.help(), "evicted, but not killed");
                Ok((begun, false))
            }
        }
    }

    /// Takes note of what the API server answered; true if the engine may look again.
    pub(super) fn take_answer(&mut self, it: &InFlightEviction, outcome: KillUpdate) -> bool {
        let id = outcome.decision;
        let KillProgress::Answered { asked, answered, is_dry } = outcome.progress.clone() else {
            return false;
        };
        let is_without_object = matches!(answered, ApiResult::Terminated | ApiResult::Replaced);
        if is_without_object && !is_dry && asked != ApiOperation::Condition && self.is_populated(&it.pod.uid)
        {
            // That it is gone is told when nobody is left of it.
            self.update(id, ExecutorUpdate::ApiAccepted);
            return false;
        }
        // That the pod is gone is told once, whoever saw it first.
        if !(is_without_object && it.reported_gone) {
            self.tell_step(it, Step::Progress(outcome));
        }
        if asked == ApiOperation::Condition {
            return false;
        }
        if is_dry {
            self.update(id, ExecutorUpdate::ApiEnded);
            self.end_pace(id);
            match answered {
                ApiResult::Throttled { pause } => self.pause_evictions(pause),
                _ => self.rest(mono_ns()),
            }
            return false;
        }
        let is_rejected = matches!(answered, ApiResult::Rejected { .. });
        let (result, pause) = match answered {
            ApiResult::Accepted => {
                self.update(id, ExecutorUpdate::ApiAccepted);
                return false;
            }
            // The hand finds out, however long it takes.
            ApiResult::Unknown { .. } => {
                self.update(id, ExecutorUpdate::ApiUnconfirmed);
                return false;
            }
            ApiResult::Terminated | ApiResult::Replaced => (Ok(()), None),
            ApiResult::PdbDenied { .. } => (Err(NotEvicted::PdbDenied), None),
            ApiResult::Rejected { why, .. } => (Err(NotEvicted::Failed(why)), None),
            ApiResult::Throttled { pause } => (Err(NotEvicted::NotAsked), Some(pause)),
            ApiResult::Forbidden { .. } => (Err(NotEvicted::NotAsked), Some(FORBIDDEN)),
            ApiResult::Unauthorized { .. } | ApiResult::NotSent { .. } => {
                (Err(NotEvicted::NotAsked), Some(UNHEARD))
            }
        };
        let over = if result.is_ok() { ExecutorUpdate::PodGone } else { ExecutorUpdate::ApiEnded };
        self.update(id, over);
        if result.is_ok() {
            self.end_pace(id);
        } else if let Some(evictions) = &mut self.evictions {
            evictions.not_done(id);
        }
        // Its processes are being ended all the same, or are already: the pod is on its way until that is over,
        // and nobody goes in its place.
        let goes_on = result.is_err() && (it.killing || it.reported_gone);
        if let Some(pause) = pause.filter(|_| !(goes_on && self.waits_for_victims())) {
            self.pause_evictions(pause);
        }
        if goes_on {
            return false;
        }
        if is_rejected {
            self.rest(mono_ns());
        }
        self.tell_outcome(&it.pod, result.clone());
        pause.is_none() && self.looks_again(&result)
    }

    /// Nobody is asked for as long.
    fn pause_evictions(&mut self, pause: Duration) {
        self.hold_evictions(mono_ns().saturating_add(nanos(pause)));
    }

    /// Those on their way by the API server are over when they are not among the pods any more, and
    /// nothing of them is left.
    pub(super) fn note_who_is_gone(&mut self) {
        let pods = self.engine.pods();
        let is_gone = |it: &&InFlightEviction| {
            it.api.is_some() && pods.index_of(&it.pod.uid).is_none() && !self.is_leaving(&it.pod.uid)
        };
        let gone: Vec<_> = self.executing().filter(is_gone).cloned().collect();
        for it in gone {
            let Some(id) = it.decision else { continue };
            self.update(id, ExecutorUpdate::PodGone);
            self.end_pace(id);
            if !it.reported_gone {
                self.tell_gone(&it);
            }
        }
    }

    fn end_pace(&mut self, decision: u64) {
        if let Some(evictions) = &mut self.evictions {
            evictions.ended(decision, mono_ns());
        }
    }
}
