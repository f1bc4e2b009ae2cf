//! The memory of those that would go first is read for the very look that decides.
//!
//! A look reads the usages that moved and the memory.stat of the groups that use most; who goes first
//! may be somebody else, whose figures are those of the last full sample.

use std::sync::Arc;

use eviction_core::record::PodSample;
use eviction_core::snapshot::Snapshot;
use eviction_node::cgroup::sample::Tasks;

use super::ControlLoop;
use eviction_node::sampler::CompleteSample;

/// So many pods are read again, some 10 µs each: the one that would go, and who is next to it.
const FIRST: usize = 2;

/// With new figures others may come first.
const ROUNDS: usize = 4;

impl ControlLoop {
    /// The node and its pods; with `again`, fresh figures of those that would go first, and the order
    /// looked at once more.
    pub(super) fn see_pods(
        &mut self,
        node_sample: &CompleteSample,
        tasks: Tasks,
        again: bool,
    ) -> Arc<Snapshot> {
        let builder = self.node_sampler.snapshot_with_pods(node_sample, &self.pod_index, tasks);
        let mut snapshot = self.node_sampler.finish(builder, self.engine.pods());
        for _ in 0..if again { ROUNDS } else { 0 } {
            self.engine.rank_ahead(&snapshot, &mut self.state.ahead);
            let first = self.state.ahead.iter().take(FIRST).map(|candidate| candidate.pod);
            if !self.node_sampler.read_again(node_sample, &self.pod_index, first) {
                break;
            }
            self.node_sampler.recycle(snapshot);
            let builder = self.node_sampler.snapshot_of_pods(node_sample, &self.pod_index);
            snapshot = self.node_sampler.finish(builder, self.engine.pods());
        }
        snapshot
    }

    /// Publishes what pods use, from the last full sample.
    pub(super) fn publish_pods(&mut self, node_sample: &CompleteSample) {
        let builder = self.node_sampler.snapshot_of_pods(node_sample, &self.pod_index);
        let snapshot = self.node_sampler.finish(builder, self.engine.pods());
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
}
