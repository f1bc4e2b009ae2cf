//! State that outlives the agent: sent when it changes, and restored at a start. A recording has the same state at
//! the beginning of each segment.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::in_flight::{ExecutorUpdate, InFlightEviction};
use eviction_core::input::Event;
use eviction_core::progress::{KillProgress, KillRejection};
use eviction_core::state::PERSIST_INTERVAL;

use super::super::cluster::NodeStatusSender;
use super::super::state::{Document, LoopState};
use super::ControlLoop;
use super::evictions::grace_of;
use crate::spsc::Sender;
use crate::telemetry::recording::Key;
use eviction_node::clock::mono_ns;

/// Sends the state to the writer.
#[derive(Debug, Default)]
pub(crate) struct StateSender {
    sender: Option<Sender<LoopState>>,
    /// The number of the last state that was sent.
    number: u64,
    sent_ns: u64,
    /// Whether the state has changed since it was sent.
    pub(super) is_changed: bool,
}

impl StateSender {
    /// Creates a sender for this channel.
    pub(crate) fn new(sender: Sender<LoopState>) -> Self {
        Self { sender: Some(sender), is_changed: true, ..Self::default() }
    }

    /// Returns the number of the state that must be written before a request made now is sent; 0 if no state is
    /// persisted.
    pub(super) fn next_number(&self) -> u64 {
        if self.sender.is_some() { self.number + 1 } else { 0 }
    }
}

impl ControlLoop {
    /// Sends the state if it has changed, or if the next agent would take it for outdated otherwise.
    pub(super) fn persist(&mut self) {
        let states = &mut self.state_sender;
        let Some(sender) = &mut states.sender else { return };
        let now_ns = mono_ns();
        let old = now_ns.saturating_sub(states.sent_ns) >= PERSIST_INTERVAL.as_nanos().unsigned_abs();
        let is_due = states.is_changed || (old && !self.state.last_change.met.is_empty());
        if !is_due {
            return;
        }
        let state = LoopState {
            number: states.number + 1,
            engine: self.engine.state(),
            rate_limits: self.rate_limit.evictions.clone(),
            decisions: self.state.decisions,
            published: self.node.as_ref().and_then(NodeStatusSender::published),
        };
        match sender.send(state) {
            Ok(()) => {
                states.number += 1;
                (states.sent_ns, states.is_changed) = (now_ns, false);
            }
            // The next iteration sends the whole state.
            Err(_) => states.is_changed = true,
        }
    }

    /// Restores the state of the previous agent. Runs before anything else.
    pub(crate) fn restore_state(&mut self, previous: Document) {
        let Document { written, state, .. } = previous;
        let LoopState { number: _, engine, rate_limits, decisions, published } = state;
        self.rate_limit.evictions = rate_limits;
        if let (Some(node), Some(published)) = (&mut self.node, published) {
            node.restore(&published, written);
        }
        self.state.decisions = decisions;
        self.step_and_discard(Event::Restore(Box::new(engine)));
    }

    /// Returns the evictions of the previous agent. Runs before the engine gets the pods.
    pub(super) fn restored(&self) -> Vec<InFlightEviction> {
        let restored = self.engine.in_flight().iter().filter(|it| it.restored && it.is_executing());
        restored.cloned().collect()
    }

    /// Resumes the evictions of the previous agent as soon as the pods are known.
    pub(super) fn resume(&mut self, restored: &[InFlightEviction]) {
        if restored.is_empty() || self.engine.pods().is_empty() {
            return;
        }
        for it in restored {
            // Also if the pod has no object any more, but still has processes.
            let goes_on = self.executing().any(|known| known.decision == it.decision);
            if goes_on {
                self.resume_executing(it);
            } else if !it.termination_reported {
                self.publish_terminated(it);
            }
        }
        self.state_sender.is_changed = true;
    }

    fn resume_executing(&mut self, it: &InFlightEviction) {
        let now = self.clock.now();
        // With the API server the kubelet grants the grace period.
        let left = match it.api {
            Some(_) => Duration::ZERO,
            None => {
                let passed = now.mono_ns.saturating_sub(self.clock.mono_of(it.decided_at));
                grace_of(it).saturating_sub(Duration::from_nanos(passed))
            }
        };
        let Some(target) = self.target(it, now.mono_ns, left) else { return };
        self.rate_limit.record_begin(&target, now.mono_ns);
        if it.killing {
            match self.executor.begin(&target) {
                Ok(()) => {}
                // No process is left: for the killer the eviction is over.
                Err(KillRejection::Empty) => {
                    self.update(target.decision, ExecutorUpdate::KillEnded { gone: true });
                    self.publish_terminated(it);
                    self.report_result(&it.pod, Ok(()));
                }
                Err(refused) => {
                    self.update(target.decision, ExecutorUpdate::KillEnded { gone: false });
                    if it.api.is_some() {
                        self.publish_kill_rejection(it, &refused);
                    } else {
                        self.report_rejection(it, &refused);
                        self.publish_step(it, self.clock.mono_of(it.decided_at), Err(refused));
                    }
                }
            }
        }
        if let (Some(_), Some(evictions)) = (it.api, &mut self.evictions) {
            evictions.resume(&target);
        }
    }

    /// Publishes that the pod of an eviction has terminated and its memory is released.
    pub(super) fn publish_terminated(&mut self, over: &InFlightEviction) {
        self.publish_step(over, mono_ns(), Ok(KillProgress::Terminated { killed: 0, unreaped: None }));
    }

    /// Sends all state that an engine needs to continue from here, if the recorder begins a segment. That
    /// allocates, so it is done at the end of an iteration.
    pub(crate) fn record_key(&mut self) {
        let Some(recorder) = self.recorder.as_mut().filter(|it| it.wants_key()) else { return };
        let layout = (!self.engine.wants_layout()).then(|| self.node_sampler.disks.layout());
        recorder.key(Key {
            at: self.clock.now().wall,
            policy: self.engine.policy().clone(),
            dry_run: false,
            state: self.engine.state(),
            layout,
            terminating: self.state.terminating.keys().cloned().collect(),
            api: self.engine.api_reachability(),
            lost: 0,
            pods: Arc::clone(self.engine.pods()),
        });
    }
}
