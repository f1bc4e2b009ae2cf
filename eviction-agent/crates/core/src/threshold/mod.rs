//! Which thresholds are met, since when, and which of them may evict in this evaluation.

mod containerfs;
mod levels;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use containerfs::Replacement;
pub use containerfs::room;
pub use levels::ThresholdLevels;
use serde::{Deserialize, Serialize};

use crate::disk_layout::DiskLayout;
use crate::observation::{Observation, Observations};
use crate::policy::Threshold;
use crate::policy::preferences::{MemoryPreferences, MemoryPsi, PsiKind};
use crate::reading::{Reading, UnknownReason};
use crate::signal::{Resource, Signal};
use crate::snapshot::MemoryDetail;
use crate::time::{GO_ZERO, Timestamp, is_unset, since};
use crate::units::{GoDuration, Limit, Nanos, ThresholdValue};

/// Room for the four derived thresholds is left in the numbers that name thresholds.
const MOST: usize = 250;

/// All thresholds of a node and their state between evaluations.
///
/// Thresholds are named by their index in [`Thresholds::all`]. Lists of them keep the order
/// of the configuration, with those that only minimum reclaim keeps behind the others; where
/// the kubelet walks a map in random order, this is one of its orders.
#[derive(Clone, Debug)]
pub struct Thresholds {
    /// All that ever counted: one that was replaced may still wait for its minimum reclaim.
    all: Arc<[ResolvedThreshold]>,
    /// What the next evaluation considers.
    visible: Arc<[u8]>,
    /// What counts from the evaluation after it on.
    effective: Arc<[u8]>,
    before: Vec<Met>,
    last: Observations,
}

/// A threshold that is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// Its index in the list of thresholds.
    pub threshold: u8,
    /// Since when.
    pub first_seen: Timestamp,
    /// It is above its value again, but not by its minimum reclaim.
    pub by_min_reclaim: bool,
    /// It is not met yet, but about to be, and the policy acts on that.
    pub by_prediction: bool,
    /// Its grace period is over.
    pub grace_period_over: bool,
    /// It is ripe, and its values are newer than those of the last evaluation: it may evict.
    pub may_evict: bool,
}

impl Thresholds {
    /// Thresholds as configured. There can be 24, and what is beyond 250 is left out.
    pub fn new(given: &[Threshold]) -> Self {
        let given = &given[..given.len().min(MOST)];
        let all: Arc<[u8]> = (0..).take(given.len()).collect();
        Self {
            all: given.iter().cloned().map(ResolvedThreshold::new).collect(),
            visible: Arc::clone(&all),
            effective: all,
            // With room for all, derived ones too: a threshold is met when memory is short.
            before: Vec::with_capacity(given.len() + 4),
            last: Observations::default(),
        }
    }

    /// All of them.
    pub fn all(&self) -> &Arc<[ResolvedThreshold]> {
        &self.all
    }

    /// The indices of those that the next evaluation considers.
    pub fn visible(&self) -> &Arc<[u8]> {
        &self.visible
    }

    /// Adapts the thresholds of containerfs; `room` is that of [`Policy::list_room`]. Some of
    /// it stays out of sight until [`Thresholds::show_all`].
    ///
    /// [`Policy::list_room`]: super::policy::Policy::list_room
    pub(crate) fn derive_containerfs(&mut self, room: usize, layout: DiskLayout) {
        let given: Vec<_> = self.all.iter().map(|resolved| resolved.threshold.clone()).collect();
        let derived = containerfs::derive(&given, room, layout);
        let mut all = self.all.to_vec();
        let mut add = |threshold| {
            all.push(ResolvedThreshold::new(threshold));
            u8::try_from(all.len() - 1).ok()
        };
        let mut visible: Vec<Option<u8>> = self.effective.iter().copied().map(Some).collect();
        let mut effective = visible.clone();
        for Replacement { index, by, at_once } in derived.replaced {
            effective[index] = by.and_then(&mut add);
            if at_once {
                visible[index] = effective[index];
            }
        }
        effective.extend(derived.appended.into_iter().map(add));
        self.all = all.into();
        self.visible = visible.into_iter().flatten().collect();
        self.effective = effective.into_iter().flatten().collect();
    }

    /// Lets the next evaluation see all thresholds that count.
    pub(crate) fn show_all(&mut self) {
        self.visible = Arc::clone(&self.effective);
    }

    /// Holds the observations against the thresholds and remembers both. Writes what is met to
    /// `met`: `eviction_manager.go: synchronize`, from `thresholdsMet` to `lastObservations`.
    ///
    /// Without an open gate no threshold of memory is met or held; `predicted` ones count as
    /// met.
    pub(crate) fn observe(
        &mut self,
        at: Timestamp,
        seen: &Observations,
        gate: MemoryConditions,
        predicted: &[u8],
        met: &mut Vec<Met>,
    ) {
        met.clear();
        let passes = |resolved: &ResolvedThreshold| {
            gate == MemoryConditions::Open || resolved.threshold.signal.resource() != Resource::Memory
        };
        for &index in self.visible.iter() {
            let resolved = &self.all[usize::from(index)];
            let is_met = resolved.is_met(seen);
            if passes(resolved) && (is_met || predicted.contains(&index)) {
                met.push(Met { by_prediction: !is_met, ..self.met(at, index) });
            }
        }
        for ripe in self.before.iter().filter(|before| before.grace_period_over) {
            let resolved = self.resolved(*ripe);
            let is_there = |met: &Met| self.resolved(*met).is_like(resolved);
            if passes(resolved) && resolved.is_unresolved(seen) && !met.iter().any(is_there) {
                met.push(Met { by_min_reclaim: true, ..self.met(at, ripe.threshold) });
            }
        }
        for met in &mut *met {
            let threshold = &self.resolved(*met).threshold;
            met.grace_period_over = since(at, met.first_seen) >= threshold.grace_period;
            met.may_evict = met.grace_period_over && has_new_stats(threshold, seen, &self.last);
        }
        self.before.clear();
        self.before.extend_from_slice(met);
        self.last = *seen;
    }

    /// Whether any threshold that counts, visible or not, hard or soft, is still short of its
    /// minimum reclaim: how `reclaimNodeLevelResources` judges its success.
    pub(crate) fn any_unresolved(&self, seen: &Observations) -> bool {
        let is_unresolved = |&index: &u8| self.all[usize::from(index)].is_unresolved(seen);
        self.effective.iter().any(is_unresolved)
    }

    /// Whether one threshold is still short of its minimum reclaim.
    pub(crate) fn is_unresolved(&self, index: u8, seen: &Observations) -> bool {
        self.all.get(usize::from(index)).is_some_and(|resolved| resolved.is_unresolved(seen))
    }

    /// Those that an evaluation of these observations would find met, whatever their grace period.
    pub(crate) fn met_by(&self, seen: &Observations) -> impl Iterator<Item = (u8, &ResolvedThreshold)> {
        let visible = self.visible.iter().filter(|&&index| self.all[usize::from(index)].is_met(seen));
        let kept =
            self.before.iter().filter(|before| before.grace_period_over).map(|before| &before.threshold);
        let kept = kept.filter(|&&index| self.all[usize::from(index)].is_unresolved(seen));
        visible.chain(kept).map(|&index| (index, &self.all[usize::from(index)]))
    }

    /// Those that the last evaluation found met, as far as they are known by their value.
    pub(crate) fn met_since(&self) -> impl Iterator<Item = MetSince> {
        self.before.iter().map(|met| {
            let threshold = &self.resolved(*met).threshold;
            MetSince {
                signal: threshold.signal,
                value: text_of(&threshold.value),
                grace_period: threshold.grace_period,
                first_seen: met.first_seen,
                grace_period_over: met.grace_period_over,
            }
        })
    }

    /// Takes one over that was met before, if there still is such a threshold.
    pub(crate) fn restore(&mut self, met: &MetSince) {
        let is_it = |resolved: &ResolvedThreshold| {
            let threshold = &resolved.threshold;
            (threshold.signal, threshold.grace_period) == (met.signal, met.grace_period)
                && text_of(&threshold.value) == met.value
        };
        let index = self.all.iter().position(is_it).and_then(|index| u8::try_from(index).ok());
        if let Some(index) = index
            && !self.before.iter().any(|before| before.threshold == index)
        {
            let &MetSince { first_seen, grace_period_over: ripe, .. } = met;
            let (by_min_reclaim, by_prediction, fresh) = (false, false, false);
            self.before.push(Met {
                threshold: index,
                first_seen,
                by_min_reclaim,
                by_prediction,
                grace_period_over: ripe,
                may_evict: fresh,
            });
        }
    }

    fn resolved(&self, met: Met) -> &ResolvedThreshold {
        &self.all[usize::from(met.threshold)]
    }

    /// Other thresholds in the place of these. Those that are the same have been met as long
    /// as they were.
    pub(crate) fn replaced(&self, given: &[Threshold], derived: Option<(usize, DiskLayout)>) -> Self {
        let mut new = Self::new(given);
        if let Some((room, layout)) = derived {
            new.derive_containerfs(room, layout);
            new.show_all();
        }
        let index_of = |old: &ResolvedThreshold| new.all.iter().position(|resolved| resolved.is_like(old));
        let moved = |met: &Met| {
            let index = u8::try_from(index_of(self.resolved(*met))?).ok()?;
            Some(Met { threshold: index, ..*met })
        };
        let before = self.before.iter().filter_map(moved).collect();
        Self { before, last: self.last, ..new }
    }

    /// Takes the next values for new ones, whatever their time.
    pub(crate) fn forget_observations(&mut self) {
        self.last = Observations::default();
    }

    /// `helpers.go: thresholdsFirstObservedAt`.
    fn met(&self, at: Timestamp, index: u8) -> Met {
        let before = self.before.iter().find(|met| met.threshold == index);
        Met {
            threshold: index,
            first_seen: before.map_or(at, |met| met.first_seen),
            by_min_reclaim: false,
            by_prediction: false,
            grace_period_over: false,
            may_evict: false,
        }
    }
}

/// `helpers.go: thresholdsUpdatedStats`.
fn has_new_stats(threshold: &Threshold, seen: &Observations, last: &Observations) -> bool {
    let Some(now) = seen.get(threshold.signal) else {
        return false;
    };
    last.get(threshold.signal)
        .is_none_or(|before| is_unset(now.time) || now.time > Some(before.time.unwrap_or(GO_ZERO)))
}

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
    fn new(threshold: Threshold) -> Self {
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
    fn is_met(&self, observations: &Observations) -> bool {
        self.observed(observations).is_some_and(|seen| self.value(seen.capacity) > seen.nanos())
    }

    /// The same, with minimum reclaim enforced. Not met without an observation.
    fn is_unresolved(&self, observations: &Observations) -> bool {
        self.observed(observations).is_some_and(|seen| self.resolved_at(seen.capacity) > seen.nanos())
    }

    /// Whether the kubelet takes the two for the same one, whatever their minimum reclaim:
    /// `helpers.go: hasThreshold`.
    fn is_like(&self, other: &Self) -> bool {
        let (a, b) = (&self.threshold, &other.threshold);
        a.grace_period == b.grace_period && a.signal == b.signal && a.value == b.value
    }

    fn observed(&self, observations: &Observations) -> Option<Observation> {
        observations.get(self.threshold.signal)
    }
}

/// A threshold that is met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetSince {
    /// Of which signal.
    pub signal: Signal,
    /// The value, as [`text_of`] has it: a changed one is another threshold.
    pub value: Box<str>,
    /// Its grace period: zero for a hard one.
    pub grace_period: GoDuration,
    /// Since when.
    pub first_seen: Timestamp,
    /// Its grace period is over, so that it holds until its minimum reclaim.
    #[serde(rename = "ripe")]
    pub grace_period_over: bool,
}

/// The value of a threshold as a memory has it.
pub fn text_of(value: &ThresholdValue) -> Box<str> {
    match value {
        ThresholdValue::Quantity(quantity) => quantity.to_string().into(),
        ThresholdValue::Percentage(share) => format!("{share}").into(),
    }
}

/// Whether what thresholds of memory ask for beside the amount is there. Only an open gate
/// lets one be met, or be held by its minimum reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryConditions {
    /// It is, or nothing is asked for.
    #[default]
    Open,
    /// Tasks do not stall for memory as much as is asked for.
    TooLittleStall,
    /// Not as much swap is used as is asked for.
    TooLittleSwapUsed,
    /// Nobody knows, for this reason.
    Unknown(UnknownReason),
}

impl MemoryConditions {
    /// A condition that is known not to be fulfilled counts more than one that is not known.
    pub(crate) fn of(detail: &MemoryDetail, asked: &MemoryPreferences) -> Self {
        let MemoryPreferences { measure: _, psi, swap_used_at_least } = asked;
        let stall = psi.as_ref().map_or(Reading::Known(true), |asked| stalls(detail, asked));
        let swap = swap_used_at_least.as_ref().map_or(Reading::Known(true), |asked| swaps(detail, asked));
        match (stall, swap) {
            (Reading::Known(false), _) => Self::TooLittleStall,
            (_, Reading::Known(false)) => Self::TooLittleSwapUsed,
            (Reading::Unknown(why), _) | (_, Reading::Unknown(why)) => Self::Unknown(why),
            (Reading::Known(true), Reading::Known(true)) => Self::Open,
        }
    }
}

fn stalls(detail: &MemoryDetail, asked: &MemoryPsi) -> Reading<bool> {
    let MemoryPsi { kind, avg10, trigger: _ } = *asked;
    let Some(percent) = avg10 else { return detail.stalled };
    let share = match kind {
        PsiKind::Some => detail.some_avg10,
        PsiKind::Full => detail.full_avg10,
    };
    share.map(|hundredths| hundredths as f64 >= percent * 100.0)
}

/// Swap that is full is enough, however much was asked for.
fn swaps(detail: &MemoryDetail, asked: &Limit) -> Reading<bool> {
    let (used, total) = match (detail.swap_used, detail.swap_total) {
        (Reading::Known(used), Reading::Known(total)) => (used, total),
        (Reading::Unknown(why), _) | (_, Reading::Unknown(why)) => return Reading::Unknown(why),
    };
    let bytes = |bytes: u64| Nanos::from_units(i128::from(bytes));
    let asked = ThresholdBasis::of(asked.value()).at(i64::try_from(total).unwrap_or(i64::MAX));
    Reading::Known(bytes(used) >= asked.min(bytes(total)))
}
