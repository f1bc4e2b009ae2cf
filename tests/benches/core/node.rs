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
use eviction_core::progress::EvictionResult;
use eviction_core::reading::Reading;
use eviction_core::snapshot::{NodeStats, Snapshot};
use eviction_core::time::Timestamp;
use eviction_kube::pods::Pod;
use serde_json::Value;
use tests::simulated_node::{Case, SimulatedNode};

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(10);

/// A node before its next look.
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) pods: Arc<PodSet>,
    /// What every look sees, indexed, but for the time.
    snapshot: Snapshot,
    /// When it was looked at last.
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
        let mut policy = kubelet_policy(configuration).map_err(|error| anyhow!(error.text))?;
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

    /// What the next look sees: in the memory of the last one if that is spare.
    pub(crate) fn look(&mut self, spare: Option<Arc<Snapshot>>) -> Result<Arc<Snapshot>> {
        let mut snapshot = spare.unwrap_or_else(|| Arc::new(self.snapshot.clone()));
        self.now = self.now.checked_add(PERIOD)?;
        stamp(&mut Arc::get_mut(&mut snapshot).context("somebody keeps a spare snapshot")?.node, self.now);
        Ok(snapshot)
    }

    /// One whole pass: the look, and the second one if garbage was to be collected first.
    pub(crate) fn pass(&mut self, snapshot: &Arc<Snapshot>) -> Decision {
        let first = self.handle(Event::Sample(Arc::clone(snapshot)));
        if !first.awaits_reclaim() {
            return first;
        }
        self.engine.recycle(first);
        self.handle(Event::Reclaimed(Ok(Arc::clone(snapshot))))
    }

    /// Pods that were chosen are gone, and so much time passes.
    pub(crate) fn carry_out(&mut self, gone: &[u32], then: Duration) -> Result<()> {
        for &place in gone {
            let known = self.pods.get(place).context("a pod goes that is not there")?;
            let outcome = EvictionResult { uid: known.pod.uid.clone(), result: Ok(()) };
            let noted = self.handle(Event::Evicted(outcome));
            self.engine.recycle(noted);
        }
        self.now = self.now.checked_add(then)?;
        Ok(())
    }
}

/// The places of the pods that go.
pub(crate) fn victims(decision: &Decision) -> impl Iterator<Item = u32> {
    decision.actions.iter().filter_map(|action| match action {
        Action::Evict(eviction) => Some(eviction.pod),
        Action::RecordEvent(_) | Action::Reclaim(_) | Action::ShortenGrace(_) => None,
    })
}

/// Makes all figures of the node new: figures as old as the last ones would not evict.
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
