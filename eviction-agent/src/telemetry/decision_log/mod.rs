//! Recorded decisions: each is a scenario of its own, which `replay` runs through the engine.
//!
//! It holds the inputs of the decision, which the [`DecisionRecord`] does not have (the policy, the
//! [`EngineState`], the pods and the sample), and from the record the pods that are evicted. Trends and
//! plausibility, which need several samples, are left out.

pub(crate) mod pods;
pub(crate) mod sample;
pub(crate) mod settings;
pub(crate) mod writer;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use eviction_core::decision::Decision;
use eviction_core::policy::Policy;
use eviction_core::record::DecisionRecord;
use eviction_core::state::EngineState;

/// What a decision was made with, beside what it holds itself.
#[derive(Clone, Debug)]
pub struct DecisionInputs {
    /// The policy in force.
    pub policy: Policy,
    /// The engine's state before the sample.
    pub memory: EngineState,
}

/// A pod that is evicted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvictedPod {
    /// Its uid.
    pub uid: Box<str>,
    /// Its grace period.
    pub grace_period_seconds: i64,
}

/// A decision that evicts pods, as a scenario of that name; nothing for any other.
pub fn scenario(
    name: &str,
    inputs: &DecisionInputs,
    decision: &Decision,
    record: &DecisionRecord,
) -> Option<Value> {
    let evicted: Vec<EvictedPod> = record
        .evaluation()?
        .evictions
        .iter()
        .map(|eviction| EvictedPod {
            uid: eviction.pod.uid.clone(),
            grace_period_seconds: eviction.grace_period_seconds,
        })
        .collect();
    if evicted.is_empty() {
        return None;
    }
    let DecisionInputs { policy, memory } = inputs;
    let evaluation = decision.evaluation()?;
    let layout = evaluation.layout;
    let scenario = json!({
        "name": name,
        "kubeletConfiguration": settings::kubelet(policy),
        "agentConfiguration": settings::agent(policy, evicted.len()),
        "filesystems": {
            "dedicatedImageFs": layout.dedicated_image_fs, "splitImageFs": layout.split_image_fs,
        },
        "pods": evaluation.pods.pods().iter().map(|known| pods::write(&known.pod)).collect::<Vec<_>>(),
        "steps": [{
            "at": record.at,
            "recall": memory,
            "summary": sample::summary(&evaluation.snapshot),
            "memory": sample::memory(&evaluation.snapshot.node.memory_detail),
        }],
    });
    Some(json!({"scenario": scenario, "went": evicted}))
}
