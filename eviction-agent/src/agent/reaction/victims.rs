//! Victims: from a decision to the executor, and what comes back.

use std::sync::Arc;
use std::time::Duration;

use crate::action::{Begun, GroupDirs, KillTarget, Outcome, PodName, Progress};
use crate::core::decision::{Action, Decision};
use crate::core::signal::{Resource, Signal};
use crate::source::cgroup::root::GroupPaths;

use super::super::notes::{Note, OutcomeNote, Step};
use super::{Reaction, UnderWay};

impl Reaction {
    pub(super) fn carry_out(&mut self, decision: &Decision, decided_mono_ns: u64) {
        let Some(pass) = decision.pass() else { return };
        for action in &decision.actions {
            let Action::Evict(eviction) = action else { continue };
            let Some(known) = pass.pods.pods().get(eviction.place as usize) else { continue };
            let pod = &known.pod;
            let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
            let pod = Arc::new(PodName { uid, namespace, name });
            let line = pass.handled.and_then(|line| pass.line(line));
            let signal = line.map(|line| line.threshold.signal);
            self.state.decisions += 1;
            let id = self.state.decisions;
            self.state.flight.begin(id, decided_mono_ns);
            let target = KillTarget {
                decision: id,
                at_ns: decided_mono_ns,
                pod: Arc::clone(&pod),
                groups: self.groups_of(eviction.place),
                grace: Duration::from_secs(eviction.grace_period_seconds.max(0).unsigned_abs()),
                // Limits of local storage are the only evictions without a threshold.
                resource: signal.map_or(Resource::EphemeralStorage, Signal::resource),
                hard: line.is_none_or(|line| line.threshold.is_hard()),
            };
            let under_way = UnderWay { id, pod, signal, decided_mono_ns };
            match self.executor.begin(&target) {
                Ok(Begun::Started) => self.state.under_way.push(under_way),
                // Outcomes keep the number of the decision by which it is on its way already.
                Ok(Begun::Hurried { decision }) => {
                    self.state.flight.end(id);
                    self.state.flight.begin(decision, decided_mono_ns);
                }
                Err(refused) => {
                    self.state.flight.refused(id, decided_mono_ns);
                    self.note_outcome(&under_way, Step::Refused(refused));
                }
            }
        }
    }

    /// The folders of the pod's group, and of containers that a runtime has put elsewhere.
    pub(super) fn groups_of(&self, place: u32) -> Vec<GroupDirs> {
        let sampler = &self.eyes.sampler;
        let groups = self.roster.cgroups_of(place, sampler.pods()).flat_map(|group| {
            let elsewhere =
                group.containers.iter().filter(|container| !container.path.starts_with(&group.path));
            let elsewhere = elsewhere.map(|container| (container.cgroup_id, &container.path));
            std::iter::once((group.cgroup_id, &group.path)).chain(elsewhere)
        });
        let folders = groups.map(|(id, path)| {
            let GroupPaths { memory, pids, freezer, unified } = sampler.root().paths_of(path);
            GroupDirs { id: Some(id), memory: Some(memory), pids, freezer, unified }
        });
        folders.collect()
    }

    /// Takes note of an outcome; true if the engine may look again for another victim.
    pub(super) fn take_outcome(&mut self, outcome: Outcome) -> bool {
        let id = outcome.decision;
        let Some(index) = self.state.under_way.iter().position(|it| it.id == id) else { return false };
        // What survives leaves the pressure as it is: another look at once would choose the same
        // pod again, so the patience of an eviction under way runs on.
        let gone = matches!(outcome.progress, Progress::Gone { .. });
        let last = outcome.progress.is_last();
        self.note_outcome(&self.state.under_way[index], Step::Progress(outcome));
        if last {
            self.state.under_way.swap_remove(index);
        }
        gone && self.state.flight.end(id)
    }

    pub(super) fn note_outcome(&self, under_way: &UnderWay, step: Step) {
        let UnderWay { id, pod, signal, decided_mono_ns } = under_way;
        self.notes.send(Note::Outcome(OutcomeNote {
            id: *id,
            pod: Arc::clone(pod),
            signal: *signal,
            decided_mono_ns: *decided_mono_ns,
            step,
        }));
    }
}
