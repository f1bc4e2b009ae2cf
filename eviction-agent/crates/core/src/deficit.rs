//! How much is lacking, who makes up for it, and who does not.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::expected_release::ExpectedRelease;
use super::observation::Observation;
use super::threshold::ResolvedThreshold;
use super::time::Timestamp;
use crate::eviction::EvaluationEnd;

/// A pod that frees less than this part of what is still lacking frees next to nothing: so many
/// like it would have to go. It waits for others of its class that free more.
const NEXT_TO_NOTHING: i64 = 64;

/// What a threshold lacks, and how a pass dealt with it. Amounts are in whole units of its
/// signal: bytes, inodes or processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deficit {
    /// The threshold: a place in [`Evaluation::lines`](super::decision::Evaluation::lines).
    pub line: u8,
    /// What was available; after node-level reclaim, if there was a look.
    pub available: i64,
    /// The time of that figure.
    pub figures: Option<Timestamp>,
    /// The threshold itself.
    pub threshold: i64,
    /// How much more must be available before it is resolved.
    pub min_reclaim: i64,
    /// What is counted in advance for a threshold that is about to be met: as much as makes
    /// it lack something.
    pub ahead: i64,
    /// What those on their way will free in time.
    pub in_flight: i64,
    /// Places of pods on their way that were hurried for it; `in_flight` counts them.
    pub hurried: Vec<u32>,
    /// Those who go for the rest.
    pub victims: Vec<PlannedVictim>,
    /// Those who would have gone before others.
    pub passed_over: Vec<SkippedVictim>,
    /// How it ended for this threshold.
    pub end: EvaluationEnd,
}

/// A pod that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedVictim {
    /// Its place among the pods of the pass.
    pub place: u32,
    /// What it is expected to free.
    pub release: ExpectedRelease,
}

/// A pod that was passed over for one that ranks behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkippedVictim {
    /// Its place among the pods of the pass.
    pub place: u32,
    /// Why.
    pub why: SkipReason,
    /// What it would free.
    pub release: ExpectedRelease,
    /// What was lacking at its turn.
    pub open: i64,
}

/// Why a pod was passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// It frees next to nothing, and others of the same standing and priority free more.
    FreesNextToNothing,
    /// It was to go lately and did not.
    DidNotGo,
}

/// A sentence without its subject.
impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FreesNextToNothing => "frees next to nothing",
            Self::DidNotGo => "was to go lately and did not",
        })
    }
}

impl Deficit {
    /// What a threshold that is met, or about to be, lacks by an observation before anybody
    /// makes up for it.
    pub(crate) fn of(place: u8, line: &ResolvedThreshold, seen: &Observation) -> Self {
        let threshold = line.value(seen.capacity);
        let goal = line.resolved_at(seen.capacity);
        let mut deficit = Self {
            line: place,
            available: seen.available,
            figures: seen.time,
            threshold: threshold.units_rounded_up(),
            min_reclaim: goal.minus(threshold).units_rounded_up(),
            ahead: 0,
            in_flight: 0,
            hurried: Vec::new(),
            victims: Vec::new(),
            passed_over: Vec::new(),
            end: EvaluationEnd::NoPressure,
        };
        deficit.ahead = 1_i64.saturating_sub(deficit.lacking()).max(0);
        deficit
    }

    /// `threshold + min_reclaim + ahead − available`.
    pub fn lacking(&self) -> i64 {
        let goal = self.threshold.saturating_add(self.min_reclaim).saturating_add(self.ahead);
        goal.saturating_sub(self.available)
    }

    /// What the victims are expected to free.
    pub fn chosen(&self) -> i64 {
        self.victims.iter().fold(0, |sum, victim| victim.release.amount.saturating_add(sum))
    }

    /// What nobody makes up for yet; zero or less if somebody does.
    pub fn open(&self) -> i64 {
        self.lacking().saturating_sub(self.in_flight).saturating_sub(self.chosen())
    }
}

/// Whether so little comes free that it does not matter while so much is open.
pub(crate) fn is_next_to_nothing(amount: i64, open: i64) -> bool {
    amount.saturating_mul(NEXT_TO_NOTHING) < open
}
