//! State that outlives the agent: sent when it has changed, and restored at a start.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::in_flight::{ExecutorUpdate, InFlightEviction};
use eviction_core::input::{Event, Input};
use eviction_core::progress::{KillProgress, KillRejection, KillUpdate};
use eviction_core::state::PERSIST_INTERVAL;

use super::super::cluster::NodeStatusSender;
use super::super::state::{Document, LoopState};
use super::ControlLoop;
use super::evictions::grace_of;
use crate::spsc::Sender;
use crate::telemetry::queue::Step;
use eviction_node::clock::mono_ns;

/// Sends the state to the writer.
#[derive(Debug, Default)]
pub(crate) struct StateSender {
    sender: Option<Sender<LoopState>>,
    /// The number of the last state.
    number: u64,
    said_ns: u64,
    due: bool,
}

impl StateSender {
    /// Sends by this channel.
    pub(crate) fn by(sender: Sender<LoopState>) -> Self {
        Self { sender: Some(sender), due: true, ..Self::default() }
    }

    /// Something has changed.
    pub(super) fn note(&mut self) {
        self.due = true;
    }

    /// The number of the state that must be written before a request of now is sent; 0 where no state is kept.
    pub(super) fn next_number(&self) -> u64 {
        if self.sender.is_some() { self.number + 1 } else { 0 }
    }
}

impl ControlLoop {
    /// Sends the state if it has changed, or if the next agent would have to take it for outdated.
    pub(super) fn persist(&mut self) {
        let states = &mut self.state_sender;
        let Some(sender) = &mut states.sender else { return };
        let now_ns = mono_ns();
        let old = now_ns.saturating_sub(states.said_ns) >= PERSIST_INTERVAL.as_nanos().unsigned_abs();
        let is_due = states.due || (old && self.state.last_change.is_met());
        if !is_due {
            return;
        }
        let kept = LoopState {
            number: states.number + 1,
            engine: self.engine.state(),
            rate_limits: self.rate_limit.kills().cloned().collect(),
            decisions: self.state.decisions,
            published: self.node.as_ref().and_then(NodeStatusSender::published),
        };
        match sender.send(kept) {
            Ok(()) => {
                states.number += 1;
                (states.said_ns, states.due) = (now_ns, false);
            }
            // The next iteration sends all of it.
            Err(_) => states.due = true,
        }
    }

    /// Restores the state of another agent. Before anything else.
    pub(crate) fn recall(&mut self, former: Document) {
        let Document { written, state, .. } = former;
        let LoopState { number: _, engine, rate_limits, decisions, published } = state;
        self.rate_limit.restore(rate_limits);
        if let (Some(node), Some(published)) = (&mut self.node, published) {
            node.restore(&published, written);
        }
        self.state.decisions = decisions;
        let at = self.clock.now().wall;
        self.step(Input { at, event: Event::Restore(Box::new(engine)) });
    }

    /// Evictions of another agent, before the engine gets the pods.
    pub(super) fn restored(&self) -> Vec<InFlightEviction> {
        let restored = self.engine.in_flight().iter().filter(|it| it.restored && it.is_executing());
        restored.cloned().collect()
    }

    /// Resumes them as soon as the pods are known.
    pub(super) fn resume(&mut self, restored: &[InFlightEviction]) {
        if restored.is_empty() || self.engine.pods().is_empty() {
            return;
        }
        for it in restored {
            // Also if the object is gone, and what it was is not yet.
            let goes_on = self.executing().any(|known| known.decision == it.decision);
            if goes_on {
                self.resume_executing(it);
            } else if !it.reported_gone {
                self.publish_gone(it);
            }
        }
        self.state_sender.note();
    }

    fn resume_executing(&mut self, it: &InFlightEviction) {
        let now = self.clock.now();
        // With the API server it is the kubelet that grants it.
        let left = match it.api {
            Some(_) => Duration::ZERO,
            None => {
                let passed = now.mono_ns.saturating_sub(self.clock.mono_of(it.decided_at));
                grace_of(it).saturating_sub(Duration::from_nanos(passed))
            }
        };
        let Some(target) = self.target_again(it, left) else { return };
        self.rate_limit.begun(&target, now.mono_ns);
        if it.killing {
            match self.executor.begin(&target) {
                Ok(()) => {}
                // No process is left: for the killer it is over.
                Err(KillRejection::Empty) => {
                    self.update(target.decision, ExecutorUpdate::KillEnded { gone: true });
                    self.publish_gone(it);
                    self.report_outcome(&it.pod, Ok(()));
                }
                Err(refused) => {
                    self.update(target.decision, ExecutorUpdate::KillEnded { gone: false });
                    if it.api.is_some() {
                        self.publish_kill_rejection(it, &refused);
                    } else {
                        self.report_rejection(it, &refused);
                        self.publish_step(it, Step::Refused(refused));
                    }
                }
            }
        }
        if let (Some(_), Some(evictions)) = (it.api, &mut self.evictions) {
            evictions.resume(&target);
        }
    }

    /// The pod of an eviction is gone, and so is its memory.
    pub(super) fn publish_gone(&mut self, over: &InFlightEviction) {
        let Some(decision) = over.decision else { return };
        let (pod, at_ns) = (Arc::clone(&over.pod), mono_ns());
        let progress = KillProgress::Terminated { killed: 0, unreaped: None };
        self.publish_step(over, Step::Progress(KillUpdate { decision, pod, at_ns, progress }));
    }
}
