//! Ranked pods in a record: what protects them, and why they were skipped. Also the order in which pods would be
//! evicted if a threshold were met now.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::decision::{Action, Decision, Evaluation};
use crate::disk_layout::DiskLayout;
use crate::eviction::{Cause, Eviction, SizedOutcome, SizedPod, SkipReason};
use crate::in_flight::InFlightEviction;
use crate::pod::PodName;
use crate::pods::{KnownPod, PodProtection, PodSet};
use crate::policy::preferences::EvictionOrder;
use crate::protection::Refusal;
use crate::rank::{Candidate, Measure, OverRequestClass, rank};
use crate::record::margin::MarginRecord;
use crate::signal::Signal;
use crate::snapshot::Snapshot;
use crate::time::{Timestamp, since};
use crate::units::{GoDuration, Quantity, nearest_i64};

/// A pod with all values that it was ranked by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateRecord {
    /// The pod.
    pub pod: PodName,
    /// The outcome for the pod.
    pub result: CandidateOutcome,
    /// The rank among the pods that may be evicted, from 1. None for the others.
    #[serde(skip)]
    pub rank: Option<usize>,
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
    pub request: Option<Quantity>,
    /// How much more the usage is than the request, in whole units: more is evicted first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excess: Option<i64>,
    /// The index in the order of uids, the last criterion.
    pub uid_rank: u32,
    /// Whether the pod is critical, so that it is skipped.
    pub critical: bool,
    /// What protects the pod or moves it forward.
    #[serde(skip_serializing_if = "is_unprotected")]
    pub protection: PodProtection,
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

crate::named_enum! {
    /// The outcome for a ranked pod.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum CandidateOutcome {
        /// The pod is evicted.
        Evicted = "evicted",
        /// The pod was considered, but is critical.
        Critical = "critical",
        /// The pod was considered, but is protected.
        Protected = "protected",
        /// The pod was terminating for a soft threshold, and its grace period is shortened.
        GraceShortened = "grace_shortened",
        /// The pod is already terminating, or the same evaluation evicts it for a limit of its own.
        Terminating = "terminating",
        /// The eviction of the pod failed a moment ago, so it is not considered.
        FailedLately = "failed_lately",
        /// The pod was considered, but one that ranks behind it was evicted in its place.
        Skipped = "skipped",
        /// The pod was not considered.
        NotReached = "not_reached",
    }
}

/// Ranked pods, and the values that determine their outcomes.
pub(super) struct RankedPods<'a> {
    at: Timestamp,
    pub(super) measure: Measure,
    pub(super) pods: &'a PodSet,
    pub(super) snapshot: &'a Snapshot,
    pub(super) ranked: &'a [Candidate],
    in_flight: &'a [InFlightEviction],
    /// The outcomes of the pods that were considered. Skipped pods and shortened grace periods count only for the
    /// driving threshold.
    outcomes: BTreeMap<u32, CandidateOutcome>,
    /// The first refusal of each refused pod.
    refusals: BTreeMap<u32, Refusal>,
    /// The pods that were skipped for any threshold, each with the first reason.
    pub(super) skipped: BTreeMap<u32, SkipReason>,
    /// Whether pods are selected by what each one frees.
    pub(super) is_sized: bool,
}

impl<'a> RankedPods<'a> {
    /// Returns the pods that an evaluation ranked. None if it ranked none.
    pub(super) fn of(decision: &Decision, evaluation: &'a Evaluation) -> Option<Self> {
        // Of several outcomes of a pod, the last one counts.
        let sized = evaluation.sized_for_driving().filter_map(|it| match it.outcome {
            SizedOutcome::Evicted => None,
            SizedOutcome::GraceShortened => Some((it.pod, CandidateOutcome::GraceShortened)),
            SizedOutcome::Skipped { .. } => Some((it.pod, CandidateOutcome::Skipped)),
        });
        let refused = evaluation.refused_pods.iter().map(|it| (it.pod, CandidateOutcome::Protected));
        let critical = evaluation.critical_pods.iter().map(|pod| (*pod, CandidateOutcome::Critical));
        let evicted = decision.actions.iter().filter_map(|action| match action {
            Action::Evict(Eviction { pod, cause: Cause::Threshold { .. }, .. }) => {
                Some((*pod, CandidateOutcome::Evicted))
            }
            Action::Evict(Eviction { pod, .. }) => Some((*pod, CandidateOutcome::Terminating)),
            Action::ShortenGrace(_) | Action::RecordEvent(_) | Action::Reclaim(_) => None,
        });
        Some(Self {
            at: decision.at,
            measure: Measure::of(evaluation.driving_signal()?, evaluation.layout),
            pods: &evaluation.pods,
            snapshot: &evaluation.snapshot,
            ranked: &evaluation.ranked,
            in_flight: &evaluation.in_flight,
            outcomes: sized.chain(refused).chain(critical).chain(evicted).collect(),
            // Reversed, so that the first entry of a pod is the one that stays in the map.
            refusals: evaluation.refused_pods.iter().rev().map(|it| (it.pod, it.why)).collect(),
            skipped: evaluation.sized_pods.iter().rev().filter_map(skipped).collect(),
            is_sized: !evaluation.deficits.is_empty(),
        })
    }

    /// Returns the records of the pods, the first to be evicted first.
    pub(super) fn records(&self) -> Vec<CandidateRecord> {
        let border = self.border();
        let mut next_rank = 1;
        let record = |(position, candidate): (usize, &Candidate)| {
            let index = candidate.pod;
            let known = self.pods.get(index)?;
            let stats = self.snapshot.stats_of(index);
            let usage = self.measure.known_usage(known, stats);
            let result = self.result(index, known);
            let has_margin = result == CandidateOutcome::Evicted || self.may_be_evicted(index);
            let is_candidate = !known.critical
                && matches!(
                    result,
                    CandidateOutcome::Evicted | CandidateOutcome::Skipped | CandidateOutcome::NotReached
                );
            let rank = is_candidate.then_some(next_rank);
            next_rank += usize::from(is_candidate);
            Some(CandidateRecord {
                pod: PodName::of(&known.pod),
                result,
                rank,
                class: candidate.class,
                priority: candidate.priority,
                usage: usage.map(nearest_i64),
                bytes_elsewhere: stats
                    .filter(|_| matches!(self.measure, Measure::Bytes(_)))
                    .and_then(|stats| stats.values().bytes_elsewhere),
                request: self.measure.request(known),
                excess: usage.map(|_| candidate.excess.units_rounded_up()),
                uid_rank: candidate.uid_rank,
                critical: known.critical,
                protection: known.protection.clone(),
                too_young: too_young(known, candidate.class, self.at),
                skipped_reason: self.skipped_reason(result, index, known),
                margin: border.filter(|_| has_margin).and_then(|border| self.margin(border, position)),
            })
        };
        self.ranked.iter().enumerate().filter_map(record).collect()
    }

    fn result(&self, index: u32, known: &KnownPod) -> CandidateOutcome {
        let in_flight = |predicate: fn(&InFlightEviction) -> bool| self.evictions_of(known).any(predicate);
        match self.outcomes.get(&index) {
            Some(outcome) => *outcome,
            None if in_flight(InFlightEviction::is_terminating) => CandidateOutcome::Terminating,
            None if in_flight(InFlightEviction::has_failed) => CandidateOutcome::FailedLately,
            None => CandidateOutcome::NotReached,
        }
    }

    pub(super) fn is_evicted(&self, index: u32) -> bool {
        self.outcomes.get(&index) == Some(&CandidateOutcome::Evicted)
    }

    /// Returns the in-flight evictions of a pod.
    fn evictions_of(&self, known: &KnownPod) -> impl Iterator<Item = &InFlightEviction> {
        self.in_flight.iter().filter(|it| it.has_uid(&known.pod.uid))
    }

    /// Returns whether only its rank keeps a pod from being evicted.
    pub(super) fn may_be_evicted(&self, index: u32) -> bool {
        let is_excluded = |known: &KnownPod| known.critical || self.evictions_of(known).next().is_some();
        let outcome = self.outcomes.get(&index);
        !self.pods.get(index).is_some_and(is_excluded)
            && !matches!(outcome, Some(CandidateOutcome::Protected | CandidateOutcome::Terminating))
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

/// Returns a pod that was skipped for one that ranks behind it, and the reason: it frees too little, or its last
/// eviction failed.
fn skipped(sized: &SizedPod) -> Option<(u32, SkipReason)> {
    match sized.outcome {
        SizedOutcome::Skipped { why, .. } => Some((sized.pod, why)),
        _ => None,
    }
}

/// Returns whether nothing protects a pod or moves it forward.
fn is_unprotected(protection: &PodProtection) -> bool {
    let PodProtection { order, rule, without_controller, hint, ignored, rate_limit_key: _ } = protection;
    *order == EvictionOrder::Normal
        && rule.is_none()
        && !without_controller
        && *hint == 0
        && ignored.is_empty()
}

/// How long after its start a pod may have no statistics yet: three sampling intervals of the kubelet, of ten
/// seconds each.
const YOUNG: GoDuration = GoDuration::from_secs(30);

/// Returns how long ago a pod started, if its usage is unknown and it started so recently that it may not
/// have been sampled yet.
fn too_young(known: &KnownPod, class: OverRequestClass, now: Timestamp) -> Option<GoDuration> {
    let is_unknown = matches!(class, OverRequestClass::NoStats | OverRequestClass::Unknown);
    let age = since(now, known.pod.start_time.filter(|_| is_unknown)?);
    (age < YOUNG).then_some(age)
}

/// A sample of all pods, with the other values that their order depends on.
#[derive(Clone, Debug)]
pub struct PodSample {
    /// When the sample was taken.
    pub at: Timestamp,
    /// The active pods.
    pub pods: Arc<PodSet>,
    /// The usage of the pods. The snapshot is indexed for them.
    pub snapshot: Arc<Snapshot>,
    /// The layout of the file systems.
    pub layout: DiskLayout,
    /// The in-flight evictions. Their pods are not evicted again.
    pub in_flight: Vec<InFlightEviction>,
    /// Whether pods are selected by what each one frees.
    pub sized: bool,
}

impl PodSample {
    /// Returns the pods in the order of eviction.
    pub fn ranked(&self, signal: Signal) -> Vec<Candidate> {
        let mut ranked = Vec::new();
        rank(Measure::of(signal, self.layout), &self.pods, &self.snapshot, &mut ranked);
        ranked
    }

    /// Returns the pods in the order in which they would be evicted if a hard threshold of this signal were met
    /// now, with the reasons. The first one that may be evicted has the result [`CandidateOutcome::Evicted`]. Rate
    /// limits, cool-downs and PodDisruptionBudgets, which change from one evaluation to the next, do not count.
    pub fn ranking(&self, signal: Signal) -> Vec<CandidateRecord> {
        let Self { at, pods, snapshot, layout, in_flight, sized } = self;
        let ranked = self.ranked(signal);
        let refused = |it: &Candidate| Some((it.pod, Refusal::by(&pods.get(it.pod)?.protection)?));
        let refusals: BTreeMap<_, _> = ranked.iter().filter_map(refused).collect();
        let mut ranked_pods = RankedPods {
            at: *at,
            measure: Measure::of(signal, *layout),
            pods,
            snapshot,
            ranked: &ranked,
            in_flight,
            outcomes: refusals.keys().map(|pod| (*pod, CandidateOutcome::Protected)).collect(),
            refusals,
            skipped: BTreeMap::new(),
            is_sized: *sized,
        };
        let first = ranked.iter().find(|candidate| ranked_pods.may_be_evicted(candidate.pod));
        let first = first.map(|candidate| (candidate.pod, CandidateOutcome::Evicted));
        ranked_pods.outcomes.extend(first);
        ranked_pods.records()
    }
}
