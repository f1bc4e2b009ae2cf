use super::*;
use crate::decision::Decision;
use crate::engine::Engine;
use crate::eviction::EvaluationEnd;
use crate::fixture::arbitrary::{inputs, policy as any_policy};
use crate::fixture::{
    at, engine, enhanced, hard, memory_of, node, pod, policy, set, snapshot, soft, step, victims,
};
use crate::input::{Event, Input};
use crate::policy::Policy;
use crate::policy::preferences::{
    MemoryMeasure, MemoryPsi, PredictionMode, Preferences, PsiKind, PsiTrigger,
};
use crate::reading::UnknownReason;
use crate::record::DecisionRecord;
use crate::signal::NodeCondition;
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable, PidAvailable};
use crate::snapshot::{FsStats, MemoryDetail, MemoryStats, ProcessStats};
use crate::units::{GoDuration, Limit};

mod any;
mod measures;
mod plausibility;
mod prediction;

/// Returns an engine of the enhanced profile with a pod that is above its request.
fn enhanced_engine(policy: Policy) -> Engine {
    engine(policy, &set(vec![pod("greedy", "10")]))
}

fn sample(engine: &mut Engine, seconds: i64, node: NodeStats) -> Decision {
    step(engine, seconds, Event::Sample(snapshot(node, &[memory_of("greedy", 500)])))
}

/// Returns a node with 1,000 bytes of memory, this amount available, and further values.
fn node_with(available: u64, seconds: i64, set_detail: impl FnOnce(&mut MemoryDetail)) -> NodeStats {
    let mut node = node(available, 900, at(seconds));
    set_detail(&mut node.memory_detail);
    node
}

fn evicts(decision: &Decision) -> bool {
    !victims(decision).is_empty()
}
