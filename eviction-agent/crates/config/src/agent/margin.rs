//! The margin of the agent's thresholds over the kubelet's: the `thresholdMargin` part of an
//! `AgentConfiguration`.

#[cfg(test)]
mod tests;

use eviction_core::policy::Threshold;
use eviction_core::signal::{Resource, Signal};
use eviction_core::units::{Format, Quantity, ThresholdValue, deserialize_text};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::problem::{Problem, Problems};

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
    #[serde(deserialize_with = "deserialize_margin", serialize_with = "serialize_margin")]
    #[schemars(with = "String", extend("format" = "margin"))]
    pub value: ThresholdValue,
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
    #[serde(deserialize_with = "deserialize_margin", serialize_with = "serialize_margin")]
    #[schemars(with = "String", extend("format" = "margin"))]
    pub value: ThresholdValue,
}

impl Default for ThresholdMargin {
    fn default() -> Self {
        Self {
            mode: MarginMode::default(),
            value: ThresholdValue::Percentage(0.05),
            minimum: Quantity::from_i64(32 << 20, Format::BinarySi),
            per_signal: Vec::new(),
        }
    }
}

const MIB: i64 = 1 << 20;

/// The capacities of a node, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacities {
    /// Memory in bytes.
    pub memory: Option<i64>,
    /// The number of process ids.
    pub pids: Option<i64>,
}

/// The margin that is added to the thresholds of a signal.
struct EffectiveMargin<'a> {
    increase: &'a ThresholdValue,
    minimum: Option<&'a Quantity>,
    capacity: Option<i64>,
    /// The multiple to which amounts of memory are rounded up, so that they are readable.
    rounding: i64,
}

impl ThresholdMargin {
    /// Returns the thresholds with their margins. No threshold becomes lower. The margin is at most half of
    /// the difference between a threshold and the capacity, so that no threshold is always met. A percentage
    /// stays a percentage. A value that disables a signal is not changed.
    ///
    /// # Errors
    /// If a margin is a quantity, the threshold is a percentage, and the capacity is not known.
    pub fn apply(
        &self,
        mut thresholds: Vec<Threshold>,
        capacities: Capacities,
    ) -> Result<Vec<Threshold>, Problems> {
        let mut problems = Vec::new();
        for threshold in &mut thresholds {
            let Some(margin) = self.effective_margin(threshold.signal, capacities) else { continue };
            match margin.raise(&threshold.value) {
                Some(value) => threshold.value = value,
                None => problems.push(self.problem(threshold.signal, margin.increase)),
            }
        }
        if problems.is_empty() { Ok(thresholds) } else { Err(Problems(problems)) }
    }

    /// Returns the margin for a signal. File system signals have a margin only if it is configured for them:
    /// the kubelet deletes images before it evicts pods for these signals, and the agent would evict pods
    /// instead.
    fn effective_margin(&self, signal: Signal, capacities: Capacities) -> Option<EffectiveMargin<'_>> {
        let own = self.per_signal.iter().find(|own| own.signal == signal);
        let (minimum, capacity, rounding) = match signal.resource() {
            Resource::Memory => (Some(&self.minimum), capacities.memory, MIB),
            Resource::Pids => (None, capacities.pids, 1),
            Resource::EphemeralStorage | Resource::Inodes => own.map(|_| (None, None, 1))?,
        };
        Some(EffectiveMargin {
            increase: own.map_or(&self.value, |own| &own.value),
            minimum: minimum.filter(|_| own.is_none()),
            capacity: capacity.filter(|capacity| *capacity > 0),
            rounding,
        })
    }

    fn problem(&self, signal: Signal, increase: &ThresholdValue) -> Problem {
        let own = self.per_signal.iter().position(|own| own.signal == signal);
        let path = own.map_or_else(
            || "thresholdMargin.value".to_owned(),
            |at| format!("thresholdMargin.perSignal[{at}].value"),
        );
        let cause = format!(
            "{} cannot be added to a percentage: how much there is in all of what {signal} measures is not known \
             here",
            increase.configured()
        );
        Problem::new(path, cause).with_help(Some("give a percentage of the threshold".to_owned()))
    }
}

impl EffectiveMargin<'_> {
    fn raise(&self, value: &ThresholdValue) -> Option<ThresholdValue> {
        Some(match value {
            ThresholdValue::Quantity(quantity) => ThresholdValue::Quantity(self.raise_quantity(quantity)),
            ThresholdValue::Percentage(share) => ThresholdValue::Percentage(self.raise_percentage(*share)?),
        })
    }

    fn raise_quantity(&self, quantity: &Quantity) -> Quantity {
        let own = quantity.value();
        if own <= 0 {
            return quantity.clone();
        }
        let increase = match self.increase {
            ThresholdValue::Quantity(increase) => increase.value(),
            ThresholdValue::Percentage(share) => share_of_amount(own, *share, self.rounding),
        };
        let least = self.minimum.map_or(0, Quantity::value);
        let most = self.capacity.map_or(i64::MAX, |capacity| capacity.saturating_sub(own).max(0) / 2);
        let increase = increase.max(least).min(most);
        // A value of more than 64 bits gets no margin.
        if increase <= 0 || own.checked_add(increase).is_none() {
            return quantity.clone();
        }
        let mut raised = quantity.clone();
        raised.add(&Quantity::from_i64(increase, Format::BinarySi));
        raised
    }

    fn raise_percentage(&self, own: f32) -> Option<f32> {
        // 0% and 100% disable the threshold, and a value that is not a number is never met.
        if !(own > 0.0 && own < 1.0) {
            return Some(own);
        }
        let share_of_capacity = |quantity: &Quantity| {
            let amount = quantity.value();
            self.capacity.map(|capacity| amount as f64 / capacity as f64)
        };
        let share = configured_share(own);
        let increase = match self.increase {
            ThresholdValue::Quantity(increase) if increase.is_zero() => 0.0,
            ThresholdValue::Quantity(increase) => share_of_capacity(increase)?,
            ThresholdValue::Percentage(increase) => share * configured_share(*increase),
        };
        let least = self.minimum.and_then(share_of_capacity).unwrap_or(0.0);
        let raised = share + increase.max(least).min((1.0 - share) / 2.0);
        Some((raised as f32).max(own))
    }
}

/// Returns a share of an amount, rounded up. A result of at least the grain is rounded up to a multiple of
/// it.
fn share_of_amount(amount: i64, share: f32, rounding: i64) -> i64 {
    // Shares have 32 bits, and their rounding error must not be rounded up.
    let part = (amount as f64 * configured_share(share) - 1e-3).ceil() as i64;
    if part < rounding {
        return part;
    }
    part.saturating_add(rounding - 1) / rounding * rounding
}

/// Returns the share as it was configured: a percentage with up to four decimal places.
fn configured_share(share: f32) -> f64 {
    (f64::from(share) * 1e6).round() / 1e6
}

/// Parses a percentage from 0% to 100%, or a quantity that is not negative.
fn parse_margin(text: &str) -> Result<ThresholdValue, String> {
    match ThresholdValue::parse(text)? {
        ThresholdValue::Percentage(share) if !(0.0..=1.0).contains(&share) => {
            Err(format!("must be 0% to 100%, got {text}"))
        }
        ThresholdValue::Quantity(quantity) if quantity.signum() < 0 => {
            Err(format!("must not be negative, got {quantity}"))
        }
        value => Ok(value),
    }
}

fn deserialize_margin<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ThresholdValue, D::Error> {
    deserialize_text(deserializer, "a quantity or a percentage such as \"500Mi\" or \"5%\"", parse_margin)
}

fn serialize_margin<S: Serializer>(value: &ThresholdValue, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.configured())
}
