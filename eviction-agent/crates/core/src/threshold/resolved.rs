//! A threshold made ready for comparisons.

use crate::milli_units::Nanos;
use crate::observation::{Observation, Observations};
use crate::policy::Threshold;
use crate::units::ThresholdValue;

/// A threshold that is held against observations.
#[derive(Clone, Debug)]
pub struct ResolvedThreshold {
    /// The threshold.
    pub threshold: Threshold,
    value: ThresholdBasis,
    min_reclaim: ThresholdBasis,
}

/// A value or minimum reclaim, as far as it can be worked out without a capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ThresholdBasis {
    Fixed(Nanos),
    Share(f32),
}

impl ThresholdBasis {
    pub(crate) fn of(value: &ThresholdValue) -> Self {
        match value {
            ThresholdValue::Quantity(quantity) => Self::Fixed(Nanos::from_quantity(quantity)),
            ThresholdValue::Percentage(share) => Self::Share(*share),
        }
    }

    /// `api/types.go: GetThresholdQuantity`.
    pub(crate) fn at(self, capacity: i64) -> Nanos {
        match self {
            Self::Fixed(nanos) => nanos,
            Self::Share(share) => Nanos::from_quantity(&ThresholdValue::Percentage(share).quantity(capacity)),
        }
    }
}

impl ResolvedThreshold {
    pub(super) fn new(threshold: Threshold) -> Self {
        Self {
            value: ThresholdBasis::of(&threshold.value),
            min_reclaim: threshold
                .min_reclaim
                .as_ref()
                .map_or(ThresholdBasis::Fixed(Nanos::ZERO), ThresholdBasis::of),
            threshold,
        }
    }

    /// The available amount below which it is met, given a capacity.
    pub fn value(&self, capacity: i64) -> Nanos {
        self.value.at(capacity)
    }

    /// The available amount from which on it is resolved once it was met.
    pub fn resolved_at(&self, capacity: i64) -> Nanos {
        self.value(capacity).plus(self.min_reclaim.at(capacity))
    }

    /// Whether less than its value is available: `helpers.go: thresholdsMet`.
    pub(super) fn is_met(&self, observations: &Observations) -> bool {
        self.observed(observations).is_some_and(|seen| self.value(seen.capacity) > seen.nanos())
    }

    /// The same, with minimum reclaim enforced. Not met without an observation.
    pub(super) fn is_unresolved(&self, observations: &Observations) -> bool {
        self.observed(observations).is_some_and(|seen| self.resolved_at(seen.capacity) > seen.nanos())
    }

    /// Whether the kubelet takes the two for the same one, whatever their minimum reclaim:
    /// `helpers.go: hasThreshold`.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let (a, b) = (&self.threshold, &other.threshold);
        a.grace_period == b.grace_period && a.signal == b.signal && a.value == b.value
    }

    fn observed(&self, observations: &Observations) -> Option<Observation> {
        observations.get(self.threshold.signal)
    }
}
