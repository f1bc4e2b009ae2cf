//! What outlives the agent: said when it has changed, and gone on with after a start.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::input::{Event, Input};
use eviction_core::progress::{KillProgress, KillRejection, KillUpdate};
use eviction_core::state::KEPT_EVERY;
use eviction_kill::CgroupDirs;
use eviction_kill::KillStarted;

use super::super::clock::mono_ns;
use super::super::cluster::{Evictions, NodeStatusSender};
use super::super::spsc::Sender;
use super::super::state::{ApiPhaseState, EvictionProgress, LoopState, RateLimitState, RestoredState};
use super::{ActiveEviction, ApiPhase, ControlLoop};
use crate::telemetry::queue::Step;

/// The way to what writes it down.
#[derive(Debug, Default)]
pub(crate) struct StateSender {
    lane: Option<Sender<LoopState>>,
    /// Of what was said last.
    number: u64,
    said_ns: u64,
    due: bool,
}

impl StateSender {
    /// Says it there.
    pub(crate) fn by(lane: Sender<LoopState>) -> Self {
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

impl ControlLoop {
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
        let under_way = self.state.under_way.iter().map(ActiveEviction::kept);
        let kept = LoopState {
            number: keep.number + 1,
            engine: self.engine.memory(),
            evictions: under_way.chain(self.state.recalled.iter().cloned()).collect(),
            rate_limits: RateLimitState {
                by_api: self.evictions.iter().flat_map(Evictions::kills).cloned().collect(),
                by_kill: self.executor.kills().cloned().collect(),
            },
            decisions: self.state.decisions,
            published: self.node.as_ref().and_then(NodeStatusSender::said),
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
    pub(crate) fn recall(&mut self, recalled: RestoredState) {
        let RestoredState { written, state, names: _ } = recalled;
        let LoopState { number: _, engine, evictions, rate_limits, decisions, published } = state;
        if let Some(by_api) = &mut self.evictions {
            by_api.recall(rate_limits.by_api);
        }
        self.executor.recall(rate_limits.by_kill);
        if let (Some(node), Some(published)) = (&mut self.node, published) {
            node.recall(&published, written);
        }
        self.state.decisions = decisions;
        let at = self.clock.now().wall;
        self.step(Input { at, event: Event::Restore(Box::new(engine)) });
        // Before the pods are known: what waits for an answer is not over because it took long.
        for open in evictions.iter().filter(|it| it.by_api == Some(ApiPhaseState::Asked)) {
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
                self.tell_gone(&ActiveEviction::of(&kept));
            }
        }
        self.keep.note();
    }

    fn resume(&mut self, groups: Vec<CgroupDirs>, kept: &EvictionProgress) {
        let now_ns = mono_ns();
        let grace = Duration::from_secs(kept.grace_seconds);
        let passed = Duration::from_nanos(now_ns.saturating_sub(kept.decided_mono_ns));
        // With the API server it is the kubelet that grants it.
        let left = if kept.by_api.is_some() { Duration::ZERO } else { grace.saturating_sub(passed) };
        let mut under_way = ActiveEviction::of(kept);
        let target = under_way.target(groups, left, now_ns, self.kill_on_growth());
        if kept.by_kill {
            match self.executor.begin(&target) {
                Ok(KillStarted::Started | KillStarted::Hurried { .. }) => {}
                // Nobody is left in it: by the kill hand it is over.
                Err(KillRejection::Empty) => {
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
            if under_way.by_api == Some(ApiPhase::Open) {
                self.leave_open(&kept.pod);
            }
            self.state.under_way.push(under_way);
        }
    }

    /// The pod of an eviction is gone, and so is its memory.
    pub(super) fn tell_gone(&mut self, over: &ActiveEviction) {
        let (pod, at_ns) = (Arc::clone(&over.pod), mono_ns());
        let progress = KillProgress::Gone { killed: 0, unreaped: None };
        let note = over.note(Step::Progress(KillUpdate { decision: over.id, pod, at_ns, progress }));
        self.notes.send(note);
    }
}

impl ActiveEviction {
    /// As it is kept.
    fn kept(&self) -> EvictionProgress {
        let Self { id, pod, signal, resource, hard, grace, decided_mono_ns, by_api, by_kill, told_gone } =
            self;
        EvictionProgress {
            decision: *id,
            pod: Arc::clone(pod),
            signal: *signal,
            resource: *resource,
            hard: *hard,
            decided_mono_ns: *decided_mono_ns,
            grace_seconds: grace.as_secs(),
            by_api: by_api.map(|by_api| match by_api {
                ApiPhase::Asked | ApiPhase::Open => ApiPhaseState::Asked,
                ApiPhase::Accepted => ApiPhaseState::Accepted,
            }),
            by_kill: *by_kill,
            told_gone: *told_gone,
        }
    }

    fn of(kept: &EvictionProgress) -> Self {
        let EvictionProgress {
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
                ApiPhaseState::Asked => ApiPhase::Open,
                ApiPhaseState::Accepted => ApiPhase::Accepted,
            }),
            by_kill: *by_kill,
            told_gone: *told_gone,
        }
    }
}
