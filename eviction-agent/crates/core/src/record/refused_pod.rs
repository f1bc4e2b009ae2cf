//! Pods that do not go although their turn had come.

use std::collections::BTreeMap;

use serde::Serialize;

use super::PodName;
use crate::decision::Evaluation;
use crate::protection::{Refusal, RefusedPod};

/// A pod that does not go although its turn had come.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusedPodRecord {
    /// Who.
    pub pod: PodName,
    /// Why.
    #[serde(flatten)]
    pub why: Refusal,
}

impl RefusedPodRecord {
    pub(super) fn all(evaluation: &Evaluation) -> Vec<Self> {
        let record = |RefusedPod { place, why }: &RefusedPod| {
            Some(Self { pod: PodName::of(&evaluation.pods.get(*place)?.pod), why: *why })
        };
        // The turn of a pod may come for several thresholds.
        let mut told: BTreeMap<u32, Vec<Refusal>> = BTreeMap::new();
        let is_new = |&&RefusedPod { place, why }: &&RefusedPod| {
            let told = told.entry(place).or_default();
            let is_new = !told.contains(&why);
            told.extend(is_new.then_some(why));
            is_new
        };
        evaluation.refused_pods.iter().filter(is_new).filter_map(record).collect()
    }
}
