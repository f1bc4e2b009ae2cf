//! Evictions of pods above their own limits, the single eviction of the kubelet's profile, and the evictions
//! that wait while the API server is unavailable.

use std::sync::Arc;

use super::Engine;
use crate::decision::{Action, Evaluation};
use crate::eviction::{Cause, EvaluationEnd, Eviction, ExpectedRelease};
use crate::input::{ApiReachability, Event, Input};
use crate::pod::PodName;
use crate::pods::{KnownPod, LocalLimits, NamedLimit};
use crate::policy::eviction_settings::WhenApiServerDown;
use crate::protection::{Refusal, RefusedPod};
use crate::rank::{Measure, rank};
use crate::signal::Resource;
use crate::snapshot::{ContainerStatValues, PodStats, Snapshot};
use crate::time::Timestamp;

/// `immediateEvictionGracePeriodSeconds`.
pub(super) const IMMEDIATE_GRACE_SECONDS: i64 = 1;

/// `corev1.DefaultTerminationGracePeriodSeconds`: what the API server sets for a pod without a grace period.
const DEFAULT_GRACE_SECONDS: i64 = 30;

impl Engine {
    /// Evicts every pod that is above its own limits: `localStorageEviction`. Returns whether any pod is evicted.
    pub(super) fn evict_above_limits(
        &mut self,
        at: Timestamp,
        evaluation: &mut Evaluation,
        actions: &mut Vec<Action>,
    ) -> bool {
        if evaluation.snapshot.is_empty() || self.waits_for_api(true) {
            return false;
        }
        let before = actions.len();
        let (pods, snapshot) = (Arc::clone(&evaluation.pods), Arc::clone(&evaluation.snapshot));
        for &(index, lowest_limit) in pods.limited() {
            let Some(stats) = snapshot.stats_of(index) else { continue };
            // Most pods exceed none of their limits, and need no comparison by name.
            if max_usage(stats).is_some_and(|used| used <= lowest_limit) {
                continue;
            }
            let Some(known) = pods.get(index) else { continue };
            let dedicated_image_fs = evaluation.layout.dedicated_image_fs;
            let unknown = &mut evaluation.unknown_volumes;
            let Some(cause) = exceeded_limit(&known.limits, stats, dedicated_image_fs, unknown) else {
                continue;
            };
            if known.critical {
                evaluation.critical_pods.push(index);
                continue;
            }
            let refusal = self.guard.refusal(&self.policy.rules, at, None, false, known);
            let ignores_budget = match refusal.map_or_else(|| self.ignores_pdb(at, known, true), Err) {
                Ok(ignores_budget) => ignores_budget,
                Err(why) => {
                    evaluation.refused_pods.push(RefusedPod { pod: index, why });
                    continue;
                }
            };
            let grace_period_seconds = IMMEDIATE_GRACE_SECONDS;
            let eviction = Eviction { pod: index, grace_period_seconds, cause, ignores_budget };
            if self.policy.rules.are_kubelets() || self.begin_eviction(evaluation, known, &eviction, true) {
                self.guard.record_eviction(&self.policy.rules, at, known);
                actions.push(Action::Evict(eviction));
            }
        }
        actions.len() > before
    }

    /// Returns whether an eviction ignores a recent refusal by the pod's PodDisruptionBudget. Returns the
    /// refusal if it must not.
    fn ignores_pdb(&self, at: Timestamp, known: &KnownPod, hard: bool) -> Result<bool, Refusal> {
        match self.guard.pdb_refusal(at, &known.pod.uid) {
            None => Ok(false),
            Some(_) if hard && self.policy.eviction.hard_ignores_pdb => Ok(true),
            Some(why) => Err(why),
        }
    }

    /// Adds a pod to the in-flight evictions. Returns false if a pod with its uid is already being evicted.
    pub(super) fn begin_eviction(
        &mut self,
        evaluation: &Evaluation,
        known: &KnownPod,
        eviction: &Eviction,
        hard: bool,
    ) -> bool {
        let (label, grace) = (evaluation.label_of(eviction.cause), eviction.grace_period_seconds);
        let stats = evaluation.snapshot.stats_of(eviction.pod);
        let expected = ExpectedRelease::of_all(evaluation.layout, known, stats);
        self.in_flight.begin(known, label, hard, grace, expected)
    }

    /// Ranks the pods for the driving threshold and evicts as many as the rules allow: the end of `synchronize`.
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
        let measure = Measure::of(signal, evaluation.layout);
        rank(measure, &evaluation.pods, &evaluation.snapshot, &mut evaluation.ranked);
        match &self.policy.rules.preferences {
            None => self.evict_first(at, evaluation, threshold_index, actions),
            Some(preferences) => {
                let most = preferences.max_evictions_per_sync;
                self.evict_for_deficit(at, evaluation, most, actions);
            }
        }
    }

    /// Evicts the first ranked pod that is not critical. In the kubelet a failed kill ends the evaluation as
    /// well. Unlike the kubelet, this skips pods that their PodDisruptionBudget has refused lately, unless a
    /// hard threshold may ignore the budget.
    fn evict_first(
        &self,
        at: Timestamp,
        evaluation: &mut Evaluation,
        threshold_index: u8,
        actions: &mut Vec<Action>,
    ) {
        let hard = evaluation.driving_is_hard();
        if self.waits_for_api(hard) {
            evaluation.end = EvaluationEnd::ApiServerUnavailable;
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
            let ignores_budget = match self.ignores_pdb(at, known, hard) {
                Ok(ignores_budget) => ignores_budget,
                Err(why) => {
                    evaluation.refused_pods.push(RefusedPod { pod: candidate.pod, why });
                    evaluation.end = EvaluationEnd::OnlyProtected;
                    continue;
                }
            };
            actions.push(Action::Evict(Eviction {
                pod: candidate.pod,
                grace_period_seconds: self.grace_period(hard, known),
                cause: Cause::Threshold { threshold: threshold_index },
                ignores_budget,
            }));
            evaluation.end = EvaluationEnd::Evicted;
            return;
        }
    }

    /// Returns the grace period in seconds: one second for a hard threshold, and what the rules define for a
    /// soft one.
    pub(super) fn grace_period(&self, hard: bool, known: &KnownPod) -> i64 {
        if hard {
            return IMMEDIATE_GRACE_SECONDS;
        }
        let own = known.pod.termination_grace_period_seconds;
        match &self.policy.rules.preferences {
            None => {
                let bound = self.policy.max_pod_grace_period_seconds;
                own.map_or(bound, |own| own.min(bound))
            }
            // At least one second: `pod_workers.go: calculateEffectiveGracePeriod`.
            Some(preferences) => {
                let own = own.unwrap_or(DEFAULT_GRACE_SECONDS);
                let cap = preferences.soft.grace_period_cap.map(|cap| cap.as_nanos() / 1_000_000_000);
                own.min(cap.unwrap_or(i64::MAX)).max(IMMEDIATE_GRACE_SECONDS)
            }
        }
    }
}

/// Returns the first limit that a pod exceeds: of its emptyDir volumes, then of all containers together, then
/// of each container. The pod may be critical. Adds the number of limited volumes whose usage is not known to
/// `unknown`; the kubelet crashes on them.
fn exceeded_limit(
    limits: &LocalLimits,
    stats: PodStats<'_>,
    dedicated_image_fs: bool,
    unknown: &mut u32,
) -> Option<Cause> {
    exceeded_empty_dir(limits, stats, unknown)
        .or_else(|| exceeds_pod_limit(limits, stats))
        .or_else(|| exceeding_container(limits, stats, dedicated_image_fs))
}

/// Returns an upper bound of each usage that a limit may be compared with; `None` if the usage of a volume is
/// unknown, which is counted.
fn max_usage(stats: PodStats<'_>) -> Option<i128> {
    let mut max = bytes(stats.values().ephemeral_storage_used.unwrap_or(0));
    for (_, volume) in stats.volumes() {
        max = max.max(bytes(volume.used?));
    }
    for (_, ContainerStatValues { logs_used, rootfs_used, .. }) in stats.containers() {
        max = max.max(bytes(logs_used.unwrap_or(0)) + bytes(rootfs_used.unwrap_or(0)).max(0));
    }
    Some(max)
}

/// `emptyDirLimitEviction`. If several statistics have the same name, the last one counts.
fn exceeded_empty_dir(limits: &LocalLimits, stats: PodStats<'_>, unknown: &mut u32) -> Option<Cause> {
    for dir in &limits.empty_dirs {
        let Some((_, volume)) = stats.volumes().rfind(|(name, _)| *name == &*dir.name) else {
            continue;
        };
        match volume.used {
            Some(used) if bytes(used) > dir.limit => return Some(Cause::EmptyDir { volume: dir.index }),
            Some(_) => {}
            None => *unknown += 1,
        }
    }
    None
}

/// `podEphemeralStorageLimitEviction`. An absent value counts as zero.
fn exceeds_pod_limit(limits: &LocalLimits, stats: PodStats<'_>) -> Option<Cause> {
    let used = stats.values().ephemeral_storage_used.unwrap_or(0);
    (bytes(used) > limits.pod?).then_some(Cause::PodStorage)
}

/// `containerEphemeralStorageLimitEviction`. Writable layers count only if they are, or are assumed to be, on
/// the kubelet's file system.
fn exceeding_container(limits: &LocalLimits, stats: PodStats<'_>, dedicated_image_fs: bool) -> Option<Cause> {
    if limits.containers.is_empty() {
        return None;
    }
    let used = |values: ContainerStatValues| {
        let logs = bytes(values.logs_used.unwrap_or(0));
        let rootfs = if dedicated_image_fs { None } else { values.rootfs_used };
        logs + bytes(rootfs.unwrap_or(0))
    };
    stats.containers().find_map(|(name, values)| {
        let used = used(values);
        // Compares the numbers first, because then most names need no comparison.
        let exceeds = |limit: &&NamedLimit| used > limit.limit && name == &*limit.name;
        let exceeded = limits.containers.iter().find(exceeds)?;
        Some(Cause::ContainerStorage { container: exceeded.index })
    })
}

fn bytes(used: u64) -> i128 {
    i128::from(used.cast_signed())
}

impl Engine {
    /// Returns whether evictions for a hard or a soft threshold must wait until the API server is available again.
    pub(super) fn waits_for_api(&self, hard: bool) -> bool {
        let kills = hard && self.policy.eviction.when_api_server_down == WhenApiServerDown::Kill;
        self.api == ApiReachability::Unreachable && !kills
    }

    /// Returns the pod that would be evicted first for a hard memory threshold on this sample if the API
    /// server were available. The engine does not change.
    pub fn victim_without_outage(&self, at: Timestamp, snapshot: &Arc<Snapshot>) -> Option<Arc<PodName>> {
        let mut trial = Self { api: ApiReachability::Reachable, ..self.trial() };
        let decision = trial.step(Input { at, event: Event::Sample(Arc::clone(snapshot)) });
        let evaluation = decision.evaluation()?;
        decision.actions.iter().find_map(|action| {
            let Action::Evict(eviction) = action else { return None };
            let threshold = evaluation.threshold_of(eviction.cause)?;
            let is_hard_memory = threshold.is_hard() && threshold.signal.resource() == Resource::Memory;
            evaluation.pods.get(eviction.pod).filter(|_| is_hard_memory).map(|known| Arc::clone(&known.name))
        })
    }
}
