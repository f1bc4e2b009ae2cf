//! Victims: from a decision to the executor, and what comes back.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::decision::{Action, Decision};
use eviction_core::eviction::Eviction;
use eviction_core::eviction_result::{EvictionResult, NotEvicted};
use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::pod::PodName;
use eviction_core::progress::{KillProgress, KillRejection, KillUpdate};
use eviction_core::signal::{Resource, Signal};
use eviction_kill::CgroupDirs;
use eviction_kill::KillStarted;
use eviction_kill::KillTarget;
use eviction_node::cgroup::node_root::GroupPaths;
use eviction_node::cgroup::pods::Pod as CgroupPod;

use super::super::clock::mono_ns;
use super::{ActiveEviction, ApiPhase, ControlLoop};
use crate::telemetry::queue::{EvictionUpdate, Step, TelemetryEvent};

/// Between two tries while the hand is full: as soon as one pod is gone there is room.
const FULL_NS: u64 = 1_000_000_000;

impl ControlLoop {
    pub(super) fn carry_out(&mut self, decision: &Decision, decided_mono_ns: u64) {
        let Some(pass) = decision.pass() else { return };
        let is_struck_instead = self.is_struck_instead(decision);
        for action in &decision.actions {
            // The executor tells by itself whom it has to hurry.
            let (Action::Evict(eviction) | Action::ShortenGrace(eviction)) = action else { continue };
            let Some(target) = self.target(self.state.decisions + 1, decision, eviction, decided_mono_ns)
            else {
                continue;
            };
            self.state.decisions += 1;
            self.keep.note();
            let (id, pod) = (target.decision, Arc::clone(&target.pod));
            let signal = pass.line_of(eviction.cause).map(|line| line.threshold.signal);
            let is_asked = self.evictions.is_some() && self.state.reach == ApiReachability::Reachable;
            let by_api = is_asked.then_some(ApiPhase::Asked);
            let mut under_way = ActiveEviction {
                id,
                pod,
                signal,
                resource: target.resource,
                hard: target.hard,
                grace: target.grace,
                decided_mono_ns,
                by_api,
                by_kill: false,
                told_gone: false,
            };
            let begun = match is_struck_instead {
                true => Err(KillRejection::Struck),
                false => self.begin(&target, eviction.ignores_budget),
            };
            let flight = self.state.flight.as_mut();
            match begun {
                Ok((KillStarted::Started, by_kill)) => {
                    if let Some(flight) = flight {
                        flight.begin(id, decided_mono_ns);
                    }
                    under_way.by_kill = by_kill;
                    self.state.under_way.push(under_way);
                }
                // Outcomes keep the number of the decision by which it is on its way already.
                Ok((KillStarted::Hurried { decision }, by_kill)) => {
                    if let Some(flight) = flight {
                        flight.begin(decision, decided_mono_ns);
                    }
                    let hurried = self.state.under_way.iter_mut().find(|it| it.id == decision);
                    if let Some(hurried) = hurried {
                        hurried.by_kill |= by_kill;
                        (hurried.hard, hurried.grace) = (true, target.grace);
                    }
                }
                Err(refused) => {
                    // Whom the kernel struck begins in a moment, and is waited for then.
                    if let Some(flight) = flight.filter(|_| refused != KillRejection::Struck) {
                        flight.begin(id, decided_mono_ns);
                        flight.refused(id, decided_mono_ns);
                    }
                    self.tell_refused(&under_way, &refused);
                    let note = under_way.note(Step::Refused(refused));
                    self.notes.send(note);
                }
            }
        }
    }

    /// The eviction of a decision as the hand takes it.
    pub(super) fn target(
        &self,
        id: u64,
        decision: &Decision,
        eviction: &Eviction,
        at_ns: u64,
    ) -> Option<KillTarget> {
        let pass = decision.pass()?;
        let pod = &pass.pods.pods().get(eviction.place as usize)?.pod;
        let groups = self.groups_of(&pod.uid);
        let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
        let line = pass.line_of(eviction.cause);
        let signal = line.map(|line| line.threshold.signal);
        Some(KillTarget {
            decision: id,
            at_ns,
            pod: Arc::new(PodName { uid, namespace, name }),
            groups,
            grace: Duration::from_secs(eviction.grace_period_seconds.max(0).unsigned_abs()),
            // Limits of local storage are the only evictions without a threshold.
            resource: signal.map_or(Resource::EphemeralStorage, Signal::resource),
            hard: line.is_none_or(|line| line.threshold.is_hard()),
            kill_on_growth: self.kill_on_growth(),
        })
    }

    /// How many bytes a pod may grow by in the grace period of a hard memory eviction; nothing if that is off.
    pub(super) fn kill_on_growth(&self) -> Option<u64> {
        self.engine.policy().hands.kill_on_growth.bytes()
    }

    /// What the engine has to know of a victim that was refused. A limit that is not the pod's
    /// own stands in the way of all others as well.
    pub(super) fn tell_refused(&mut self, under_way: &ActiveEviction, refused: &KillRejection) {
        let decided_ns = under_way.decided_mono_ns;
        let held_until_ns = match refused {
            KillRejection::AlreadyGoing { .. } => return,
            KillRejection::NodeLimit { until_ns, .. } | KillRejection::VictimPending { until_ns, .. } => {
                Some(*until_ns)
            }
            KillRejection::Busy { .. } => Some(decided_ns.saturating_add(FULL_NS)),
            _ => None,
        };
        let result = match refused {
            KillRejection::Empty => Ok(()),
            // It says nothing about the pod: its turn is still the same.
            KillRejection::Struck => Err(NotEvicted::NotAsked),
            _ if held_until_ns.is_some() => Err(NotEvicted::NotAsked),
            refused => Err(refused.to_string().into()),
        };
        self.tell_outcome(&under_way.pod, result);
        if let Some(until_ns) = held_until_ns {
            self.hold_evictions(until_ns);
        }
    }

    /// Nobody new is chosen before that time.
    pub(super) fn hold_evictions(&mut self, until_ns: u64) {
        let (at, until) = (self.clock.now().wall, self.clock.at(until_ns).wall);
        self.step(Input { at, event: Event::EvictionsPausedUntil(until) });
    }

    pub(super) fn tell_outcome(&mut self, pod: &PodName, result: Result<(), NotEvicted>) {
        let at = self.clock.now().wall;
        let event = Event::Evicted(EvictionResult { uid: pod.uid.clone(), result });
        self.step(Input { at, event });
    }

    /// The folders of a pod's group, and of containers that a runtime has put elsewhere. By its uid: its
    /// place in a decision is of the pods that there were then.
    pub(super) fn groups_of(&self, uid: &str) -> Vec<CgroupDirs> {
        match self.roster.active().place(uid) {
            Some(place) => self.folders_of(self.roster.cgroups_of(place, self.eyes.sampler.pods())),
            None => self.groups_by_uid(uid),
        }
    }

    pub(super) fn folders_of<'a>(&self, groups: impl Iterator<Item = &'a CgroupPod>) -> Vec<CgroupDirs> {
        let sampler = &self.eyes.sampler;
        let groups = groups.flat_map(|group| {
            let elsewhere =
                group.containers.iter().filter(|container| !container.path.starts_with(&group.path));
            let elsewhere = elsewhere.map(|container| (container.cgroup_id, &container.path));
            std::iter::once((group.cgroup_id, &group.path)).chain(elsewhere)
        });
        let folders = groups.map(|(id, path)| {
            let GroupPaths { memory, pids, freezer, unified } = sampler.root().paths_of(path);
            CgroupDirs { id: Some(id), memory: Some(memory), pids, freezer, unified }
        });
        folders.collect()
    }

    /// Takes note of an outcome; true if the engine may look again for another victim.
    pub(super) fn take_outcome(&mut self, outcome: KillUpdate) -> bool {
        self.keep.note();
        let id = outcome.decision;
        let Some(index) = self.state.under_way.iter().position(|it| it.id == id) else { return false };
        if matches!(outcome.progress, KillProgress::Answered { .. }) {
            return self.take_answer(index, outcome);
        }
        let evicted = self.state.under_way[index].by_api.is_some();
        let result = match &outcome.progress {
            KillProgress::Gone { .. } => Some(Ok(())),
            // The kubelet is at it as well.
            KillProgress::Left { .. } if evicted => None,
            KillProgress::Left { processes, unreachable, .. } => {
                let left = processes.len() + *unreachable as usize;
                Some(Err(format!("{left} processes outlive SIGKILL").into()))
            }
            _ => None,
        };
        let last = outcome.progress.is_last();
        let it = &self.state.under_way[index];
        if !(it.told_gone && matches!(outcome.progress, KillProgress::Gone { .. })) {
            let note = it.note(Step::Progress(outcome));
            self.notes.send(note);
        }
        if last {
            let it = &mut self.state.under_way[index];
            (it.by_kill, it.told_gone) = (false, result.is_some());
            let pod = if evicted { Arc::clone(&it.pod) } else { self.state.under_way.swap_remove(index).pod };
            if let Some(result) = result.clone() {
                self.tell_outcome(&pod, result);
            }
        }
        match &mut self.state.flight {
            // What survives leaves the pressure as it is: another look at once would choose the
            // same pod again, so the patience of an eviction under way runs on.
            Some(flight) => result == Some(Ok(())) && flight.end(id),
            None => result.is_some(),
        }
    }
}

impl ActiveEviction {
    /// The same eviction for a hand that takes it up later, with what is left of its grace period.
    pub(super) fn target(
        &self,
        groups: Vec<CgroupDirs>,
        grace: Duration,
        at_ns: u64,
        kill_on_growth: Option<u64>,
    ) -> KillTarget {
        let Self { id, pod, resource, hard, .. } = self;
        let (pod, resource, hard) = (Arc::clone(pod), *resource, *hard);
        KillTarget { decision: *id, at_ns, pod, groups, grace, resource, hard, kill_on_growth }
    }

    /// The kill hand refuses an eviction that the API server may still carry out: no end of it.
    pub(super) fn no_stand_in(&self, refused: &KillRejection) -> TelemetryEvent {
        let progress = KillProgress::Trouble { what: format!("the kill hand does not stand in: {refused}") };
        let (decision, pod) = (self.id, Arc::clone(&self.pod));
        self.note(Step::Progress(KillUpdate { decision, pod, at_ns: mono_ns(), progress }))
    }

    pub(super) fn note(&self, step: Step) -> TelemetryEvent {
        let Self { id, pod, signal, decided_mono_ns, .. } = self;
        TelemetryEvent::Outcome(EvictionUpdate {
            id: *id,
            pod: Arc::clone(pod),
            signal: *signal,
            decided_mono_ns: *decided_mono_ns,
            step,
        })
    }
}
