//! Evictions of pods above their own limits, and the single eviction of the kubelet's profile.

use crate::decision::{Action, Evaluation};
use crate::engine::Engine;
use crate::eviction::{Cause, EvaluationEnd, Eviction};
use crate::pods::{KnownPod, LeastLimits, LocalLimits, PodSet};
use crate::protection::{EvictionGuard, EvictionMotive, EvictionRequest, Refusal, RefusedPod};
use crate::rank::{Measure, rank};
use crate::snapshot::{ContainerStatValues, ContainerStats, PodStats};
use crate::time::Timestamp;
use crate::units::Nanos;

/// `immediateEvictionGracePeriodSeconds`.
pub(super) const IMMEDIATE_GRACE_SECONDS: i64 = 1;

/// `corev1.DefaultTerminationGracePeriodSeconds`: what the API server gives a pod without one.
const DEFAULT_GRACE_SECONDS: i64 = 30;

impl Engine {
    /// Evicts every pod that is above its own limits: `localStorageEviction`. Whether there
    /// was one.
    pub(super) fn evict_above_limits(
        &mut self,
        at: Timestamp,
        evaluation: &mut Evaluation,
        actions: &mut Vec<Action>,
    ) -> bool {
        if evaluation.pods.limited().len() == 0 || evaluation.snapshot.is_empty() || self.waits_for_api(true)
        {
            return false;
        }
        let remembers = !self.policy.rules.are_kubelets();
        let before = actions.len();
        let joined = evaluation.snapshot.joined(&evaluation.pods, &mut self.joined);
        for &(place, least) in evaluation.pods.limited() {
            let stats = joined.get(place as usize).and_then(|&at| evaluation.snapshot.pod(at));
            let Some(stats) = stats else {
                continue;
            };
            let dedicated_image_fs = evaluation.layout.dedicated_image_fs;
            if is_below_the_least(least, stats, dedicated_image_fs) {
                continue;
            }
            let Some(known) = evaluation.pods.get(place) else { continue };
            let StorageCheck { cause, unknown_volumes } =
                exceeded_limit(&known.limits, stats, dedicated_image_fs);
            evaluation.unknown_volumes += unknown_volumes;
            let Some(cause) = cause else { continue };
            if known.critical {
                evaluation.critical_pods.push(place);
                continue;
            }
            let ask = EvictionRequest { at, motive: EvictionMotive::OwnLimits, is_last_resort: false };
            let candidate =
                EvictionCandidate { pods: &evaluation.pods, pod: place, known, stats: Some(stats) };
            if let Some(why) = refusal(&self.guard, ask, None, &candidate) {
                evaluation.refused_pods.push(RefusedPod { pod: place, why });
                continue;
            }
            let budget = self.pdb_refusals.refused_for(&known.pod.uid);
            let ignores_budget = budget.is_some() && self.policy.eviction.hard_ignores_pdb;
            if let Some(age) = budget.filter(|_| !ignores_budget) {
                let why = Refusal::DisruptionBudget { age };
                evaluation.refused_pods.push(RefusedPod { pod: place, why });
                continue;
            }
            let grace_period_seconds = IMMEDIATE_GRACE_SECONDS;
            let eviction = Eviction { pod: place, grace_period_seconds, cause, ignores_budget };
            if !remembers
                || self.in_flight.begin(
                    &evaluation.pods,
                    evaluation.layout,
                    evaluation.label_of(eviction.cause),
                    &eviction,
                    true,
                    Some(stats),
                )
            {
                self.guard.record_eviction(at, known);
                actions.push(Action::Evict(eviction));
            }
        }
        actions.len() > before
    }

    /// Ranks the pods for the threshold of the evaluation and evicts as many as the rules say: the end
    /// of `synchronize`.
    pub(super) fn evict_for_threshold(
        &mut self,
        at: Timestamp,
        evaluation: &mut Evaluation,
        actions: &mut Vec<Action>,
    ) {
        let handled = evaluation.driving.zip(evaluation.driving_signal());
        let Some((threshold_index, signal)) = handled.filter(|_| self.can_rank()) else {
            evaluation.end = EvaluationEnd::CannotRank;
            return;
        };
        if evaluation.pods.is_empty() {
            evaluation.end = EvaluationEnd::NoPods;
            return;
        }
        let joined = evaluation.snapshot.joined(&evaluation.pods, &mut self.joined);
        let measure = Measure::of(signal, evaluation.layout);
        rank(measure, &evaluation.pods, &evaluation.snapshot, joined, &mut evaluation.ranked);
        match &self.policy.rules.preferences {
            None => self.evict_first(evaluation, threshold_index, actions),
            Some(preferences) => {
                let most = preferences.max_evictions_per_sync;
                self.evict_for_deficit(at, evaluation, threshold_index, most, actions);
            }
        }
    }

    /// The first that is not critical. A failed kill would end the evaluation as well. Who has a
    /// PodDisruptionBudget that forbids it, which the kubelet does not ask, is skipped by a
    /// soft threshold.
    fn evict_first(&self, evaluation: &mut Evaluation, threshold_index: u8, actions: &mut Vec<Action>) {
        if self.waits_for_api(is_hard(evaluation, threshold_index)) {
            evaluation.end = EvaluationEnd::ApiUnreachable;
            return;
        }
        evaluation.end = EvaluationEnd::OnlyCritical;
        for candidate in &evaluation.ranked {
            let Some(known) = evaluation.pods.get(candidate.pod) else {
                continue;
            };
            if known.critical {
                evaluation.critical_pods.push(candidate.pod);
                continue;
            }
            let budget = self.pdb_refusals.refused_for(&known.pod.uid);
            let ignores_budget = budget.is_some()
                && self.policy.eviction.hard_ignores_pdb
                && is_hard(evaluation, threshold_index);
            if let Some(age) = budget.filter(|_| !ignores_budget) {
                let why = Refusal::DisruptionBudget { age };
                evaluation.refused_pods.push(RefusedPod { pod: candidate.pod, why });
                evaluation.end = EvaluationEnd::OnlyProtected;
                continue;
            }
            actions.push(Action::Evict(Eviction {
                pod: candidate.pod,
                grace_period_seconds: self.grace_period(evaluation, threshold_index, known),
                cause: Cause::Threshold { threshold: threshold_index },
                ignores_budget,
            }));
            evaluation.end = EvaluationEnd::Evicted;
            return;
        }
    }

    /// One second for a hard threshold; for a soft one what the rules say.
    pub(super) fn grace_period(&self, evaluation: &Evaluation, threshold_index: u8, known: &KnownPod) -> i64 {
        if is_hard(evaluation, threshold_index) {
            return IMMEDIATE_GRACE_SECONDS;
        }
        let own = known.pod.termination_grace_period_seconds;
        match &self.policy.rules.preferences {
            None => {
                let bound = self.policy.max_pod_grace_period_seconds;
                own.map_or(bound, |own| own.min(bound))
            }
            // Less than a second is a second: `pod_workers.go: calculateEffectiveGracePeriod`.
            Some(preferences) => {
                let own = own.unwrap_or(DEFAULT_GRACE_SECONDS);
                let cap = preferences.soft.grace_period_cap.map(|cap| cap.as_nanos() / 1_000_000_000);
                own.min(cap.unwrap_or(i64::MAX)).max(IMMEDIATE_GRACE_SECONDS)
            }
        }
    }
}

fn is_hard(evaluation: &Evaluation, threshold_index: u8) -> bool {
    evaluation.threshold(threshold_index).is_some_and(|resolved| resolved.threshold.is_hard())
}

/// A pod of which it is asked whether it may go.
pub(super) struct EvictionCandidate<'a> {
    pub(super) pods: &'a PodSet,
    pub(super) pod: u32,
    pub(super) known: &'a KnownPod,
    pub(super) stats: Option<PodStats<'a>>,
}

/// Why the pod does not go, if it does not. `measure` is what is short on the node; nothing is
/// if it goes for its own limits.
pub(super) fn refusal(
    guard: &EvictionGuard,
    ask: EvictionRequest,
    measure: Option<Measure>,
    candidate: &EvictionCandidate<'_>,
) -> Option<Refusal> {
    let EvictionCandidate { pods, pod: place, known, stats } = *candidate;
    guard.refusal(ask, known).or_else(|| {
        let frees_nothing = |measure: Measure| measure.frees_nothing(pods, place, stats);
        (known.rank.enhanced && measure.is_some_and(frees_nothing)).then_some(Refusal::FreesNothing)
    })
}

/// What holding a pod to its limits gave, critical or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StorageCheck {
    /// The first limit that is exceeded.
    pub(crate) cause: Option<Cause>,
    /// Limited volumes whose usage is not known. The kubelet crashes on them.
    pub(crate) unknown_volumes: u32,
}

/// Holds a pod to its limits: its emptyDir volumes, then all containers together, then each
/// one. The first limit that is exceeded is the reason for the pod to go.
pub(crate) fn exceeded_limit(
    limits: &LocalLimits,
    stats: PodStats<'_>,
    dedicated_image_fs: bool,
) -> StorageCheck {
    let mut check = StorageCheck::default();
    check.cause = exceeded_empty_dir(limits, stats, &mut check.unknown_volumes)
        .or_else(|| exceeds_pod_limit(limits, stats))
        .or_else(|| exceeding_container(limits, stats, dedicated_image_fs));
    check
}

/// Whether nothing reaches the least limit of its kind, and all volumes are known that could: the
/// usual case, which is decided without comparing names.
fn is_below_the_least(least: LeastLimits, stats: PodStats<'_>, dedicated_image_fs: bool) -> bool {
    let LeastLimits { empty_dir, pod, container } = least;
    let is_below = |used: i64, limit: Option<i64>| limit.is_none_or(|limit| used < limit);
    let bytes = |used: Option<u64>| used.unwrap_or(0).cast_signed();
    is_below(bytes(stats.values().ephemeral_storage_used), pod)
        && (container.is_none()
            || stats.containers().map(ContainerStats::values).all(|figures| {
                let rootfs = if dedicated_image_fs { 0 } else { bytes(figures.rootfs_used) };
                is_below(bytes(figures.logs_used).saturating_add(rootfs), container)
            }))
        && (empty_dir.is_none()
            || stats.volumes().all(|volume| {
                volume.values().used.is_some_and(|used| is_below(used.cast_signed(), empty_dir))
            }))
}

/// `emptyDirLimitEviction`. The last statistics of a name count.
fn exceeded_empty_dir(limits: &LocalLimits, stats: PodStats<'_>, unknown: &mut u32) -> Option<Cause> {
    for dir in &limits.empty_dirs {
        let Some(volume) = stats.volumes().rfind(|volume| volume.is_named(&dir.name)) else {
            continue;
        };
        match volume.values().used {
            Some(used) if bytes(used) > dir.limit => return Some(Cause::EmptyDir { volume: dir.volume }),
            Some(_) => {}
            None => *unknown += 1,
        }
    }
    None
}

/// `podEphemeralStorageLimitEviction`. No value counts as nothing used.
fn exceeds_pod_limit(limits: &LocalLimits, stats: PodStats<'_>) -> Option<Cause> {
    let used = stats.values().ephemeral_storage_used.unwrap_or(0);
    (bytes(used) > limits.pod?).then_some(Cause::PodStorage)
}

/// `containerEphemeralStorageLimitEviction`. Writable layers count only where they lie on the
/// kubelet's file system, or were taken to.
fn exceeding_container(limits: &LocalLimits, stats: PodStats<'_>, dedicated_image_fs: bool) -> Option<Cause> {
    if limits.containers.is_empty() {
        return None;
    }
    let used = |figures: ContainerStatValues| {
        let logs = bytes(figures.logs_used.unwrap_or(0));
        let rootfs = if dedicated_image_fs { None } else { figures.rootfs_used };
        logs.plus(bytes(rootfs.unwrap_or(0)))
    };
    stats.containers().find_map(|container| {
        let limit = limits.containers.iter().find(|limit| container.is_named(&limit.name))?;
        let exceeds = used(container.values()) > limit.limit;
        exceeds.then_some(Cause::ContainerStorage { container: limit.container })
    })
}

fn bytes(used: u64) -> Nanos {
    Nanos::from_units(i128::from(used.cast_signed()))
}
