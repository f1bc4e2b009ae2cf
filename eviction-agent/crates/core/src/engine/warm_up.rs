//! Room for a pass before there is need of it.

use std::sync::Arc;

use crate::input::{Event, Input};
use crate::snapshot::Snapshot;
use crate::time::Timestamp;

use super::Engine;
use super::buffers::A_FEW;

impl Engine {
    /// Finds the room that a look like this one takes, so that the real one asks the allocator for
    /// nothing: an engine like this takes the look, and only its buffers are kept. What the engine knows
    /// stays as it is. Beside what this look takes there is room for what others may.
    pub fn rehearse(&mut self, at: Timestamp, snapshot: Arc<Snapshot>) {
        // A copy of lists that are empty has no room.
        let spare = std::mem::take(&mut self.spare);
        let mut stage = self.clone();
        stage.spare = spare;
        let decision = stage.step(Input { at, event: Event::Sample(snapshot) });
        stage.recycle(decision);
        self.spare = stage.spare;
        self.joined = stage.joined;
        self.urgent = stage.urgent;
        let (lines, pods) = (self.thresholds.lines().len(), self.pods.len());
        self.spare.make_room(lines, pods);
        self.urgent.clear();
        self.urgent.reserve(lines);
        // Used where nobody has looked up whose statistics these are.
        self.joined.clear();
        self.joined.reserve(pods);
        self.flights.make_room(A_FEW);
        self.sight.make_room();
        self.thresholds.make_room();
        self.conditions.make_room();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{at, engine, hard, node, policy, set, snapshot};
    use crate::signal::Signal::MemoryAvailable;

    #[test]
    fn there_is_room_however_often_it_was_rehearsed() {
        let mut engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &set(Vec::new()));
        for second in 0..100 {
            engine.rehearse(at(second), snapshot(node(50, 900, at(second)), &[]));
        }
        let walk = [engine.spare.passed_over.take(), engine.spare.passed_over.take()];
        assert!(walk.iter().all(|list| list.capacity() >= A_FEW));
    }
}
