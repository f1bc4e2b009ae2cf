//! The engine state that the next engine needs, and its restoration.

use crate::condition::RaisedCondition;
use crate::in_flight::InFlightEviction;
use crate::pods::PodSet;
use crate::state::{EngineState, MAX_PAUSE, MAX_SAMPLE_GAP, PERSIST_INTERVAL};
use crate::time::{Timestamp, later, since};

use super::Engine;

impl Engine {
    /// Returns the state that another engine needs to continue in place of this one.
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
            oom_killed: self.guard.oom_killed().clone(),
            pdb_refused: self.guard.pdb_refused().clone(),
            paused_until: self.in_flight.paused_until(),
        }
    }

    pub(super) fn restore(&mut self, at: Timestamp, state: EngineState) {
        let EngineState {
            last_sync,
            met,
            conditions,
            in_flight,
            counted,
            oom_killed,
            pdb_refused,
            paused_until,
        } = state;
        let is_seamless = last_sync.is_some_and(|last_sync| since(at, last_sync) <= MAX_SAMPLE_GAP);
        if is_seamless {
            for met in &met {
                self.thresholds.restore(met);
            }
        }
        let raised = conditions.into_iter().map(|RaisedCondition { condition, at: raised }| {
            // Later samples, which were not persisted, may have raised the condition again.
            let is_latest = last_sync == Some(raised);
            let latest = later(raised, PERSIST_INTERVAL).min(at);
            RaisedCondition { condition, at: if is_latest { latest.max(raised) } else { raised } }
        });
        self.conditions.restore(at, raised, self.policy.pressure_transition_period);
        self.in_flight.restore(in_flight);
        if let Some(until) = paused_until {
            self.pause_until(at, until.min(later(at, MAX_PAUSE)));
        }
        self.guard.restore(&self.policy.rules, counted, oom_killed, pdb_refused);
    }

    /// Resumes the evictions of a former engine whose pods are present.
    pub(super) fn resume_restored(&mut self, at: Timestamp, pods: &PodSet) {
        let tracker = &mut self.oom;
        self.in_flight.resume(at, pods, |it| tracker.add_eviction(it.decided_at, &it.pod));
    }
}
