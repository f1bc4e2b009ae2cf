//! Which thresholds are met, since when, and which of them may evict in this pass.

mod containerfs;
mod go_slice_quirk;
mod levels;
mod memory_conditions;
mod met_since;
mod resolved;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use containerfs::Replacement;
pub use go_slice_quirk::room;
pub use levels::ThresholdLevels;
pub use memory_conditions::MemoryConditions;
pub use met_since::{MetSince, text_of};
pub use resolved::ResolvedThreshold;
pub(crate) use resolved::ThresholdBasis;

use super::disk_layout::DiskLayout;
use super::observation::Observations;
use super::policy::Threshold;
use super::signal::Resource;

use super::time::{GO_ZERO, Timestamp, is_unset, since};

/// Room for the four derived thresholds is left in the numbers that name thresholds.
const MOST: usize = 250;

/// All thresholds of a node and their state between passes.
///
/// Thresholds are named by their place in [`Thresholds::lines`]. Lists of them keep the order
/// of the configuration, with those that only minimum reclaim keeps behind the others; where
/// the kubelet walks a map in random order, this is one of its orders.
#[derive(Clone, Debug)]
pub struct Thresholds {
    /// All that ever counted: one that was replaced may still wait for its minimum reclaim.
    lines: Arc<[ResolvedThreshold]>,
    /// What the next pass looks at.
    visible: Arc<[u8]>,
    /// What counts from the pass after it on.
    effective: Arc<[u8]>,
    before: Vec<Met>,
    last: Observations,
}

/// A threshold that is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// Its place in the list of thresholds.
    pub line: u8,
    /// Since when.
    pub first_seen: Timestamp,
    /// It is above its value again, but not by its minimum reclaim.
    pub by_min_reclaim: bool,
    /// It is not met yet, but about to be, and the policy acts on that.
    pub by_prediction: bool,
    /// Its grace period is over.
    pub ripe: bool,
    /// It is ripe, and its figures are newer than those of the last pass: it may evict.
    pub fresh: bool,
}

impl Thresholds {
    /// Thresholds as configured. There can be 24, and what is beyond 250 is left out.
    pub fn new(given: &[Threshold]) -> Self {
        let given = &given[..given.len().min(MOST)];
        let all: Arc<[u8]> = (0..).take(given.len()).collect();
        Self {
            lines: given.iter().cloned().map(ResolvedThreshold::new).collect(),
            visible: Arc::clone(&all),
            effective: all,
            before: Vec::new(),
            last: Observations::default(),
        }
    }

    /// All of them.
    pub fn lines(&self) -> &Arc<[ResolvedThreshold]> {
        &self.lines
    }

    /// The places of those that the next pass looks at.
    pub fn visible(&self) -> &Arc<[u8]> {
        &self.visible
    }

    /// Adapts the thresholds of containerfs; `room` is that of [`Policy::list_room`]. Some of
    /// it stays out of sight until [`Thresholds::show_all`].
    ///
    /// [`Policy::list_room`]: super::policy::Policy::list_room
    pub(crate) fn derive_containerfs(&mut self, room: usize, layout: DiskLayout) {
        let given: Vec<_> = self.lines.iter().map(|line| line.threshold.clone()).collect();
        let derived = containerfs::derive(&given, room, layout);
        let mut lines = self.lines.to_vec();
        let mut add = |threshold| {
            lines.push(ResolvedThreshold::new(threshold));
            u8::try_from(lines.len() - 1).ok()
        };
        let mut visible: Vec<Option<u8>> = self.effective.iter().copied().map(Some).collect();
        let mut effective = visible.clone();
        for Replacement { place, by, at_once } in derived.replaced {
            effective[place] = by.and_then(&mut add);
            if at_once {
                visible[place] = effective[place];
            }
        }
        effective.extend(derived.appended.into_iter().map(add));
        self.lines = lines.into();
        self.visible = visible.into_iter().flatten().collect();
        self.effective = effective.into_iter().flatten().collect();
    }

    /// Lets the next pass see all thresholds that count.
    pub(crate) fn show_all(&mut self) {
        self.visible = Arc::clone(&self.effective);
    }

    /// Makes room to remember all of them as met.
    pub(crate) fn make_room(&mut self) {
        self.before.reserve(self.lines.len());
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
        let passes = |line: &ResolvedThreshold| {
            gate == MemoryConditions::Open || line.threshold.signal.resource() != Resource::Memory
        };
        for &place in self.visible.iter() {
            let line = &self.lines[usize::from(place)];
            let is_met = line.is_met(seen);
            if passes(line) && (is_met || predicted.contains(&place)) {
                met.push(Met { by_prediction: !is_met, ..self.met(at, place) });
            }
        }
        for ripe in self.before.iter().filter(|before| before.ripe) {
            let line = self.line(*ripe);
            let is_there = |met: &Met| self.line(*met).is_like(line);
            if passes(line) && line.is_unresolved(seen) && !met.iter().any(is_there) {
                met.push(Met { by_min_reclaim: true, ..self.met(at, ripe.line) });
            }
        }
        for met in &mut *met {
            let threshold = &self.line(*met).threshold;
            met.ripe = since(at, met.first_seen) >= threshold.grace_period;
            met.fresh = met.ripe && is_fresh(threshold, seen, &self.last);
        }
        self.before.clear();
        self.before.extend_from_slice(met);
        self.last = *seen;
    }

    /// Whether any threshold that counts, visible or not, hard or soft, is still short of its
    /// minimum reclaim: how `reclaimNodeLevelResources` judges its success.
    pub(crate) fn any_unresolved(&self, seen: &Observations) -> bool {
        let is_unresolved = |&place: &u8| self.lines[usize::from(place)].is_unresolved(seen);
        self.effective.iter().any(is_unresolved)
    }

    /// Whether one threshold is still short of its minimum reclaim.
    pub(crate) fn is_unresolved(&self, place: u8, seen: &Observations) -> bool {
        self.lines.get(usize::from(place)).is_some_and(|line| line.is_unresolved(seen))
    }

    /// Those that a pass over these observations would find met, whatever their grace period.
    pub(crate) fn met_by(&self, seen: &Observations) -> impl Iterator<Item = (u8, &ResolvedThreshold)> {
        let visible = self.visible.iter().filter(|&&place| self.lines[usize::from(place)].is_met(seen));
        let kept = self.before.iter().filter(|before| before.ripe).map(|before| &before.line);
        let kept = kept.filter(|&&place| self.lines[usize::from(place)].is_unresolved(seen));
        visible.chain(kept).map(|&place| (place, &self.lines[usize::from(place)]))
    }

    /// Those that the last pass found met, as far as they are known by their value.
    pub(crate) fn met_since(&self) -> impl Iterator<Item = MetSince> {
        self.before.iter().map(|met| {
            let threshold = &self.line(*met).threshold;
            MetSince {
                signal: threshold.signal,
                value: text_of(&threshold.value),
                grace_period: threshold.grace_period,
                first_seen: met.first_seen,
                ripe: met.ripe,
            }
        })
    }

    /// Takes one over that was met before, if there still is such a threshold.
    pub(crate) fn recall(&mut self, met: &MetSince) {
        let is_it = |line: &ResolvedThreshold| {
            let threshold = &line.threshold;
            (threshold.signal, threshold.grace_period) == (met.signal, met.grace_period)
                && text_of(&threshold.value) == met.value
        };
        let place = self.lines.iter().position(is_it).and_then(|place| u8::try_from(place).ok());
        if let Some(line) = place
            && !self.before.iter().any(|before| before.line == line)
        {
            let &MetSince { first_seen, ripe, .. } = met;
            let (by_min_reclaim, by_prediction, fresh) = (false, false, false);
            self.before.push(Met { line, first_seen, by_min_reclaim, by_prediction, ripe, fresh });
        }
    }

    fn line(&self, met: Met) -> &ResolvedThreshold {
        &self.lines[usize::from(met.line)]
    }

    /// Other thresholds in the place of these. Those that are the same have been met as long
    /// as they were.
    pub(crate) fn replaced(&self, given: &[Threshold], derived: Option<(usize, DiskLayout)>) -> Self {
        let mut new = Self::new(given);
        if let Some((room, layout)) = derived {
            new.derive_containerfs(room, layout);
            new.show_all();
        }
        let place_of = |old: &ResolvedThreshold| new.lines.iter().position(|line| line.is_like(old));
        let moved = |met: &Met| {
            let place = u8::try_from(place_of(self.line(*met))?).ok()?;
            Some(Met { line: place, ..*met })
        };
        let before = self.before.iter().filter_map(moved).collect();
        Self { before, last: self.last, ..new }
    }

    /// Takes the next figures for new ones, whatever their time.
    pub(crate) fn forget_figures(&mut self) {
        self.last = Observations::default();
    }

    /// `helpers.go: thresholdsFirstObservedAt`.
    fn met(&self, at: Timestamp, line: u8) -> Met {
        let before = self.before.iter().find(|met| met.line == line);
        Met {
            line,
            first_seen: before.map_or(at, |met| met.first_seen),
            by_min_reclaim: false,
            by_prediction: false,
            ripe: false,
            fresh: false,
        }
    }
}

/// `helpers.go: thresholdsUpdatedStats`.
fn is_fresh(threshold: &Threshold, seen: &Observations, last: &Observations) -> bool {
    let Some(now) = seen.get(threshold.signal) else {
        return false;
    };
    last.get(threshold.signal)
        .is_none_or(|before| is_unset(now.time) || now.time > Some(before.time.unwrap_or(GO_ZERO)))
}
