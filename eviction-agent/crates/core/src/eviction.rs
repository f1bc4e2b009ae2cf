//! The eviction of a pod: its cause, the node's deficit, and what each pod is expected to free.
//!
//! Only anonymous memory is expected to be freed: page cache is charged to the parent when the cgroup is
//! removed, and tmpfs stays until the volumes of the pod are removed, long after its processes have ended.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::disk_layout::DiskLayout;
use crate::observation::Observation;
use crate::pods::KnownPod;
use crate::policy::Threshold;
use crate::rank::Measure;
use crate::signal::{Resource, Signal};
use crate::snapshot::PodStats;
use crate::units::{Nanos, nearest_i64};

/// The eviction of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The index of the pod among the pods of the evaluation.
    pub pod: u32,
    /// The grace period in seconds. May be zero or negative, as configured.
    pub grace_period_seconds: i64,
    /// The cause of the eviction.
    pub cause: Cause,
    /// The pod's PodDisruptionBudget has refused the eviction, and is not asked again.
    pub ignores_budget: bool,
}

/// Why a pod is evicted. Indices refer to the pod's specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A threshold of the node.
    Threshold {
        /// Index into `Evaluation::thresholds`.
        threshold: u8,
    },
    /// An emptyDir volume is above its size limit.
    EmptyDir {
        /// The index of the volume.
        volume: usize,
    },
    /// The local storage usage is above the sum of all containers' limits.
    PodStorage,
    /// A container is above its own limit of local storage.
    ContainerStorage {
        /// The index among the main containers.
        container: usize,
    },
}

/// How an evaluation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluationEnd {
    /// No threshold asks for an eviction.
    NoPressure,
    /// Pods above their own limits are evicted. Thresholds are not handled.
    LocalStorage,
    /// Node-level reclaim is in progress. The evaluation resumes with the second sample.
    AwaitingReclaim,
    /// Node-level reclaim freed enough.
    Reclaimed,
    /// Pods cannot be ranked for the signal.
    CannotRank,
    /// The threshold is met only by space that will probably be freed without an eviction.
    AwaitingSpace,
    /// There is no pod to evict.
    NoPods,
    /// All pods are critical.
    OnlyCritical,
    /// All pods that are not critical are protected.
    OnlyProtected,
    /// A pod is evicted.
    Evicted,
    /// Terminating pods will free what is lacking.
    ReleaseInProgress,
    /// No pod may be evicted for now: the executor has reached a rate limit.
    RateLimited,
    /// No pod may be evicted for now: the API server is unavailable.
    ApiServerUnavailable,
    /// No candidate is left: each pod is critical, terminating, or its eviction failed a moment ago.
    NoCandidates,
}

/// The labels of evictions without a threshold, as in the kubelet's metrics:
/// `eviction_manager.go: signalEphemeralContainerFsLimit` and its neighbours.
pub const LABELS: [&str; 3] = ["emptydirfs.limit", "ephemeralpodfs.limit", "ephemeralcontainerfs.limit"];

/// Deserializes a label, which must be a known one.
pub(crate) fn deserialize_label<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<&'static str, D::Error> {
    let text = Box::<str>::deserialize(deserializer)?;
    let mut labels = LABELS.into_iter().chain(Signal::ALL.map(Signal::name));
    let known = labels.find(|label| **label == *text);
    known.ok_or_else(|| D::Error::custom(format_args!("unknown label {text:?}")))
}

/// A pod that frees less than this fraction (1/64) of the remaining deficit is skipped in favour of others of
/// its class that free more. Otherwise many pods like it would have to be evicted.
const NEGLIGIBLE_PART: i64 = 64;

/// The deficit of a threshold, and how an evaluation handled it. Amounts are in whole units of its signal:
/// bytes, inodes or processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deficit {
    /// The threshold: an index into [`Evaluation::thresholds`](crate::decision::Evaluation::thresholds).
    pub threshold_index: u8,
    /// The available amount. If there was a sample after node-level reclaim, it is the amount of that sample.
    pub available: i64,
    /// The threshold value.
    pub threshold: i64,
    /// How much more must be available before the threshold is resolved.
    pub min_reclaim: i64,
    /// The amount added for a threshold that is only predicted to be met, so that its deficit is at least 1.
    pub predicted: i64,
    /// What terminating pods will free in time.
    pub in_flight: i64,
    /// What the pods evicted now are expected to free.
    pub chosen: i64,
    /// How the evaluation ended for this threshold.
    pub end: EvaluationEnd,
}

/// A pod that was considered for a deficit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizedPod {
    /// The deficit: an index into [`Evaluation::deficits`](crate::decision::Evaluation::deficits).
    pub deficit: usize,
    /// The index of the pod among the pods of the evaluation.
    pub pod: u32,
    /// What the pod is expected to free.
    pub release: ExpectedRelease,
    /// The outcome for the pod.
    pub outcome: SizedOutcome,
}

/// The outcome for a pod that was considered for a deficit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizedOutcome {
    /// The pod is evicted.
    Evicted,
    /// The pod was terminating, and its grace period is shortened. [`Deficit::in_flight`] counts its release.
    GraceShortened,
    /// The pod is skipped in favour of one that ranks behind it.
    Skipped {
        /// The reason.
        why: SkipReason,
        /// The remaining deficit when the pod was considered.
        remaining: i64,
    },
}

/// Why a pod was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// The pod frees next to nothing, and others of the same class free more.
    FreesTooLittle,
    /// The last eviction of the pod failed.
    EvictionFailed,
}

/// Writes a sentence without its subject.
impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FreesTooLittle => "frees next to nothing",
            Self::EvictionFailed => "was to go lately and did not",
        })
    }
}

impl Deficit {
    /// Returns the deficit of a threshold that is met, or predicted to be, by an observation. Releases of
    /// pods are not counted yet.
    pub(crate) fn of(index: u8, threshold: &Threshold, seen: &Observation) -> Self {
        let value = threshold.value.nanos(seen.capacity);
        let goal = threshold.resolved_at(seen.capacity);
        let mut deficit = Self {
            threshold_index: index,
            available: seen.available,
            threshold: value.units_rounded_up(),
            min_reclaim: goal.minus(value).units_rounded_up(),
            predicted: 0,
            in_flight: 0,
            chosen: 0,
            end: EvaluationEnd::NoPressure,
        };
        deficit.predicted = 1_i64.saturating_sub(deficit.lacking()).max(0);
        deficit
    }

    /// Returns `threshold + min_reclaim + predicted − available`.
    pub fn lacking(&self) -> i64 {
        let goal = self.threshold.saturating_add(self.min_reclaim).saturating_add(self.predicted);
        goal.saturating_sub(self.available)
    }

    /// Returns the deficit that is not covered yet. Zero or less if it is covered.
    pub fn remaining(&self) -> i64 {
        self.lacking().saturating_sub(self.in_flight).saturating_sub(self.chosen)
    }
}

/// Returns whether an amount is too small to matter for a remaining deficit of `open`.
pub(crate) fn is_negligible(amount: i64, open: i64) -> bool {
    amount.saturating_mul(NEGLIGIBLE_PART) < open
}

/// How much of a signal's resource is freed when a pod has terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedRelease {
    /// The amount in bytes, inodes or processes. Never negative.
    #[serde(rename = "release", deserialize_with = "deserialize_amount")]
    pub amount: i64,
    /// What the amount is based on.
    pub basis: Basis,
}

/// Deserializes an amount. A negative one is 0.
fn deserialize_amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    i64::deserialize(deserializer).map(|amount| amount.max(0))
}

/// What an expected release is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The pod's anonymous memory, as read.
    Anonymous,
    /// The pod's working set, less the usage of its memory-backed volumes.
    WorkingSet,
    /// The pod's usage of the file system, or its number of processes.
    Usage,
    /// The pod's request, because its usage is not known. An amount that is too small leads to another
    /// victim; one that is too large delays the next victim.
    Request,
    /// Nothing is known, and nothing is expected.
    Unknown,
}

impl ExpectedRelease {
    /// The release of a pod about which nothing is known.
    pub const UNKNOWN: Self = Self { amount: 0, basis: Basis::Unknown };

    /// Returns what a pod frees for a signal.
    pub(crate) fn of(
        signal: Signal,
        layout: DiskLayout,
        known: &KnownPod,
        stats: Option<PodStats<'_>>,
    ) -> Self {
        let measured = stats.and_then(|stats| match signal.resource() {
            Resource::Memory => memory(known, stats),
            Resource::Pids => {
                let amount = amount(stats.values().process_count?)?;
                Some(Self { amount, basis: Basis::Usage })
            }
            Resource::EphemeralStorage | Resource::Inodes => {
                let usage = Measure::of(signal, layout).known_usage(known, Some(stats))?;
                Some(Self { amount: nearest_i64(usage).max(0), basis: Basis::Usage })
            }
        });
        measured.unwrap_or_else(|| requested(signal, known))
    }

    /// Returns what a pod frees for every signal.
    pub(crate) fn of_all(
        layout: DiskLayout,
        known: &KnownPod,
        stats: Option<PodStats<'_>>,
    ) -> [Self; Signal::COUNT] {
        Signal::ALL.map(|signal| Self::of(signal, layout, known, stats))
    }
}

fn memory(known: &KnownPod, stats: PodStats<'_>) -> Option<ExpectedRelease> {
    let values = stats.values();
    let working_set = values.memory_working_set.and_then(amount);
    if let Some(anonymous) = values.memory_anonymous.and_then(amount) {
        let amount = working_set.map_or(anonymous, |most| anonymous.min(most));
        return Some(ExpectedRelease { amount, basis: Basis::Anonymous });
    }
    let in_volumes = memory_volumes(known, stats);
    let amount = working_set?.saturating_sub(in_volumes).max(0);
    Some(ExpectedRelease { amount, basis: Basis::WorkingSet })
}

/// Returns the usage of the pod's memory-backed emptyDir volumes, in bytes.
fn memory_volumes(known: &KnownPod, stats: PodStats<'_>) -> i64 {
    let in_memory = |name: &str| {
        known.pod.volumes.iter().any(|volume| {
            let dir = volume.empty_dir.as_ref();
            *volume.name == *name && dir.is_some_and(|dir| &*dir.medium == "Memory")
        })
    };
    let volumes = stats.volumes().filter(|(name, _)| in_memory(name));
    let used = volumes.filter_map(|(_, volume)| amount(volume.used?));
    used.fold(0, i64::saturating_add)
}

fn requested(signal: Signal, known: &KnownPod) -> ExpectedRelease {
    let request = match signal.resource() {
        Resource::Memory => known.rank.memory,
        Resource::EphemeralStorage => known.rank.storage,
        Resource::Inodes | Resource::Pids => return ExpectedRelease::UNKNOWN,
    };
    if request <= Nanos::ZERO {
        return ExpectedRelease::UNKNOWN;
    }
    ExpectedRelease { amount: request.units_rounded_up(), basis: Basis::Request }
}

/// Converts a value. A value above `i64::MAX` counts as absent.
fn amount(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{container, enhanced, pod, requests, set, set_by};
    use crate::pod::{EmptyDir, Pod, Volume};
    use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable, NodeFsInodesFree, PidAvailable};
    use crate::snapshot::{FsUsage, PodStatValues, Snapshot};

    /// Returns the release of a pod that requests 500 and has 100 in a memory-backed volume.
    fn release(signal: Signal, values: Option<PodStatValues>) -> (i64, Basis) {
        let dir = |name: &str, medium: &str| Volume {
            name: name.into(),
            empty_dir: Some(EmptyDir { medium: medium.into(), size_limit: None }),
            ..Volume::default()
        };
        let mut pod = pod("a", "500");
        pod.volumes = vec![dir("scratch", "Memory"), dir("disk", "")];
        let pods = set(vec![pod]);
        let mut sample = Snapshot::default();
        if let Some(values) = values {
            let volume = FsUsage { used: Some(100), inodes: Some(7) };
            sample.add_pod("a", values).add_volume("scratch", volume).add_volume("disk", volume);
        }
        let layout = DiskLayout::default();
        let ExpectedRelease { amount, basis } =
            ExpectedRelease::of(signal, layout, pods.get(0).unwrap(), sample.pods().next());
        (amount, basis)
    }

    fn memory(working_set: Option<u64>, anonymous: Option<u64>) -> (i64, Basis) {
        let values = PodStatValues {
            memory_working_set: working_set,
            memory_anonymous: anonymous,
            ..PodStatValues::default()
        };
        release(MemoryAvailable, Some(values))
    }

    #[test]
    fn memory_release_is_anonymous_memory_or_else_the_working_set() {
        assert_eq!(memory(Some(900), Some(300)), (300, Basis::Anonymous));
        assert_eq!(memory(Some(200), Some(300)), (200, Basis::Anonymous), "no more than is counted");
        assert_eq!(memory(Some(900), None), (800, Basis::WorkingSet), "less the volume in memory");
        assert_eq!(memory(Some(50), None), (0, Basis::WorkingSet));
    }

    #[test]
    fn release_of_unknown_usage_is_the_request_or_zero() {
        assert_eq!(memory(None, None), (500, Basis::Request));
        assert_eq!(memory(Some(u64::MAX), None), (500, Basis::Request), "no figure");
        assert_eq!(release(MemoryAvailable, None), (500, Basis::Request));
        for signal in [NodeFsAvailable, NodeFsInodesFree, PidAvailable] {
            assert_eq!(release(signal, None), (0, Basis::Unknown), "{signal}");
        }
        assert_eq!(release(PidAvailable, Some(PodStatValues::default())), (0, Basis::Unknown));
    }

    #[test]
    fn release_of_disks_and_process_ids_is_the_usage() {
        let values = PodStatValues { process_count: Some(12), ..PodStatValues::default() };
        assert_eq!(release(PidAvailable, Some(values)), (12, Basis::Usage));
        assert_eq!(release(NodeFsAvailable, Some(values)), (100, Basis::Usage), "not the one in memory");
        assert_eq!(release(NodeFsInodesFree, Some(values)), (7, Basis::Usage));
    }

    #[test]
    fn release_of_a_disk_without_any_reading_is_the_request() {
        let requests = requests(&[("ephemeral-storage", "500")]);
        let pod = Pod { containers: vec![container("main", requests)], ..pod("a", "1") };
        let pods = set_by(&enhanced(Vec::new(), |_| ()), vec![pod]);
        let mut sample = Snapshot::default();
        sample.add_pod("a", PodStatValues::default());
        let of = |signal| {
            ExpectedRelease::of(signal, DiskLayout::default(), pods.get(0).unwrap(), sample.pods().next())
        };
        assert_eq!(of(NodeFsAvailable), ExpectedRelease { amount: 500, basis: Basis::Request });
        assert_eq!(of(NodeFsInodesFree), ExpectedRelease::UNKNOWN);
    }
}
