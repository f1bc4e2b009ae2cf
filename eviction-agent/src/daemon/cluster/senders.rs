//! The control loop's ends of the channels to the API server: evictions, and the desired state of the node's object.

use std::io;
use std::sync::Arc;

use eviction_core::decision::Decision;
use eviction_core::node_conditions::{InitialCondition, Pressures, PublishedCondition};
use eviction_core::policy::{Policy, Threshold};
use eviction_core::progress::KillRejection;
use eviction_core::signal::NodeCondition;
use eviction_core::state::PERSIST_INTERVAL;
use eviction_core::time::{Timestamp, later};
use eviction_kill::KillTarget;
use eviction_kube::{EvictionRequest, NodeStatusUpdate};

use crate::error::Failure;
use crate::spsc::{self, Receiver, Sender};

/// The capacity of the channel for evictions: more than can wait at a time.
const EVICTIONS: usize = 64;

/// The capacity of the channel for node updates: more than can arrive before they are taken. Only the newest
/// counts.
const UPDATES: usize = 16;

fn no_channel(error: io::Error) -> Failure {
    Failure::because("make a channel to the API server", &error)
}

/// Sends evictions.
#[derive(Debug)]
pub(crate) struct EvictionSender {
    /// Each request, with the number of the state that must be written before it is sent.
    requests: Sender<(EvictionRequest, u64)>,
}

impl EvictionSender {
    /// # Errors
    /// If the channel cannot be created.
    pub(super) fn new() -> Result<(Self, Receiver<(EvictionRequest, u64)>), Failure> {
        let (requests, receiver) = spsc::channel(EVICTIONS).map_err(no_channel)?;
        Ok((Self { requests }, receiver))
    }

    /// Sends an eviction, or the shorter grace period of an eviction in flight. Never waits. The eviction is
    /// requested once the node status update `after_update` and the state of `revision` are written.
    ///
    /// # Errors
    /// If the channel is full.
    pub(crate) fn begin(
        &mut self,
        target: &KillTarget,
        ignores_budget: bool,
        after_update: u64,
        revision: u64,
    ) -> Result<(), KillRejection> {
        let value = EvictionRequest {
            grace_period_seconds: i64::try_from(target.grace.as_secs()).unwrap_or(i64::MAX),
            ignores_budget,
            after_update,
            ..request(target)
        };
        let sent = self.requests.send((value, revision));
        sent.map_err(|_| KillRejection::Busy { in_flight: EVICTIONS as u32 })
    }

    /// Resumes an eviction of the previous agent. The evictor finds out the result of its request. It does so
    /// also if the previous agent knew the result, which may not have been published.
    pub(crate) fn resume(&mut self, target: &KillTarget) {
        let value = EvictionRequest { is_unconfirmed: true, ..request(target) };
        // No state has to be written before a read. If the channel is full, the eviction is forgotten after a while,
        // like one without a response.
        if self.requests.send((value, 0)).is_err() {
            tracing::warn!(pod = %target.pod.name, "the result of an eviction cannot be read at present");
        }
    }
}

fn request(target: &KillTarget) -> EvictionRequest {
    EvictionRequest {
        decision: target.decision,
        at_ns: target.at_ns,
        pod: Arc::clone(&target.pod),
        grace_period_seconds: 0,
        resource: target.resource,
        ignores_budget: false,
        after_update: 0,
        is_unconfirmed: false,
    }
}

/// Sends the desired state of the node's object whenever a decision changes it.
#[derive(Debug)]
pub(crate) struct NodeStatusSender {
    pressures: Pressures,
    thresholds: Arc<[Threshold]>,
    /// Whether the initial conditions and taints of the node's object are known.
    is_seeded: bool,
    /// Until when the state of the previous agent covers what it has published.
    restored: Option<Timestamp>,
    sent: Option<NodeStatusUpdate>,
    /// Each update, with the number of the state that must be written before it is sent.
    updates: Sender<(NodeStatusUpdate, u64)>,
}

impl NodeStatusSender {
    /// # Errors
    /// If the channel cannot be created.
    pub(super) fn new() -> Result<(Self, Receiver<(NodeStatusUpdate, u64)>), Failure> {
        let (updates, receiver) = spsc::channel(UPDATES).map_err(no_channel)?;
        let (pressures, thresholds) = (Pressures::default(), Arc::from([]));
        let sender = Self { pressures, thresholds, is_seeded: false, restored: None, sent: None, updates };
        Ok((sender, receiver))
    }

    /// Restores the conditions that the previous agent published. `written` is when it wrote them to its state.
    pub(crate) fn restore(
        &mut self,
        published: &[PublishedCondition; NodeCondition::COUNT],
        written: Timestamp,
    ) {
        for condition in NodeCondition::ALL {
            self.pressures.restore(condition, published[condition as usize]);
        }
        self.restored = Some(later(written, PERSIST_INTERVAL));
    }

    /// Returns the published conditions, which are persisted for the next agent.
    pub(crate) fn published(&self) -> Option<[PublishedCondition; NodeCondition::COUNT]> {
        self.pressures.published()
    }

    /// Takes the initial conditions and taints of the node's object. Returns those that the state of the
    /// previous agent does not cover.
    pub(crate) fn seed(&mut self, mut seed: Vec<InitialCondition>) -> Vec<InitialCondition> {
        if let Some(known) = self.restored {
            seed.retain(|it| it.is_newer_than(known));
        }
        for initial in &seed {
            self.pressures.restore(initial.condition, initial.published);
        }
        self.is_seeded = true;
        seed
    }

    /// Sends the desired state if a decision changes it. Returns whether it does. Never waits and does not
    /// allocate. If the channel is full, the change is sent after the next decision.
    pub(crate) fn send(&mut self, decision: &Decision, policy: &Policy, revision: u64) -> bool {
        let period = policy.pressure_transition_period;
        let pressures = *self.pressures.update(decision, period);
        if let Some(evaluation) = decision.evaluation()
            && !Arc::ptr_eq(&self.thresholds, &evaluation.thresholds)
        {
            self.thresholds = Arc::clone(&evaluation.thresholds);
        }
        if !self.is_seeded {
            return false;
        }
        let (number, settings) = (self.number() + 1, policy.eviction.node_status);
        let thresholds = Arc::clone(&self.thresholds);
        let update = NodeStatusUpdate { number, pressures, thresholds, period, settings };
        if self.sent.as_ref().is_some_and(|sent| sent.is_same(&update)) {
            return false;
        }
        if self.updates.send((update.clone(), revision)).is_ok() {
            self.sent = Some(update);
        }
        true
    }

    /// Returns the number of the last update that was sent, 0 before the first.
    pub(crate) fn number(&self) -> u64 {
        self.sent.as_ref().map_or(0, |sent| sent.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::fixture::{at, engine, hard, node, policy, set, snapshot, step};
    use eviction_core::input::Event;
    use eviction_core::signal::Signal::MemoryAvailable;

    #[test]
    fn only_changes_are_sent_and_nothing_before_the_node_was_observed() {
        let mut engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &set(Vec::new()));
        let (mut sender, mut receiver) = NodeStatusSender::new().unwrap();
        let mut sample = |sender: &mut NodeStatusSender, seconds, available| {
            let event = Event::Sample(snapshot(node(available, 900, at(seconds)), &[]));
            let decision = step(&mut engine, seconds, event);
            let (_, allocations) =
                ::tests::allocations::count_allocations(|| sender.send(&decision, engine.policy(), 0));
            assert_eq!(allocations, 0);
        };
        let mut next = || {
            let (value, _) = receiver.try_recv().ok()?;
            Some((value.number, value.pressures.map(|it| it.status.name())))
        };
        sample(&mut sender, 0, 500);
        assert_eq!((next(), sender.number()), (None, 0));
        sender.seed(Vec::new());
        sample(&mut sender, 1, 500);
        assert_eq!(next(), Some((1, ["False"; 3])));
        sample(&mut sender, 2, 400);
        assert_eq!(next(), None);
        sample(&mut sender, 3, 50);
        assert_eq!(next(), Some((2, ["False", "True", "False"])));
        assert_eq!(sender.number(), 2);
        // A change that finds the channel full is sent later.
        for round in 0..40 {
            sample(&mut sender, 4 + round, if round % 2 == 0 { 500 } else { 50 });
        }
        let sent = sender.number();
        assert_eq!(sent, 2 + UPDATES as u64);
        while next().is_some() {}
        sample(&mut sender, 50, 500);
        assert_eq!(next().map(|(number, _)| number), Some(sent + 1));
    }
}
