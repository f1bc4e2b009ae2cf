//! A pass that ranks all pods before there is need of one: every buffer finds its size, and every
//! page that it takes is there.

use std::sync::Arc;

use eviction_core::reading::Reading;
use eviction_core::snapshot::MemoryStats;
use eviction_node::cgroup::sample::Tasks;

use super::ControlLoop;
use eviction_node::sampler::CompleteSample;

/// Leaves that charge between two looks, at least.
const BESIDE: usize = 1024;

impl ControlLoop {
    /// Once for each set of pods, at leisure. A threshold with a grace period lets nobody be ranked
    /// at first: then it finds room for what comes before.
    pub(super) fn warm_up(&mut self, node_sample: &CompleteSample) {
        let Some(available) = self.memory_levels.lowest() else { return };
        if std::mem::replace(&mut self.state.is_warm, true) {
            return;
        }
        let mut stage = *node_sample;
        let available = available.saturating_sub(1).max(0).unsigned_abs();
        let working_set = self.node_sampler.capacity().memory.saturating_sub(available);
        // Figures as old as those of the last pass would evict nobody.
        let at = self.clock.now().wall;
        let memory = MemoryStats {
            time: Some(at),
            available: Some(available),
            working_set: Some(working_set),
            ..node_sample.stats.memory.known().unwrap_or_default()
        };
        stage.stats.memory = Reading::Known(memory);
        let detail = &mut stage.stats.memory_detail;
        detail.mem_available = detail.mem_available.map(|_| available);
        let snapshot = self.node_sampler.snapshot_with_pods(&stage, &self.pod_index, Tasks::Count);
        let snapshot = self.node_sampler.finish(snapshot, self.engine.pods());
        self.engine.rank_ahead(&snapshot, &mut self.state.ahead);
        self.engine.warm_up(at, Arc::clone(&snapshot));
        self.node_sampler.recycle(snapshot);
        self.state.last_change.make_room();
        // Groups beside the node's charge as well, where the node is not the whole machine.
        let groups = self.node_sampler.cgroups.tree().groups().len().max(BESIDE);
        self.state.charged.reserve(groups);
        self.notifier.bpf.make_room(groups);
    }
}
