//! A world, decoded, with an engine that knows it.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use eviction_agent::config::kubelet_policy;
use eviction_agent::core::decision::{Decision, PassEnd};
use eviction_agent::core::engine::Engine;
use eviction_agent::core::input::{Event, Input};
use eviction_agent::core::layout::DiskLayout;
use eviction_agent::core::pods::{KnownPod, PodSet};
use eviction_agent::core::reading::Reading;
use eviction_agent::core::snapshot::{NodeStats, Snapshot};
use eviction_agent::core::time::Timestamp;
use eviction_agent::source::pods::Pod;
use eviction_agent::source::summary::Summary;
use tests::world::{Case, World};

/// Between two looks.
const PERIOD_SECONDS: i64 = 10;

/// A node before its next look.
pub(crate) struct Node {
    pub(crate) case: Case,
    pub(crate) engine: Engine,
    pub(crate) pods: Arc<PodSet>,
    /// What every look sees, indexed, but for the time.
    snapshot: Snapshot,
    now: Timestamp,
}

impl Node {
    pub(crate) fn new(world: &World, case: Case) -> Result<Self> {
        let policy = kubelet_policy(&case.configuration()).map_err(|error| anyhow!(error.text))?;
        let gates = policy.gates;
        let known = |pod| Ok(Arc::new(KnownPod::new(serde_json::from_value::<Pod>(pod)?.into(), gates)));
        let pods: Result<_> = world.pods().map(known).collect();
        let pods = Arc::new(PodSet::new(pods.context("decode the world's pods")?));
        let mut snapshot = Summary::parse(world.summary(case, 0).as_bytes())?.snapshot();
        snapshot.index(&pods);
        let mut node = Self { case, engine: Engine::new(policy), pods, snapshot, now: Timestamp::UNIX_EPOCH };
        node.tell(Event::Pods(Arc::clone(&node.pods)));
        node.tell(Event::DiskLayout(Ok(DiskLayout::default())));
        Ok(node)
    }

    fn tell(&mut self, event: Event) -> Decision {
        self.engine.step(Input { at: self.now, event })
    }

    /// What the next look sees, in new memory.
    pub(crate) fn look(&mut self) -> Result<Snapshot> {
        self.renew(self.snapshot.clone())
    }

    /// What the next look sees, in the memory of the last one.
    pub(crate) fn renew(&mut self, mut snapshot: Snapshot) -> Result<Snapshot> {
        self.now = self.now.checked_add(std::time::Duration::from_secs(PERIOD_SECONDS.unsigned_abs()))?;
        stamp(&mut snapshot.node, self.now);
        Ok(snapshot)
    }

    /// One whole pass: the look, and the second one if garbage was to be collected first.
    pub(crate) fn pass(&mut self, snapshot: Arc<Snapshot>) -> Decision {
        let second = Arc::clone(&snapshot);
        let decision = self.tell(Event::Look(snapshot));
        match decision.awaits_reclaim() {
            true => self.tell(Event::Reclaimed(Ok(second))),
            false => decision,
        }
    }

    /// That the pass came to what the case is about.
    pub(crate) fn check(&self, decision: &Decision) -> Result<()> {
        let expected = match self.case {
            Case::Calm | Case::CalmNoLocalStorage => PassEnd::Calm,
            Case::MemoryPressure | Case::DiskPressure => PassEnd::Evicted,
        };
        let end = decision.pass().map(|pass| pass.end);
        ensure!(end == Some(expected), "a pass of case {:?} ended in {end:?}", self.case.name());
        Ok(())
    }
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
