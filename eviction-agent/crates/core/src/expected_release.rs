//! What comes free when a pod is gone.
//!
//! Of memory only what is anonymous counts: page cache is charged to the parent when the group
//! goes, and tmpfs stays until the pod's volumes are removed, long after its processes ended.

use serde::{Deserialize, Serialize};

use super::disk_layout::DiskLayout;
use super::milli_units::Nanos;
use super::pods::{KnownPod, PodSet};
use super::rank::Measure;
use super::signal::{Resource, Signal};
use super::snapshot::PodStats;

/// How much of what a signal measures comes free when a pod is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedRelease {
    /// In bytes, inodes or processes; never negative.
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

    /// What the pod at a place frees for a signal.
    pub(crate) fn of(
        signal: Signal,
        layout: DiskLayout,
        pods: &PodSet,
        place: u32,
        stats: Option<PodStats<'_>>,
    ) -> Self {
        let Some(known) = pods.get(place) else {
            return Self::UNKNOWN;
        };
        let measured = stats.and_then(|stats| match signal.resource() {
            Resource::Memory => memory(known, stats),
            Resource::Pids => {
                let amount = amount(stats.figures().process_count?)?;
                Some(Self { amount, basis: Basis::Usage })
            }
            Resource::EphemeralStorage | Resource::Inodes => {
                let usage = Measure::of(signal, layout).usage(pods, place, stats);
                Some(Self { amount: clamped(usage), basis: Basis::Usage })
            }
        });
        measured.unwrap_or_else(|| requested(signal, known))
    }

    /// The same for every signal.
    pub(crate) fn of_all(
        layout: DiskLayout,
        pods: &PodSet,
        place: u32,
        stats: Option<PodStats<'_>>,
    ) -> [Self; Signal::COUNT] {
        Signal::ALL.map(|signal| Self::of(signal, layout, pods, place, stats))
    }
}

fn memory(known: &KnownPod, stats: PodStats<'_>) -> Option<ExpectedRelease> {
    let figures = stats.figures();
    let working_set = figures.memory_working_set.and_then(amount);
    if let Some(anonymous) = figures.memory_anonymous.and_then(amount) {
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
    let used = volumes.filter_map(|volume| amount(volume.figures().used?));
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

/// A figure beyond what can be counted is no figure.
fn amount(figure: u64) -> Option<i64> {
    i64::try_from(figure).ok()
}

fn clamped(number: i128) -> i64 {
    i64::try_from(number.max(0)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use crate::fixture::{pod, set};
    use crate::pod::{EmptyDir, Volume};
    use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable, NodeFsInodesFree, PidAvailable};
    use crate::snapshot::{PodStatValues, SnapshotBuilder, VolumeStatValues};

    use super::*;

    /// The release of a pod that requests 500 and has 100 in a volume of memory.
    fn release(signal: Signal, figures: Option<PodStatValues>) -> (i64, Basis) {
        let dir = |name: &str, medium: &str| Volume {
            name: name.into(),
            empty_dir: Some(EmptyDir { medium: medium.into(), size_limit: None }),
            ..Volume::default()
        };
        let mut pod = pod("a", "500");
        pod.volumes = vec![dir("scratch", "Memory"), dir("disk", "")];
        let pods = set(vec![pod]);
        let mut builder = SnapshotBuilder::new();
        if let Some(figures) = figures {
            let volume = VolumeStatValues { used: Some(100), inodes: Some(7) };
            builder.pod("a", figures).volume("scratch", volume).volume("disk", volume);
        }
        let look = builder.finish();
        let layout = DiskLayout::default();
        let ExpectedRelease { amount, basis } =
            ExpectedRelease::of(signal, layout, &pods, 0, look.pods().next());
        (amount, basis)
    }

    fn memory(working_set: Option<u64>, anonymous: Option<u64>) -> (i64, Basis) {
        let figures = PodStatValues {
            memory_working_set: working_set,
            memory_anonymous: anonymous,
            ..PodStatValues::default()
        };
        release(MemoryAvailable, Some(figures))
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
        let figures = PodStatValues { process_count: Some(12), ..PodStatValues::default() };
        assert_eq!(release(PidAvailable, Some(figures)), (12, Basis::Usage));
        assert_eq!(release(NodeFsAvailable, Some(figures)), (100, Basis::Usage), "not the one in memory");
        assert_eq!(release(NodeFsInodesFree, Some(figures)), (7, Basis::Usage));
    }
}
