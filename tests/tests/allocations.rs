//! A pass asks the allocator for nothing: an allocator may have to wait for the very memory that
//! is short. The nodes are those that the bench measures.

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
use tests::allocations::{Counting, counted, traced};
use tests::world::{Case, World};

use crate::node::{Node, victims};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PROFILES: [Profile; 2] = [Profile::Kubelet, Profile::Enhanced];

/// Passes after which every buffer has found its size.
const WARM_UP: usize = 3;

/// How a node was after some passes, and what the last one asked the allocator for.
#[derive(Debug, PartialEq, Eq)]
struct Last {
    end: EvaluationEnd,
    met: usize,
    conditions: usize,
    allocations: u64,
}

/// Passes over a node, in which everything comes back that the engine gives away.
fn passes(node: &mut Node) -> Result<Last> {
    let mut spare = None;
    for _ in 0..WARM_UP {
        let snapshot = node.look(spare.take())?;
        let decision = node.pass(&snapshot);
        let gone: Vec<_> = victims(&decision).collect();
        node.engine.recycle(decision);
        node.carry_out(&gone, Duration::ZERO)?;
        spare = Some(snapshot);
    }
    let snapshot = node.look(spare)?;
    let (decision, in_pass) = counted(|| node.pass(&snapshot));
    let pass = decision.evaluation().context("there was no pass")?;
    let (end, met, conditions) = (pass.end, pass.met.len(), decision.conditions.len());
    let ((), in_recycle) = counted(|| node.engine.recycle(decision));
    Ok(Last { end, met, conditions, allocations: in_pass + in_recycle })
}

fn node(profile: Profile, configuration: &Value, case: Case) -> Result<Node> {
    Node::new(&World::new(50, 1), profile, configuration, case)
}

/// A calm node that was short of memory a while ago.
fn node_after_pressure(profile: Profile) -> Result<Node> {
    let mut pressed = node(profile, &json!({}), Case::MemoryPressure)?;
    assert_eq!(passes(&mut pressed)?.conditions, 1, "it was short of memory");
    let mut node = node(profile, &json!({}), Case::Calm)?;
    node.engine = pressed.engine;
    let event = Event::Pods(Arc::clone(&node.pods));
    node.engine.step(Input { at: Timestamp::UNIX_EPOCH, event });
    Ok(node)
}

#[test]
fn allocations_are_counted() {
    assert_eq!(counted(|| drop(std::hint::black_box(vec![0_u8; 10]))).1, 1);
}

#[test]
fn a_calm_pass_allocates_nothing() -> Result<()> {
    for profile in PROFILES {
        for case in [Case::Calm, Case::CalmNoLocalStorage] {
            let last = passes(&mut node(profile, &case.configuration(), case)?)?;
            let calm = Last { end: EvaluationEnd::NoPressure, met: 0, conditions: 0, allocations: 0 };
            assert_eq!(last, calm, "{profile:?}, {}", case.name());
        }
    }
    Ok(())
}

#[test]
fn nor_does_one_in_which_a_condition_outlives_its_cause() -> Result<()> {
    for profile in PROFILES {
        let last = passes(&mut node_after_pressure(profile)?)?;
        let calm = Last { end: EvaluationEnd::NoPressure, met: 0, conditions: 1, allocations: 0 };
        assert_eq!(last, calm, "{profile:?}");
    }
    Ok(())
}

#[test]
fn nor_does_one_in_which_a_grace_period_runs() -> Result<()> {
    let soft = json!({
        "evictionHard": {"nodefs.available": "1Ki"},
        "evictionSoft": {"memory.available": "10Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1h"},
    });
    for profile in PROFILES {
        let last = passes(&mut node(profile, &soft, Case::MemoryPressure)?)?;
        let calm = Last { end: EvaluationEnd::NoPressure, met: 1, conditions: 1, allocations: 0 };
        assert_eq!(last, calm, "{profile:?}");
    }
    Ok(())
}

/// Each time somebody else, where the profile remembers who went.
#[test]
fn nor_does_one_that_evicts() -> Result<()> {
    for profile in PROFILES {
        let case = Case::MemoryPressure;
        let last = passes(&mut node(profile, &case.configuration(), case)?)?;
        // Memory of the node, and what is allocatable to pods.
        let expected = Last { end: EvaluationEnd::Evicted, met: 2, conditions: 1, allocations: 0 };
        assert_eq!(last, expected, "{profile:?}");
    }
    Ok(())
}

/// Nor what the rehearsal itself is for: the first one that evicts, after nothing but calm, whatever looks were
/// rehearsed.
#[test]
fn nor_does_the_first_that_evicts_where_it_was_rehearsed() -> Result<()> {
    for (profile, was_pressed) in PROFILES.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let mut calm = node(profile, &json!({}), Case::Calm)?;
        assert_eq!(passes(&mut calm)?.end, EvaluationEnd::NoPressure);
        let rehearsed = calm.look(None)?;
        let mut node = node(profile, &json!({}), Case::MemoryPressure)?;
        node.engine = calm.engine;
        // Later than all that the calm node saw.
        node.carry_out(&[], Duration::from_secs(3600))?;
        let event = Event::Pods(Arc::clone(&node.pods));
        node.engine.step(Input { at: node.now, event });
        let pressed = node.look(None)?;
        node.engine.warm_up(node.now, if was_pressed { pressed } else { rehearsed });
        assert!(node.engine.conditions().is_empty(), "nothing is left of the rehearsal");
        let snapshot = node.look(None)?;
        let (decision, asked) = traced(|| node.pass(&snapshot));
        let pass = decision.evaluation().context("there was no pass")?;
        let of = format!("{profile:?}, pressed {was_pressed}: {asked}");
        assert_eq!((pass.end, asked.blocks), (EvaluationEnd::Evicted, 0), "{of}");
    }
    Ok(())
}
