//! What a pod uses of what is short, and how that stands to its request.

use crate::core::exact::Nanos;
use crate::core::layout::{DiskLayout, Parts};
use crate::core::pods::{KnownPod, PodSet, RankFacts, pod_request};
use crate::core::signal::{Resource, Signal};
use crate::core::snapshot::{ContainerFigures, PodStats, VolumeFigures};
use crate::core::units::Quantity;

use super::Standing;

/// What is measured to rank pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// The working set, against the memory request.
    Memory,
    /// Bytes of some parts of the pod, against the request of ephemeral storage.
    Bytes(Parts),
    /// Inodes of some parts of the pod.
    Inodes(Parts),
    /// Processes.
    Processes,
}

impl Measure {
    /// What counts when a signal is short.
    pub(crate) fn of(signal: Signal, layout: DiskLayout) -> Self {
        match signal.resource() {
            Resource::Memory => Self::Memory,
            Resource::EphemeralStorage => Self::Bytes(layout.parts(signal)),
            Resource::Inodes => Self::Inodes(layout.parts(signal)),
            Resource::Pids => Self::Processes,
        }
    }

    /// First and third criterion.
    pub(super) fn key(
        self,
        pods: &PodSet,
        place: u32,
        facts: &RankFacts,
        stats: Option<PodStats<'_>>,
    ) -> (Standing, Nanos) {
        self.key_at(facts, stats.map(|stats| self.usage(pods, place, stats)))
    }

    /// The same for a usage, whoever has it. For process ids a pod without statistics counts
    /// as using more than any other, but only within its priority.
    pub(super) fn key_at(self, facts: &RankFacts, usage: Option<i128>) -> (Standing, Nanos) {
        let Some(used) = usage.map(Nanos::from_units) else {
            return match self {
                Self::Processes => (Standing::Alike, Nanos::MAX),
                _ => (Standing::NoStats, Nanos::ZERO),
            };
        };
        let (bound, base) = match self {
            Self::Memory => (facts.memory, facts.memory),
            Self::Bytes(_) => (facts.storage, facts.storage),
            // The kubelet takes bytes from inodes here: `helpers.go: disk`.
            Self::Inodes(_) => (facts.inodes, facts.storage),
            Self::Processes => return (Standing::Alike, used),
        };
        let standing = if used > bound { Standing::Exceeds } else { Standing::Within };
        (standing, used.minus(base))
    }

    /// The third criterion for requests beyond what [`Nanos`] tells apart.
    pub(super) fn exact_excess(self, pods: &PodSet, place: u32, stats: Option<PodStats<'_>>) -> Quantity {
        let (Some(known), Some(stats)) = (pods.get(place), stats) else {
            return Quantity::ZERO;
        };
        let used = self.usage(pods, place, stats).to_string();
        let mut excess = Quantity::parse(&used).unwrap_or_default();
        excess.sub(&self.request(known).unwrap_or_default());
        excess
    }

    /// What usage is measured from.
    pub(crate) fn request(self, known: &KnownPod) -> Option<Quantity> {
        let resource = match self {
            Self::Memory => Resource::Memory,
            Self::Bytes(_) | Self::Inodes(_) => Resource::EphemeralStorage,
            Self::Processes => return None,
        };
        Some(pod_request(&known.pod, resource.name(), known.gates))
    }

    /// In bytes, inodes or processes; absent figures are 0.
    pub(crate) fn usage(self, pods: &PodSet, place: u32, stats: PodStats<'_>) -> i128 {
        match self {
            Self::Memory => signed(stats.figures().memory_working_set),
            Self::Processes => signed(stats.figures().process_count),
            Self::Bytes(parts) => disk_usage(
                parts,
                pods.local_volumes(place),
                stats,
                |figures| (figures.rootfs_used, figures.logs_used),
                |figures| figures.used,
            ),
            Self::Inodes(parts) => disk_usage(
                parts,
                pods.local_volumes(place),
                stats,
                |figures| (figures.rootfs_inodes, figures.logs_inodes),
                |figures| figures.inodes,
            ),
        }
    }
}

/// `helpers.go: podDiskUsage`: parts of every container in the statistics, and for each local
/// volume of the specification the first statistics of its name.
fn disk_usage<'a>(
    parts: Parts,
    local_volumes: impl Iterator<Item = &'a str>,
    stats: PodStats<'_>,
    of_container: impl Fn(ContainerFigures) -> (Option<u64>, Option<u64>),
    of_volume: impl Fn(VolumeFigures) -> Option<u64>,
) -> i128 {
    let mut used = 0;
    if parts.rootfs || parts.logs {
        for container in stats.containers() {
            let (rootfs, logs) = of_container(container.figures());
            used += if parts.rootfs { signed(rootfs) } else { 0 };
            used += if parts.logs { signed(logs) } else { 0 };
        }
    }
    if parts.volumes {
        used += local_volumes
            .filter_map(|name| stats.volumes().find(|volume| volume.name() == name))
            .map(|volume| signed(of_volume(volume.figures())))
            .sum::<i128>();
    }
    used
}

/// Figures beyond 2^63 − 1 turn negative, as in the kubelet.
fn signed(figure: Option<u64>) -> i128 {
    i128::from(figure.unwrap_or(0).cast_signed())
}
