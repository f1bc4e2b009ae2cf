//! Memory: what the next engine has to know, and what it takes over.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::condition::Raised;
use crate::in_flight::InFlightEviction;
use crate::pod::{Pod, PodName};
use crate::pods::{KnownPod, PodSet};
use crate::state::{EngineState, KEPT_EVERY, LONGEST_HOLD, UNSEEN};
use crate::time::{Timestamp, since};

use super::Engine;

impl Engine {
    /// What another engine has to know that goes on in this one's place.
    pub fn memory(&self) -> EngineState {
        EngineState {
            looked: self.conditions.looked(),
            met: self.thresholds.met_since().collect(),
            conditions: self.conditions.known().to_vec(),
            flights: self
                .flights
                .all()
                .iter()
                .map(|it| InFlightEviction { restored: false, ..it.clone() })
                .collect(),
            counted: self.guard.counted(),
            oom_killed: self.guard.oom_killed(),
            forbidden: self.budgets.forbidden().collect(),
            held_until: self.flights.held_until(),
        }
    }

    pub(super) fn recall(&mut self, at: Timestamp, memory: EngineState) {
        let EngineState { looked, met, conditions, flights, counted, oom_killed, forbidden, held_until } =
            memory;
        let is_seamless = looked.is_some_and(|looked| since(at, looked) <= UNSEEN);
        if is_seamless {
            for met in &met {
                self.thresholds.recall(met);
            }
        }
        let kept_every = SignedDuration::from_nanos(KEPT_EVERY.as_nanos());
        let raised = conditions.into_iter().map(|Raised { condition, at: raised }| {
            // The last look has raised it, and so did those that nobody wrote down.
            let is_latest = looked == Some(raised);
            let latest = raised.checked_add(kept_every).unwrap_or(raised).min(at);
            Raised { condition, at: if is_latest { latest.max(raised) } else { raised } }
        });
        self.conditions.recall(at, raised, self.policy.pressure_transition_period);
        self.flights.recall(flights);
        if let Some(until) = held_until {
            let longest = SignedDuration::from_nanos(LONGEST_HOLD.as_nanos());
            self.pause_until(at, until.min(at.checked_add(longest).unwrap_or(at)));
        }
        self.guard.recall(counted, oom_killed);
        self.budgets.recall(at, forbidden);
    }

    /// Evictions of a former engine go on when their pods are there.
    pub(super) fn resume_recalled(&mut self, at: Timestamp, pods: &Arc<PodSet>) {
        let (story, policy) = (&mut self.oom, &self.policy);
        self.flights.resume(at, pods, |it| {
            let PodName { namespace, name, uid } = &*it.pod;
            let (namespace, name, uid) = (namespace.clone(), name.clone(), uid.clone());
            let without_object =
                || Arc::new(KnownPod::new(Pod { uid, namespace, name, ..Pod::default() }, policy));
            let known = pods.place(&it.pod.uid).and_then(|place| pods.pods().get(place as usize));
            let known = known.map_or_else(without_object, Arc::clone);
            story.evicting(it.decided_at, &known, pods);
        });
    }
}
