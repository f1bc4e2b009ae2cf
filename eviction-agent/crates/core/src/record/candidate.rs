//! Ranked pods in a record, what protects them, and why they were skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use crate::decision::{Action, Decision, Evaluation};
use crate::eviction::{Cause, SizedOutcome};
use crate::in_flight::InFlightEviction;
use crate::pod::PodName;
use crate::pods::{EvictionOrder, IgnoredAnnotation, KnownPod, PodProtection};
use crate::protection::{Refusal, RefusedPod};
use crate::rank::{Candidate, Measure, OverRequestClass};
use crate::record::margin::{Choice, MarginRecord, NearestRecord};
use crate::time::{Timestamp, since};
use crate::units::GoDuration;

/// A pod with all that it was ranked by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateRecord {
    /// Who.
    pub pod: PodName,
    /// What became of it.
    #[serde(rename = "fate")]
    pub result: CandidateOutcome,
    /// How its usage stands to its request.
    #[serde(rename = "standing")]
    pub class: OverRequestClass,
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
    /// Its index in the order of uids, which decides last.
    #[serde(rename = "tie")]
    pub uid_rank: u32,
    /// It is critical, and so is skipped.
    pub critical: bool,
    /// What protects it or puts it forward, if anything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "shelter")]
    pub protection: Option<ProtectionRecord>,
    /// Nothing is known of it, and it started only this long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_young: Option<GoDuration>,
    /// Why it is skipped, or would be, as a sentence without its subject. Only event lines have it: in JSON
    /// the other fields say it.
    #[serde(skip)]
    pub skipped_reason: Option<String>,
    /// How far it is from the opposite fate. Absent if nobody goes or nobody else could, and
    /// for a pod that could not go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<MarginRecord>,
}

/// What became of a ranked pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CandidateOutcome {
    /// It goes.
    #[serde(rename = "goes")]
    Evicted,
    /// Its turn came, but it is critical.
    Critical,
    /// Its turn came, but it is protected.
    #[serde(rename = "refused")]
    Protected,
    /// It was terminating for a soft threshold, and has less time from now on.
    #[serde(rename = "hurried")]
    GraceShortened,
    /// It is terminating already.
    #[serde(rename = "on_its_way")]
    Terminating,
    /// It was to go a moment ago and did not: it is let be.
    #[serde(rename = "let_be")]
    FailedLately,
    /// Its turn came, and one that ranks behind it went in its place.
    #[serde(rename = "passed_over")]
    Skipped,
    /// Its turn did not come.
    #[serde(rename = "stays")]
    NotReached,
}

impl CandidateRecord {
    /// The pods that an evaluation ranked, the first to be evicted first.
    pub(super) fn all(decision: &Decision, evaluation: &Evaluation) -> Vec<Self> {
        let Some(signal) = evaluation.driving_signal() else {
            return Vec::new();
        };
        let measure = Measure::of(signal, evaluation.layout);
        let going: BTreeSet<u32> = decision.actions.iter().filter_map(for_threshold).collect();
        let critical_pods: BTreeSet<u32> = evaluation.critical_pods.iter().copied().collect();
        let remembered = |uid: &str| evaluation.in_flight.iter().any(|in_flight| *in_flight.pod.uid == *uid);
        let barred = |index| {
            let known = evaluation.pods.get(index);
            known.is_some_and(|known| known.critical || remembered(&known.pod.uid))
        };
        let goes = |index| going.contains(&index);
        let refused: BTreeSet<u32> = evaluation.refused_pods.iter().map(|refused| refused.pod).collect();
        let sized = |is_it: fn(&SizedOutcome) -> bool| -> BTreeSet<u32> {
            let sized = evaluation.sized_for_driving().filter(|sized| is_it(&sized.outcome));
            sized.map(|sized| sized.pod).collect()
        };
        let shortened = sized(|outcome| *outcome == SizedOutcome::GraceShortened);
        let skipped = sized(|outcome| matches!(outcome, SizedOutcome::Skipped { .. }));
        let is = |uid: &str, what: fn(&InFlightEviction) -> bool| {
            evaluation.in_flight.iter().any(|in_flight| *in_flight.pod.uid == *uid && what(in_flight))
        };
        let may_go = |index| !barred(index) && !refused.contains(&index);
        let choice = Choice::new(evaluation, measure, goes, |index| !may_go(index));
        let record = |(rank, candidate): (usize, &Candidate)| {
            let index = candidate.pod;
            let known = evaluation.pods.get(index)?;
            let usage = measure.known_usage(known, evaluation.snapshot.stats_of(index));
            let fate = match () {
                () if goes(index) => CandidateOutcome::Evicted,
                () if critical_pods.contains(&index) => CandidateOutcome::Critical,
                () if refused.contains(&index) => CandidateOutcome::Protected,
                () if shortened.contains(&index) => CandidateOutcome::GraceShortened,
                () if skipped.contains(&index) => CandidateOutcome::Skipped,
                () if is(&known.pod.uid, InFlightEviction::is_terminating) => CandidateOutcome::Terminating,
                () if is(&known.pod.uid, InFlightEviction::has_failed) => CandidateOutcome::FailedLately,
                () => CandidateOutcome::NotReached,
            };
            Some(Self {
                pod: PodName::of(&known.pod),
                result: fate,
                class: candidate.class,
                priority: candidate.priority,
                usage: usage.map(clamped),
                request: measure.request(known).map(|request| request.to_string()),
                excess: usage.map(|_| candidate.excess.units_rounded_up()),
                uid_rank: candidate.uid_rank,
                critical: known.critical,
                protection: ProtectionRecord::of(known),
                too_young: too_young(known, candidate.class, decision.at),
                skipped_reason: skipped_reason(evaluation, fate, index, known),
                margin: if may_go(index) || goes(index) { choice.margin(rank, goes(index)) } else { None },
            })
        };
        evaluation.ranked.iter().enumerate().filter_map(record).collect()
    }
}

/// Why it is not evicted, or would not be, as a sentence without its subject.
fn skipped_reason(
    evaluation: &Evaluation,
    fate: CandidateOutcome,
    index: u32,
    known: &KnownPod,
) -> Option<String> {
    let refused =
        || Some(evaluation.refused_pods.iter().find(|refused| refused.pod == index)?.why.to_string());
    let small = || {
        evaluation.sized_pods.iter().find_map(|sized| match sized.outcome {
            SizedOutcome::Skipped { why, .. } if sized.pod == index => Some(why.to_string()),
            _ => None,
        })
    };
    match fate {
        CandidateOutcome::Evicted => None,
        CandidateOutcome::Critical => Some("critical".to_owned()),
        CandidateOutcome::Protected => refused(),
        CandidateOutcome::GraceShortened => Some("was on its way, and is hurried".to_owned()),
        CandidateOutcome::Terminating => Some("is on its way".to_owned()),
        CandidateOutcome::FailedLately => Some("was to go a moment ago and did not".to_owned()),
        CandidateOutcome::Skipped => small(),
        CandidateOutcome::NotReached => known.critical.then(|| "critical".to_owned()),
    }
}

impl NearestRecord {
    /// The least change of usage that any margin needs; of equal ones that of the pod which ranks
    /// first.
    pub(super) fn of(candidates: &[CandidateRecord]) -> Option<Self> {
        let margins = candidates.iter().filter_map(|one| Some((one, one.margin?, one.margin?.usage?)));
        let (candidate, margin, usage) = margins.min_by_key(|(.., usage)| usage.unsigned_abs())?;
        let pod = candidate.pod.clone();
        let rival = candidates.get(margin.against)?.pod.clone();
        let (stays, goes) = match candidate.result {
            CandidateOutcome::Evicted => (pod.clone(), rival),
            _ => (rival, pod.clone()),
        };
        Some(Self { pod, usage, kept: stays, evicted: goes })
    }
}

fn for_threshold(action: &Action) -> Option<u32> {
    match action {
        Action::Evict(eviction) if matches!(eviction.cause, Cause::Threshold { .. }) => Some(eviction.pod),
        Action::Evict(_) | Action::ShortenGrace(_) | Action::RecordEvent(_) | Action::Reclaim(_) => None,
    }
}

fn clamped(number: i128) -> i64 {
    let nearest = if number < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(number).unwrap_or(nearest)
}

/// For how long after its start a pod may well have no statistics yet: three of the kubelet's
/// rounds of sampling, one each ten seconds.
const YOUNG: GoDuration = GoDuration::from_secs(30);

/// When it is the turn of a pod for other reasons than what it uses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProtectionRecord {
    /// When its turn is.
    #[serde(rename = "turn")]
    pub order: EvictionOrder,
    /// The index in `policy.protection` of the rule that fits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// Nothing would bring it back, so that others of its standing and priority go before.
    #[serde(rename = "bare")]
    pub without_controller: bool,
    /// What it asks for by `eviction-agent.io/priority-hint`: lower goes first.
    pub hint: i8,
    /// Its annotations that say nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored_annotations: Vec<IgnoredAnnotation>,
}

impl ProtectionRecord {
    /// None if there is nothing to tell.
    pub(super) fn of(known: &KnownPod) -> Option<Self> {
        if known.protection
            == (PodProtection {
                rate_limit_key: Arc::clone(&known.protection.rate_limit_key),
                ..PodProtection::default()
            })
        {
            return None;
        }
        let PodProtection { order: turn, rule, without_controller: bare, hint, rate_limit_key: _, ignored } =
            known.protection.clone();
        Some(Self { order: turn, rule, without_controller: bare, hint, ignored_annotations: ignored })
    }
}

/// How long ago a pod started of which nothing is known, if that is so short a time that its
/// first sample may not have been taken yet.
pub(super) fn too_young(known: &KnownPod, standing: OverRequestClass, now: Timestamp) -> Option<GoDuration> {
    let is_unknown = matches!(standing, OverRequestClass::NoStats | OverRequestClass::Unknown);
    let age = since(now, known.pod.start_time.filter(|_| is_unknown)?);
    (age < YOUNG).then_some(age)
}

/// A pod that does not go although its turn had come.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusedPodRecord {
    /// Who.
    pub pod: PodName,
    /// Why.
    #[serde(flatten)]
    pub why: Refusal,
}

impl RefusedPodRecord {
    pub(super) fn all(evaluation: &Evaluation) -> Vec<Self> {
        let record = |RefusedPod { pod: index, why }: &RefusedPod| {
            Some(Self { pod: PodName::of(&evaluation.pods.get(*index)?.pod), why: *why })
        };
        // The turn of a pod may come for several thresholds.
        let mut refusals: BTreeMap<u32, Vec<Refusal>> = BTreeMap::new();
        let is_new = |&&RefusedPod { pod: index, why }: &&RefusedPod| {
            let refusals = refusals.entry(index).or_default();
            let is_new = !refusals.contains(&why);
            refusals.extend(is_new.then_some(why));
            is_new
        };
        evaluation.refused_pods.iter().filter(is_new).filter_map(record).collect()
    }
}
