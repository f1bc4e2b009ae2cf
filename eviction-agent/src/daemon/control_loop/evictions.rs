//! Evictions: from a decision to the executors, and their progress.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eviction_core::decision::{Action, Decision, Evaluation};
use eviction_core::eviction::Eviction;
use eviction_core::in_flight::{ApiPhase, ExecutorUpdate, InFlightEviction};
use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::policy::Threshold;
use eviction_core::policy::eviction_settings::HardMode;
use eviction_core::progress::{KillProgress, KillRejection};
use eviction_core::signal::Resource;
use eviction_kill::{CgroupDirs, KillTarget};
use eviction_node::cgroup::node_root::find_group;
use eviction_node::cgroup::pods::Pod as CgroupPod;

use super::super::cluster::NodeStatusSender;
use super::super::rate_limit::Admission;
use super::ControlLoop;
use crate::telemetry::queue::{EvictionUpdate, TelemetryEvent};
use eviction_node::clock::mono_ns;

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

    /// Begins an eviction, or shortens the grace period of one in flight: by the API server where there is
    /// one, else by signals. Returns which was done, and whether the processes are being signalled.
    fn begin(
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
            kill_on_growth: self.engine.policy().eviction.kill_on_growth,
        })
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
