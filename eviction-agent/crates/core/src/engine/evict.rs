//! Evictions of pods above their own limits, and the single eviction of the kubelet's profile.

use crate::decision::{Action, Evaluation};
use crate::engine::Engine;
use crate::eviction::{Cause, EvaluationEnd, Eviction};
use crate::pods::{KnownPod, LeastLimits, LimitedPod, PodSet};
use crate::policy::{DiskRanking, SoftGrace, VictimsPerSync};
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
        pass: &mut Evaluation,
        actions: &mut Vec<Action>,
    ) -> bool {
        if pass.pods.limited().len() == 0 || pass.snapshot.is_empty() || self.waits_for_api(true) {
            return false;
        }
        let remembers = self.policy.rules.victims != VictimsPerSync::One;
        let before = actions.len();
        let joined = pass.snapshot.joined(&pass.pods, &mut self.joined);
        for pod in pass.pods.limited() {
            let place = pod.index();
            let stats = joined.get(place as usize).and_then(|&at| pass.snapshot.pod(at));
            let Some(stats) = stats else {
                continue;
            };
            let verdict = exceeded_limit(pod, stats, pass.layout.dedicated_image_fs);
            pass.unknown_volumes += verdict.unknown_volumes;
            let (Some(cause), Some(known)) = (verdict.cause, pass.pods.get(place)) else {
                continue;
            };
            if pod.critical() {
                pass.critical_pods.push(place);
                continue;
            }
            let ask = EvictionRequest { at, motive: EvictionMotive::OwnLimits, is_last_resort: false };
            let turn = EvictionCandidate { pods: &pass.pods, pod: place, known, stats: Some(stats) };
            if let Some(why) = refusal(&self.guard, ask, None, &turn) {
                pass.refused_pods.push(RefusedPod { pod: place, why });
                continue;
            }
            let budget = self.pdb_refusals.refused_for(&known.pod.uid);
            let ignores_budget = budget.is_some() && self.policy.eviction.hard_ignores_pdb;
            if let Some(age) = budget.filter(|_| !ignores_budget) {
                let why = Refusal::DisruptionBudget { age };
                pass.refused_pods.push(RefusedPod { pod: place, why });
                continue;
            }
            let grace_period_seconds = IMMEDIATE_GRACE_SECONDS;
            let eviction = Eviction { pod: place, grace_period_seconds, cause, ignores_budget };
            if !remembers
                || self.in_flight.begin(
                    &pass.pods,
                    pass.layout,
                    pass.label_of(eviction.cause),
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

    /// Ranks the pods for the threshold of the pass and evicts as many as the rules say: the end
    /// of `synchronize`.
    pub(super) fn evict_for_threshold(
        &mut self,
        at: Timestamp,
        pass: &mut Evaluation,
        actions: &mut Vec<Action>,
    ) {
        let handled = pass.driving.zip(pass.driving_signal());
        let Some((line, signal)) = handled.filter(|_| self.can_rank()) else {
            pass.end = EvaluationEnd::CannotRank;
            return;
        };
        if pass.pods.is_empty() {
            pass.end = EvaluationEnd::NoPods;
            return;
        }
        let joined = pass.snapshot.joined(&pass.pods, &mut self.joined);
        let measure = Measure::of(signal, pass.layout);
        rank(measure, &pass.pods, &pass.snapshot, joined, &mut pass.ranked);
        match self.policy.rules.victims {
            VictimsPerSync::One => self.evict_first(pass, line, actions),
            VictimsPerSync::Sized { most } => self.evict_for_deficit(at, pass, line, most, actions),
        }
    }

    /// The first that is not critical. A failed kill would end the pass as well. Who has a
    /// PodDisruptionBudget that forbids it, which the kubelet does not ask, is passed over by a
    /// soft threshold.
    fn evict_first(&self, pass: &mut Evaluation, line: u8, actions: &mut Vec<Action>) {
        if self.waits_for_api(is_hard(pass, line)) {
            pass.end = EvaluationEnd::ApiUnreachable;
            return;
        }
        pass.end = EvaluationEnd::OnlyCritical;
        for candidate in &pass.ranked {
            let Some(known) = pass.pods.get(candidate.pod) else {
                continue;
            };
            if known.critical {
                pass.critical_pods.push(candidate.pod);
                continue;
            }
            let budget = self.pdb_refusals.refused_for(&known.pod.uid);
            let ignores_budget =
                budget.is_some() && self.policy.eviction.hard_ignores_pdb && is_hard(pass, line);
            if let Some(age) = budget.filter(|_| !ignores_budget) {
                let why = Refusal::DisruptionBudget { age };
                pass.refused_pods.push(RefusedPod { pod: candidate.pod, why });
                pass.end = EvaluationEnd::OnlyProtected;
                continue;
            }
            actions.push(Action::Evict(Eviction {
                pod: candidate.pod,
                grace_period_seconds: self.grace_period(pass, line, known),
                cause: Cause::Threshold { threshold: line },
                ignores_budget,
            }));
            pass.end = EvaluationEnd::Evicted;
            return;
        }
    }

    /// One second for a hard threshold; for a soft one what the rules say.
    pub(super) fn grace_period(&self, pass: &Evaluation, line: u8, known: &KnownPod) -> i64 {
        if is_hard(pass, line) {
            return IMMEDIATE_GRACE_SECONDS;
        }
        let own = known.pod.termination_grace_period_seconds;
        match self.policy.rules.soft_grace {
            SoftGrace::Bounded => {
                let bound = self.policy.max_pod_grace_period_seconds;
                own.map_or(bound, |own| own.min(bound))
            }
            // Less than a second is a second: `pod_workers.go: calculateEffectiveGracePeriod`.
            SoftGrace::Own { cap } => {
                let own = own.unwrap_or(DEFAULT_GRACE_SECONDS);
                own.min(cap.unwrap_or(i64::MAX)).max(IMMEDIATE_GRACE_SECONDS)
            }
        }
    }
}

fn is_hard(pass: &Evaluation, line: u8) -> bool {
    pass.threshold(line).is_some_and(|line| line.threshold.is_hard())
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
    turn: &EvictionCandidate<'_>,
) -> Option<Refusal> {
    let EvictionCandidate { pods, pod: place, known, stats } = *turn;
    guard.refusal(ask, known).or_else(|| {
        let by_what_is_freed = known.disk_ranking == DiskRanking::ByWhatIsFreed;
        let frees_nothing = |measure: Measure| measure.frees_nothing(pods, place, stats);
        (by_what_is_freed && measure.is_some_and(frees_nothing)).then_some(Refusal::FreesNothing)
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
    pod: LimitedPod<'_>,
    stats: PodStats<'_>,
    dedicated_image_fs: bool,
) -> StorageCheck {
    let mut verdict = StorageCheck::default();
    if is_below_the_least(pod.least(), stats, dedicated_image_fs) {
        return verdict;
    }
    verdict.cause = exceeded_empty_dir(pod, stats, &mut verdict.unknown_volumes)
        .or_else(|| exceeds_pod_limit(pod, stats))
        .or_else(|| exceeding_container(pod, stats, dedicated_image_fs));
    verdict
}

/// Whether nothing reaches the least limit of its kind, and all volumes are known that could: the
/// usual case, which is decided without a look at names.
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
fn exceeded_empty_dir(pod: LimitedPod<'_>, stats: PodStats<'_>, unknown: &mut u32) -> Option<Cause> {
    for dir in pod.empty_dirs() {
        let Some(volume) = stats.volumes().rfind(|volume| volume.is_named(dir.name)) else {
            continue;
        };
        match volume.values().used {
            Some(used) if bytes(used) > dir.limit => return Some(Cause::EmptyDir { volume: dir.index }),
            Some(_) => {}
            None => *unknown += 1,
        }
    }
    None
}

/// `podEphemeralStorageLimitEviction`. No figure counts as nothing used.
fn exceeds_pod_limit(pod: LimitedPod<'_>, stats: PodStats<'_>) -> Option<Cause> {
    let used = stats.values().ephemeral_storage_used.unwrap_or(0);
    (bytes(used) > pod.pod_limit()?).then_some(Cause::PodStorage)
}

/// `containerEphemeralStorageLimitEviction`. Writable layers count only where they lie on the
/// kubelet's file system, or were taken to.
fn exceeding_container(pod: LimitedPod<'_>, stats: PodStats<'_>, dedicated_image_fs: bool) -> Option<Cause> {
    if pod.containers().len() == 0 {
        return None;
    }
    let used = |figures: ContainerStatValues| {
        let logs = bytes(figures.logs_used.unwrap_or(0));
        let rootfs = if dedicated_image_fs { None } else { figures.rootfs_used };
        logs.plus(bytes(rootfs.unwrap_or(0)))
    };
    stats.containers().find_map(|container| {
        let limit = pod.containers().find(|limit| container.is_named(limit.name))?;
        let exceeds = used(container.values()) > limit.limit;
        exceeds.then_some(Cause::ContainerStorage { container: limit.index })
    })
}

fn bytes(used: u64) -> Nanos {
    Nanos::from_units(i128::from(used.cast_signed()))
}
