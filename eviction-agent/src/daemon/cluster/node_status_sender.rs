//! How hard the node is pressed, on its way from the reaction to those who write it down.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::error::Failure;
use crate::spsc::{Receiver, Sender, lane};
use eviction_core::decision::Decision;
use eviction_core::node_conditions::pressure::{Cause, InitialConditions, Pressures, PublishedCondition};
use eviction_core::policy::Policy;
use eviction_core::signal::NodeCondition;
use eviction_core::state::PERSIST_INTERVAL;
use eviction_core::threshold::ResolvedThreshold;
use eviction_core::time::Timestamp;
use eviction_kube::NodeStatusUpdate;
use eviction_node::clock::Clock;

/// More than can come in before they are taken; only the newest counts.
const NEWS: usize = 16;

/// An update that must not be written to the node before what is persisted under this number.
#[derive(Clone, Debug)]
pub(crate) struct PendingUpdate {
    pub(super) update: NodeStatusUpdate,
    pub(super) kept_as: u64,
}

/// The same with times as people know them.
pub(super) fn as_shown(mut update: NodeStatusUpdate, clock: &Clock) -> NodeStatusUpdate {
    for pressure in &mut update.pressures {
        pressure.since = pressure.since.map(|since| clock.shown(since));
        if let Cause::Transition { since } = &mut pressure.cause {
            *since = clock.shown(*since);
        }
    }
    update
}

/// The reaction's end. What it told last is true until it tells something else.
#[derive(Debug)]
pub(crate) struct NodeStatusSender {
    pressures: Pressures,
    lines: Arc<[ResolvedThreshold]>,
    /// Before that it is not known what the node says already.
    is_seeded: bool,
    /// Until when it is known what a former agent has said.
    recalled: Option<Timestamp>,
    told: Option<NodeStatusUpdate>,
    lane: Sender<PendingUpdate>,
}

impl NodeStatusSender {
    /// # Errors
    /// If there can be no lane.
    pub(crate) fn new() -> Result<(Self, Receiver<PendingUpdate>), Failure> {
        let (lane, receiver) =
            lane(NEWS).map_err(|error| Failure::because("make the lane of the node's pressure", &error))?;
        let (pressures, lines) = (Pressures::default(), Arc::from([]));
        let teller = Self { pressures, lines, is_seeded: false, recalled: None, told: None, lane };
        Ok((teller, receiver))
    }

    /// Goes on where a former agent ended, who has written this down at that time.
    pub(crate) fn recall(&mut self, said: &[PublishedCondition; NodeCondition::COUNT], written: Timestamp) {
        self.pressures.restore(said);
        let since_then = SignedDuration::from_nanos(PERSIST_INTERVAL.as_nanos());
        self.recalled = Some(written.checked_add(since_then).unwrap_or(written));
    }

    /// What is to be kept for the agent that comes after this one.
    pub(crate) fn said(&self) -> Option<[PublishedCondition; NodeCondition::COUNT]> {
        self.pressures.published()
    }

    /// What the node's object says from before the start; hands back what of it is not known
    /// better.
    pub(crate) fn seed(&mut self, seed: InitialConditions) -> InitialConditions {
        let seed = self.recalled.map_or(seed, |known| seed.after(known));
        self.pressures.seed(&seed);
        self.is_seeded = true;
        seed
    }

    /// Tells what a decision changes. Never waits, and allocates nothing: what has no room now is
    /// told after the next decision. Says whether there is something new, which must not be written
    /// to the node before what is said under the number `kept_as` is kept.
    pub(crate) fn take(&mut self, decision: &Decision, policy: &Policy, kept_as: u64) -> bool {
        let period = policy.pressure_transition_period;
        let pressures = *self.pressures.update(decision, period);
        if let Some(pass) = decision.evaluation()
            && !Arc::ptr_eq(&self.lines, &pass.thresholds)
        {
            self.lines = Arc::clone(&pass.thresholds);
        }
        if !self.is_seeded {
            return false;
        }
        let (number, settings) = (self.number() + 1, policy.eviction.node_status);
        let thresholds = Arc::clone(&self.lines);
        let update = NodeStatusUpdate { number, pressures, thresholds, period, settings };
        if self.told.as_ref().is_some_and(|told| told.is_same(&update)) {
            return false;
        }
        if self.lane.send(PendingUpdate { update: update.clone(), kept_as }).is_ok() {
            self.told = Some(update);
        }
        true
    }

    /// The number of what was told last, 0 before.
    pub(crate) fn number(&self) -> u64 {
        self.told.as_ref().map_or(0, |told| told.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spsc::Next;
    use eviction_core::fixture::{at, engine, hard, node, policy, set, snapshot, step};
    use eviction_core::input::Event;
    use eviction_core::signal::Signal::MemoryAvailable;

    #[test]
    fn changes_alone_are_told_and_nothing_before_the_node_was_seen() {
        let mut engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &set(Vec::new()));
        let (mut teller, mut receiver) = NodeStatusSender::new().unwrap();
        let mut look = |teller: &mut NodeStatusSender, seconds, available| {
            let event = Event::Sample(snapshot(node(available, 900, at(seconds)), &[]));
            let decision = step(&mut engine, seconds, event);
            let (_, allocations) =
                ::tests::allocations::counted(|| teller.take(&decision, engine.policy(), 0));
            assert_eq!(allocations, 0);
        };
        let mut next = || match receiver.next() {
            Next::Value(pending) => {
                Some((pending.update.number, pending.update.pressures.map(|it| it.status.name())))
            }
            Next::Empty | Next::Ended => None,
        };
        look(&mut teller, 0, 500);
        assert_eq!((next(), teller.number()), (None, 0));
        teller.seed(InitialConditions::default());
        look(&mut teller, 1, 500);
        assert_eq!(next(), Some((1, ["False"; 3])));
        look(&mut teller, 2, 400);
        assert_eq!(next(), None);
        look(&mut teller, 3, 50);
        assert_eq!(next(), Some((2, ["False", "True", "False"])));
        assert_eq!(teller.number(), 2);
        // What finds no room is told later.
        for turn in 0..40 {
            look(&mut teller, 4 + turn, if turn % 2 == 0 { 500 } else { 50 });
        }
        let told = teller.number();
        assert_eq!(told, 2 + NEWS as u64);
        while next().is_some() {}
        look(&mut teller, 50, 500);
        assert_eq!(next().map(|(number, _)| number), Some(told + 1));
    }
}
