//! Which thresholds are met, since when, and which of them may evict in this evaluation; the further conditions of
//! memory thresholds; and the available amounts at which thresholds are met.

mod containerfs;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use containerfs::room;
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

/// The largest number of configured thresholds. It leaves indices for the four derived thresholds.
const MAX_THRESHOLDS: usize = 250;

/// All thresholds of a node and their state between evaluations.
///
/// Thresholds are identified by their index in [`Thresholds::all`]. Lists of them are in configured order,
/// followed by those that only their minimum reclaim keeps met. Where the kubelet iterates over a map in
/// random order, this is one of its orders.
#[derive(Clone, Debug)]
pub struct Thresholds {
    /// All thresholds that ever counted. One that was replaced may still wait for its minimum reclaim.
    all: Arc<[Threshold]>,
    /// The thresholds that the next evaluation uses.
    visible: Arc<[u8]>,
    /// The thresholds that count from the following evaluation on.
    effective: Arc<[u8]>,
    before: Vec<Met>,
    last: Observations,
}

/// A threshold that is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The index in the list of thresholds.
    pub threshold: u8,
    /// Since when the threshold is met.
    pub first_seen: Timestamp,
    /// Whether the amount is above the value again, but not by the minimum reclaim.
    pub by_min_reclaim: bool,
    /// Whether the threshold is only predicted to be met, and the policy acts on that.
    pub by_prediction: bool,
    /// Whether the grace period is over.
    pub grace_period_over: bool,
    /// Whether the threshold may evict: the grace period is over, and the values are newer than those of the
    /// last evaluation.
    pub may_evict: bool,
}

impl Thresholds {
    /// Creates the state of the configured thresholds. There can be 24; those beyond 250 are dropped.
    pub fn new(given: &[Threshold]) -> Self {
        let given = &given[..given.len().min(MAX_THRESHOLDS)];
        let all: Arc<[u8]> = (0..).take(given.len()).collect();
        Self {
            all: given.into(),
            visible: Arc::clone(&all),
            effective: all,
            before: Vec::new(),
            last: Observations::default(),
        }
    }

    /// Reserves space for all thresholds, because a threshold is met when memory is short.
    pub(crate) fn reserve(&mut self) {
        self.before.reserve(self.all.len());
    }

    /// Returns all thresholds.
    pub fn all(&self) -> &Arc<[Threshold]> {
        &self.all
    }

    /// Returns the indices of the thresholds that the next evaluation uses.
    pub fn visible(&self) -> &Arc<[u8]> {
        &self.visible
    }

    /// Makes all thresholds that count visible to the next evaluation.
    pub(crate) fn show_all(&mut self) {
        self.visible = Arc::clone(&self.effective);
    }

    /// Compares the observations with the thresholds and stores both. Writes the met thresholds to `met`:
    /// `eviction_manager.go: synchronize`, from `thresholdsMet` to `lastObservations`.
    ///
    /// Unless `gate` is open, no memory threshold is met or kept met. Thresholds in `predicted` count as met.
    pub(crate) fn observe(
        &mut self,
        at: Timestamp,
        seen: &Observations,
        gate: MemoryConditions,
        predicted: &[u8],
        met: &mut Vec<Met>,
    ) {
        met.clear();
        let gate_allows = |threshold: &Threshold| {
            gate == MemoryConditions::Fulfilled || threshold.signal.resource() != Resource::Memory
        };
        for &index in self.visible.iter() {
            let threshold = &self.all[usize::from(index)];
            let is_met = threshold.is_met(seen);
            if gate_allows(threshold) && (is_met || predicted.contains(&index)) {
                met.push(Met { by_prediction: !is_met, ..self.met(at, index) });
            }
        }
        for before in self.before.iter().filter(|before| before.grace_period_over) {
            let threshold = self.threshold(*before);
            let is_same = |met: &Met| self.threshold(*met).is_like(threshold);
            if gate_allows(threshold) && threshold.is_unresolved(seen) && !met.iter().any(is_same) {
                met.push(Met { by_min_reclaim: true, ..self.met(at, before.threshold) });
            }
        }
        for met in &mut *met {
            let threshold = self.threshold(*met);
            met.grace_period_over = since(at, met.first_seen) >= threshold.grace_period;
            met.may_evict = met.grace_period_over && has_new_stats(threshold, seen, &self.last);
        }
        self.before.clear();
        self.before.extend_from_slice(met);
        self.last = *seen;
    }

    /// Returns whether any threshold that counts, visible or not, hard or soft, has not reached its minimum
    /// reclaim. `reclaimNodeLevelResources` determines its success in this way.
    pub(crate) fn any_unresolved(&self, seen: &Observations) -> bool {
        let is_unresolved = |&index: &u8| self.all[usize::from(index)].is_unresolved(seen);
        self.effective.iter().any(is_unresolved)
    }

    /// Returns whether a threshold has not reached its minimum reclaim.
    pub(crate) fn is_unresolved(&self, index: u8, seen: &Observations) -> bool {
        self.all.get(usize::from(index)).is_some_and(|threshold| threshold.is_unresolved(seen))
    }

    /// Returns the thresholds that an evaluation of these observations would find met, whatever their grace period.
    pub(crate) fn met_by(&self, seen: &Observations) -> impl Iterator<Item = (u8, &Threshold)> {
        let visible = self.visible.iter().filter(|&&index| self.all[usize::from(index)].is_met(seen));
        let kept_met =
            self.before.iter().filter(|before| before.grace_period_over).map(|before| &before.threshold);
        let kept_met = kept_met.filter(|&&index| self.all[usize::from(index)].is_unresolved(seen));
        visible.chain(kept_met).map(|&index| (index, &self.all[usize::from(index)]))
    }

    /// Returns the thresholds that the last evaluation found met, identified by their value.
    pub(crate) fn met_since(&self) -> impl Iterator<Item = MetSince> {
        self.before.iter().map(|met| {
            let threshold = self.threshold(*met);
            MetSince {
                signal: threshold.signal,
                value: threshold.value.configured(),
                grace_period: threshold.grace_period,
                first_seen: met.first_seen,
                grace_period_over: met.grace_period_over,
            }
        })
    }

    /// Restores a threshold that was met before, if the threshold still exists.
    pub(crate) fn restore(&mut self, met: &MetSince) {
        let matches = |threshold: &Threshold| {
            (threshold.signal, threshold.grace_period) == (met.signal, met.grace_period)
                && threshold.value.configured() == met.value
        };
        let index = self.all.iter().position(matches).and_then(|index| u8::try_from(index).ok());
        if let Some(index) = index
            && !self.before.iter().any(|before| before.threshold == index)
        {
            let restored = self.met(met.first_seen, index);
            self.before.push(Met { grace_period_over: met.grace_period_over, ..restored });
        }
    }

    fn threshold(&self, met: Met) -> &Threshold {
        &self.all[usize::from(met.threshold)]
    }

    /// Returns the state of other thresholds. Thresholds that are the same in both have been met for as long
    /// as before.
    pub(crate) fn replaced(&self, given: &[Threshold], layout: Option<DiskLayout>) -> Self {
        let mut new = Self::new(given);
        if let Some(layout) = layout {
            // The room does not matter, because all changes become visible.
            new.derive_containerfs(0, layout);
            new.show_all();
        }
        let index_of = |old: &Threshold| new.all.iter().position(|threshold| threshold.is_like(old));
        let moved = |met: &Met| {
            let index = u8::try_from(index_of(self.threshold(*met))?).ok()?;
            Some(Met { threshold: index, ..*met })
        };
        let before = self.before.iter().filter_map(moved).collect();
        Self { before, last: self.last, ..new }
    }

    /// Makes the next values count as new, whatever their time.
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

impl Threshold {
    /// Returns the available amount from which on the threshold is resolved, once it was met.
    pub fn resolved_at(&self, capacity: i64) -> Nanos {
        let min_reclaim = self.min_reclaim.as_ref().map_or(Nanos::ZERO, |value| value.nanos(capacity));
        self.value.nanos(capacity).plus(min_reclaim)
    }

    /// Returns whether less than the value is available: `helpers.go: thresholdsMet`.
    fn is_met(&self, observations: &Observations) -> bool {
        self.observed(observations).is_some_and(|seen| self.value.nanos(seen.capacity) > seen.nanos())
    }

    /// Returns whether less than the value plus the minimum reclaim is available. False without an observation.
    fn is_unresolved(&self, observations: &Observations) -> bool {
        self.observed(observations).is_some_and(|seen| self.resolved_at(seen.capacity) > seen.nanos())
    }

    /// Returns whether the kubelet treats the two as the same threshold, whatever their minimum reclaim:
    /// `helpers.go: hasThreshold`.
    pub fn is_like(&self, other: &Self) -> bool {
        self.grace_period == other.grace_period && self.signal == other.signal && self.value == other.value
    }

    fn observed(&self, observations: &Observations) -> Option<Observation> {
        observations.get(self.signal)
    }
}

/// A threshold that is met, for the persisted state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetSince {
    /// The signal.
    pub signal: Signal,
    /// The value as in a configuration. With a changed value it is another threshold.
    pub value: String,
    /// The grace period. Zero for a hard threshold.
    pub grace_period: GoDuration,
    /// Since when the threshold is met.
    pub first_seen: Timestamp,
    /// Whether the grace period is over, so that the threshold stays met until its minimum reclaim is reached.
    pub grace_period_over: bool,
}

/// Whether the further conditions of memory thresholds are fulfilled. Only if they are `Fulfilled`, a memory
/// threshold can be met, or kept met by its minimum reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryConditions {
    /// The conditions are fulfilled, or there are none.
    #[default]
    Fulfilled,
    /// Tasks stall for memory less than the policy requires.
    TooLittleStall,
    /// Less swap is used than the policy requires.
    TooLittleSwapUsed,
    /// It is not known, for this reason.
    Unknown(UnknownReason),
}

impl MemoryConditions {
    /// Evaluates the conditions. One that is known not to be fulfilled takes precedence over an unknown one.
    pub(crate) fn of(detail: &MemoryDetail, preferences: &MemoryPreferences) -> Self {
        let MemoryPreferences { measure: _, psi, swap_used_at_least } = preferences;
        let stall = psi.as_ref().map_or(Reading::Known(true), |required| stalls_enough(detail, required));
        let swap = swap_used_at_least
            .as_ref()
            .map_or(Reading::Known(true), |required| uses_enough_swap(detail, required));
        match (stall, swap) {
            (Reading::Known(false), _) => Self::TooLittleStall,
            (_, Reading::Known(false)) => Self::TooLittleSwapUsed,
            (Reading::Unknown(why), _) | (_, Reading::Unknown(why)) => Self::Unknown(why),
            (Reading::Known(true), Reading::Known(true)) => Self::Fulfilled,
        }
    }
}

fn stalls_enough(detail: &MemoryDetail, required: &MemoryPsi) -> Reading<bool> {
    let MemoryPsi { kind, avg10, trigger: _ } = *required;
    let Some(percent) = avg10 else { return detail.stalled };
    let share = match kind {
        PsiKind::Some => detail.some_avg10,
        PsiKind::Full => detail.full_avg10,
    };
    share.map(|hundredths| hundredths as f64 >= percent * 100.0)
}

/// Returns whether enough swap is used. Swap that is full is enough, whatever amount is required.
fn uses_enough_swap(detail: &MemoryDetail, required: &Limit) -> Reading<bool> {
    let bytes = |bytes: u64| Nanos::from_units(i128::from(bytes));
    detail.swap_used.zip(detail.swap_total).map(|(used, total)| {
        let required = required.value().nanos(i64::try_from(total).unwrap_or(i64::MAX));
        bytes(used) >= required.min(bytes(total))
    })
}

/// The available amounts below which the thresholds of a signal are met, and from which on they are resolved. With
/// them the control loop computes the headroom without asking the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThresholdLevels {
    /// The values of the thresholds, in their order.
    values: Vec<i64>,
    /// The amount from which on all thresholds are resolved. `None` if there is none.
    resolved_at: Option<i64>,
}

impl ThresholdLevels {
    /// Returns the thresholds of `signal` on a node with this capacity.
    pub fn of(thresholds: &[Threshold], signal: Signal, capacity: i64) -> Self {
        let mut levels = Self::default();
        // A value beyond 64 bits becomes the largest: such a threshold is always met.
        let units = |value: &ThresholdValue| value.nanos(capacity).units_rounded_up();
        for threshold in thresholds.iter().filter(|threshold| threshold.signal == signal) {
            let value = units(&threshold.value);
            let reclaim = threshold.min_reclaim.as_ref().map_or(0, units);
            levels.values.push(value);
            levels.resolved_at = levels.resolved_at.max(Some(value.saturating_add(reclaim)));
        }
        levels
    }

    /// Returns whether a threshold may be met, or kept met by its minimum reclaim. Then an evaluation may rank pods.
    pub fn may_be_met(&self, available: i64) -> bool {
        self.resolved_at.is_some_and(|resolved_at| available < resolved_at)
    }

    /// Returns the working sets at which thresholds are met.
    pub fn working_sets(&self, capacity: u64) -> impl Iterator<Item = u64> + '_ {
        self.values.iter().map(move |value| capacity.saturating_sub((*value).max(0).unsigned_abs()))
    }

    /// Returns the lowest amount below which a threshold is met.
    pub fn lowest(&self) -> Option<i64> {
        self.values.iter().copied().min()
    }

    /// Returns the headroom to the nearest threshold that is not met. `None` if all are met or there is none.
    pub fn distance(&self, available: i64) -> Option<u64> {
        self.values.iter().filter(|value| available >= **value).map(|value| available.abs_diff(*value)).min()
    }
}
