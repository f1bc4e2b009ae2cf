//! Ranked pods in a record, what protects them, and why they were skipped.

use std::collections::{BTreeMap, BTreeSet};

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

/// A pod with all values that it was ranked by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateRecord {
    /// The pod.
    pub pod: PodName,
    /// The outcome for the pod.
    pub result: CandidateOutcome,
    /// How the usage compares with the request.
    pub class: OverRequestClass,
    /// The priority: lower is evicted first.
    pub priority: i32,
    /// The usage of the resource that is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<i64>,
    /// A lower bound of the bytes that the pod has written to the node's disks outside of its volumes and
    /// writable layers, or to deleted files that are still open. Present only if bytes are short. Not part of
    /// `usage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_elsewhere: Option<u64>,
    /// The request of that resource, if requests count for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// How much more the usage is than the request, in whole units: more is evicted first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excess: Option<i64>,
    /// The index in the order of uids, the last criterion.
    pub uid_rank: u32,
    /// Whether the pod is critical, so that it is skipped.
    pub critical: bool,
    /// What protects the pod or moves it forward, if anything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protection: Option<ProtectionRecord>,
    /// How long ago the pod started, if its usage is unknown and that was only recently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_young: Option<GoDuration>,
    /// Why the pod is skipped, or would be, as a sentence without its subject. Only event lines contain it:
    /// JSON has the same information in the other fields.
    #[serde(skip)]
    pub skipped_reason: Option<String>,
    /// How far the pod is from the opposite outcome. Absent if no pod is evicted or no other pod could be,
    /// and for a pod that could not be evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<MarginRecord>,
}

/// The outcome for a ranked pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CandidateOutcome {
    /// The pod is evicted.
    Evicted,
    /// The pod was considered, but is critical.
    Critical,
    /// The pod was considered, but is protected.
    Protected,
    /// The pod was terminating for a soft threshold, and its grace period is shortened.
    GraceShortened,
    /// The pod is already terminating, or the same evaluation evicts it for a limit of its own.
    Terminating,
    /// The eviction of the pod failed a moment ago, so it is not considered.
    FailedLately,
    /// The pod was considered, but one that ranks behind it was evicted in its place.
    Skipped,
    /// The pod was not considered.
    NotReached,
}

/// Ranked pods, and the values that determine their outcomes.
pub(super) struct RankedPods<'a> {
    pub(super) at: Timestamp,
    pub(super) measure: Measure,
    pub(super) pods: &'a PodSet,
    pub(super) snapshot: &'a Snapshot,
    pub(super) ranked: &'a [Candidate],
    /// The pods that are evicted for a threshold.
    pub(super) evicted: BTreeSet<u32>,
    /// The pods that are evicted for a limit of their own.
    pub(super) above_limits: BTreeSet<u32>,
    pub(super) critical_pods: BTreeSet<u32>,
    /// The first refusal of each refused pod.
    pub(super) refusals: BTreeMap<u32, Refusal>,
    pub(super) in_flight: &'a [InFlightEviction],
    /// The pods that were skipped for any threshold, each with the first reason.
    pub(super) skipped: BTreeMap<u32, SkipReason>,
    /// The pods that were skipped for the driving threshold.
    pub(super) skipped_for_driving: BTreeSet<u32>,
    /// The pods whose grace period is shortened for the driving threshold.
    pub(super) shortened: BTreeSet<u32>,
    /// Whether pods are selected by what each one frees.
    pub(super) is_sized: bool,
}

impl<'a> RankedPods<'a> {
    /// Returns the pods that an evaluation ranked. None if it ranked none.
    pub(super) fn of(decision: &Decision, evaluation: &'a Evaluation) -> Option<Self> {
        let (mut evicted, mut above_limits) = (BTreeSet::new(), BTreeSet::new());
        for action in &decision.actions {
            if let Action::Evict(it) = action {
                let is_for_threshold = matches!(it.cause, Cause::Threshold { .. });
                let pods = if is_for_threshold { &mut evicted } else { &mut above_limits };
                pods.insert(it.pod);
            }
        }
        Some(Self {
            at: decision.at,
            measure: Measure::of(evaluation.driving_signal()?, evaluation.layout),
            pods: &evaluation.pods,
            snapshot: &evaluation.snapshot,
            ranked: &evaluation.ranked,
            evicted,
            above_limits,
            critical_pods: evaluation.critical_pods.iter().copied().collect(),
            // Reversed, so that the first entry of a pod is the one that stays in the map.
            refusals: evaluation.refused_pods.iter().rev().map(|it| (it.pod, it.why)).collect(),
            in_flight: &evaluation.in_flight,
            skipped: evaluation.sized_pods.iter().rev().filter_map(skipped).collect(),
            skipped_for_driving: evaluation
                .sized_for_driving()
                .filter_map(skipped)
                .map(|(pod, _)| pod)
                .collect(),
            shortened: evaluation
                .sized_for_driving()
                .filter(|it| it.outcome == SizedOutcome::GraceShortened)
                .map(|it| it.pod)
                .collect(),
            is_sized: !evaluation.deficits.is_empty(),
        })
    }

    /// Returns the records of the pods, the first to be evicted first.
    pub(super) fn records(&self) -> Vec<CandidateRecord> {
        let border = self.border();
        let record = |(rank, candidate): (usize, &Candidate)| {
            let index = candidate.pod;
            let known = self.pods.get(index)?;
            let stats = self.snapshot.stats_of(index);
            let usage = self.measure.known_usage(known, stats);
            let result = self.result(index, known);
            let has_margin = result == CandidateOutcome::Evicted || self.may_be_evicted(index);
            Some(CandidateRecord {
                pod: PodName::of(&known.pod),
                result,
                class: candidate.class,
                priority: candidate.priority,
                usage: usage.map(clamped),
                bytes_elsewhere: stats
                    .filter(|_| matches!(self.measure, Measure::Bytes(_)))
                    .and_then(|stats| stats.values().bytes_elsewhere),
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
        let in_flight = |predicate: fn(&InFlightEviction) -> bool| self.evictions_of(known).any(predicate);
        match () {
            () if self.evicted.contains(&index) => CandidateOutcome::Evicted,
            () if self.above_limits.contains(&index) => CandidateOutcome::Terminating,
            () if self.critical_pods.contains(&index) => CandidateOutcome::Critical,
            () if self.refusals.contains_key(&index) => CandidateOutcome::Protected,
            () if self.shortened.contains(&index) => CandidateOutcome::GraceShortened,
            () if self.skipped_for_driving.contains(&index) => CandidateOutcome::Skipped,
            () if in_flight(InFlightEviction::is_terminating) => CandidateOutcome::Terminating,
            () if in_flight(InFlightEviction::has_failed) => CandidateOutcome::FailedLately,
            () => CandidateOutcome::NotReached,
        }
    }

    /// Returns the in-flight evictions of a pod.
    fn evictions_of(&self, known: &KnownPod) -> impl Iterator<Item = &InFlightEviction> {
        self.in_flight.iter().filter(|it| it.has_uid(&known.pod.uid))
    }

    /// Returns whether only its rank keeps a pod from being evicted.
    pub(super) fn may_be_evicted(&self, index: u32) -> bool {
        let is_excluded = |known: &KnownPod| known.critical || self.evictions_of(known).next().is_some();
        !self.pods.get(index).is_some_and(is_excluded)
            && !self.refusals.contains_key(&index)
            && !self.above_limits.contains(&index)
    }

    /// Returns why a pod is not evicted, or would not be, as a sentence without its subject.
    fn skipped_reason(&self, result: CandidateOutcome, index: u32, known: &KnownPod) -> Option<String> {
        match result {
            CandidateOutcome::Evicted => None,
            CandidateOutcome::Critical => Some("critical".to_owned()),
            CandidateOutcome::Protected => self.refusals.get(&index).map(Refusal::to_string),
            CandidateOutcome::GraceShortened => {
                Some("was on its way, and gets a shorter grace period".to_owned())
            }
            CandidateOutcome::Terminating => Some("is on its way".to_owned()),
            CandidateOutcome::FailedLately => Some("was to go a moment ago and did not".to_owned()),
            CandidateOutcome::Skipped => self.skipped.get(&index).map(SkipReason::to_string),
            CandidateOutcome::NotReached => known.critical.then(|| "critical".to_owned()),
        }
    }
}

impl NearestRecord {
    /// Returns the smallest change of usage among all margins. Of equal changes, that of the pod which ranks
    /// first counts.
    pub(super) fn of(candidates: &[CandidateRecord]) -> Option<Self> {
        let margins = candidates.iter().filter_map(|one| Some((one, one.margin?, one.margin?.usage?)));
        let (candidate, margin, usage) = margins.min_by_key(|(.., usage)| usage.unsigned_abs())?;
        let pod = candidate.pod.clone();
        let rival = candidates.get(margin.against)?.pod.clone();
        let (kept, evicted) = match candidate.result {
            CandidateOutcome::Evicted => (pod.clone(), rival),
            _ => (rival, pod.clone()),
        };
        Some(Self { pod, usage, kept, evicted })
    }
}

/// Returns a pod that was skipped for one that ranks behind it, and the reason: it frees too little, or its last
/// eviction failed.
fn skipped(sized: &SizedPod) -> Option<(u32, SkipReason)> {
    match sized.outcome {
        SizedOutcome::Skipped { why, .. } => Some((sized.pod, why)),
        _ => None,
    }
}

fn clamped(number: i128) -> i64 {
    let nearest = if number < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(number).unwrap_or(nearest)
}

/// How long after its start a pod may have no statistics yet: three sampling intervals of the kubelet, of ten
/// seconds each.
const YOUNG: GoDuration = GoDuration::from_secs(30);

/// What determines the eviction order of a pod besides its usage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProtectionRecord {
    /// The eviction order of the pod.
    pub order: EvictionOrder,
    /// The index in `policy.protection` of the rule that matches the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// Whether no controller would recreate the pod, so that others of its class and priority are evicted first.
    pub without_controller: bool,
    /// The value of `eviction-agent.io/priority-hint`: lower is evicted first.
    pub hint: i8,
    /// The pod's annotations that are ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored_annotations: Vec<IgnoredAnnotation>,
}

impl ProtectionRecord {
    /// Returns the protection of a pod. None if the pod has none.
    pub(super) fn of(known: &KnownPod) -> Option<Self> {
        let PodProtection { order, rule, without_controller, hint, rate_limit_key: _, ignored } =
            known.protection.clone();
        let record = Self { order, rule, without_controller, hint, ignored_annotations: ignored };
        (record != Self::default()).then_some(record)
    }
}

/// Returns how long ago a pod started, if its usage is unknown and it started so recently that it may not
/// have been sampled yet.
pub(super) fn too_young(known: &KnownPod, class: OverRequestClass, now: Timestamp) -> Option<GoDuration> {
    let is_unknown = matches!(class, OverRequestClass::NoStats | OverRequestClass::Unknown);
    let age = since(now, known.pod.start_time.filter(|_| is_unknown)?);
    (age < YOUNG).then_some(age)
}

/// A pod that was considered, but is not evicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusedPodRecord {
    /// The pod.
    pub pod: PodName,
    /// Why the pod is not evicted.
    #[serde(flatten)]
    pub why: Refusal,
}

impl RefusedPodRecord {
    pub(super) fn all(evaluation: &Evaluation) -> Vec<Self> {
        // A pod may be considered for several thresholds.
        let mut listed = BTreeSet::new();
        let is_new = |it: &&RefusedPod| listed.insert((it.pod, it.why));
        let record =
            |it: &RefusedPod| Some(Self { pod: PodName::of(&evaluation.pods.get(it.pod)?.pod), why: it.why });
        evaluation.refused_pods.iter().filter(is_new).filter_map(record).collect()
    }
}
