//! Evictions in a record.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::decision::Evaluation;
use crate::eviction::Eviction;
use crate::message::{self, EvictionText};
use crate::pod::PodName;

/// A pod that goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvictionRecord {
    /// Who.
    pub pod: PodName,
    /// For what: the label of the kubelet's metric `kubelet_evictions`.
    pub signal: &'static str,
    /// Whether the threshold is a hard one; absent for a limit of the pod's own.
    #[serde(skip)]
    pub hard: Option<bool>,
    /// How long it may take to end.
    pub grace_period_seconds: i64,
    /// It went for a soft threshold already, and has less time from now on.
    #[serde(skip_serializing_if = "is_not")]
    pub takes_over: bool,
    /// Its PodDisruptionBudget said no, and is not asked again.
    #[serde(skip_serializing_if = "is_not")]
    pub ignores_budget: bool,
    /// For the event, the status and the condition of the pod.
    pub message: String,
    /// For the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<&'static str, String>>,
}

impl EvictionRecord {
    pub(super) fn of(evaluation: &Evaluation, eviction: &Eviction, takes_over: bool) -> Option<Self> {
        let known = evaluation.pods.get(eviction.place)?;
        let EvictionText { message, annotations } = message::eviction(evaluation, eviction);
        Some(Self {
            pod: PodName::of(&known.pod),
            signal: evaluation.label_of(eviction.cause),
            hard: evaluation.line_of(eviction.cause).map(|line| line.threshold.is_hard()),
            grace_period_seconds: eviction.grace_period_seconds,
            takes_over,
            ignores_budget: eviction.ignores_budget,
            message,
            annotations,
        })
    }
}

/// Whether to leave out what only matters if it is true.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_not(flag: &bool) -> bool {
    !flag
}
