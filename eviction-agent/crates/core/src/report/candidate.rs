//! Ranked pods in a report.

use std::collections::BTreeSet;

use serde::Serialize;

use super::margin::{Choice, MarginReport, NearestReport};
use super::protection::{ProtectionReport, too_young};
use crate::decision::{Action, Cause, Decision, Evaluation};
use crate::in_flight::Phase;
use crate::pod::PodName;
use crate::pods::KnownPod;
use crate::rank::{Candidate, Measure, OverRequestClass};
use crate::snapshot::NO_STATS;
use crate::units::GoDuration;

/// A pod with all that it was ranked by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateReport {
    /// Who.
    pub pod: PodName,
    /// What became of it.
    pub fate: CandidateOutcome,
    /// How its usage stands to its request.
    pub standing: OverRequestClass,
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
    /// What protects it or puts it forward, if anything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shelter: Option<ProtectionReport>,
    /// Nothing is known of it, and it started only this long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_young: Option<GoDuration>,
    /// Why it is passed over, or would be, as a sentence without its subject. A report has that
    /// in other places.
    #[serde(skip)]
    pub passed_over: Option<String>,
    /// How far it is from the opposite fate. Absent if nobody goes or nobody else could, and
    /// for a pod that could not go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<MarginReport>,
}

/// What became of a ranked pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CandidateOutcome {
    /// It goes.
    Goes,
    /// Its turn came, but it is critical.
    Critical,
    /// Its turn came, but it is protected.
    Refused,
    /// It was on its way for a soft threshold, and has less time from now on.
    Hurried,
    /// It is on its way already.
    OnItsWay,
    /// It was to go a moment ago and did not: it is let be.
    LetBe,
    /// Its turn came, and one that ranks behind it went in its place.
    PassedOver,
    /// Its turn did not come.
    Stays,
}

/// All candidates, the first to go first.
#[derive(Default)]
pub(super) struct Candidates {
    pub(super) all: Vec<CandidateReport>,
    pub(super) nearest: Option<NearestReport>,
}

impl CandidateReport {
    /// The first of the pods that a decision ranked, at most so many.
    pub fn first(decision: &Decision, most: usize) -> Vec<Self> {
        decision.pass().map_or_else(Vec::new, |pass| Self::some(decision, pass, most))
    }

    fn some(decision: &Decision, pass: &Evaluation, most: usize) -> Vec<Self> {
        let Some(signal) = pass.handled_signal() else {
            return Vec::new();
        };
        let measure = Measure::of(signal, pass.layout);
        let mut scratch = Vec::new();
        let joined = pass.snapshot.joined(&pass.pods, &mut scratch);
        let going: BTreeSet<u32> = decision.actions.iter().filter_map(for_threshold).collect();
        let spared: BTreeSet<u32> = pass.spared.iter().copied().collect();
        let remembered = |uid: &str| pass.flights.iter().any(|flight| *flight.pod.pod.uid == *uid);
        let barred = |place| {
            let known = pass.pods.get(place);
            known.is_some_and(|known| known.critical || remembered(&known.pod.uid))
        };
        let goes = |place| going.contains(&place);
        let refused: BTreeSet<u32> = pass.refused_pods.iter().map(|refused| refused.place).collect();
        let sized = || pass.deficits.iter().filter(|deficit| Some(deficit.line) == pass.handled);
        let hurried: BTreeSet<u32> = sized().flat_map(|deficit| deficit.hurried.iter().copied()).collect();
        let passed_over: BTreeSet<u32> =
            sized().flat_map(|deficit| deficit.passed_over.iter().map(|one| one.place)).collect();
        let is = |uid: &str, what: fn(&Phase) -> bool| {
            pass.flights.iter().any(|flight| *flight.pod.pod.uid == *uid && what(&flight.phase))
        };
        let may_go = |place| !barred(place) && !refused.contains(&place);
        let choice = Choice::new(pass, measure, joined, goes, |place| !may_go(place));
        let report = |(rank, candidate): (usize, &Candidate)| {
            let place = candidate.place;
            let known = pass.pods.get(place)?;
            let at = joined.get(place as usize).copied();
            let stats = at.filter(|&at| at != NO_STATS).and_then(|at| pass.snapshot.pod(at));
            let usage = measure.known_usage(&pass.pods, place, &known.rank, stats);
            let fate = match () {
                () if goes(place) => CandidateOutcome::Goes,
                () if spared.contains(&place) => CandidateOutcome::Critical,
                () if refused.contains(&place) => CandidateOutcome::Refused,
                () if hurried.contains(&place) => CandidateOutcome::Hurried,
                () if passed_over.contains(&place) => CandidateOutcome::PassedOver,
                () if is(&known.pod.uid, Phase::is_under_way) => CandidateOutcome::OnItsWay,
                () if is(&known.pod.uid, Phase::has_failed) => CandidateOutcome::LetBe,
                () => CandidateOutcome::Stays,
            };
            Some(Self {
                pod: PodName::of(&known.pod),
                fate,
                standing: candidate.standing,
                priority: candidate.priority,
                usage: usage.map(clamped),
                request: measure.request(known).map(|request| request.to_string()),
                excess: usage.map(|_| candidate.excess.units_rounded_up()),
                tie: candidate.tie,
                critical: known.critical,
                shelter: ProtectionReport::of(known),
                too_young: too_young(known, candidate.standing, decision.at),
                passed_over: why_passed_over(pass, fate, place, known),
                margin: if may_go(place) || goes(place) { choice.margin(rank, goes(place)) } else { None },
            })
        };
        pass.ranked.iter().enumerate().take(most).filter_map(report).collect()
    }
}

impl Candidates {
    pub(super) fn of(decision: &Decision, pass: &Evaluation) -> Self {
        let all = CandidateReport::some(decision, pass, usize::MAX);
        Self { nearest: nearest(&all), all }
    }
}

/// Why it does not go, or would not, as a sentence without its subject.
fn why_passed_over(
    pass: &Evaluation,
    fate: CandidateOutcome,
    place: u32,
    known: &KnownPod,
) -> Option<String> {
    let refused = || Some(pass.refused_pods.iter().find(|refused| refused.place == place)?.why.to_string());
    let small = || {
        let mut all = pass.deficits.iter().flat_map(|deficit| &deficit.passed_over);
        Some(all.find(|one| one.place == place)?.why.to_string())
    };
    match fate {
        CandidateOutcome::Goes => None,
        CandidateOutcome::Critical => Some("critical".to_owned()),
        CandidateOutcome::Refused => refused(),
        CandidateOutcome::Hurried => Some("was on its way, and is hurried".to_owned()),
        CandidateOutcome::OnItsWay => Some("is on its way".to_owned()),
        CandidateOutcome::LetBe => Some("was to go a moment ago and did not".to_owned()),
        CandidateOutcome::PassedOver => small(),
        CandidateOutcome::Stays => known.critical.then(|| "critical".to_owned()),
    }
}

/// The least change of usage that any margin needs; of equal ones that of the pod which ranks
/// first.
fn nearest(all: &[CandidateReport]) -> Option<NearestReport> {
    let margins = all.iter().filter_map(|one| Some((one, one.margin?, one.margin?.usage?)));
    let (pod, margin, usage) = margins.min_by_key(|(.., usage)| usage.unsigned_abs())?;
    let rival = all.get(margin.against)?.pod.clone();
    let pod_name = pod.pod.clone();
    let (stays, goes) = match pod.fate {
        CandidateOutcome::Goes => (pod_name.clone(), rival),
        CandidateOutcome::Critical
        | CandidateOutcome::Refused
        | CandidateOutcome::Hurried
        | CandidateOutcome::OnItsWay
        | CandidateOutcome::LetBe
        | CandidateOutcome::PassedOver
        | CandidateOutcome::Stays => (rival, pod_name.clone()),
    };
    Some(NearestReport { pod: pod_name, usage, stays, goes })
}

fn for_threshold(action: &Action) -> Option<u32> {
    match action {
        Action::Evict(eviction) if matches!(eviction.cause, Cause::Threshold { .. }) => Some(eviction.place),
        Action::Evict(_) | Action::ShortenGrace(_) | Action::RecordEvent(_) | Action::Reclaim(_) => None,
    }
}

fn clamped(number: i128) -> i64 {
    let nearest = if number < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(number).unwrap_or(nearest)
}
