//! Kernel kill: a decision made ahead, for a BPF program to carry out.
//!
//! Waking anybody costs a schedule, which a node without memory and CPU may not grant for tens of
//! milliseconds, in which memory and disks fill. So it is decided ahead who would go if the nearest hard threshold
//! were crossed now: [`Engine::kill_order`](super::Engine::kill_order) lets the ordinary pipeline
//! decide on a sample that differs from the present one in nothing but what is available. What
//! comes of it is an ordinary decision with its report; where it must not be carried out without
//! another sample, it is [`NotArmedReason`] with the reason.

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
use crate::policy::preferences::MemoryMeasure;
use crate::rank::{Candidate, OverRequestClass};
use crate::reading::{Reading, UnknownReason};
use crate::signal::Signal;
use crate::snapshot::{FsStats, MemoryStats, Snapshot};
use crate::threshold::Thresholds;
use crate::time::Timestamp;

impl Engine {
    /// Who goes if the nearest hard threshold of this signal is crossed (`memory.available` or `nodefs.available`), on a
    /// sample with the values of all pods at this time; changes nothing. An error too if the threshold is more than
    /// `reach` bytes away.
    ///
    /// It is the decision that is made when node reclaim is not attempted; the caller knows whether it is.
    ///
    /// When it was carried out, a sample of [`ArmedKillOrder::met_at`] tells the engine: the same
    /// decision comes of it, for real.
    ///
    /// # Errors
    /// Why nobody may be killed without another sample.
    pub fn kill_order(
        &self,
        at: Timestamp,
        snapshot: &Snapshot,
        signal: Signal,
        reach: u64,
    ) -> Result<ArmedKillOrder, NotArmedReason> {
        if !self.policy.kernel_kill.includes(signal) {
            return Err(NotArmedReason::Off);
        }
        if self.proposal.is_some() {
            return Err(NotArmedReason::ConfigPending);
        }
        let threshold = HardThreshold::of(&self.thresholds, &self.policy.rules, snapshot, signal, reach)?;
        let mut trial = self.clone();
        // The sample may have been decided on already; its values are as good as new.
        trial.thresholds.forget_observations();
        let event = Event::Sample(threshold.when_met(snapshot, at));
        let mut decision = trial.step(Input { at, event });
        if decision.awaits_reclaim() {
            let event = Event::Reclaimed(Err(UnknownReason::Absent));
            decision = trial.step(Input { at, event });
        }
        checked_order(threshold, decision)
    }
}

/// The nearest hard threshold of a signal that is not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HardThreshold {
    pub(crate) signal: Signal,
    /// Its index among the thresholds.
    pub(crate) index: u8,
    /// It is met when less than this is available, bytes.
    pub(crate) threshold: u64,
    /// What is available.
    pub(crate) available: u64,
    /// What there is in all.
    pub(crate) capacity: u64,
}

impl HardThreshold {
    /// The threshold of a sample, if it is within `reach` bytes.
    pub(crate) fn of(
        thresholds: &Thresholds,
        rules: &Rules,
        snapshot: &Snapshot,
        signal: Signal,
        reach: u64,
    ) -> Result<Self, NotArmedReason> {
        let guarded = thresholds.visible().iter().filter_map(|&index| {
            let resolved = thresholds.all().get(usize::from(index))?;
            let is_guarded = resolved.threshold.signal == signal && resolved.threshold.is_hard();
            is_guarded.then_some((index, resolved))
        });
        let guarded: Vec<_> = guarded.collect();
        if guarded.is_empty() {
            return Err(NotArmedReason::NoHardThreshold);
        }
        if signal == Signal::MemoryAvailable {
            if rules.memory().measure != MemoryMeasure::WorkingSet {
                return Err(NotArmedReason::OtherMeasure);
            }
            if rules.memory().psi.is_some() || rules.memory().swap_used_at_least.is_some() {
                return Err(NotArmedReason::MoreConditions);
            }
        }
        let seen = match Observations::of(&snapshot.node).reading(signal) {
            Reading::Known(seen) => seen,
            Reading::Unknown(why) => return Err(NotArmedReason::Unknown(why)),
        };
        let value = |value: i64| {
            u64::try_from(value).map_err(|_| NotArmedReason::Unknown(UnknownReason::Implausible))
        };
        let (available, capacity) = (value(seen.available)?, value(seen.capacity)?);
        let mut nearest = None::<Self>;
        for (index, resolved) in guarded {
            let met_below = value(resolved.threshold.value.quantity(seen.capacity).value())?;
            if available < met_below {
                return Err(NotArmedReason::ThresholdMet);
            }
            if met_below > 0 && nearest.is_none_or(|nearest| met_below > nearest.threshold) {
                nearest = Some(Self { signal, index, threshold: met_below, available, capacity });
            }
        }
        let nearest = nearest.ok_or(NotArmedReason::NoHardThreshold)?;
        match nearest.headroom() {
            0 => Err(NotArmedReason::AtThreshold),
            far if far > reach => Err(NotArmedReason::Far),
            _ => Ok(nearest),
        }
    }

    /// How much can be used until the threshold is reached, bytes.
    pub(crate) fn headroom(&self) -> u64 {
        self.available - self.threshold
    }

    /// The same sample with the threshold just crossed at this time.
    pub(crate) fn when_met(&self, snapshot: &Snapshot, at: Timestamp) -> Arc<Snapshot> {
        let mut supposed = snapshot.clone();
        let (available, time) = (Some(self.threshold - 1), Some(at));
        let node = &mut supposed.node;
        if self.signal == Signal::MemoryAvailable {
            let working_set = Some(self.capacity.saturating_sub(self.threshold - 1));
            node.memory = node.memory.map(|memory| MemoryStats { available, working_set, time, ..memory });
        } else {
            node.node_fs = node.node_fs.map(|disk| FsStats { available, time, ..disk });
        }
        Arc::new(supposed)
    }
}

/// Who goes if the threshold is crossed.
#[derive(Clone, Debug)]
pub struct ArmedKillOrder {
    /// The decision, as the ordinary pipeline made it; its pass carries the sample, with the threshold
    /// just crossed.
    pub decision: Decision,
    /// The eviction in it that may be begun at the crossing: the first.
    pub eviction: Eviction,
    /// Whom.
    pub victim: Arc<KnownPod>,
    /// The signal of the threshold.
    pub signal: Signal,
    /// The threshold: it is crossed when less than this is available, bytes.
    pub threshold: u64,
    /// What was available at the sample, bytes.
    pub available: u64,
    /// What there is in all, bytes.
    pub capacity: u64,
}

impl ArmedKillOrder {
    /// What was left to the threshold, bytes.
    pub fn headroom(&self) -> u64 {
        self.available.saturating_sub(self.threshold)
    }

    /// The working set that must not be exceeded, bytes.
    pub fn max_working_set(&self) -> u64 {
        self.capacity.saturating_sub(self.threshold)
    }

    /// The sample that it was made on, with the threshold crossed at this time.
    pub fn met_at(&self, at: Timestamp) -> Option<Arc<Snapshot>> {
        let mut snapshot = Snapshot::clone(&self.decision.evaluation()?.snapshot);
        let (node, time) = (&mut snapshot.node, Some(at));
        if self.signal == Signal::MemoryAvailable {
            node.memory = node.memory.map(|memory| MemoryStats { time, ..memory });
        } else {
            node.node_fs = node.node_fs.map(|disk| FsStats { time, ..disk });
        }
        Some(Arc::new(snapshot))
    }
}

/// Whether what the pipeline decided for a crossed threshold may be carried out without another sample.
pub(crate) fn checked_order(
    threshold: HardThreshold,
    decision: Decision,
) -> Result<ArmedKillOrder, NotArmedReason> {
    let HardThreshold { signal, index, threshold: met_below, available, capacity } = threshold;
    let Some(evaluation) = decision.evaluation() else { return Err(NotArmedReason::OtherSignal) };
    let first = decision.actions.iter().find_map(|action| match action {
        Action::Evict(eviction) => Some(Ok(*eviction)),
        Action::ShortenGrace(_) => Some(Err(NotArmedReason::EvictionInFlight)),
        Action::RecordEvent(_) | Action::Reclaim(_) => None,
    });
    let eviction = first.unwrap_or(Err(NotArmedReason::NoCandidate(evaluation.end)))?;
    if eviction.cause != (Cause::Threshold { threshold: index }) {
        return Err(NotArmedReason::OtherSignal);
    }
    let Some(victim) = evaluation.pods.pods().get(eviction.pod as usize).map(Arc::clone) else {
        return Err(NotArmedReason::NoCandidate(evaluation.end));
    };
    if victim.critical {
        return Err(NotArmedReason::Critical);
    }
    // Also where the profile honours no wishes: what is never looked at again must be sure.
    let sheltered = matches!(victim.protection.order, EvictionOrder::Never | EvictionOrder::OptedOut);
    if sheltered || opts_out(&victim.pod.annotations) {
        return Err(NotArmedReason::Protected);
    }
    let index = evaluation.ranked.iter().position(|candidate| candidate.pod == eviction.pod);
    let Some((first, others)) = index.and_then(|index| evaluation.ranked[index..].split_first()) else {
        return Err(NotArmedReason::NoCandidate(evaluation.end));
    };
    if matches!(first.class, OverRequestClass::NoStats | OverRequestClass::Unknown) {
        return Err(NotArmedReason::UsageUnknown);
    }
    if others.first().is_some_and(|other| is_alike(first, other)) {
        return Err(NotArmedReason::EqualRank);
    }
    Ok(ArmedKillOrder { eviction, victim, signal, threshold: met_below, available, capacity, decision })
}

/// Whether nothing but chance, the order of uids, puts one before the other.
fn is_alike(one: &Candidate, other: &Candidate) -> bool {
    let Candidate {
        pod: _,
        order: candidate,
        class: standing,
        priority,
        without_controller: bare,
        hint,
        excess,
        uid_rank: _,
    } = *one;
    (candidate, standing, priority, bare, hint, excess)
        == (other.order, other.class, other.priority, other.without_controller, other.hint, other.excess)
}

/// Why nobody may be killed without another sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason", content = "detail")]
pub enum NotArmedReason {
    /// The policy does not want it.
    Off,
    /// No hard threshold of the signal counts: soft ones never have a kill order.
    #[serde(rename = "no_hard_line")]
    NoHardThreshold,
    /// What is available is not measured by the working set, whose growth charges bound.
    OtherMeasure,
    /// The threshold asks for pressure or swap as well, which the kernel side does not see.
    #[serde(rename = "asks_for_more")]
    MoreConditions,
    /// What is available is not known.
    Unknown(UnknownReason),
    /// A hard threshold is met: the ordinary way is under way.
    #[serde(rename = "crossed_already")]
    ThresholdMet,
    /// Nothing is left to the threshold: growth by nothing would be growth enough.
    #[serde(rename = "at_the_line")]
    AtThreshold,
    /// The threshold is far.
    Far,
    /// A changed policy waits to take effect.
    #[serde(rename = "policy_waits")]
    ConfigPending,
    /// Nobody would go: how the evaluation would end.
    #[serde(rename = "nobody_goes")]
    NoCandidate(EvaluationEnd),
    /// Somebody would go, but for something else.
    #[serde(rename = "goes_for_something_else")]
    OtherSignal,
    /// The pod is terminating already.
    #[serde(rename = "goes_already")]
    EvictionInFlight,
    /// The pod is critical.
    Critical,
    /// The pod opts out of evictions, or a rule protects it.
    Protected,
    /// What the pod uses is not known.
    UsageUnknown,
    /// Another pod is its equal: which of the two goes is chance.
    #[serde(rename = "alike")]
    EqualRank,
}

impl NotArmedReason {
    /// Each of them, with anything for what is within.
    pub const ALL: [Self; 16] = [
        Self::Off,
        Self::NoHardThreshold,
        Self::OtherMeasure,
        Self::MoreConditions,
        Self::Unknown(UnknownReason::Absent),
        Self::ThresholdMet,
        Self::AtThreshold,
        Self::Far,
        Self::ConfigPending,
        Self::NoCandidate(EvaluationEnd::NoPressure),
        Self::OtherSignal,
        Self::EvictionInFlight,
        Self::Critical,
        Self::Protected,
        Self::UsageUnknown,
        Self::EqualRank,
    ];

    /// How it is called in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NoHardThreshold => "no_hard_threshold",
            Self::OtherMeasure => "other_measure",
            Self::MoreConditions => "more_conditions",
            Self::Unknown(_) => "signal_unavailable",
            Self::ThresholdMet => "threshold_met",
            Self::AtThreshold => "at_threshold",
            Self::Far => "far",
            Self::ConfigPending => "config_pending",
            Self::NoCandidate(_) => "no_candidate",
            Self::OtherSignal => "other_signal",
            Self::EvictionInFlight => "eviction_in_flight",
            Self::Critical => "critical",
            Self::Protected => "protected",
            Self::UsageUnknown => "usage_unknown",
            Self::EqualRank => "equal_rank",
        }
    }
}

impl fmt::Display for NotArmedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().replace('_', " "))
    }
}
