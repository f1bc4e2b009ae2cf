//! Inputs of the engine between two syncs of a scenario, and the outcome of a step.

use eviction_core::condition::RaisedCondition;
use eviction_core::message;
use eviction_core::message::{REASON_EVICTED, REASON_THRESHOLD_MET};
use eviction_core::pod::{Pod, PodCondition};
use eviction_core::pods::PodSet;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::record::EvictionRecord;
use eviction_core::signal::Resource;
use eviction_core::snapshot::MemoryDetail;
use serde::Deserialize;
use serde_json::Value;

use crate::scenario::format::{ConditionOutcome, EventOutcome, EvictionOutcome, StepOutcome};

/// The result of an eviction.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvictedPod {
    /// The UID of the pod.
    pub uid: Box<str>,
    /// The reason why the pod was not terminated. Empty if it was.
    #[serde(default)]
    pub error: Box<str>,
}

/// The kernel's values of the node's memory that the Summary does not have. Omitted values are
/// unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Memory {
    /// `MemAvailable`, bytes.
    pub mem_available: Option<u64>,
    /// Active file pages, bytes.
    pub active_file: Option<u64>,
    /// The share of the last ten seconds in which some task stalled, in percent.
    pub some_avg10: Option<f64>,
    /// The share of the last ten seconds in which all tasks stalled, in percent.
    pub full_avg10: Option<f64>,
    /// Whether tasks stalled as long as the PSI trigger requires.
    pub stalled: Option<bool>,
    /// Swap in use, bytes.
    pub swap_used: Option<u64>,
    /// Total swap, bytes.
    pub swap_total: Option<u64>,
}

impl Memory {
    /// Converts the values to those of a sample.
    pub(super) fn detail(self) -> MemoryDetail {
        let Self { mem_available, active_file, some_avg10, full_avg10, stalled, swap_used, swap_total } =
            self;
        // The conversion of floats saturates at the least and the greatest integer.
        let hundredths =
            |percent: Option<f64>| known(percent.map(|percent| (percent * 100.0).round() as u64));
        MemoryDetail {
            mem_available: known(mem_available),
            active_file: known(active_file),
            some_avg10: hundredths(some_avg10),
            full_avg10: hundredths(full_avg10),
            stalled: known(stalled),
            swap_used: known(swap_used),
            swap_total: known(swap_total),
        }
    }
}

fn known<T>(value: Option<T>) -> Reading<T> {
    value.map_or(Reading::Unknown(UnknownReason::Absent), Reading::Known)
}

/// A changed configuration. Omitted parts are those of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProposedConfig {
    /// The KubeletConfiguration.
    pub kubelet_configuration: Option<Value>,
    /// The AgentConfiguration.
    pub agent_configuration: Option<Value>,
}

const WARNING: &str = "Warning";

/// Returns the node's event for a resource that is short.
pub(super) fn node_event(resource: Resource) -> EventOutcome {
    EventOutcome {
        object: "Node/node".to_owned(),
        kind: WARNING.to_owned(),
        reason: REASON_THRESHOLD_MET.to_owned(),
        message: message::announcement(resource),
    }
}

/// Returns the outcome of an eviction.
pub(super) fn eviction_outcome(eviction: &EvictionRecord, pod: &Pod, kill_error: &str) -> EvictionOutcome {
    let EvictionRecord { message, annotations, hard, grace_period_seconds, .. } = eviction;
    let annotations = annotations.as_ref().map(|annotations| {
        annotations.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    });
    EvictionOutcome {
        uid: pod.uid.to_string(),
        name: pod.name.to_string(),
        namespace: pod.namespace.to_string(),
        grace_period_seconds: *grace_period_seconds,
        phase: "Failed".to_owned(),
        reason: REASON_EVICTED.to_owned(),
        conditions: conditions(pod, hard.map(|_| message)),
        message: message.clone(),
        annotations,
        kill_error: kill_error.to_owned(),
    }
}

/// Completes the outcome of a step: sorts the evictions by the active pods, and adds the events of the pods and the
/// node conditions.
pub(super) fn complete_outcome(outcome: &mut StepOutcome, active: &PodSet, conditions: &[RaisedCondition]) {
    let last_index = |uid: &str| active.pods().iter().rposition(|known| *known.pod.uid == *uid);
    outcome.evictions.sort_by_cached_key(|it| last_index(&it.uid).unwrap_or(usize::MAX));
    let events = outcome.evictions.iter().map(|it| EventOutcome {
        object: format!("Pod/{}/{}", it.namespace, it.name),
        kind: WARNING.to_owned(),
        reason: it.reason.clone(),
        message: it.message.clone(),
    });
    outcome.events.extend(events);
    outcome.node_conditions = conditions.iter().map(|raised| raised.condition.to_string()).collect();
    outcome.node_conditions.sort();
}

/// Returns the conditions of an evicted pod: its own, and `DisruptionTarget` if it was evicted for
/// a threshold of the node. That replaces an older one or is appended.
fn conditions(pod: &Pod, disruption: Option<&String>) -> Vec<ConditionOutcome> {
    let outcome = |condition: &PodCondition| ConditionOutcome {
        kind: condition.kind.to_string(),
        status: condition.status.to_string(),
        reason: condition.reason.to_string(),
        message: condition.message.to_string(),
        observed_generation: condition.observed_generation,
    };
    let mut conditions: Vec<_> = pod.conditions.iter().map(outcome).collect();
    if let Some(message) = disruption {
        let target = ConditionOutcome {
            kind: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: "TerminationByKubelet".to_owned(),
            message: message.clone(),
            observed_generation: pod.generation,
        };
        match conditions.iter_mut().find(|other| other.kind == target.kind) {
            Some(older) => *older = target,
            None => conditions.push(target),
        }
    }
    conditions
}
