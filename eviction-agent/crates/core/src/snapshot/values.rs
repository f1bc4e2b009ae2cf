//! Figures of pods, containers and volumes, each of which may be absent.

/// Up to seven figures and which of them there are: half the size of as many options.
#[derive(Clone, Copy, Debug)]
pub(super) struct OptionalValues<const N: usize> {
    values: [u64; N],
    present: u8,
}

impl<const N: usize> OptionalValues<N> {
    fn pack(options: [Option<u64>; N]) -> Self {
        let mut present = 0;
        for (place, option) in options.iter().enumerate() {
            present |= u8::from(option.is_some()) << place;
        }
        Self { values: options.map(Option::unwrap_or_default), present }
    }

    #[inline]
    fn get(&self, place: usize) -> Option<u64> {
        (self.present & 1 << place != 0).then(|| self.values[place])
    }
}

/// The figures of a pod as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodStatValues {
    /// Whether there is a `memory` at all; it shows in a message though it has no figure.
    pub has_memory: bool,
    /// `memory.workingSetBytes`.
    pub memory_working_set: Option<u64>,
    /// Anonymous memory, all of which comes free when the processes end: `memory.rssBytes`,
    /// `anon` of `memory.stat`.
    pub memory_anonymous: Option<u64>,
    /// `ephemeral-storage.usedBytes`.
    pub ephemeral_storage_used: Option<u64>,
    /// `process_stats.process_count`.
    pub process_count: Option<u64>,
}

/// The figures of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerStatValues {
    /// `memory.workingSetBytes`.
    pub memory_working_set: Option<u64>,
    /// `rootfs.usedBytes`.
    pub rootfs_used: Option<u64>,
    /// `rootfs.inodesUsed`.
    pub rootfs_inodes: Option<u64>,
    /// `logs.usedBytes`.
    pub logs_used: Option<u64>,
    /// `logs.inodesUsed`.
    pub logs_inodes: Option<u64>,
}

/// The figures of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStatValues {
    /// `usedBytes`.
    pub used: Option<u64>,
    /// `inodesUsed`.
    pub inodes: Option<u64>,
}

/// The bit of [`OptionalValues::present`] behind the four figures of a pod.
const HAS_MEMORY: u8 = 1 << 4;

impl PodStatValues {
    pub(super) fn pack(self) -> OptionalValues<4> {
        let mut figures = OptionalValues::pack([
            self.memory_working_set,
            self.ephemeral_storage_used,
            self.process_count,
            self.memory_anonymous,
        ]);
        if self.has_memory || self.memory_working_set.is_some() {
            figures.present |= HAS_MEMORY;
        }
        figures
    }

    #[inline]
    pub(super) fn unpack(figures: OptionalValues<4>) -> Self {
        Self {
            has_memory: figures.present & HAS_MEMORY != 0,
            memory_working_set: figures.get(0),
            ephemeral_storage_used: figures.get(1),
            process_count: figures.get(2),
            memory_anonymous: figures.get(3),
        }
    }
}

impl ContainerStatValues {
    pub(super) fn pack(self) -> OptionalValues<5> {
        OptionalValues::pack([
            self.memory_working_set,
            self.rootfs_used,
            self.rootfs_inodes,
            self.logs_used,
            self.logs_inodes,
        ])
    }

    #[inline]
    pub(super) fn unpack(figures: OptionalValues<5>) -> Self {
        Self {
            memory_working_set: figures.get(0),
            rootfs_used: figures.get(1),
            rootfs_inodes: figures.get(2),
            logs_used: figures.get(3),
            logs_inodes: figures.get(4),
        }
    }
}

impl VolumeStatValues {
    pub(super) fn pack(self) -> OptionalValues<2> {
        OptionalValues::pack([self.used, self.inodes])
    }

    #[inline]
    pub(super) fn unpack(figures: OptionalValues<2>) -> Self {
        Self { used: figures.get(0), inodes: figures.get(1) }
    }
}
