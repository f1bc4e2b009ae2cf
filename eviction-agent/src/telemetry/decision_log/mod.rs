//! Decisions as they are recorded: each is a scenario that stands for itself, and `replay` runs it
//! through the engine of today.
//!
//! In it is what the engine went by (the policy), what it knew ([`EngineState`]), the pods, the look, and
//! who went. What only several looks tell, trends and doubts, is not.

mod look;
mod pods;
mod settings;
pub(crate) mod writer;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use eviction_core::decision::{Action, Decision, Evaluation};
use eviction_core::policy::Policy;
use eviction_core::state::EngineState;

/// What a decision was made with, beside what it has itself.
#[derive(Clone, Debug)]
pub struct DecisionInputs {
    /// What the engine decided by.
    pub policy: Policy,
    /// What it knew before the look.
    pub memory: EngineState,
}

/// A pod that goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvictedPod {
    /// Its uid.
    pub uid: Box<str>,
    /// How long it may take to end.
    pub grace_period_seconds: i64,
}

/// A decision by which somebody goes, as a scenario of that name; nothing for any other.
pub fn record(name: &str, before: &DecisionInputs, decision: &Decision) -> Option<Value> {
    let pass = decision.pass()?;
    let went = went(pass, decision);
    if went.is_empty() {
        return None;
    }
    let DecisionInputs { policy, memory } = before;
    let scenario = json!({
        "name": name,
        "kubeletConfiguration": settings::kubelet(policy),
        "agentConfiguration": settings::agent(policy, went.len()),
        "filesystems": {
            "dedicatedImageFs": pass.layout.dedicated_image_fs, "splitImageFs": pass.layout.split_image_fs,
        },
        "pods": pass.pods.pods().iter().map(|known| pods::write(&known.pod)).collect::<Vec<_>>(),
        "steps": [{
            "at": decision.at,
            "recall": memory,
            "summary": look::summary(&pass.snapshot),
            "memory": look::beside(&pass.snapshot.node.memory_detail),
        }],
    });
    Some(json!({"scenario": scenario, "went": went}))
}

fn went(pass: &Evaluation, decision: &Decision) -> Vec<EvictedPod> {
    let evictions = decision.actions.iter().filter_map(|action| match action {
        Action::Evict(eviction) | Action::ShortenGrace(eviction) => Some(eviction),
        Action::RecordEvent(_) | Action::Reclaim(_) => None,
    });
    let went = evictions.filter_map(|eviction| {
        let uid = pass.pods.get(eviction.place)?.pod.uid.clone();
        Some(EvictedPod { uid, grace_period_seconds: eviction.grace_period_seconds })
    });
    went.collect()
}
