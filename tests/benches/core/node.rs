//! A simulated node, decoded, with an engine that knows it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use eviction_agent::source::summary::Summary;
use eviction_config::kubelet_policy;
use eviction_core::decision::{Action, Decision};
use eviction_core::disk_layout::DiskLayout;
use eviction_core::engine::Engine;
use eviction_core::input::{Event, Input};
use eviction_core::pods::{KnownPod, PodSet};
use eviction_core::policy::Rules;
use eviction_core::policy::preferences::{Preferences, Profile};
use eviction_core::reading::Reading;
use eviction_core::snapshot::{NodeStats, Snapshot};
use eviction_core::time::Timestamp;
use eviction_kube::pods::Pod;
use serde_json::Value;
use tests::simulated_node::{Case, SimulatedNode};

/// The time between two samples.
const PERIOD: Duration = Duration::from_secs(10);

/// A node before its next sample.
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) pods: Arc<PodSet>,
    /// The indexed content of every sample, except for the time.
    snapshot: Snapshot,
    /// The time of the last sample.
    pub(crate) now: Timestamp,
}

impl Node {
    /// A node with a `KubeletConfiguration`, and what presses on it.
    pub(crate) fn new(
        simulated: &SimulatedNode,
        profile: Profile,
        configuration: &Value,
        case: Case,
    ) -> Result<Self> {
        let mut policy = kubelet_policy(configuration).map_err(|(_, error)| anyhow!(error))?;
        if profile == Profile::Enhanced {
            policy.rules = Rules::enhanced(&Preferences::default());
        }
        let known = |pod| Ok(Arc::new(KnownPod::new(serde_json::from_value::<Pod>(pod)?.into(), &policy)));
        let pods: Result<_> = simulated.pods().map(known).collect();
        let pods = Arc::new(PodSet::new(pods.context("decode the simulated node's pods")?));
        let mut snapshot = Summary::parse(simulated.summary(case, 0).as_bytes())?.snapshot();
        snapshot.index(&pods);
        let engine = Engine::new(policy);
        let mut node = Self { engine, pods, snapshot, now: Timestamp::UNIX_EPOCH };
        node.handle(Event::Pods(Arc::clone(&node.pods)));
        node.handle(Event::DiskLayout(Ok(DiskLayout::default())));
        Ok(node)
    }

    fn handle(&mut self, event: Event) -> Decision {
        self.engine.step(Input { at: self.now, event })
    }

    /// Returns the next sample, in the memory of `buffer` if there is one.
    pub(crate) fn next_snapshot(&mut self, buffer: Option<Arc<Snapshot>>) -> Result<Arc<Snapshot>> {
        let mut snapshot = buffer.unwrap_or_else(|| Arc::new(self.snapshot.clone()));
        self.now = self.now.checked_add(PERIOD)?;
        stamp(&mut Arc::get_mut(&mut snapshot).context("the buffer is still in use")?.node, self.now);
        Ok(snapshot)
    }

    /// Runs a sync: an evaluation, and a second one if the first one only collects garbage.
    pub(crate) fn sync(&mut self, snapshot: &Arc<Snapshot>) -> Decision {
        let first = self.handle(Event::Sample(Arc::clone(snapshot)));
        if !first.awaits_reclaim() {
            return first;
        }
        self.engine.recycle(first);
        self.handle(Event::Reclaimed(Ok(Arc::clone(snapshot))))
    }

    /// Confirms the evictions of these pods, and moves the time on.
    pub(crate) fn carry_out(&mut self, gone: &[u32], then: Duration) -> Result<()> {
        for &index in gone {
            let known = self.pods.get(index).context("an evicted pod is not on the node")?;
            let result = Event::Evicted { uid: known.pod.uid.clone(), result: Ok(()) };
            let decision = self.handle(result);
            self.engine.recycle(decision);
        }
        self.now = self.now.checked_add(then)?;
        Ok(())
    }
}

/// Returns the indexes of the pods to evict.
pub(crate) fn victims(decision: &Decision) -> impl Iterator<Item = u32> {
    decision.actions.iter().filter_map(|action| match action {
        Action::Evict(eviction) => Some(eviction.pod),
        Action::RecordEvent(_) | Action::Reclaim(_) | Action::ShortenGrace(_) => None,
    })
}

/// Sets the time of all of the node's statistics. Statistics that are not newer than the last ones meet no threshold.
fn stamp(node: &mut NodeStats, now: Timestamp) {
    for memory in [&mut node.memory, &mut node.allocatable_memory] {
        if let Reading::Known(memory) = memory {
            memory.time = Some(now);
        }
    }
    for file_system in [&mut node.node_fs, &mut node.image_fs, &mut node.container_fs] {
        if let Reading::Known(file_system) = file_system {
            file_system.time = Some(now);
        }
    }
    if let Reading::Known(processes) = &mut node.processes {
        processes.time = Some(now);
    }
}
