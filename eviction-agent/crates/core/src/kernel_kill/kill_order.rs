//! What stands, and whether it may.

use std::sync::Arc;

use crate::decision::{Action, Decision};
use crate::eviction::{Cause, Eviction};
use crate::pods::KnownPod;
use crate::pods::{EvictionOrder, opts_out};
use crate::rank::{Candidate, OverRequestClass};
use crate::snapshot::{MemoryStats, Snapshot};
use crate::time::Timestamp;

use super::{HardLine, NotArmedReason};

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
