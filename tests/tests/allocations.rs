//! An evaluation allocates nothing: an allocator may have to wait for the very memory that is short. The nodes are
//! those that the bench measures.

#[path = "../benches/core/node.rs"]
mod node;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use eviction_core::eviction::EvaluationEnd;
use eviction_core::input::{Event, Input};
use eviction_core::policy::preferences::Profile;
use eviction_core::time::Timestamp;
use serde_json::{Value, json};
use tests::allocations::{CountingAllocator, count_allocations, trace_allocations};
use tests::simulated_node::{Case, SimulatedNode};

use crate::node::{Node, victims};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PROFILES: [Profile; 2] = [Profile::Kubelet, Profile::Enhanced];

/// The number of evaluations after which every buffer has its size.
const WARM_UP: usize = 3;

/// The state of a node after some evaluations, and the allocations of the last one.
#[derive(Debug, PartialEq, Eq)]
struct LastEvaluation {
    end: EvaluationEnd,
    met: usize,
    conditions: usize,
    allocations: u64,
}

/// Runs evaluations on a node, and returns all buffers to the engine.
fn run_evaluations(node: &mut Node) -> Result<LastEvaluation> {
    let mut buffer = None;
    for _ in 0..WARM_UP {
        let snapshot = node.next_snapshot(buffer.take())?;
        let decision = node.sync(&snapshot);
        let evicted: Vec<_> = victims(&decision).collect();
        node.engine.recycle(decision);
        node.carry_out(&evicted, Duration::ZERO)?;
        buffer = Some(snapshot);
    }
    let snapshot = node.next_snapshot(buffer)?;
    let (decision, in_evaluation) = count_allocations(|| node.sync(&snapshot));
    let evaluation = decision.evaluation().context("there was no evaluation")?;
    let (end, met, conditions) = (evaluation.end, evaluation.met.len(), decision.conditions.len());
    let ((), in_recycle) = count_allocations(|| node.engine.recycle(decision));
    Ok(LastEvaluation { end, met, conditions, allocations: in_evaluation + in_recycle })
}

fn node(profile: Profile, configuration: &Value, case: Case) -> Result<Node> {
    Node::new(&SimulatedNode::new(50, 1), profile, configuration, case)
}

/// Returns a node without pressure that was short of memory a while ago.
fn node_after_pressure(profile: Profile) -> Result<Node> {
    let mut under_pressure = node(profile, &json!({}), Case::MemoryPressure)?;
    assert_eq!(run_evaluations(&mut under_pressure)?.conditions, 1, "it was short of memory");
    let mut node = node(profile, &json!({}), Case::Calm)?;
    node.engine = under_pressure.engine;
    let event = Event::Pods(Arc::clone(&node.pods));
    node.engine.step(Input { at: Timestamp::UNIX_EPOCH, event });
    Ok(node)
}

#[test]
fn allocations_are_counted() {
    assert_eq!(count_allocations(|| drop(std::hint::black_box(vec![0_u8; 10]))).1, 1);
}

#[test]
fn an_evaluation_without_pressure_allocates_nothing() -> Result<()> {
    for profile in PROFILES {
        for case in [Case::Calm, Case::CalmNoLocalStorage] {
            let last = run_evaluations(&mut node(profile, &case.configuration(), case)?)?;
            let calm =
                LastEvaluation { end: EvaluationEnd::NoPressure, met: 0, conditions: 0, allocations: 0 };
            assert_eq!(last, calm, "{profile:?}, {}", case.name());
        }
    }
    Ok(())
}

#[test]
fn an_evaluation_in_the_transition_period_allocates_nothing() -> Result<()> {
    for profile in PROFILES {
        let last = run_evaluations(&mut node_after_pressure(profile)?)?;
        let calm = LastEvaluation { end: EvaluationEnd::NoPressure, met: 0, conditions: 1, allocations: 0 };
        assert_eq!(last, calm, "{profile:?}");
    }
    Ok(())
}

#[test]
fn an_evaluation_during_a_grace_period_allocates_nothing() -> Result<()> {
    let soft = json!({
        "evictionHard": {"nodefs.available": "1Ki"},
        "evictionSoft": {"memory.available": "10Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1h"},
    });
    for profile in PROFILES {
        let last = run_evaluations(&mut node(profile, &soft, Case::MemoryPressure)?)?;
        let calm = LastEvaluation { end: EvaluationEnd::NoPressure, met: 1, conditions: 1, allocations: 0 };
        assert_eq!(last, calm, "{profile:?}");
    }
    Ok(())
}

/// Each time another pod is evicted, in the profile that remembers evicted pods.
#[test]
fn an_evaluation_that_evicts_allocates_nothing() -> Result<()> {
    for profile in PROFILES {
        let case = Case::MemoryPressure;
        let last = run_evaluations(&mut node(profile, &case.configuration(), case)?)?;
        // The memory of the node, and the memory that is allocatable to pods.
        let expected = LastEvaluation { end: EvaluationEnd::Evicted, met: 2, conditions: 1, allocations: 0 };
        assert_eq!(last, expected, "{profile:?}");
    }
    Ok(())
}

/// The first evaluation that evicts after a time without pressure allocates nothing either: that is the purpose of
/// the reserved buffers.
#[test]
fn the_first_evaluation_that_evicts_with_reserved_buffers_allocates_nothing() -> Result<()> {
    for profile in PROFILES {
        let mut calm = node(profile, &json!({}), Case::Calm)?;
        assert_eq!(run_evaluations(&mut calm)?.end, EvaluationEnd::NoPressure);
        let mut node = node(profile, &json!({}), Case::MemoryPressure)?;
        node.engine = calm.engine;
        // Later than all samples of the calm node.
        node.carry_out(&[], Duration::from_secs(3600))?;
        let event = Event::Pods(Arc::clone(&node.pods));
        node.engine.step(Input { at: node.now, event });
        node.engine.reserve_buffers();
        let snapshot = node.next_snapshot(None)?;
        let (decision, allocations) = trace_allocations(|| node.sync(&snapshot));
        let evaluation = decision.evaluation().context("there was no evaluation")?;
        let result = (evaluation.end, allocations.blocks);
        assert_eq!(result, (EvaluationEnd::Evicted, 0), "{profile:?}: {allocations}");
    }
    Ok(())
}
