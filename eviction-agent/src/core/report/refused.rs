//! Pods that do not go although their turn had come.

use serde::Serialize;

use super::PodName;
use crate::core::decision::Pass;
use crate::core::protection::{Refusal, RefusedPod};

/// A pod that does not go although its turn had come.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusedReport {
    /// Who.
    pub pod: PodName,
    /// Why.
    #[serde(flatten)]
    pub why: Refusal,
}

impl RefusedReport {
    pub(super) fn all(pass: &Pass) -> Vec<Self> {
        let report = |RefusedPod { place, why }: &RefusedPod| {
            Some(Self { pod: PodName::of(&pass.pods.get(*place)?.pod), why: *why })
        };
        pass.refused_pods.iter().filter_map(report).collect()
    }
}
