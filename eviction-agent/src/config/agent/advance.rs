//! How much earlier than the kubelet the agent acts: the `advance` part of an `AgentConfiguration`.

mod apply;
mod part;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::core::signal::Signal;
use crate::core::units::{Format, Quantity};
pub use apply::Capacities;
pub use part::Part;
pub(super) use part::parse_quantity;

/// How much earlier than the kubelet the agent acts, in either profile, so that the kubelet, which
/// looks every ten seconds, finds nothing to do. It is for the thresholds that are the kubelet's;
/// those of `policy.signals` are taken as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Advance {
    /// When the thresholds are raised.
    pub when: AdvanceWhen,
    /// By how much those of memory and process ids are raised: a percentage of the threshold, or a
    /// quantity. Zero is not at all.
    #[schemars(with = "String", extend("format" = "part"))]
    pub by: Part,
    /// The least by which those of memory are raised.
    #[schemars(with = "String", extend("format" = "quantity"))]
    pub at_least: Quantity,
    /// By how much those of single signals are raised, in the place of `by` and `atLeast`.
    pub signals: Vec<SignalAdvance>,
}

/// When the kubelet's thresholds are raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AdvanceWhen {
    /// When pods come from the API server, or evictions go there: a kubelet acts on the same
    /// thresholds then. Not those of `thresholds.given`, which no kubelet has.
    #[default]
    BesideKubelet,
    /// Always, also those that are given.
    Always,
    /// Never.
    Never,
}

/// By how much the thresholds of one signal are raised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignalAdvance {
    /// What is measured.
    pub signal: Signal,
    /// A percentage of the threshold, or a quantity. Zero is not at all.
    #[schemars(with = "String", extend("format" = "part"))]
    pub by: Part,
}

impl Default for Advance {
    fn default() -> Self {
        Self {
            when: AdvanceWhen::default(),
            by: Part::percent(5),
            at_least: Quantity::from_i64(32 << 20, Format::BinarySi),
            signals: Vec::new(),
        }
    }
}
