//! The eviction of a pod: its cause, what the node lacks, and what each pod is expected to free.
//!
//! Of memory only what is anonymous is expected: page cache is charged to the parent when the cgroup
//! is removed, and tmpfs stays until the volumes of the pod are removed, long after its processes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::disk_layout::DiskLayout;
use crate::observation::Observation;
use crate::pods::KnownPod;
use crate::rank::Measure;
use crate::signal::{Resource, Signal};
use crate::snapshot::PodStats;
use crate::threshold::ResolvedThreshold;
use crate::time::Timestamp;
use crate::units::Nanos;

/// The eviction of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Its index among the pods of the evaluation.
    pub pod: u32,
    /// How long it may take to end. May be zero or negative, as configured.
    pub grace_period_seconds: i64,
    /// Why.
    pub cause: Cause,
    /// Its PodDisruptionBudget said no, and is not asked again.
    pub ignores_budget: bool,
}

/// Why a pod is evicted. Indices are those of its specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A threshold of the node, by its index.
    Threshold {
        /// Index in `Evaluation::thresholds`.
        threshold: u8,
    },
    /// An emptyDir volume above its size limit.
    EmptyDir {
        /// Which volume.
        volume: usize,
    },
    /// Local storage above the limit of all containers together.
    PodStorage,
    /// A container above its own limit of local storage.
    ContainerStorage {
        /// Which main container.
        container: usize,
    },
}

/// How an evaluation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluationEnd {
    /// No threshold asks for an eviction.
    #[serde(rename = "calm")]
    NoPressure,
    /// Pods above their own limits go; thresholds are not dealt with.
    LocalStorage,
    /// Node-level reclaim is under way; the evaluation goes on with the second sample.
    AwaitingReclaim,
    /// Node-level reclaim was enough.
    Reclaimed,
    /// Nothing is known about how to rank pods for the signal.
    CannotRank,
    /// There is no pod to evict.
    NoPods,
    /// All pods are critical.
    OnlyCritical,
    /// All pods that are not critical are protected.
    OnlyProtected,
    /// A pod goes.
    Evicted,
    /// Pods terminating will free what is lacking.
    #[serde(rename = "covered")]
    ReleaseInProgress,
    /// No pod may be evicted for now: whoever evicts has reached a limit of his own.
    #[serde(rename = "held")]
    RateLimited,
    /// No pod may be evicted for now: the API server cannot be asked.
    ApiUnreachable,
    /// No pod is left that may go: each is critical, terminating, or failed to go a moment ago.
    #[serde(rename = "nobody_left")]
    NoCandidates,
}

/// What pods go for beside thresholds, as the kubelet's metrics name it:
/// `eviction_manager.go: signalEphemeralContainerFsLimit` and its neighbours.
pub const LABELS: [&str; 3] = ["emptydirfs.limit", "ephemeralpodfs.limit", "ephemeralcontainerfs.limit"];

/// A pod that frees less than this part of what is still lacking frees next to nothing: so many
/// like it would have to go. It waits for others of its class that free more.
const NEGLIGIBLE_PART: i64 = 64;

/// What a threshold lacks, and how an evaluation dealt with it. Amounts are in whole units of its
/// signal: bytes, inodes or processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deficit {
    /// The threshold: an index in [`Evaluation::thresholds`](crate::decision::Evaluation::thresholds).
    pub threshold_index: u8,
    /// What was available; after node-level reclaim, if there was a sample.
    pub available: i64,
    /// The time of that value.
    pub sampled_at: Option<Timestamp>,
    /// The threshold itself.
    pub threshold: i64,
    /// How much more must be available before it is resolved.
    pub min_reclaim: i64,
    /// What is counted in advance for a threshold that is about to be met: as much as makes
    /// it lack something.
    pub predicted: i64,
    /// What those terminating will free in time.
    pub in_flight: i64,
    /// What those evicted now are expected to free.
    pub chosen: i64,
    /// How it ended for this threshold.
    pub end: EvaluationEnd,
}

/// A pod that was dealt with for a deficit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizedPod {
    /// The deficit: an index in [`Evaluation::deficits`](crate::decision::Evaluation::deficits).
    pub deficit: usize,
    /// The pod: its index among the pods of the evaluation.
    pub pod: u32,
    /// What it is expected to free.
    pub release: ExpectedRelease,
    /// What becomes of it.
    pub outcome: SizedOutcome,
}

/// What becomes of a pod that was dealt with for a deficit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizedOutcome {
    /// It is evicted.
    Evicted,
    /// It was terminating, and has less time from now on. [`Deficit::in_flight`] counts it.
    GraceShortened,
    /// It is skipped for one that ranks behind it.
    Skipped {
        /// Why.
        why: SkipReason,
        /// What was lacking at its turn.
        remaining: i64,
    },
}

/// Why a pod was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// It frees next to nothing, and others of the same standing and priority free more.
    #[serde(rename = "frees_next_to_nothing")]
    FreesTooLittle,
    /// It was to go lately and did not.
    #[serde(rename = "did_not_go")]
    EvictionFailed,
}

/// A sentence without its subject.
impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FreesTooLittle => "frees next to nothing",
            Self::EvictionFailed => "was to go lately and did not",
        })
    }
}

impl Deficit {
    /// What a threshold that is met, or about to be, lacks by an observation before anybody
    /// makes up for it.
    pub(crate) fn of(index: u8, resolved: &ResolvedThreshold, seen: &Observation) -> Self {
        let threshold = resolved.value(seen.capacity);
        let goal = resolved.resolved_at(seen.capacity);
        let mut deficit = Self {
            threshold_index: index,
            available: seen.available,
            sampled_at: seen.time,
            threshold: threshold.units_rounded_up(),
            min_reclaim: goal.minus(threshold).units_rounded_up(),
            predicted: 0,
            in_flight: 0,
            chosen: 0,
            end: EvaluationEnd::NoPressure,
        };
        deficit.predicted = 1_i64.saturating_sub(deficit.lacking()).max(0);
        deficit
    }

    /// `threshold + min_reclaim + ahead − available`.
    pub fn lacking(&self) -> i64 {
        let goal = self.threshold.saturating_add(self.min_reclaim).saturating_add(self.predicted);
        goal.saturating_sub(self.available)
    }

    /// What nobody makes up for yet; zero or less if somebody does.
    pub fn remaining(&self) -> i64 {
        self.lacking().saturating_sub(self.in_flight).saturating_sub(self.chosen)
    }
}

/// Whether so little comes free that it does not matter while so much is open.
pub(crate) fn is_negligible(amount: i64, open: i64) -> bool {
    amount.saturating_mul(NEGLIGIBLE_PART) < open
}

/// How much of what a signal measures comes free when a pod is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpectedRelease {
    /// In bytes, inodes or processes; never negative.
    #[serde(rename = "release")]
    pub amount: i64,
    /// How that is known.
    pub basis: Basis,
}

/// How it is known what a pod will free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Its anonymous memory was read.
    Anonymous,
    /// Its working set, less what its memory-backed volumes hold.
    WorkingSet,
    /// What it uses of the file system, or its processes.
    Usage,
    /// Its usage is not known, so that what it requested is taken for it: the best that
    /// anybody said about it. Too little leads to another victim, too much to a later one.
    Request,
    /// Nothing is known about it, and nothing is expected.
    Unknown,
}

impl ExpectedRelease {
    /// Nothing is known of what the pod holds.
    pub const UNKNOWN: Self = Self { amount: 0, basis: Basis::Unknown };

    /// What a pod frees for a signal.
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
                let usage = Measure::of(signal, layout).usage(known, stats);
                Some(Self { amount: clamped(usage), basis: Basis::Usage })
            }
        });
        measured.unwrap_or_else(|| requested(signal, known))
    }

    /// The same for every signal.
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

/// What the pod's emptyDir volumes in memory hold.
fn memory_volumes(known: &KnownPod, stats: PodStats<'_>) -> i64 {
    let in_memory = |name: &str| {
        known.pod.volumes.iter().any(|volume| {
            let dir = volume.empty_dir.as_ref();
            *volume.name == *name && dir.is_some_and(|dir| &*dir.medium == "Memory")
        })
    };
    let volumes = stats.volumes().filter(|volume| in_memory(volume.name()));
    let used = volumes.filter_map(|volume| amount(volume.values().used?));
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

/// A value beyond what can be counted is no value.
fn amount(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

fn clamped(number: i128) -> i64 {
    i64::try_from(number.max(0)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{pod, set};
    use crate::pod::{EmptyDir, Volume};
    use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable, NodeFsInodesFree, PidAvailable};
    use crate::snapshot::{PodStatValues, SnapshotBuilder, VolumeStatValues};

    /// The release of a pod that requests 500 and has 100 in a volume of memory.
    fn release(signal: Signal, values: Option<PodStatValues>) -> (i64, Basis) {
        let dir = |name: &str, medium: &str| Volume {
            name: name.into(),
            empty_dir: Some(EmptyDir { medium: medium.into(), size_limit: None }),
            ..Volume::default()
        };
        let mut pod = pod("a", "500");
        pod.volumes = vec![dir("scratch", "Memory"), dir("disk", "")];
        let pods = set(vec![pod]);
        let mut builder = SnapshotBuilder::new();
        if let Some(values) = values {
            let volume = VolumeStatValues { used: Some(100), inodes: Some(7) };
            builder.pod("a", values).volume("scratch", volume).volume("disk", volume);
        }
        let sample = builder.finish();
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
    fn of_memory_what_is_anonymous() {
        assert_eq!(memory(Some(900), Some(300)), (300, Basis::Anonymous));
        assert_eq!(memory(Some(200), Some(300)), (200, Basis::Anonymous), "no more than is counted");
        assert_eq!(memory(Some(900), None), (800, Basis::WorkingSet), "less the volume in memory");
        assert_eq!(memory(Some(50), None), (0, Basis::WorkingSet));
    }

    #[test]
    fn what_is_not_known_counts_as_its_request_or_nothing() {
        assert_eq!(memory(None, None), (500, Basis::Request));
        assert_eq!(memory(Some(u64::MAX), None), (500, Basis::Request), "no figure");
        assert_eq!(release(MemoryAvailable, None), (500, Basis::Request));
        for signal in [NodeFsAvailable, NodeFsInodesFree, PidAvailable] {
            assert_eq!(release(signal, None), (0, Basis::Unknown), "{signal}");
        }
        assert_eq!(release(PidAvailable, Some(PodStatValues::default())), (0, Basis::Unknown));
    }

    #[test]
    fn of_disks_and_process_ids_what_is_used() {
        let values = PodStatValues { process_count: Some(12), ..PodStatValues::default() };
        assert_eq!(release(PidAvailable, Some(values)), (12, Basis::Usage));
        assert_eq!(release(NodeFsAvailable, Some(values)), (100, Basis::Usage), "not the one in memory");
        assert_eq!(release(NodeFsInodesFree, Some(values)), (7, Basis::Usage));
    }
}
