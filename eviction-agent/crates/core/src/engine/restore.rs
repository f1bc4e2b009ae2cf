//! Memory: what the next engine has to know, and what it takes over.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::condition::RaisedCondition;
use crate::in_flight::InFlightEviction;
use crate::pod::{Pod, PodName};
use crate::pods::{KnownPod, PodSet};
use crate::state::{EngineState, MAX_PAUSE, MAX_SAMPLE_GAP, PERSIST_INTERVAL};
use crate::time::{Timestamp, since};

use super::Engine;

impl Engine {
    /// What another engine has to know that goes on in this one's place.
    pub fn state(&self) -> EngineState {
        EngineState {
            last_sync: self.conditions.last_sync(),
            met: self.thresholds.met_since().collect(),
            conditions: self.conditions.known().to_vec(),
            in_flight: self
                .in_flight
                .all()
                .iter()
                .map(|it| InFlightEviction { restored: false, ..it.clone() })
                .collect(),
            counted: self.guard.counted(),
            oom_killed: self.guard.oom_killed(),
            pdb_refused: self.pdb_refusals.all().to_vec(),
            paused_until: self.in_flight.paused_until(),
        }
    }

    pub(super) fn restore(&mut self, at: Timestamp, memory: EngineState) {
        let EngineState {
            last_sync,
            met,
            conditions,
            in_flight,
            counted,
            oom_killed,
            pdb_refused,
            paused_until,
        } = memory;
        let is_seamless = last_sync.is_some_and(|last_sync| since(at, last_sync) <= MAX_SAMPLE_GAP);
        if is_seamless {
            for met in &met {
                self.thresholds.restore(met);
            }
        }
        let kept_every = SignedDuration::from_nanos(PERSIST_INTERVAL.as_nanos());
        let raised = conditions.into_iter().map(|RaisedCondition { condition, at: raised }| {
            // The last sample has raised it, and so did those that nobody wrote down.
            let is_latest = last_sync == Some(raised);
            let latest = raised.checked_add(kept_every).unwrap_or(raised).min(at);
            RaisedCondition { condition, at: if is_latest { latest.max(raised) } else { raised } }
        });
        self.conditions.restore(at, raised, self.policy.pressure_transition_period);
        self.in_flight.restore(in_flight);
        if let Some(until) = paused_until {
            let longest = SignedDuration::from_nanos(MAX_PAUSE.as_nanos());
            self.pause_until(at, until.min(at.checked_add(longest).unwrap_or(at)));
        }
        self.guard.restore(&self.policy.rules, counted, oom_killed);
        self.pdb_refusals.restore(pdb_refused);
    }

    /// Evictions of a former engine go on when their pods are there.
    pub(super) fn resume_restored(&mut self, at: Timestamp, pods: &Arc<PodSet>) {
        let (tracker, policy) = (&mut self.oom, &self.policy);
        self.in_flight.resume(at, pods, |it| {
            let PodName { namespace, name, uid } = &*it.pod;
            let (namespace, name, uid) = (namespace.clone(), name.clone(), uid.clone());
            let without_object =
                || Arc::new(KnownPod::new(Pod { uid, namespace, name, ..Pod::default() }, policy));
            let known = pods.index_of(&it.pod.uid).and_then(|index| pods.pods().get(index as usize));
            let known = known.map_or_else(without_object, Arc::clone);
            tracker.evicting(it.decided_at, &known, pods);
        });
    }
}
