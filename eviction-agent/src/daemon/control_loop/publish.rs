//! Publishes decisions and samples of pods: the telemetry thread gets a copy of each.
//!
//! The telemetry thread makes the record of a decision from the decision and everything that it points to. The
//! next evaluation uses the same lists, so they stay here. The copy is made after everything that cannot wait.

use std::sync::Arc;

use eviction_core::decision::{Decision, DecisionKind};
use eviction_core::record::PodSample;
use eviction_node::sampler::CompleteSample;

use super::ControlLoop;
use crate::telemetry::queue::DecisionEvent;
use crate::telemetry::recording::Key;

impl ControlLoop {
    /// Publishes a copy of a decision, and recycles its memory. If the telemetry thread has no room, the decision
    /// is dropped and counted.
    pub(super) fn publish_decision(&mut self, event: DecisionEvent) {
        self.telemetry.send_decision(|| DecisionEvent { decision: copy_of(&event.decision), ..event });
        self.recycle(event.decision);
    }

    /// Recycles the memory of a decision and of its snapshot.
    pub(super) fn recycle(&mut self, decision: Decision) {
        let snapshot = decision.evaluation().map(|evaluation| Arc::clone(&evaluation.snapshot));
        self.engine.recycle(decision);
        if let Some(snapshot) = snapshot {
            self.node_sampler.recycle(snapshot);
        }
    }

    /// Publishes the pods' usage of the last full sample.
    pub(super) fn publish_pods(&mut self, node_sample: &CompleteSample) {
        let snapshot = self.node_sampler.snapshot_of_pods(node_sample, &self.pod_index);
        self.telemetry.send_pods(|| PodSample {
            at: node_sample.at.wall,
            pods: Arc::clone(self.engine.pods()),
            snapshot: Arc::new((*snapshot).clone()),
            layout: self.node_sampler.disks.layout(),
            in_flight: self.engine.in_flight().to_vec(),
            sized: !self.engine.policy().rules.are_kubelets(),
        });
        self.node_sampler.recycle(snapshot);
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
            terminating: self.state.terminating.iter().map(|it| it.uid.clone()).collect(),
            api: self.engine.api_reachability(),
            lost: 0,
            pods: Arc::clone(self.engine.pods()),
        });
    }
}

/// Returns a deep copy of a decision, including the values of the sample.
fn copy_of(decision: &Decision) -> Decision {
    let mut copy = decision.clone();
    if let DecisionKind::Evaluated(evaluation) = &mut copy.kind {
        evaluation.snapshot = Arc::new((*evaluation.snapshot).clone());
    }
    copy
}
