//! Inputs of the engine between two syncs of a scenario, and the outcome of a step.

use std::collections::HashMap;
use std::sync::Arc;

use eviction_core::condition::RaisedCondition;
use eviction_core::disk_layout::Reclaim;
use eviction_core::message;
use eviction_core::message::{REASON_EVICTED, REASON_THRESHOLD_MET};
use eviction_core::pod::{Pod, PodCondition};
use eviction_core::pods::KnownPod;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::record::{DecisionRecord, EvictionRecord};
use eviction_core::signal::Resource;
use eviction_core::snapshot::MemoryDetail;
use eviction_core::time::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::scenario::expected::ExpectedStep;
use crate::scenario::format::{AdmitOutcome, ConditionOutcome, EventOutcome, EvictionOutcome, StepOutcome};

/// The result of an eviction.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evicted {
    /// The UID of the pod.
    pub uid: Box<str>,
    /// Why the pod is not gone; empty if it is.
    #[serde(default)]
    pub error: Box<str>,
}

/// What the kernel says of the node's memory beside the Summary; what is left out is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Memory {
    /// `MemAvailable`, bytes.
    pub mem_available: Option<u64>,
    /// Active file pages, bytes.
    pub active_file: Option<u64>,
    /// Share of the last ten seconds in which some task stalled, in percent.
    pub some_avg10: Option<f64>,
    /// Share in which all tasks did.
    pub full_avg10: Option<f64>,
    /// Whether tasks stalled as long as the trigger asks for.
    pub stalled: Option<bool>,
    /// Swap in use, bytes.
    pub swap_used: Option<u64>,
    /// All swap, bytes.
    pub swap_total: Option<u64>,
}

impl Memory {
    /// As a sample has it.
    pub(super) fn detail(self) -> MemoryDetail {
        let Self { mem_available, active_file, some_avg10, full_avg10, stalled, swap_used, swap_total } =
            self;
        // A conversion of floats ends at the least and the greatest integer.
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

fn known<T>(figure: Option<T>) -> Reading<T> {
    figure.map_or(Reading::Unknown(UnknownReason::Absent), Reading::Known)
}

/// A changed configuration. What is left out is that of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Proposed {
    /// The kubelet's.
    pub kubelet_configuration: Option<Value>,
    /// The agent's own.
    pub agent_configuration: Option<Value>,
}

const WARNING: &str = "Warning";

/// Collects the outcome of a step.
pub(super) struct Record {
    outcome: StepOutcome,
    evictions: Vec<(usize, EvictionOutcome, EventOutcome)>,
    /// By uid the last place among the active pods.
    places: HashMap<Box<str>, usize>,
}

impl Record {
    pub(super) fn new(at: Timestamp, active: &[Arc<KnownPod>]) -> Self {
        let places = active.iter().enumerate();
        Self {
            outcome: StepOutcome { at: at.to_string(), ..StepOutcome::default() },
            evictions: Vec::new(),
            places: places.map(|(place, known)| (known.pod.uid.clone(), place)).collect(),
        }
    }

    pub(super) fn announce(&mut self, resource: Resource) {
        self.outcome.events.push(EventOutcome {
            object: "Node/node".to_owned(),
            kind: WARNING.to_owned(),
            reason: REASON_THRESHOLD_MET.to_owned(),
            message: message::announcement(resource),
        });
    }

    pub(super) fn reclaim(&mut self, reclaim: Reclaim) {
        self.outcome.reclaim.push(reclaim.name().to_owned());
    }

    pub(super) fn evict(&mut self, eviction: &EvictionRecord, pod: &Pod, kill_error: &str) {
        let EvictionRecord { message, annotations, hard, grace_period_seconds, .. } = eviction;
        let annotations = annotations.as_ref().map(|annotations| {
            annotations.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
        });
        let event = EventOutcome {
            object: format!("Pod/{}/{}", pod.namespace, pod.name),
            kind: WARNING.to_owned(),
            reason: REASON_EVICTED.to_owned(),
            message: message.clone(),
        };
        let outcome = EvictionOutcome {
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
        };
        let place = self.places.get(&pod.uid).copied().unwrap_or(usize::MAX);
        self.evictions.push((place, outcome, event));
    }

    pub(super) fn answer(&mut self, answer: AdmitOutcome) {
        self.outcome.admit.push(answer);
    }

    pub(super) fn report(&mut self, report: &DecisionRecord, oom: ExpectedStep) {
        let ExpectedStep { oom_kills, ended, .. } = oom;
        self.outcome.report = Some(ExpectedStep { oom_kills, ended, ..ExpectedStep::of(report) });
    }

    pub(super) fn finish(mut self, conditions: &[RaisedCondition]) -> StepOutcome {
        self.evictions.sort_by_key(|(place, ..)| *place);
        for (_, eviction, event) in self.evictions {
            self.outcome.evictions.push(eviction);
            self.outcome.events.push(event);
        }
        let names = conditions.iter().map(|raised| raised.condition.to_string());
        self.outcome.node_conditions = names.collect();
        self.outcome.node_conditions.sort();
        self.outcome
    }
}

/// The conditions of an evicted pod: its own, and `DisruptionTarget` in the place of an older
/// one or at the end, if it was evicted for a threshold of the node.
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
