//! What is seen of the node, and what of it is believed.
//!
//! From the figures of a look to observations: by the measure of memory that the policy
//! chose, without readings that cannot be true, with what else thresholds of memory ask for,
//! and with where the figures are going. In the kubelet's profile all of it is as read.

mod growth;
mod memory;
mod plausibility;
mod prediction;
#[cfg(test)]
mod tests;

use crate::threshold::MemoryConditions;
pub use growth::{Growing, PodGrowth};
pub use memory::{available, observe};
pub use plausibility::{Implausible, RejectedReading};
pub use prediction::eta;

use super::observation::Observations;
use super::policy::{Plausibility, Rules, Threshold, TrendPolicy};
use super::reading::{Reading, UnknownReason};
use super::signal::{Resource, Signal, SignalSet};
use super::snapshot::{NodeStats, Snapshot};
use super::time::Timestamp;
use super::trend::{Slope, Trend};
use growth::PodTrends;
use plausibility::PlausibilityFilter;

/// What is remembered of former looks.
#[derive(Clone, Debug, Default)]
pub(crate) struct SignalFilter {
    doubts: PlausibilityFilter,
    /// In how many looks in a row each signal was not known.
    unknown_for: [u32; Signal::COUNT],
    /// Signals of which there ever was a figure, or an error in its place. What a node does not
    /// have at all nobody watches, and nobody is blind to.
    shown: SignalSet,
    trends: [Trend; Signal::COUNT],
    pods: PodTrends,
    oom_killed: bool,
}

/// What a look saw beside the observations.
#[derive(Clone, Debug, Default)]
pub struct SignalContext {
    /// Whether what else thresholds of memory ask for is there.
    pub gate: MemoryConditions,
    /// Readings that were not believed.
    pub refused: Vec<RejectedReading>,
    /// Signals that have been unknown for so long that nobody watches them.
    pub blind: SignalSet,
    /// How fast what is available of each signal changes.
    pub slopes: [Option<Slope>; Signal::COUNT],
    /// The pods whose memory grows fastest.
    pub growing: Growing,
    /// Thresholds that are about to be met, by their place.
    pub imminent: Vec<u8>,
}

impl SignalFilter {
    /// Makes room for whatever may be remembered of pods.
    pub(crate) fn make_room(&mut self) {
        self.pods.make_room();
    }

    /// The kernel killed a process for lack of memory: after that a figure may be anything.
    pub(crate) fn note_oom_kill(&mut self) {
        self.oom_killed = true;
    }

    /// Takes in a look; what it has to say beside the observations goes to `seen`.
    pub(crate) fn look(
        &mut self,
        at: Timestamp,
        snapshot: &Snapshot,
        thresholds: &[Threshold],
        rules: &Rules,
        seen: &mut SignalContext,
    ) -> Observations {
        seen.gate = MemoryConditions::of(&snapshot.node.memory_detail, &rules.memory);
        let mut observations = memory::observe(&snapshot.node, rules.memory.measure);
        if let Plausibility::Plausible { max_unknown } = rules.belief {
            let explained = std::mem::take(&mut self.oom_killed);
            self.doubts.refuse(
                at,
                &snapshot.node,
                explained,
                max_unknown,
                &mut observations,
                &mut seen.refused,
            );
            let shown = Observations::of(&snapshot.node);
            for signal in Signal::ALL {
                if shown.reading(signal) != Reading::Unknown(UnknownReason::Absent) {
                    self.shown.insert(signal);
                }
            }
            let all_shown = self.shown;
            let known = |signal| !all_shown.contains(signal) || is_known(&observations, seen.gate, signal);
            seen.blind = self.count_unknown(known, thresholds, max_unknown);
        }
        if let TrendPolicy::Trend { .. } = rules.prediction {
            for signal in Signal::ALL {
                if let Some(observed) = observations.get(signal) {
                    self.trends[signal as usize].observe(observed.time.unwrap_or(at), observed.available);
                }
            }
            seen.slopes = self.trends.each_ref().map(Trend::slope);
            self.pods.observe(at, snapshot);
            seen.growing = self.pods.fastest();
        }
        observations
    }

    /// There was to be a look, but it failed: no signal is known.
    pub(crate) fn look_failed(&mut self, thresholds: &[Threshold], rules: &Rules) -> SignalSet {
        match rules.belief {
            Plausibility::Everything => SignalSet::EMPTY,
            Plausibility::Plausible { max_unknown } => self.count_unknown(|_| false, thresholds, max_unknown),
        }
    }

    /// The look after node-level reclaim, which belongs to the look before it: nothing is
    /// learned from it, and what cannot be true is not known.
    pub(crate) fn look_again(&self, node: &NodeStats, rules: &Rules) -> Observations {
        let mut observations = memory::observe(node, rules.memory.measure);
        if rules.belief != Plausibility::Everything {
            self.doubts.refuse_again(node, self.oom_killed, &mut observations);
        }
        observations
    }

    /// Whether a signal that thresholds ask for is not known, but may be by the next look.
    pub(crate) fn awaits(&self, thresholds: &[Threshold], rules: &Rules) -> bool {
        let Plausibility::Plausible { max_unknown } = rules.belief else { return false };
        thresholds
            .iter()
            .any(|threshold| (1..max_unknown).contains(&self.unknown_for[threshold.signal as usize]))
    }

    /// Counts looks in which signals that thresholds ask for were not known, and returns those
    /// with so many in a row that they are blind.
    fn count_unknown(
        &mut self,
        is_known: impl Fn(Signal) -> bool,
        thresholds: &[Threshold],
        max_unknown: u32,
    ) -> SignalSet {
        let mut blind = SignalSet::EMPTY;
        for signal in Signal::ALL {
            let passes = &mut self.unknown_for[signal as usize];
            let asked_for = || thresholds.iter().any(|threshold| threshold.signal == signal);
            *passes = if is_known(signal) { 0 } else { passes.saturating_add(1) };
            if *passes >= max_unknown && asked_for() {
                blind.insert(signal);
            }
        }
        blind
    }
}

/// Whether it can be told if thresholds of a signal are met.
fn is_known(observations: &Observations, gate: MemoryConditions, signal: Signal) -> bool {
    let gate_is_known =
        !matches!(gate, MemoryConditions::Unknown(_)) || signal.resource() != Resource::Memory;
    gate_is_known && matches!(observations.reading(signal), Reading::Known(_))
}
