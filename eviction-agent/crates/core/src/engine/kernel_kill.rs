//! The reflex: a decision made ahead, for the kernel side to carry out.
//!
//! Waking anybody costs a schedule, which a node without memory and CPU may not grant for tens of
//! milliseconds. So it is decided on each sample who would go if the nearest hard line of memory
//! were crossed now: [`Engine::standing`](super::Engine::standing) lets the ordinary pipeline
//! decide on a look that differs from the present one in nothing but what is available. What
//! comes of it is an ordinary decision with its report; where it must not be carried out without
//! another look, it is [`NotArmedReason`] with the reason.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::decision::{Action, Decision};
use crate::engine::Engine;
use crate::eviction::{Cause, EvaluationEnd, Eviction};
use crate::input::{Event, Input};
use crate::observation::Observations;
use crate::pods::{EvictionOrder, KnownPod, opts_out};
use crate::policy::Rules;
use crate::policy::eviction_settings::KernelKill;
use crate::policy::preferences::MemoryMeasure;
use crate::rank::{Candidate, OverRequestClass};
use crate::reading::{Reading, UnknownReason};
use crate::signal::Signal;
use crate::snapshot::{MemoryStats, Snapshot};
use crate::threshold::Thresholds;
use crate::time::Timestamp;

impl Engine {
    /// Who goes if the nearest hard line of memory is crossed, on a look with the figures of all
    /// pods at this time; changes nothing. Nobody if the line is more than `reach` bytes away.
    ///
    /// When it was carried out, a look at [`ArmedKillOrder::crossed_at`] tells the engine: the same
    /// decision comes of it, for real.
    ///
    /// # Errors
    /// Why nobody may be killed without another look.
    pub fn standing(
        &self,
        at: Timestamp,
        snapshot: &Snapshot,
        reach: u64,
    ) -> Result<ArmedKillOrder, NotArmedReason> {
        if self.policy.reflex == KernelKill::Off {
            return Err(NotArmedReason::Off);
        }
        if self.proposal.is_some() {
            return Err(NotArmedReason::PolicyWaits);
        }
        let line = HardLine::of(&self.thresholds, &self.policy.rules, snapshot, reach)?;
        let mut trial = self.clone();
        // The look may have been decided on already; its figures are as good as new.
        trial.thresholds.forget_figures();
        let event = Event::Sample(line.crossed(snapshot, at));
        judge(line, trial.step(Input { at, event }))
    }
}

/// The nearest hard threshold of `memory.available` that is not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HardLine {
    /// Its place among the thresholds.
    pub(crate) place: u8,
    /// It is met when less than this is available, bytes.
    pub(crate) met_below: u64,
    /// What is available.
    pub(crate) available: u64,
    /// What there is in all.
    pub(crate) capacity: u64,
}

impl HardLine {
    /// The line of a look, if it is within `reach` bytes.
    pub(crate) fn of(
        thresholds: &Thresholds,
        rules: &Rules,
        snapshot: &Snapshot,
        reach: u64,
    ) -> Result<Self, NotArmedReason> {
        let signal = Signal::MemoryAvailable;
        let lines = thresholds.visible().iter().filter_map(|&place| {
            let line = thresholds.lines().get(usize::from(place))?;
            let guarded = line.threshold.signal == signal && line.threshold.is_hard();
            guarded.then_some((place, line))
        });
        let lines: Vec<_> = lines.collect();
        if lines.is_empty() {
            return Err(NotArmedReason::NoHardLine);
        }
        if rules.memory.measure != MemoryMeasure::WorkingSet {
            return Err(NotArmedReason::OtherMeasure);
        }
        if rules.memory.psi.is_some() || rules.memory.swap_used_at_least.is_some() {
            return Err(NotArmedReason::AsksForMore);
        }
        let seen = match Observations::of(&snapshot.node).reading(signal) {
            Reading::Known(seen) => seen,
            Reading::Unknown(why) => return Err(NotArmedReason::Unknown(why)),
        };
        let figure = |value: i64| {
            u64::try_from(value).map_err(|_| NotArmedReason::Unknown(UnknownReason::Implausible))
        };
        let (available, capacity) = (figure(seen.available)?, figure(seen.capacity)?);
        let mut nearest = None::<Self>;
        for (place, line) in lines {
            let met_below = figure(line.threshold.value.quantity(seen.capacity).value())?;
            if available < met_below {
                return Err(NotArmedReason::CrossedAlready);
            }
            if met_below > 0 && nearest.is_none_or(|nearest| met_below > nearest.met_below) {
                nearest = Some(Self { place, met_below, available, capacity });
            }
        }
        let nearest = nearest.ok_or(NotArmedReason::NoHardLine)?;
        match nearest.distance() {
            0 => Err(NotArmedReason::AtTheLine),
            far if far > reach => Err(NotArmedReason::Far),
            _ => Ok(nearest),
        }
    }

    /// How much can be used until the line is reached, bytes.
    pub(crate) fn distance(&self) -> u64 {
        self.available - self.met_below
    }

    /// The same look with the line just crossed at this time.
    pub(crate) fn crossed(&self, snapshot: &Snapshot, at: Timestamp) -> Arc<Snapshot> {
        let mut supposed = snapshot.clone();
        let available = self.met_below - 1;
        if let Reading::Known(memory) = supposed.node.memory {
            supposed.node.memory = Reading::Known(MemoryStats {
                available: Some(available),
                working_set: Some(self.capacity.saturating_sub(available)),
                time: Some(at),
                ..memory
            });
        }
        Arc::new(supposed)
    }
}

/// Who goes if the line is crossed.
#[derive(Clone, Debug)]
pub struct ArmedKillOrder {
    /// The decision, as the ordinary pipeline made it; its pass carries the look, with the line
    /// just crossed.
    pub decision: Decision,
    /// The eviction in it that may be begun at the crossing: the first.
    pub eviction: Eviction,
    /// Whom.
    pub victim: Arc<KnownPod>,
    /// The line: it is crossed when less than this is available, bytes.
    pub met_below: u64,
    /// What was available at the look, bytes.
    pub available: u64,
    /// What there is in all, bytes.
    pub capacity: u64,
}

impl ArmedKillOrder {
    /// What was left to the line, bytes.
    pub fn distance(&self) -> u64 {
        self.available.saturating_sub(self.met_below)
    }

    /// The working set that must not be exceeded, bytes.
    pub fn line(&self) -> u64 {
        self.capacity.saturating_sub(self.met_below)
    }

    /// The look that it was made on, with the line crossed at this time.
    pub fn crossed_at(&self, at: Timestamp) -> Option<Arc<Snapshot>> {
        let mut snapshot = Snapshot::clone(&self.decision.pass()?.snapshot);
        snapshot.node.memory = snapshot.node.memory.map(|memory| MemoryStats { time: Some(at), ..memory });
        Some(Arc::new(snapshot))
    }
}

/// Whether what the pipeline decided for a crossed line may be carried out without another look.
pub(crate) fn judge(line: HardLine, decision: Decision) -> Result<ArmedKillOrder, NotArmedReason> {
    let HardLine { place: threshold, met_below, available, capacity } = line;
    let Some(pass) = decision.pass() else { return Err(NotArmedReason::GoesForSomethingElse) };
    let first = decision.actions.iter().find_map(|action| match action {
        Action::Evict(eviction) => Some(Ok(*eviction)),
        Action::ShortenGrace(_) => Some(Err(NotArmedReason::GoesAlready)),
        Action::RecordEvent(_) | Action::Reclaim(_) => None,
    });
    let eviction = first.unwrap_or(Err(NotArmedReason::NobodyGoes(pass.end)))?;
    if eviction.cause != (Cause::Threshold { line: threshold }) {
        return Err(NotArmedReason::GoesForSomethingElse);
    }
    let Some(victim) = pass.pods.pods().get(eviction.place as usize).map(Arc::clone) else {
        return Err(NotArmedReason::NobodyGoes(pass.end));
    };
    if victim.critical {
        return Err(NotArmedReason::Critical);
    }
    // Also where the profile honours no wishes: what is never looked at again must be sure.
    let sheltered = matches!(victim.shelter.turn, EvictionOrder::Never | EvictionOrder::OptedOut);
    if sheltered || opts_out(&victim.pod.annotations) {
        return Err(NotArmedReason::Protected);
    }
    let place = pass.ranked.iter().position(|candidate| candidate.place == eviction.place);
    let Some((first, others)) = place.and_then(|place| pass.ranked[place..].split_first()) else {
        return Err(NotArmedReason::NobodyGoes(pass.end));
    };
    if matches!(first.standing, OverRequestClass::NoStats | OverRequestClass::Unknown) {
        return Err(NotArmedReason::UsageUnknown);
    }
    if others.first().is_some_and(|other| is_alike(first, other)) {
        return Err(NotArmedReason::Alike);
    }
    Ok(ArmedKillOrder { eviction, victim, met_below, available, capacity, decision })
}

/// Whether nothing but chance, the order of uids, puts one before the other.
fn is_alike(one: &Candidate, other: &Candidate) -> bool {
    let Candidate { place: _, turn, standing, priority, bare, hint, excess, tie: _ } = *one;
    (turn, standing, priority, bare, hint, excess)
        == (other.turn, other.standing, other.priority, other.bare, other.hint, other.excess)
}

/// Why nobody may be killed without another look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason", content = "detail")]
pub enum NotArmedReason {
    /// The policy does not want it.
    Off,
    /// No hard threshold of `memory.available` counts: soft ones never have a verdict.
    NoHardLine,
    /// What is available is not measured by the working set, whose growth charges bound.
    OtherMeasure,
    /// The threshold asks for pressure or swap as well, which the kernel side does not see.
    AsksForMore,
    /// What is available is not known.
    Unknown(UnknownReason),
    /// A hard threshold is met: the ordinary way is under way.
    CrossedAlready,
    /// Nothing is left to the line: growth by nothing would be growth enough.
    AtTheLine,
    /// The line is far.
    Far,
    /// A changed policy waits to take effect.
    PolicyWaits,
    /// Nobody would go: how the pass would end.
    NobodyGoes(EvaluationEnd),
    /// Somebody would go, but for something else.
    GoesForSomethingElse,
    /// The pod is on its way already.
    GoesAlready,
    /// The pod is critical.
    Critical,
    /// The pod opts out of evictions, or a rule protects it.
    Protected,
    /// What the pod uses is not known.
    UsageUnknown,
    /// Another pod is its equal: which of the two goes is chance.
    Alike,
}

impl NotArmedReason {
    /// Each of them, with anything for what is within.
    pub const ALL: [Self; 16] = [
        Self::Off,
        Self::NoHardLine,
        Self::OtherMeasure,
        Self::AsksForMore,
        Self::Unknown(UnknownReason::Absent),
        Self::CrossedAlready,
        Self::AtTheLine,
        Self::Far,
        Self::PolicyWaits,
        Self::NobodyGoes(EvaluationEnd::NoPressure),
        Self::GoesForSomethingElse,
        Self::GoesAlready,
        Self::Critical,
        Self::Protected,
        Self::UsageUnknown,
        Self::Alike,
    ];

    /// How it is called in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NoHardLine => "no_hard_threshold",
            Self::OtherMeasure => "other_measure",
            Self::AsksForMore => "more_conditions",
            Self::Unknown(_) => "signal_unavailable",
            Self::CrossedAlready => "threshold_met",
            Self::AtTheLine => "at_threshold",
            Self::Far => "far",
            Self::PolicyWaits => "config_pending",
            Self::NobodyGoes(_) => "no_candidate",
            Self::GoesForSomethingElse => "other_signal",
            Self::GoesAlready => "eviction_in_flight",
            Self::Critical => "critical",
            Self::Protected => "protected",
            Self::UsageUnknown => "usage_unknown",
            Self::Alike => "equal_rank",
        }
    }
}

impl fmt::Display for NotArmedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().replace('_', " "))
    }
}
