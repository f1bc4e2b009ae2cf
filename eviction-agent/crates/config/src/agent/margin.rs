//! How far the agent's thresholds lie above the kubelet's: the `thresholdMargin` part of an
//! `AgentConfiguration`.

mod apply;
#[cfg(test)]
mod tests;
mod value;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use apply::Capacities;
use eviction_core::signal::Signal;
use eviction_core::units::{Format, Quantity, ThresholdValue};
pub use value::MarginValue;

/// How far the thresholds lie above the kubelet's, in either profile, so that the agent evicts first and
/// the kubelet, which synchronizes every ten seconds, finds nothing to do. Thresholds of `policy.signals`
/// have no margin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ThresholdMargin {
    /// When there is a margin.
    pub mode: MarginMode,
    /// The margin of thresholds of memory and process ids: a percentage of the threshold, or a quantity.
    /// Zero is none.
    #[schemars(with = "String", extend("format" = "margin"))]
    pub value: MarginValue,
    /// The least margin of memory thresholds.
    #[schemars(with = "String", extend("format" = "quantity"))]
    pub minimum: Quantity,
    /// Margins of single signals, which replace `value` and `minimum`. Each signal at most once.
    pub per_signal: Vec<SignalMargin>,
}

/// When the agent's thresholds lie above the kubelet's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MarginMode {
    /// When pods come from the API server or evictions go there, since a kubelet then acts on the same
    /// thresholds. Not with `thresholds.source: Inline`: no kubelet has those thresholds.
    #[default]
    BesideKubelet,
    /// Always, also with `thresholds.source: Inline`.
    Always,
    /// Never.
    Never,
}

/// The margin of one signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignalMargin {
    /// The eviction signal.
    pub signal: Signal,
    /// A percentage of the threshold, or a quantity. Zero is none.
    #[schemars(with = "String", extend("format" = "margin"))]
    pub value: MarginValue,
}

impl Default for ThresholdMargin {
    fn default() -> Self {
        Self {
            mode: MarginMode::default(),
            value: MarginValue(ThresholdValue::Percentage(0.05)),
            minimum: Quantity::from_i64(32 << 20, Format::BinarySi),
            per_signal: Vec::new(),
        }
    }
}
