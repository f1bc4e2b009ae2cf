//! Room for a pass before there is need of it.

use std::sync::Arc;

use crate::core::decision::{Pass, Subject};
use crate::core::input::{Event, Input};
use crate::core::signal::Signal;
use crate::core::snapshot::Snapshot;
use crate::core::time::Timestamp;

use super::Engine;

/// Pods that are passed over before one goes, or are on their way; usually fewer.
const A_FEW: usize = 32;

impl Engine {
    /// Finds the room that a look like this one takes, so that the real one asks the allocator for
    /// nothing: an engine like this takes the look, and only its buffers are kept. What the engine knows
    /// stays as it is.
    pub fn rehearse(&mut self, at: Timestamp, snapshot: Arc<Snapshot>) {
        let mut stage = self.clone();
        let mut decision = stage.step(Input { at, event: Event::Look(snapshot) });
        if let Subject::Pass(pass) = &mut decision.subject {
            // What this look has none of, and another may have.
            let Pass { met, sight, lines, spared, refused_pods, flights, deficits, .. } = pass;
            met.reserve(lines.len());
            sight.imminent.reserve(lines.len());
            sight.refused.reserve(Signal::COUNT);
            spared.reserve(A_FEW);
            refused_pods.reserve(A_FEW);
            flights.reserve(A_FEW);
            for deficit in deficits {
                deficit.hurried.reserve(A_FEW);
                deficit.victims.reserve(A_FEW);
                deficit.passed_over.reserve(A_FEW);
            }
        }
        stage.recycle(decision);
        // The walk puts off those that free little, and those that did not go lately.
        for _ in 0..2 {
            stage.spare.passed_over.keep(Vec::with_capacity(A_FEW));
        }
        self.spare = stage.spare;
        self.joined = stage.joined;
        self.urgent = stage.urgent;
        self.flights.make_room(A_FEW);
        self.sight.make_room();
        self.thresholds.make_room();
        self.conditions.make_room();
    }
}
