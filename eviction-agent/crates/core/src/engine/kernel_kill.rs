//! Kernel kill: a decision made in advance, which a BPF program carries out.
//!
//! A thread that is woken must be scheduled. On a node without free memory and CPU this may take tens of
//! milliseconds, in which memory and disks fill. Therefore the engine decides in advance which pod would be
//! killed if the nearest hard threshold were crossed now. [`Engine::kill_order`](super::Engine::kill_order)
//! runs the normal evaluation on a copy of the present sample in which only the available amount differs. The
//! result is a normal decision with its report, or a [`NotArmedReason`] if the kill must not happen without
//! another sample.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::decision::{Action, Decision};
use crate::engine::Engine;
use crate::eviction::{Cause, Eviction};
use crate::input::{Event, Input};
use crate::observation::Observations;
use crate::pods::{KnownPod, opts_out};
use crate::policy::Rules;
use crate::policy::preferences::{EvictionOrder, MemoryMeasure};
use crate::rank::{Candidate, OverRequestClass};
use crate::reading::UnknownReason;
use crate::signal::Signal;
use crate::snapshot::{FsStats, MemoryStats, Snapshot};
use crate::threshold::Thresholds;
use crate::time::Timestamp;

impl Engine {
    /// Returns the kill to carry out if the nearest hard threshold of this signal (`memory.available` or
    /// `nodefs.available`) is crossed at this time. The snapshot must have the values of all pods. The engine
    /// does not change.
    ///
    /// The decision assumes that node-level reclaim is not attempted; the caller knows whether that is so.
    ///
    /// After the kill, a sample of [`ArmedKillOrder::met_at`] makes the engine repeat the same decision, this
    /// time with effect on its state.
    ///
    /// # Errors
    /// The reason why no pod may be killed without another sample, also if the threshold is more than `reach`
    /// bytes away.
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
        let mut trial = self.trial();
        let event = Event::Sample(threshold.when_met(snapshot, at));
        let mut decision = trial.step(Input { at, event });
        if decision.awaits_reclaim() {
            let event = Event::Reclaimed(Err(UnknownReason::Absent));
            decision = trial.step(Input { at, event });
        }
        check_order(threshold, decision)
    }
}

/// The nearest hard threshold of a signal. It is not met yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardThreshold {
    /// The signal.
    pub signal: Signal,
    /// The index among the thresholds.
    pub(crate) index: u8,
    /// The threshold is met when less than this is available, in bytes.
    pub value: u64,
    /// The amount available at the time of the sample, in bytes.
    pub available: u64,
    /// The capacity, in bytes.
    pub capacity: u64,
}

impl HardThreshold {
    /// Returns the nearest hard threshold of a sample, if it is within `reach` bytes.
    pub(crate) fn of(
        thresholds: &Thresholds,
        rules: &Rules,
        snapshot: &Snapshot,
        signal: Signal,
        reach: u64,
    ) -> Result<Self, NotArmedReason> {
        let hard_thresholds = thresholds.visible().iter().filter_map(|&index| {
            let threshold = thresholds.all().get(usize::from(index))?;
            let is_hard_for_signal = threshold.signal == signal && threshold.is_hard();
            is_hard_for_signal.then_some((index, threshold))
        });
        let hard_thresholds: Vec<_> = hard_thresholds.collect();
        if hard_thresholds.is_empty() {
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
        let seen = Observations::of(&snapshot.node).get(signal).ok_or(NotArmedReason::Unknown)?;
        let unsigned = |value: i64| u64::try_from(value).map_err(|_| NotArmedReason::Unknown);
        let (available, capacity) = (unsigned(seen.available)?, unsigned(seen.capacity)?);
        let mut nearest = None::<Self>;
        for (index, threshold) in hard_thresholds {
            let value = unsigned(threshold.value.nanos(seen.capacity).units_rounded_up())?;
            if available < value {
                return Err(NotArmedReason::ThresholdMet);
            }
            if value > 0 && nearest.is_none_or(|nearest| value > nearest.value) {
                nearest = Some(Self { signal, index, value, available, capacity });
            }
        }
        let nearest = nearest.ok_or(NotArmedReason::NoHardThreshold)?;
        match nearest.headroom() {
            0 => Err(NotArmedReason::AtThreshold),
            far if far > reach => Err(NotArmedReason::Far),
            _ => Ok(nearest),
        }
    }

    /// Returns how much can still be used before the threshold is reached, in bytes.
    pub fn headroom(&self) -> u64 {
        self.available - self.value
    }

    /// Returns the working set that must not be exceeded, in bytes.
    pub fn max_working_set(&self) -> u64 {
        self.capacity.saturating_sub(self.value)
    }

    /// Returns the same sample with the threshold just crossed at this time.
    pub(crate) fn when_met(&self, snapshot: &Snapshot, at: Timestamp) -> Arc<Snapshot> {
        let mut crossed = snapshot.clone();
        let (available, time) = (Some(self.value - 1), Some(at));
        let node = &mut crossed.node;
        if self.signal == Signal::MemoryAvailable {
            let working_set = Some(self.capacity.saturating_sub(self.value - 1));
            node.memory = node.memory.map(|_| MemoryStats { available, working_set, time });
        } else {
            node.node_fs = node.node_fs.map(|disk| FsStats { available, time, ..disk });
        }
        Arc::new(crossed)
    }
}

/// The kill to carry out if the threshold is crossed.
#[derive(Clone, Debug)]
pub struct ArmedKillOrder {
    /// The decision of the normal evaluation. Its evaluation contains the sample, with the threshold just crossed.
    pub decision: Decision,
    /// The first eviction of the decision, which may begin at the crossing.
    pub eviction: Eviction,
    /// The pod to kill.
    pub victim: Arc<KnownPod>,
    /// The threshold.
    pub threshold: HardThreshold,
}

impl ArmedKillOrder {
    /// Returns the sample of the order, with the threshold crossed at this time.
    pub fn met_at(&self, at: Timestamp) -> Option<Arc<Snapshot>> {
        Some(self.threshold.when_met(&self.decision.evaluation()?.snapshot, at))
    }
}

/// Checks whether the decision for a crossed threshold may be carried out without another sample.
pub(crate) fn check_order(
    threshold: HardThreshold,
    decision: Decision,
) -> Result<ArmedKillOrder, NotArmedReason> {
    let Some(evaluation) = decision.evaluation() else { return Err(NotArmedReason::OtherSignal) };
    let first = decision.actions.iter().find_map(|action| match action {
        Action::Evict(eviction) => Some(Ok(*eviction)),
        Action::ShortenGrace(_) => Some(Err(NotArmedReason::EvictionInFlight)),
        Action::RecordEvent(_) | Action::Reclaim(_) => None,
    });
    let eviction = first.unwrap_or(Err(NotArmedReason::NoCandidate))?;
    if eviction.cause != (Cause::Threshold { threshold: threshold.index }) {
        return Err(NotArmedReason::OtherSignal);
    }
    let Some(victim) = evaluation.pods.pods().get(eviction.pod as usize).map(Arc::clone) else {
        return Err(NotArmedReason::NoCandidate);
    };
    if victim.critical {
        return Err(NotArmedReason::Critical);
    }
    // Applies even if the profile ignores these settings, because a kernel kill is not checked again.
    let is_protected = matches!(victim.protection.order, EvictionOrder::Never | EvictionOrder::OptedOut);
    if is_protected || opts_out(&victim.pod) {
        return Err(NotArmedReason::Protected);
    }
    let index = evaluation.ranked.iter().position(|candidate| candidate.pod == eviction.pod);
    let Some((first, others)) = index.and_then(|index| evaluation.ranked[index..].split_first()) else {
        return Err(NotArmedReason::NoCandidate);
    };
    if matches!(first.class, OverRequestClass::NoStats | OverRequestClass::Unknown) {
        return Err(NotArmedReason::UsageUnknown);
    }
    if others.first().is_some_and(|other| rank_equally(first, other)) {
        return Err(NotArmedReason::EqualRank);
    }
    Ok(ArmedKillOrder { eviction, victim, threshold, decision })
}

/// Returns whether only the order of uids, which is arbitrary, ranks one candidate before the other.
fn rank_equally(one: &Candidate, other: &Candidate) -> bool {
    let ((one, one_excess, _), (other, other_excess, _)) = (one.key(), other.key());
    one == other && one_excess == other_excess
}

crate::named_enum! {
    /// Why no kill order is armed. The engine returns the reasons why no pod may be killed without another sample.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NotArmedReason {
        /// The policy does not enable kernel kills for the signal.
        Off = "off",
        /// The signal has no visible hard threshold. Soft thresholds never have a kill order.
        NoHardThreshold = "no_hard_threshold",
        /// Available memory is not measured by the working set. Only growth of the working set is bounded by
        /// memory charges.
        OtherMeasure = "other_measure",
        /// The threshold also depends on pressure or swap, which the BPF program does not read.
        MoreConditions = "more_conditions",
        /// The available amount is not known.
        Unknown = "signal_unavailable",
        /// A hard threshold is met: the normal eviction is already in progress.
        ThresholdMet = "threshold_met",
        /// The headroom is zero, so growth by zero bytes would trigger the kill.
        AtThreshold = "at_threshold",
        /// The headroom is larger than the requested reach.
        Far = "far",
        /// A changed policy is pending.
        ConfigPending = "config_pending",
        /// No pod would be evicted.
        NoCandidate = "no_candidate",
        /// A pod would be evicted, but for another threshold or limit.
        OtherSignal = "other_signal",
        /// The pod is terminating already.
        EvictionInFlight = "eviction_in_flight",
        /// The pod is critical.
        Critical = "critical",
        /// The pod opts out of evictions, or a rule protects it.
        Protected = "protected",
        /// The usage of the pod is not known.
        UsageUnknown = "usage_unknown",
        /// Another pod ranks equally, so the choice between the two is arbitrary.
        EqualRank = "equal_rank",
        /// An eviction is in flight, or a kill order was just carried out.
        JustCarriedOut = "just_carried_out",
        /// The killer would refuse: too soon, too often, or the cgroup must not be killed.
        KillRefused = "kill_refused",
        /// The pod has no cgroup, or several.
        NoSingleCgroup = "no_single_cgroup",
        /// A BPF map could not be written.
        MapWriteFailed = "map_write_failed",
        /// Unused images or dead containers are removed first.
        ReclaimFirst = "reclaim_first",
    }
}
