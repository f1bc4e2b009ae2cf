//! Evictions: from a decision to the executor, and the results.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eviction_core::decision::{Action, Decision, Evaluation};
use eviction_core::eviction::Eviction;
use eviction_core::in_flight::{ApiPhase, ExecutorUpdate, InFlightEviction, RETRY_AFTER};
use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::pod::PodName;
use eviction_core::policy::Threshold;
use eviction_core::progress::{EvictionResult, KillProgress, KillRejection, KillUpdate, NotEvicted};
use eviction_kill::{CgroupDirs, KillTarget};
use eviction_node::cgroup::node_root::find_group;
use eviction_node::cgroup::pods::Pod as CgroupPod;

use super::super::rate_limit::Admission;
use super::ControlLoop;
use crate::telemetry::queue::{EvictionUpdate, TelemetryEvent};
use eviction_node::clock::mono_ns;

/// The pause between two attempts while too many evictions are in flight: one pod that has terminated makes
/// room.
const BUSY_PAUSE_NS: u64 = 1_000_000_000;

impl ControlLoop {
    pub(super) fn carry_out(&mut self, decision: &Decision, decided_mono_ns: u64) {
        let Some(evaluation) = decision.evaluation() else { return };
        let is_killed_in_kernel = self.is_killed_in_kernel(decision);
        for action in &decision.actions {
            let (eviction, shortens) = match action {
                Action::Evict(eviction) => (eviction, false),
                // The rate limit finds the eviction whose grace period is to be shortened.
                Action::ShortenGrace(eviction) => (eviction, true),
                Action::RecordEvent(_) | Action::Reclaim(_) => continue,
            };
            let id = self.state.decisions + 1;
            let Some(mut started) = self.eviction_of(evaluation, eviction, id, decided_mono_ns) else {
                continue;
            };
            let Some(target) = self.target(&started, decided_mono_ns, grace_of(&started)) else { continue };
            self.state.decisions = id;
            self.state_sender.is_changed = true;
            let uses_api =
                self.evictions.is_some() && self.engine.api_reachability() == ApiReachability::Reachable;
            started.api = uses_api.then_some(ApiPhase::Requested);
            let begun = match is_killed_in_kernel {
                true => Err(KillRejection::KilledInKernel),
                false => self.begin(&target, eviction.ignores_budget, shortens),
            };
            match begun {
                Ok((Admission::Begin, killing)) => {
                    started.killing = killing;
                    if let Some(known) = evaluation.pods.pods().get(eviction.pod as usize) {
                        self.add_victim(&started, known);
                    }
                    self.update(id, ExecutorUpdate::Started(Box::new(started)));
                }
                // Updates use the number of the decision that already terminates the pod.
                Ok((Admission::Shorten { decision }, killing)) => {
                    let grace_period_seconds = eviction.grace_period_seconds;
                    self.update(decision, ExecutorUpdate::Shortened { grace_period_seconds, killing });
                }
                Err(refused) => {
                    // The eviction of the pod in which the kernel killed a process begins in a moment. The
                    // agent waits for that one.
                    if refused != KillRejection::KilledInKernel {
                        self.pause_for_monitoring_interval(decided_mono_ns);
                    }
                    // The eviction whose grace period is not shortened goes on.
                    if !shortens || refused == KillRejection::Empty {
                        self.report_rejection(&started, &refused);
                    }
                    self.publish_step(&started, decided_mono_ns, Err(refused));
                }
            }
        }
    }

    /// Returns an eviction of a decision that was made at `decided_ns`, as it is when executors begin it. `id` is its
    /// number.
    pub(super) fn eviction_of(
        &self,
        evaluation: &Evaluation,
        eviction: &Eviction,
        id: u64,
        decided_ns: u64,
    ) -> Option<InFlightEviction> {
        let known = evaluation.pods.pods().get(eviction.pod as usize)?;
        // Limits of local storage are the only evictions without a threshold.
        let hard = evaluation.threshold_of(eviction.cause).is_none_or(Threshold::is_hard);
        let begun = InFlightEviction::new(
            Arc::clone(&known.name),
            evaluation.label_of(eviction.cause),
            hard,
            self.clock.at(decided_ns).wall,
            eviction.grace_period_seconds,
        );
        Some(InFlightEviction { decision: Some(id), ..begun })
    }

    /// Returns the target of an eviction for executors that begin or resume it at `at_ns`. `grace` is the rest of
    /// its grace period.
    pub(super) fn target(&self, it: &InFlightEviction, at_ns: u64, grace: Duration) -> Option<KillTarget> {
        Some(KillTarget {
            decision: it.decision?,
            at_ns,
            pod: Arc::clone(&it.pod),
            groups: self.groups_of(&it.pod.uid),
            grace,
            resource: it.resource(),
            hard: it.hard,
            kill_on_growth: self.engine.policy().eviction.kill_on_growth.bytes(),
        })
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

    /// Pauses evictions until `until_ns`, CLOCK_MONOTONIC.
    pub(super) fn pause_evictions_until(&mut self, until_ns: u64) {
        let until = self.clock.at(until_ns).wall;
        self.step_and_discard(Event::EvictionsPausedUntil(until));
    }

    pub(super) fn report_result(&mut self, pod: &PodName, result: Result<(), NotEvicted>) {
        self.step_and_discard(Event::Evicted(EvictionResult { uid: pod.uid.clone(), result }));
    }

    /// Returns the directories of a pod's cgroup, and of containers that a runtime has put elsewhere. The pod
    /// is found by its UID: its index in a decision refers to the pods of that time.
    pub(super) fn groups_of(&self, uid: &str) -> Vec<CgroupDirs> {
        match self.pod_index.active().index_of(uid) {
            Some(place) => {
                self.folders_of(self.pod_index.cgroups_of(place, self.node_sampler.cgroups.pods()))
            }
            None => self.groups_by_uid(uid),
        }
    }

    pub(super) fn folders_of<'a>(&self, groups: impl Iterator<Item = &'a CgroupPod>) -> Vec<CgroupDirs> {
        let groups = groups.flat_map(|group| {
            let elsewhere =
                group.containers.iter().filter(|container| !container.path.starts_with(&group.path));
            let elsewhere = elsewhere.map(|container| (container.cgroup_id, &container.path));
            std::iter::once((group.cgroup_id, &group.path)).chain(elsewhere)
        });
        groups.map(|(id, path)| self.dirs_of(id, path)).collect()
    }

    pub(super) fn dirs_of(&self, id: u64, path: &Path) -> CgroupDirs {
        let root = self.node_sampler.cgroups.root();
        let find = |root: &Option<PathBuf>| find_group(root.as_ref(), path);
        CgroupDirs {
            id: Some(id),
            memory: root.memory.join(path),
            pids: find(&root.pids),
            freezer: find(&root.freezer),
            unified: find(&root.unified),
        }
    }

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

    /// Returns whether a sync follows at once after an eviction has ended. The kubelet's rules wait for all
    /// victims, and would choose a pod that was not evicted again at once, without end.
    pub(super) fn syncs_at_once(&self, result: &Result<(), NotEvicted>) -> bool {
        let has_failed = matches!(result, Err(NotEvicted::Failed(_)));
        !self.waits_for_victims() || !(has_failed || self.engine.is_waiting(self.clock.now().wall))
    }

    /// Returns the evictions that executors work on.
    pub(super) fn executing(&self) -> impl Iterator<Item = &InFlightEviction> + Clone {
        self.engine.in_flight().iter().filter(|it| !it.restored && it.is_executing())
    }

    /// Reports the progress of executors to the engine.
    pub(super) fn update(&mut self, decision: u64, update: ExecutorUpdate) {
        self.state_sender.is_changed = true;
        self.update_victim(decision, &update);
        self.step_and_discard(Event::Executing { decision, update });
        if !self.executing().any(|it| it.decision == Some(decision)) {
            self.rate_limit.record_end(decision, mono_ns());
        }
    }

    /// Passes an event to the engine that has no immediate consequence.
    pub(super) fn step_and_discard(&mut self, event: Event) {
        let at = self.clock.now().wall;
        let decision = self.step(Input { at, event });
        self.engine.recycle(decision);
    }

    /// Publishes that the killer rejects an eviction that the API server may still carry out. The rejection
    /// does not end the eviction.
    pub(super) fn publish_kill_rejection(&mut self, it: &InFlightEviction, refused: &KillRejection) {
        let what = format!("the pod is not killed instead: {refused}");
        self.publish_step(it, mono_ns(), Ok(KillProgress::Error { what }));
    }

    pub(super) fn publish_step(
        &mut self,
        it: &InFlightEviction,
        mono_ns: u64,
        step: Result<KillProgress, KillRejection>,
    ) {
        let Some(id) = it.decision else { return };
        self.telemetry.send(TelemetryEvent::Progress(EvictionUpdate {
            id,
            pod: Arc::clone(&it.pod),
            signal: it.signal(),
            decided_mono_ns: self.clock.mono_of(it.decided_at),
            mono_ns,
            step,
        }));
    }
}

/// Returns the grace period of an eviction.
pub(super) fn grace_of(it: &InFlightEviction) -> Duration {
    Duration::from_secs(it.grace_period_seconds.max(0).unsigned_abs())
}
