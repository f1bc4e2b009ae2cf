//! Ranked pods in a record, what protects them, and why they were skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use crate::decision::{Action, Decision, Evaluation};
use crate::eviction::{Cause, SizedOutcome, SizedPod, SkipReason};
use crate::in_flight::InFlightEviction;
use crate::pod::PodName;
use crate::pods::{EvictionOrder, IgnoredAnnotation, KnownPod, PodProtection, PodSet};
use crate::protection::{Refusal, RefusedPod};
use crate::rank::{Candidate, Measure, OverRequestClass};
use crate::record::margin::{MarginRecord, NearestRecord};
use crate::snapshot::Snapshot;
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

/// Ranked pods, and what became of them.
pub(super) struct RankedPods<'a> {
    pub(super) at: Timestamp,
    pub(super) measure: Measure,
    pub(super) pods: &'a PodSet,
    pub(super) snapshot: &'a Snapshot,
    pub(super) ranked: &'a [Candidate],
    pub(super) evicted: BTreeSet<u32>,
    pub(super) critical_pods: &'a [u32],
    pub(super) refused_pods: &'a [RefusedPod],
    pub(super) in_flight: &'a [InFlightEviction],
    /// Pods that were dealt with for any threshold.
    pub(super) sized_pods: &'a [SizedPod],
    /// The same for the one that is ranked for.
    pub(super) sized_now: Vec<SizedPod>,
    /// Evictions are sized by what each pod frees.
    pub(super) is_sized: bool,
}

impl<'a> RankedPods<'a> {
    /// Those that an evaluation ranked. None if it ranked none.
    pub(super) fn of(decision: &Decision, evaluation: &'a Evaluation) -> Option<Self> {
        Some(Self {
            at: decision.at,
            measure: Measure::of(evaluation.driving_signal()?, evaluation.layout),
            pods: &evaluation.pods,
            snapshot: &evaluation.snapshot,
            ranked: &evaluation.ranked,
            evicted: decision.actions.iter().filter_map(for_threshold).collect(),
            critical_pods: &evaluation.critical_pods,
            refused_pods: &evaluation.refused_pods,
            in_flight: &evaluation.in_flight,
            sized_pods: &evaluation.sized_pods,
            sized_now: evaluation.sized_for_driving().copied().collect(),
            is_sized: !evaluation.deficits.is_empty(),
        })
    }

    /// Their records, the first to be evicted first.
    pub(super) fn records(&self) -> Vec<CandidateRecord> {
        let border = self.border();
        let record = |(rank, candidate): (usize, &Candidate)| {
            let index = candidate.pod;
            let known = self.pods.get(index)?;
            let usage = self.measure.known_usage(known, self.snapshot.stats_of(index));
            let result = self.result(index, known);
            let has_margin = result == CandidateOutcome::Evicted || self.may_be_evicted(index);
            Some(CandidateRecord {
                pod: PodName::of(&known.pod),
                result,
                class: candidate.class,
                priority: candidate.priority,
                usage: usage.map(clamped),
                request: self.measure.request(known).map(|request| request.to_string()),
                excess: usage.map(|_| candidate.excess.units_rounded_up()),
                uid_rank: candidate.uid_rank,
                critical: known.critical,
                protection: ProtectionRecord::of(known),
                too_young: too_young(known, candidate.class, self.at),
                skipped_reason: self.skipped_reason(result, index, known),
                margin: border.filter(|_| has_margin).and_then(|border| self.margin(border, rank)),
            })
        };
        self.ranked.iter().enumerate().filter_map(record).collect()
    }

    fn result(&self, index: u32, known: &KnownPod) -> CandidateOutcome {
        let sized = |is_it: fn(&SizedOutcome) -> bool| {
            self.sized_now.iter().any(|sized| sized.pod == index && is_it(&sized.outcome))
        };
        let in_flight = |is_it: fn(&InFlightEviction) -> bool| {
            self.in_flight.iter().any(|it| it.pod.uid == known.pod.uid && is_it(it))
        };
        match () {
            () if self.evicted.contains(&index) => CandidateOutcome::Evicted,
            () if self.critical_pods.contains(&index) => CandidateOutcome::Critical,
            () if self.refused(index).is_some() => CandidateOutcome::Protected,
            () if sized(|it| *it == SizedOutcome::GraceShortened) => CandidateOutcome::GraceShortened,
            () if sized(|it| matches!(it, SizedOutcome::Skipped { .. })) => CandidateOutcome::Skipped,
            () if in_flight(InFlightEviction::is_terminating) => CandidateOutcome::Terminating,
            () if in_flight(InFlightEviction::has_failed) => CandidateOutcome::FailedLately,
            () => CandidateOutcome::NotReached,
        }
    }

    fn refused(&self, index: u32) -> Option<Refusal> {
        self.refused_pods.iter().find(|refused| refused.pod == index).map(|refused| refused.why)
    }

    /// Why a pod was skipped for one that ranks behind it, for what it frees or since its last eviction failed.
    pub(super) fn skipped(&self, index: u32) -> Option<SkipReason> {
        self.sized_pods.iter().find_map(|sized| match sized.outcome {
            SizedOutcome::Skipped { why, .. } if sized.pod == index => Some(why),
            _ => None,
        })
    }

    /// Whether nothing but the ranking spares a pod.
    pub(super) fn may_be_evicted(&self, index: u32) -> bool {
        let is_in_flight = |known: &KnownPod| self.in_flight.iter().any(|it| it.pod.uid == known.pod.uid);
        let is_barred = |known: &KnownPod| known.critical || is_in_flight(known);
        !self.pods.get(index).is_some_and(is_barred) && self.refused(index).is_none()
    }

    /// Why a pod is not evicted, or would not be, as a sentence without its subject.
    fn skipped_reason(&self, result: CandidateOutcome, index: u32, known: &KnownPod) -> Option<String> {
        match result {
            CandidateOutcome::Evicted => None,
            CandidateOutcome::Critical => Some("critical".to_owned()),
            CandidateOutcome::Protected => self.refused(index).map(|why| why.to_string()),
            CandidateOutcome::GraceShortened => Some("was on its way, and is hurried".to_owned()),
            CandidateOutcome::Terminating => Some("is on its way".to_owned()),
            CandidateOutcome::FailedLately => Some("was to go a moment ago and did not".to_owned()),
            CandidateOutcome::Skipped => self.skipped(index).map(|why| why.to_string()),
            CandidateOutcome::NotReached => known.critical.then(|| "critical".to_owned()),
        }
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
