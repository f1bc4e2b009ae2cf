//! Evictions by the API server: begun, answered, and over when the pod is gone.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::api_result::{ApiOperation, ApiResult};
use eviction_core::eviction_result::NotEvicted;
use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::policy::eviction_settings::HardMode;
use eviction_core::progress::{KillProgress, KillRejection, KillUpdate};
use eviction_core::signal::Resource;
use eviction_core::time::nanos;
use eviction_kill::KillStarted;
use eviction_kill::KillTarget;

use super::super::clock::mono_ns;
use super::super::cluster::NodeStatusSender;
use super::{ActiveEviction, ApiPhase, ControlLoop};
use crate::telemetry::queue::Step;

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
        let after_marks = self.node.as_ref().map_or(0, NodeStatusSender::number);
        let kept_as = self.keep.next_number();
        let begun = evictions.begin(target, ignores_budget, after_marks, kept_as, mono_ns())?;
        let wanted = self.engine.policy().hands.hard_mode == HardMode::EvictAndKill;
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
    pub(super) fn take_answer(&mut self, index: usize, outcome: KillUpdate) -> bool {
        let KillProgress::Answered { asked, answered, is_dry } = outcome.progress.clone() else {
            return false;
        };
        let is_without_object = matches!(answered, ApiResult::Gone | ApiResult::Another);
        if is_without_object
            && !is_dry
            && asked != ApiOperation::Condition
            && self.is_populated(&outcome.pod.uid)
        {
            // That it is gone is told when nobody is left of it.
            self.note_accepted(index);
            return false;
        }
        // That the pod is gone is told once, whoever saw it first.
        if !(is_without_object && self.state.under_way[index].told_gone) {
            let note = self.state.under_way[index].note(Step::Progress(outcome));
            self.notes.send(note);
        }
        if asked == ApiOperation::Condition {
            return false;
        }
        if is_dry {
            let over = self.finish_api(index);
            self.end_pace(over.id);
            self.let_rest(over.id);
            if let ApiResult::Throttled { pause } = answered {
                self.pause_evictions(over.id, pause);
            }
            return false;
        }
        let is_rejected = matches!(answered, ApiResult::Rejected { .. });
        let (result, pause) = match answered {
            ApiResult::Accepted => {
                self.note_accepted(index);
                return false;
            }
            // The hand finds out, however long it takes.
            ApiResult::Unknown { .. } => {
                self.state.under_way[index].by_api = Some(ApiPhase::Open);
                let pod = Arc::clone(&self.state.under_way[index].pod);
                self.leave_open(&pod);
                return false;
            }
            ApiResult::Gone | ApiResult::Another => {
                self.state.under_way[index].told_gone = true;
                (Ok(()), None)
            }
            ApiResult::Budget { .. } => (Err(NotEvicted::Budget), None),
            ApiResult::Rejected { why, .. } => (Err(NotEvicted::Failed(why)), None),
            ApiResult::Throttled { pause } => (Err(NotEvicted::NotAsked), Some(pause)),
            ApiResult::Forbidden { .. } => (Err(NotEvicted::NotAsked), Some(FORBIDDEN)),
            ApiResult::Unauthorized { .. } | ApiResult::NotSent { .. } => {
                (Err(NotEvicted::NotAsked), Some(UNHEARD))
            }
        };
        let it = &self.state.under_way[index];
        if result.is_err() && (it.by_kill || it.told_gone) {
            self.leave_to_the_kill_hand(index, pause);
            return false;
        }
        let over = self.finish_api(index);
        let looks_again = match &mut self.state.flight {
            // The engine would choose the same one again at once, without end.
            Some(flight) if is_rejected => {
                flight.refused(over.id, mono_ns());
                false
            }
            Some(flight) if pause.is_none() => flight.end(over.id),
            Some(_) => false,
            None => pause.is_none(),
        };
        match &result {
            Ok(()) => self.end_pace(over.id),
            Err(_) => {
                if let Some(evictions) = &mut self.evictions {
                    evictions.not_done(over.id);
                }
            }
        }
        self.tell_outcome(&over.pod, result);
        if let Some(pause) = pause {
            self.pause_evictions(over.id, pause);
        }
        looks_again
    }

    /// The API server does not do it, but its processes are being ended all the same, or are already: the
    /// pod is on its way until that is over, and nobody goes in its place.
    fn leave_to_the_kill_hand(&mut self, index: usize, pause: Option<Duration>) {
        let over = self.finish_api(index);
        if let Some(evictions) = &mut self.evictions {
            evictions.not_done(over.id);
        }
        if let Some(pause) = pause {
            // The flight lasts until the kill hand's part is over.
            self.hold_evictions(mono_ns().saturating_add(nanos(pause)));
        }
    }

    /// Nobody is asked for as long: where the engine remembers that, it holds; else the flight of this decision does.
    fn pause_evictions(&mut self, decision: u64, pause: Duration) {
        let (now_ns, pause_ns) = (mono_ns(), nanos(pause));
        if let Some(flight) = &mut self.state.flight {
            flight.rest(decision, now_ns, pause_ns);
        }
        self.hold_evictions(now_ns.saturating_add(pause_ns));
    }

    /// The pod is on its way.
    fn note_accepted(&mut self, index: usize) {
        let before = self.state.under_way[index].by_api.replace(ApiPhase::Accepted);
        if before == Some(ApiPhase::Open) {
            let (at, uid) = (self.clock.now().wall, self.state.under_way[index].pod.uid.clone());
            self.step(Input { at, event: Event::EvictionAccepted(uid) });
        }
    }

    /// Those on their way by the API server are over when they are not among the pods any more, and
    /// nothing of them is left.
    pub(super) fn note_who_is_gone(&mut self) {
        let pods = Arc::clone(self.engine.pods());
        let mut index = 0;
        while let Some(it) = self.state.under_way.get(index) {
            if it.by_api.is_none() || pods.place(&it.pod.uid).is_some() || self.is_leaving(&it.pod.uid) {
                index += 1;
                continue;
            }
            let told = std::mem::replace(&mut self.state.under_way[index].told_gone, true);
            let over = self.finish_api(index);
            self.end_pace(over.id);
            if let Some(flight) = &mut self.state.flight {
                flight.end(over.id);
            }
            if !told {
                self.tell_gone(&over);
            }
        }
    }

    /// The API server's part is over; the kill hand's may go on.
    fn finish_api(&mut self, index: usize) -> ActiveEviction {
        self.keep.note();
        let it = &mut self.state.under_way[index];
        it.by_api = None;
        if it.by_kill { it.clone() } else { self.state.under_way.swap_remove(index) }
    }

    fn end_pace(&mut self, decision: u64) {
        if let Some(evictions) = &mut self.evictions {
            evictions.ended(decision, mono_ns());
        }
    }

    /// To choose again at once would choose the same.
    fn let_rest(&mut self, decision: u64) {
        if let Some(flight) = &mut self.state.flight {
            flight.refused(decision, mono_ns());
        }
    }
}
