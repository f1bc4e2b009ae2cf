//! Ranked pods in a report.

use serde::Serialize;

use super::PodName;
use crate::core::decision::Pass;
use crate::core::rank::{Candidate, Measure, Standing};
use crate::core::snapshot::NO_STATS;

/// A pod with all that it was ranked by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateReport {
    /// Who.
    pub pod: PodName,
    /// How its usage stands to its request.
    pub standing: Standing,
    /// Its priority: lower goes first.
    pub priority: i32,
    /// What it uses of what is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<i64>,
    /// What it requested of it, as far as requests have a say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// By how much its usage is more than its request, in whole units: more goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excess: Option<i64>,
    /// Its place in the order of uids, which decides last.
    pub tie: u32,
    /// It is critical, and so is passed over.
    pub critical: bool,
}

impl CandidateReport {
    pub(super) fn all(pass: &Pass) -> Vec<Self> {
        let Some(signal) = pass.handled_signal() else {
            return Vec::new();
        };
        let measure = Measure::of(signal, pass.layout);
        let mut scratch = Vec::new();
        let joined = pass.snapshot.joined(&pass.pods, &mut scratch);
        let report = |candidate: &Candidate| {
            let known = pass.pods.get(candidate.place)?;
            let at = joined.get(candidate.place as usize).copied();
            let stats = at.filter(|&at| at != NO_STATS).and_then(|at| pass.snapshot.pod(at));
            let usage = stats.map(|stats| measure.usage(&pass.pods, candidate.place, stats));
            Some(Self {
                pod: PodName::of(&known.pod),
                standing: candidate.standing,
                priority: candidate.priority,
                usage: usage.map(clamped),
                request: measure.request(known).map(|request| request.to_string()),
                excess: usage.map(|_| candidate.excess.units_rounded_up()),
                tie: candidate.tie,
                critical: known.critical,
            })
        };
        pass.ranked.iter().filter_map(report).collect()
    }
}

fn clamped(number: i128) -> i64 {
    let nearest = if number < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(number).unwrap_or(nearest)
}
