//! What outlives the agent: said when it has changed, and gone on with after a start.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::input::{Event, Input};
use eviction_core::memory::KEPT_EVERY;
use eviction_core::progress::{Outcome, Progress, Refused};
use eviction_kill::Begun;
use eviction_kill::GroupDirs;

use super::super::clock::mono_ns;
use super::super::cluster::{Evictions, NodeTeller};
use super::super::lane::Sender;
use super::super::notes::Step;
use super::super::state::{Asked, Kept, KeptEviction, Pace, Recalled};
use super::{ByApi, Reaction, UnderWay};

/// The way to what writes it down.
#[derive(Debug, Default)]
pub(crate) struct Keep {
    lane: Option<Sender<Kept>>,
    /// Of what was said last.
    number: u64,
    said_ns: u64,
    due: bool,
}

impl Keep {
    /// Says it there.
    pub(crate) fn by(lane: Sender<Kept>) -> Self {
        Self { lane: Some(lane), due: true, ..Self::default() }
    }

    /// Something has changed.
    pub(super) fn note(&mut self) {
        self.due = true;
    }

    /// What is begun now must not be asked for before this was written; 0 where nothing is.
    pub(super) fn next_number(&self) -> u64 {
        if self.lane.is_some() { self.number + 1 } else { 0 }
    }
}

impl Reaction {
    /// Says what is known, if it has changed, or if somebody who comes later would have to take it
    /// for old.
    pub(super) fn keep(&mut self) {
        let keep = &mut self.keep;
        let Some(lane) = &mut keep.lane else { return };
        let now_ns = mono_ns();
        let old = now_ns.saturating_sub(keep.said_ns) >= KEPT_EVERY.as_nanos().unsigned_abs();
        let is_due = keep.due || (old && self.state.last_change.is_met());
        if !is_due {
            return;
        }
        let under_way = self.state.under_way.iter().map(UnderWay::kept);
        let kept = Kept {
            number: keep.number + 1,
            memory: self.engine.memory(),
            evictions: under_way.chain(self.state.recalled.iter().cloned()).collect(),
            pace: Pace {
                by_api: self.evictions.iter().flat_map(Evictions::kills).cloned().collect(),
                by_kill: self.executor.kills().cloned().collect(),
            },
            decisions: self.state.decisions,
            said: self.node.as_ref().and_then(NodeTeller::said),
        };
        match lane.send(kept) {
            Ok(()) => {
                keep.number += 1;
                (keep.said_ns, keep.due) = (now_ns, false);
            }
            // The next turn says it all again.
            Err(_) => keep.due = true,
        }
    }

    /// Goes on where another agent ended. Before anything else.
    pub(crate) fn recall(&mut self, recalled: Recalled) {
        let Recalled { written, memory, evictions, pace, decisions, said, names: _ } = recalled;
        if let Some(by_api) = &mut self.evictions {
            by_api.recall(pace.by_api);
        }
        self.executor.recall(pace.by_kill);
        if let (Some(node), Some(said)) = (&mut self.node, said) {
            node.recall(&said, written);
        }
        self.state.decisions = decisions;
        let at = self.clock.now().wall;
        self.step(Input { at, event: Event::Recall(Box::new(memory)) });
        // Before the pods are known: what waits for an answer is not over because it took long.
        for open in evictions.iter().filter(|it| it.by_api == Some(Asked::Asked)) {
            self.leave_open(&open.pod);
        }
        self.state.recalled = evictions;
    }

    /// Evictions of another agent go on as soon as the pods are known.
    pub(super) fn resume_recalled(&mut self) {
        let pods = Arc::clone(self.engine.pods());
        if self.state.recalled.is_empty() || pods.is_empty() {
            return;
        }
        for kept in std::mem::take(&mut self.state.recalled) {
            let uid = &kept.pod.uid;
            // Also if the object is gone, and what it was is not yet.
            let is_there = pods.place(uid).is_some() || self.is_leaving(uid);
            if is_there {
                self.resume(self.groups_of(uid), &kept);
            } else if !kept.told_gone {
                self.tell_gone(&UnderWay::of(&kept));
            }
        }
        self.keep.note();
    }

    fn resume(&mut self, groups: Vec<GroupDirs>, kept: &KeptEviction) {
        let now_ns = mono_ns();
        let grace = Duration::from_secs(kept.grace_seconds);
        let passed = Duration::from_nanos(now_ns.saturating_sub(kept.decided_mono_ns));
        // With the API server it is the kubelet that grants it.
        let left = if kept.by_api.is_some() { Duration::ZERO } else { grace.saturating_sub(passed) };
        let mut under_way = UnderWay::of(kept);
        let target = under_way.target(groups, left, now_ns, self.kill_on_growth());
        if kept.by_kill {
            match self.executor.begin(&target) {
                Ok(Begun::Started | Begun::Hurried { .. }) => {}
                // Nobody is left in it: by the kill hand it is over.
                Err(Refused::Empty) => {
                    under_way.by_kill = false;
                    self.tell_gone(&under_way);
                    under_way.told_gone = true;
                    self.tell_outcome(&kept.pod, Ok(()));
                }
                Err(refused) => {
                    under_way.by_kill = false;
                    if kept.by_api.is_some() {
                        self.notes.send(under_way.no_stand_in(&refused));
                    } else {
                        self.tell_refused(&under_way, &refused);
                        self.notes.send(under_way.note(Step::Refused(refused)));
                    }
                }
            }
        }
        if let (Some(_), Some(evictions)) = (kept.by_api, &mut self.evictions) {
            evictions.resume(&target, now_ns);
        }
        if under_way.by_kill || under_way.by_api.is_some() {
            if let Some(flight) = &mut self.state.flight {
                flight.begin(kept.decision, kept.decided_mono_ns);
            }
            if under_way.by_api == Some(ByApi::Open) {
                self.leave_open(&kept.pod);
            }
            self.state.under_way.push(under_way);
        }
    }

    /// The pod of an eviction is gone, and so is its memory.
    pub(super) fn tell_gone(&mut self, over: &UnderWay) {
        let (pod, at_ns) = (Arc::clone(&over.pod), mono_ns());
        let progress = Progress::Gone { killed: 0, unreaped: None };
        let note = over.note(Step::Progress(Outcome { decision: over.id, pod, at_ns, progress }));
        self.notes.send(note);
    }
}

impl UnderWay {
    /// As it is kept.
    fn kept(&self) -> KeptEviction {
        let Self { id, pod, signal, resource, hard, grace, decided_mono_ns, by_api, by_kill, told_gone } =
            self;
        KeptEviction {
            decision: *id,
            pod: Arc::clone(pod),
            signal: *signal,
            resource: *resource,
            hard: *hard,
            decided_mono_ns: *decided_mono_ns,
            grace_seconds: grace.as_secs(),
            by_api: by_api.map(|by_api| match by_api {
                ByApi::Asked | ByApi::Open => Asked::Asked,
                ByApi::Accepted => Asked::Accepted,
            }),
            by_kill: *by_kill,
            told_gone: *told_gone,
        }
    }

    fn of(kept: &KeptEviction) -> Self {
        let KeptEviction {
            decision,
            pod,
            signal,
            resource,
            hard,
            decided_mono_ns,
            grace_seconds,
            by_api,
            by_kill,
            told_gone,
        } = kept;
        Self {
            id: *decision,
            pod: Arc::clone(pod),
            signal: *signal,
            resource: *resource,
            hard: *hard,
            grace: Duration::from_secs(*grace_seconds),
            decided_mono_ns: *decided_mono_ns,
            by_api: by_api.map(|asked| match asked {
                Asked::Asked => ByApi::Open,
                Asked::Accepted => ByApi::Accepted,
            }),
            by_kill: *by_kill,
            told_gone: *told_gone,
        }
    }
}
