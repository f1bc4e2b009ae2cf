//! How far the agent's thresholds lie above the kubelet's: the `thresholdMargin` part of an
//! `AgentConfiguration`.

#[cfg(test)]
mod tests;

use std::fmt;

use eviction_core::policy::Threshold;
use eviction_core::signal::{Resource, Signal};
use eviction_core::units::{Format, Quantity, ThresholdValue, deserialize_text, parse_percentage};
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

const MIB: i64 = 1 << 20;

/// What a node has in all, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacities {
    /// Memory, bytes.
    pub memory: Option<i64>,
    /// Process ids.
    pub pids: Option<i64>,
}

/// By how much the thresholds of a signal are raised.
struct Lead<'a> {
    by: &'a MarginValue,
    minimum: Option<&'a Quantity>,
    capacity: Option<i64>,
    /// Amounts of memory are rounded up to this, so that people can read them.
    grain: i64,
}

impl ThresholdMargin {
    /// The thresholds, each as much higher as it is to be met earlier: never lower, and by no more
    /// than half of what lies between a threshold and all there is, so that none is met always. A
    /// percentage stays one. What turns a signal off does so still.
    ///
    /// # Errors
    /// Quantities by which a percentage is to be raised although it is not known of what.
    pub fn apply(
        &self,
        thresholds: Vec<Threshold>,
        capacities: Capacities,
    ) -> Result<Vec<Threshold>, Problems> {
        let mut problems = Vec::new();
        let raised = thresholds.into_iter().map(|threshold| {
            let Some(lead) = self.lead(threshold.signal, capacities) else { return threshold };
            match lead.over(&threshold.value) {
                Some(value) => Threshold { value, ..threshold },
                None => {
                    problems.push(self.problem(&threshold, &lead));
                    threshold
                }
            }
        });
        let raised = raised.collect();
        if problems.is_empty() { Ok(raised) } else { Err(Problems(problems)) }
    }

    /// Disks are left alone unless they are named: the kubelet deletes images before it evicts for
    /// them, and the agent would evict in its place.
    fn lead(&self, signal: Signal, capacities: Capacities) -> Option<Lead<'_>> {
        let Capacities { memory, pids } = capacities;
        let own = self.per_signal.iter().find(|own| own.signal == signal);
        let (minimum, capacity, grain) = match signal.resource() {
            Resource::Memory => (Some(&self.minimum), memory, MIB),
            Resource::Pids => (None, pids, 1),
            Resource::EphemeralStorage | Resource::Inodes => (None, None, 1),
        };
        let capacity = capacity.filter(|capacity| *capacity > 0);
        match (own, signal.resource()) {
            (Some(own), _) => Some(Lead { by: &own.value, minimum: None, capacity, grain }),
            (None, Resource::Memory | Resource::Pids) => {
                Some(Lead { by: &self.value, minimum, capacity, grain })
            }
            (None, Resource::EphemeralStorage | Resource::Inodes) => None,
        }
    }

    fn problem(&self, threshold: &Threshold, lead: &Lead<'_>) -> Problem {
        let own = self.per_signal.iter().position(|own| own.signal == threshold.signal);
        let path = own.map_or_else(
            || "thresholdMargin.value".to_owned(),
            |at| format!("thresholdMargin.perSignal[{at}].value"),
        );
        let cause = format!(
            "{} cannot be added to a percentage: how much there is in all of what {} measures is not known here",
            lead.by, threshold.signal
        );
        Problem::new(path, cause).with_help(Some("give a percentage of the threshold".to_owned()))
    }
}

impl Lead<'_> {
    fn over(&self, value: &ThresholdValue) -> Option<ThresholdValue> {
        match value {
            ThresholdValue::Quantity(quantity) => {
                Some(ThresholdValue::Quantity(self.over_quantity(quantity)))
            }
            ThresholdValue::Percentage(share) => self.over_share(*share).map(ThresholdValue::Percentage),
        }
    }

    fn over_quantity(&self, quantity: &Quantity) -> Quantity {
        // Beyond 64 bits there is nothing to be early for.
        let Some(own) = rounded_up(quantity).filter(|own| *own > 0) else { return quantity.clone() };
        let by = match &self.by.0 {
            ThresholdValue::Quantity(by) => rounded_up(by).unwrap_or(i64::MAX),
            ThresholdValue::Percentage(share) => part_of(own, *share, self.grain),
        };
        let least = self.minimum.and_then(rounded_up).unwrap_or(0);
        let most = self.capacity.map_or(i64::MAX, |capacity| capacity.saturating_sub(own).max(0) / 2);
        let by = by.max(least).min(most);
        if by <= 0 || own.checked_add(by).is_none() {
            return quantity.clone();
        }
        let mut raised = quantity.clone();
        raised.add(&Quantity::from_i64(by, Format::BinarySi));
        raised
    }

    fn over_share(&self, own: f32) -> Option<f32> {
        // 0% and 100% make no threshold, and what is not a number is never met.
        if !(own > 0.0 && own < 1.0) {
            return Some(own);
        }
        let of_all = |quantity: &Quantity| {
            let amount = rounded_up(quantity).unwrap_or(i64::MAX);
            self.capacity.map(|capacity| amount as f64 / capacity as f64)
        };
        let share = exact(own);
        let by = match &self.by.0 {
            ThresholdValue::Quantity(by) if by.is_zero() => 0.0,
            ThresholdValue::Quantity(by) => of_all(by)?,
            ThresholdValue::Percentage(by) => share * exact(*by),
        };
        let least = self.minimum.and_then(of_all).unwrap_or(0.0);
        let raised = share + by.max(least).min((1.0 - share) / 2.0);
        Some((raised as f32).max(own))
    }
}

/// An integer that is not less, if one fits.
fn rounded_up(quantity: &Quantity) -> Option<i64> {
    const UNIT: i128 = 1_000_000_000;
    let nanos = quantity.as_nanos()?;
    i64::try_from(nanos.div_euclid(UNIT) + i128::from(nanos.rem_euclid(UNIT) != 0)).ok()
}

/// A share of an amount, rounded up: to a multiple of the grain, unless the grain is larger.
fn part_of(amount: i64, share: f32, grain: i64) -> i64 {
    // Shares have 32 bits; what they are not exact by is not to be rounded up.
    let part = (amount as f64 * exact(share) - 1e-3).ceil() as i64;
    if part < grain {
        return part;
    }
    part.saturating_add(grain - 1) / grain * grain
}

/// The number that was written: percentages with up to four digits behind the point.
fn exact(share: f32) -> f64 {
    (f64::from(share) * 1e6).round() / 1e6
}

/// A percentage from 0% to 100%, or a quantity that is not negative.
#[derive(Clone, Debug, PartialEq)]
pub struct MarginValue(ThresholdValue);

impl MarginValue {
    fn parse(text: &str) -> Result<Self, String> {
        if text.ends_with('%') {
            let share = parse_percentage(text).map_err(|error| error.to_string())?;
            return match (0.0..=1.0).contains(&share) {
                true => Ok(Self(ThresholdValue::Percentage(share))),
                false => Err(format!("must be 0% to 100%, got {text}")),
            };
        }
        match Quantity::parse(text).map_err(|error| error.to_string())? {
            quantity if quantity.signum() < 0 => Err(format!("must not be negative, got {quantity}")),
            quantity => Ok(Self(ThresholdValue::Quantity(quantity))),
        }
    }
}

impl fmt::Display for MarginValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.configured())
    }
}

impl Serialize for MarginValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MarginValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, "a quantity or a percentage such as \"500Mi\" or \"5%\"", Self::parse)
    }
}
