//! Results of evictions: of the killer, of the API server, and rejections. Each may pause evictions.

use std::time::Duration;

use eviction_core::in_flight::{ApiPhase, ExecutorUpdate, InFlightEviction, RETRY_AFTER};
use eviction_core::input::Event;
use eviction_core::pod::PodName;
use eviction_core::progress::{ApiOperation, ApiResult, KillProgress, KillRejection, KillUpdate, NotEvicted};
use eviction_core::time::nanos;

use super::ControlLoop;
use eviction_node::clock::mono_ns;

/// The pause between two attempts while too many evictions are in flight: one pod that has terminated makes
/// room.
const BUSY_PAUSE_NS: u64 = 1_000_000_000;

/// The pause while a permission is missing: it has to be granted first.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(10);

/// The pause while requests are not sent or not authenticated.
const NOT_SENT_PAUSE: Duration = Duration::from_secs(1);

impl ControlLoop {
    /// Handles a result. Returns true if a sync may choose another victim.
    pub(super) fn handle_result(&mut self, update: KillUpdate) -> bool {
        self.state_sender.is_changed = true;
        let id = update.decision;
        let Some(it) = self.executing().find(|it| it.decision == Some(id)).cloned() else { return false };
        if matches!(update.progress, KillProgress::Answered { .. }) {
            return self.handle_api_result(&it, update);
        }
        let result = match &update.progress {
            KillProgress::Terminated { .. } => Some(Ok(())),
            // The kubelet terminates the pod as well.
            KillProgress::ProcessesRemaining { .. } if it.api.is_some() => None,
            KillProgress::ProcessesRemaining { processes, unreachable, .. } => {
                let left = processes.len() + *unreachable as usize;
                Some(Err(format!("{left} processes outlive SIGKILL").into()))
            }
            _ => None,
        };
        let is_last = update.progress.is_last();
        if !(it.termination_reported && matches!(update.progress, KillProgress::Terminated { .. })) {
            self.publish_step(&it, update.at_ns, Ok(update.progress));
        }
        if !is_last {
            return false;
        }
        self.update(id, ExecutorUpdate::KillEnded { gone: result == Some(Ok(())) });
        let Some(result) = result else { return false };
        self.pause_after_kill(&it);
        self.report_result(&it.pod, result.clone());
        self.syncs_at_once(&result)
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
            self.update(id, ExecutorUpdate::Api(Some(ApiPhase::Accepted)));
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
            self.update(id, ExecutorUpdate::Api(None));
            match answered {
                ApiResult::Throttled { pause } => self.pause_evictions_for(pause),
                _ => self.pause_for_monitoring_interval(mono_ns()),
            }
            return false;
        }
        let (result, pause) = match answered {
            ApiResult::Accepted => {
                self.update(id, ExecutorUpdate::Api(Some(ApiPhase::Accepted)));
                return false;
            }
            // The evictor finds the result, however long that takes.
            ApiResult::Unknown { .. } => {
                self.update(id, ExecutorUpdate::Api(Some(ApiPhase::Unconfirmed)));
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
            self.update(id, ExecutorUpdate::Api(None));
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

    /// Returns whether a sync follows at once after an eviction has ended. The kubelet's rules wait for all
    /// victims, and would choose a pod that was not evicted again at once, without end.
    pub(super) fn syncs_at_once(&self, result: &Result<(), NotEvicted>) -> bool {
        let has_failed = matches!(result, Err(NotEvicted::Failed(_)));
        !self.waits_for_victims() || !(has_failed || self.engine.is_waiting(self.clock.now().wall))
    }

    /// Reports the rejection of a victim to the engine. A limit that is not the pod's own applies to all pods.
    pub(super) fn report_rejection(&mut self, it: &InFlightEviction, refused: &KillRejection) {
        // `NotAsked`: the rejection is not about the pod, and its rank is still the same.
        let (result, paused_until_ns) = match refused {
            // The eviction of this pod goes on; a former pod of the same name would be no eviction of this one.
            KillRejection::AlreadyTerminating { decision }
                if self
                    .executing()
                    .any(|own| own.decision == Some(*decision) && own.pod.uid == it.pod.uid) =>
            {
                return;
            }
            KillRejection::NodeLimit { until_ns, .. } => (Err(NotEvicted::NotAsked), Some(*until_ns)),
            KillRejection::Busy { .. } => {
                let decided_ns = self.clock.mono_of(it.decided_at);
                (Err(NotEvicted::NotAsked), Some(decided_ns.saturating_add(BUSY_PAUSE_NS)))
            }
            KillRejection::KilledInKernel => (Err(NotEvicted::NotAsked), None),
            KillRejection::Empty => (Ok(()), None),
            refused => (Err(refused.to_string().into()), None),
        };
        self.report_result(&it.pod, result);
        if let Some(until_ns) = paused_until_ns.filter(|_| !self.waits_for_victims()) {
            self.pause_evictions_until(until_ns);
        }
    }

    pub(super) fn report_result(&mut self, pod: &PodName, result: Result<(), NotEvicted>) {
        self.step_and_discard(Event::Evicted { uid: pod.uid.clone(), result });
    }

    /// Returns whether no pod is evicted while evictions are in flight, as in the kubelet.
    pub(super) fn waits_for_victims(&self) -> bool {
        self.engine.policy().rules.are_kubelets()
    }

    /// Pauses evictions for the monitoring interval, as the kubelet does: an immediate choice would choose the
    /// same pod.
    pub(super) fn pause_for_monitoring_interval(&mut self, now_ns: u64) {
        if self.waits_for_victims() {
            self.pause_evictions_until(now_ns.saturating_add(RETRY_AFTER.as_nanos().unsigned_abs()));
        }
    }

    /// Pauses evictions.
    fn pause_evictions_for(&mut self, pause: Duration) {
        self.pause_evictions_until(mono_ns().saturating_add(nanos(pause)));
    }

    /// Pauses evictions until `until_ns`, CLOCK_MONOTONIC.
    pub(super) fn pause_evictions_until(&mut self, until_ns: u64) {
        let until = self.clock.at(until_ns).wall;
        self.step_and_discard(Event::EvictionsPausedUntil(until));
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

    /// Ends the killer, and publishes the evictions that it abandons. Before that the state was persisted for the
    /// last time, so the next agent continues them, and finds out other results by itself.
    pub(super) fn abandon_kills(&mut self) {
        self.executor.stop();
        while let Ok(KillUpdate { decision, at_ns, progress }) = self.eviction_results.try_recv() {
            if progress != KillProgress::Abandoned {
                continue;
            }
            let Some(it) = self.executing().find(|it| it.decision == Some(decision)).cloned() else {
                continue;
            };
            self.publish_step(&it, at_ns, Ok(progress));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use eviction_core::policy::preferences::Profile;
    use eviction_kill::KillTarget;
    use tokio::sync::mpsc;

    use super::super::tests::{DECISION, fixture, started_eviction};
    use super::*;
    use crate::telemetry::queue::TelemetryEvent;

    #[tokio::test]
    async fn a_pdb_refusal_does_not_end_an_eviction_that_is_being_killed() {
        let Some(mut fixture) = fixture(Profile::Kubelet) else {
            ::tests::skip!("no cgroups can be made here")
        };
        let control_loop = &mut fixture.control_loop;
        let known = Arc::clone(&control_loop.pod_index.known()[0]);
        for killing in [true, false] {
            let api = Some(ApiPhase::Requested);
            let it = InFlightEviction { api, killing, ..started_eviction(control_loop, &known) };
            let update = |progress| KillUpdate { decision: DECISION, at_ns: mono_ns(), progress };
            control_loop.update(DECISION, ExecutorUpdate::Started(Box::new(it)));
            let answered = ApiResult::PdbDenied { why: "not now".into() };
            let answered =
                KillProgress::Answered { operation: ApiOperation::Eviction, answered, is_dry: false };
            assert_eq!(
                control_loop.handle_result(update(answered)),
                !killing,
                "whether another one may be looked for"
            );
            assert_eq!(control_loop.engine.is_waiting(control_loop.clock.now().wall), killing);
            assert_eq!(control_loop.executing().count(), usize::from(killing));
            if killing {
                let gone = KillProgress::Terminated { killed: 1, unreaped: None };
                assert!(control_loop.handle_result(update(gone)), "and now it may");
                assert_eq!(control_loop.executing().count(), 0);
            }
        }
    }

    #[tokio::test]
    async fn a_kill_counts_although_a_budget_refuses_the_eviction_after_its_end() {
        let Some(mut fixture) = fixture(Profile::Kubelet) else {
            ::tests::skip!("no cgroups can be made here")
        };
        let control_loop = &mut fixture.control_loop;
        let known = Arc::clone(&control_loop.pod_index.known()[0]);
        let (decision, api) = (Some(DECISION), Some(ApiPhase::Requested));
        let it = InFlightEviction { decision, api, ..started_eviction(control_loop, &known) };
        let target = control_loop.target(&it, mono_ns(), Duration::ZERO).unwrap();
        control_loop.rate_limit.record_begin(&target, mono_ns());
        control_loop.update(DECISION, ExecutorUpdate::Started(Box::new(it)));
        let (operation, answered) = (ApiOperation::Eviction, ApiResult::PdbDenied { why: "not now".into() });
        for progress in [
            KillProgress::Terminated { killed: 1, unreaped: None },
            KillProgress::Answered { operation, answered, is_dry: false },
        ] {
            control_loop.handle_result(KillUpdate { decision: DECISION, at_ns: mono_ns(), progress });
        }
        assert_eq!(control_loop.executing().count(), 0);
        let again = KillTarget { decision: DECISION + 1, ..target };
        let admitted = control_loop.rate_limit.admit(&again, false, control_loop.executing(), mono_ns());
        assert!(matches!(admitted, Err(KillRejection::CoolDown { .. })), "{admitted:?}");
    }

    #[tokio::test]
    async fn a_stop_publishes_the_evictions_that_the_killer_abandons() {
        let Some(mut fixture) = fixture(Profile::Kubelet) else {
            ::tests::skip!("no cgroups can be made here")
        };
        let control_loop = &mut fixture.control_loop;
        let it = started_eviction(control_loop, &control_loop.pod_index.known()[0]);
        control_loop.update(DECISION, ExecutorUpdate::Started(Box::new(it)));
        let (results, receiver) = mpsc::channel(2);
        control_loop.eviction_results = receiver;
        for progress in [KillProgress::Terminated { killed: 1, unreaped: None }, KillProgress::Abandoned] {
            results.try_send(KillUpdate { decision: DECISION, at_ns: mono_ns(), progress }).unwrap();
        }
        fixture.drain_telemetry();
        // Without a sender of commands the loop ends as at a stop.
        let mut commands = mpsc::channel(1).1;
        assert!(fixture.control_loop.next(&mut commands).await.unwrap().is_none());
        let mut published = Vec::new();
        while let Ok(event) = fixture.telemetry.try_recv() {
            if let TelemetryEvent::Progress(update) = event {
                published.push(update.step);
            }
        }
        let abandoned = Ok::<_, KillRejection>(KillProgress::Abandoned);
        assert_eq!(published, [abandoned], "the next agent finds the others");
    }
}
