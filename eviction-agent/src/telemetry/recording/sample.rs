//! The encoding of samples as numbers, each written as the difference to the number of the previous
//! sample.
//!
//! The same functions serve both directions: they pass each number to a [`Visitor`], which writes or
//! replaces it. Unchanged numbers are counted, not written.

use eviction_core::disk_layout::Parts;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::{
    ContainerStatValues, FsStats, MemoryDetail, MemoryStats, NodeStats, PodStatValues, ProcessStats,
    Snapshot, VolumeStatValues,
};
use eviction_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::delta::{Reader, Visitor, Writer, unzigzag, zigzag};

/// The use of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleUse {
    /// The sample was passed to the engine.
    Sample = 0,
    /// The sample was passed to the engine after node reclaim.
    Reclaimed = 1,
    /// The sample was not passed to the engine.
    Usage = 2,
}

/// The names of pods, containers and volumes in the order of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Names(Vec<PodNames>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PodNames {
    uid: Box<str>,
    containers: Vec<Box<str>>,
    volumes: Vec<Box<str>>,
}

impl Names {
    fn of(snapshot: &Snapshot) -> Self {
        let pods = snapshot.pods().map(|pod| PodNames {
            uid: pod.uid().into(),
            containers: pod.containers().map(|(name, _)| name.into()).collect(),
            volumes: pod.volumes().map(|(name, _)| name.into()).collect(),
        });
        Self(pods.collect())
    }

    /// Returns whether the sample has the same names. Allocates nothing.
    fn matches(&self, snapshot: &Snapshot) -> bool {
        let fits = |(names, pod): (&PodNames, eviction_core::snapshot::PodStats<'_>)| {
            *names.uid == *pod.uid()
                && names.containers.iter().map(|it| &**it).eq(pod.containers().map(|(name, _)| name))
                && names.volumes.iter().map(|it| &**it).eq(pod.volumes().map(|(name, _)| name))
        };
        self.0.len() == snapshot.len() && self.0.iter().zip(snapshot.pods()).all(fits)
    }
}

/// Values of disks that the numbers of a sample lack. They are rarely present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Disks {
    awaited_bytes: u64,
    /// The index of each pod that has some in the sample, and the bytes.
    bytes_elsewhere: Vec<(usize, u64)>,
}

fn bytes_elsewhere(snapshot: &Snapshot) -> impl Iterator<Item = (usize, u64)> {
    snapshot.pods().enumerate().filter_map(|(index, pod)| Some((index, pod.values().bytes_elsewhere?)))
}

impl Disks {
    /// Returns whether the sample has these values. One without pods has no values of pods.
    fn matches(&self, snapshot: &Snapshot) -> bool {
        self.awaited_bytes == snapshot.node.awaited_bytes
            && (snapshot.is_empty() || bytes_elsewhere(snapshot).eq(self.bytes_elsewhere.iter().copied()))
    }

    fn bytes_elsewhere_of(&self, pod: usize) -> Option<u64> {
        self.bytes_elsewhere.iter().find(|(index, _)| *index == pod).map(|(_, bytes)| *bytes)
    }
}

/// The names, numbers and values of disks of the previous sample.
#[derive(Debug, Default)]
pub(super) struct Codec {
    names: Names,
    pub(super) disks: Disks,
    node: Vec<u64>,
    pods: Vec<u64>,
}

impl Codec {
    /// Returns the names if they have to be written before this sample.
    pub(super) fn update_names(&mut self, snapshot: &Snapshot) -> Option<&Names> {
        if snapshot.is_empty() || self.names.matches(snapshot) {
            return None;
        }
        self.set_names(Names::of(snapshot));
        Some(&self.names)
    }

    /// Returns the values of disks if they have to be written before this sample.
    pub(super) fn update_disks(&mut self, snapshot: &Snapshot) -> Option<&Disks> {
        if self.disks.matches(snapshot) {
            return None;
        }
        self.disks.awaited_bytes = snapshot.node.awaited_bytes;
        if !snapshot.is_empty() {
            self.disks.bytes_elsewhere = bytes_elsewhere(snapshot).collect();
        }
        Some(&self.disks)
    }

    /// Sets the names of the next samples.
    pub(super) fn set_names(&mut self, names: Names) {
        self.names = names;
        self.pods.clear();
    }

    /// Appends a sample.
    pub(super) fn write(
        &mut self,
        usage: SampleUse,
        mut at: Timestamp,
        snapshot: &Snapshot,
        out: &mut Vec<u8>,
    ) {
        let skips_small_changes = usage == SampleUse::Usage;
        out.push(usage as u8);
        let mut writer = Writer::new(&mut self.node, out, false);
        instant(&mut at, &mut writer);
        let mut node = snapshot.node;
        node_values(&mut node, at, &mut writer);
        writer.end_run();
        out.push(u8::from(!snapshot.is_empty()));
        if snapshot.is_empty() {
            return;
        }
        let mut writer = Writer::new(&mut self.pods, out, skips_small_changes);
        for pod in snapshot.pods() {
            pod_values(&mut pod.values(), &mut writer);
            pod.containers().for_each(|(_, mut values)| container_values(&mut values, &mut writer));
            pod.volumes().for_each(|(_, mut values)| volume_values(&mut values, &mut writer));
        }
        writer.end_run();
    }

    /// Reads a sample.
    pub(super) fn read(&mut self, payload: &[u8]) -> Result<(SampleUse, Timestamp, Snapshot), &'static str> {
        let (usage, rest) = payload.split_first().ok_or("an empty sample")?;
        let known = [SampleUse::Sample, SampleUse::Reclaimed, SampleUse::Usage];
        let usage = known.into_iter().find(|it| *it as u8 == *usage).ok_or("an unknown kind of sample")?;
        let mut reader = Reader::new(&mut self.node, rest);
        let (mut at, mut node) = (Timestamp::UNIX_EPOCH, NodeStats::default());
        instant(&mut at, &mut reader);
        node_values(&mut node, at, &mut reader);
        let rest = reader.finish()?;
        node.awaited_bytes = self.disks.awaited_bytes;
        let mut snapshot = Snapshot::of_node(node);
        match rest.split_first().ok_or("a sample is too short")? {
            (0, []) => {}
            (1, rest) => {
                let mut reader = Reader::new(&mut self.pods, rest);
                for (index, PodNames { uid, containers, volumes }) in self.names.0.iter().enumerate() {
                    let mut values = PodStatValues::default();
                    pod_values(&mut values, &mut reader);
                    values.bytes_elsewhere = self.disks.bytes_elsewhere_of(index);
                    snapshot.add_pod(uid, values);
                    for name in containers {
                        let mut values = ContainerStatValues::default();
                        container_values(&mut values, &mut reader);
                        snapshot.add_container(name, values);
                    }
                    for name in volumes {
                        let mut values = VolumeStatValues::default();
                        volume_values(&mut values, &mut reader);
                        snapshot.add_volume(name, values);
                    }
                }
                if !reader.finish()?.is_empty() {
                    return Err("a sample is too long");
                }
            }
            _ => return Err("a sample is too long"),
        }
        Ok((usage, at, snapshot))
    }
}

fn node_values(node: &mut NodeStats, at: Timestamp, visitor: &mut impl Visitor) {
    let NodeStats {
        memory,
        allocatable_memory,
        node_fs,
        image_fs,
        container_fs,
        processes,
        memory_detail,
        unmeasured,
        awaited_bytes: _,
    } = node;
    for memory in [memory, allocatable_memory] {
        reading(memory, visitor, |MemoryStats { available, working_set, time: seen }, visitor| {
            [available, working_set].into_iter().for_each(|it| option(it, false, visitor));
            time(seen, at, visitor);
            source_id(visitor);
        });
    }
    for disk in [node_fs, image_fs, container_fs] {
        reading(disk, visitor, |stats, visitor| {
            let FsStats { available, capacity, inodes_free, inodes, time: seen } = stats;
            [available, capacity, inodes_free, inodes].into_iter().for_each(|it| option(it, false, visitor));
            time(seen, at, visitor);
            source_id(visitor);
        });
    }
    reading(processes, visitor, |ProcessStats { max, running, time: seen }, visitor| {
        for value in [max, running] {
            let mut bits = value.map(i64::cast_unsigned);
            option(&mut bits, false, visitor);
            *value = bits.map(u64::cast_signed);
        }
        time(seen, at, visitor);
        source_id(visitor);
    });
    let MemoryDetail { mem_available, active_file, some_avg10, full_avg10, stalled, swap_used, swap_total } =
        memory_detail;
    for value in [mem_available, active_file, some_avg10, full_avg10, swap_used, swap_total] {
        reading(value, visitor, |value, visitor| visitor.number(value, false));
    }
    reading(stalled, visitor, flag);
    let Parts { rootfs, logs, volumes } = unmeasured;
    [rootfs, logs, volumes].into_iter().for_each(|it| flag(it, visitor));
}

fn pod_values(values: &mut PodStatValues, visitor: &mut impl Visitor) {
    let PodStatValues {
        has_memory,
        memory_working_set,
        memory_anonymous,
        ephemeral_storage_used,
        process_count,
        bytes_elsewhere: _,
    } = values;
    flag(has_memory, visitor);
    for value in [memory_working_set, memory_anonymous, ephemeral_storage_used] {
        option(value, true, visitor);
    }
    option(process_count, false, visitor);
}

fn container_values(values: &mut ContainerStatValues, visitor: &mut impl Visitor) {
    let ContainerStatValues { memory_working_set, rootfs_used, rootfs_inodes, logs_used, logs_inodes } =
        values;
    [memory_working_set, rootfs_used, logs_used].into_iter().for_each(|it| option(it, true, visitor));
    [rootfs_inodes, logs_inodes].into_iter().for_each(|it| option(it, false, visitor));
}

fn volume_values(VolumeStatValues { used, inodes }: &mut VolumeStatValues, visitor: &mut impl Visitor) {
    option(used, true, visitor);
    option(inodes, false, visitor);
}

fn flag(flag: &mut bool, visitor: &mut impl Visitor) {
    let mut number = u64::from(*flag);
    visitor.number(&mut number, false);
    *flag = number != 0;
}

fn option(value: &mut Option<u64>, is_bytes: bool, visitor: &mut impl Visitor) {
    let mut is_some = value.is_some();
    flag(&mut is_some, visitor);
    let mut number = value.unwrap_or(0);
    visitor.number(&mut number, is_bytes);
    *value = is_some.then_some(number);
}

/// Writes or skips the source of a value. There is only one, 0.
fn source_id(visitor: &mut impl Visitor) {
    visitor.number(&mut 0, false);
}

fn instant(at: &mut Timestamp, visitor: &mut impl Visitor) {
    let (mut seconds, mut nanos) =
        (at.as_second().cast_unsigned(), i64::from(at.subsec_nanosecond()).cast_unsigned());
    visitor.number(&mut seconds, false);
    visitor.number(&mut nanos, false);
    *at = timestamp(seconds, nanos).unwrap_or(Timestamp::UNIX_EPOCH);
}

/// Visits a time as its difference to the time of the sample, because most are equal to it or slightly
/// earlier.
fn time(time: &mut Option<Timestamp>, at: Timestamp, visitor: &mut impl Visitor) {
    let mut is_some = time.is_some();
    flag(&mut is_some, visitor);
    let (seconds, nanos) = (at.as_second(), i64::from(at.subsec_nanosecond()));
    let seen = time.unwrap_or(at);
    let mut before = seconds.wrapping_sub(seen.as_second()).cast_unsigned();
    let mut nanos_before = nanos.wrapping_sub(i64::from(seen.subsec_nanosecond())).cast_unsigned();
    visitor.number(&mut before, false);
    visitor.number(&mut nanos_before, false);
    let seconds = seconds.wrapping_sub(before.cast_signed()).cast_unsigned();
    let nanos = nanos.wrapping_sub(nanos_before.cast_signed()).cast_unsigned();
    *time = timestamp(seconds, nanos).filter(|_| is_some);
}

fn timestamp(seconds: u64, nanos: u64) -> Option<Timestamp> {
    Timestamp::new(seconds.cast_signed(), i32::try_from(nanos.cast_signed()).ok()?).ok()
}

fn reading<T: Copy + Default, V: Visitor>(
    reading: &mut Reading<T>,
    visitor: &mut V,
    inner: impl FnOnce(&mut T, &mut V),
) {
    use UnknownReason::{Absent, Failed, Implausible, Replaced, Stale, Unparsable, Unreadable};
    // The position is the number in recordings: only append, at most seven.
    const PLAIN: [UnknownReason; 6] = [Absent, Failed, Unparsable, Stale, Implausible, Replaced];
    let mut code = match *reading {
        Reading::Known(_) => 0,
        Reading::Unknown(Unreadable(error)) => 8 + zigzag(error.into()),
        Reading::Unknown(why) => 1 + PLAIN.iter().position(|it| *it == why).unwrap_or(0) as u64,
    };
    visitor.number(&mut code, false);
    let mut value = reading.known().unwrap_or_default();
    inner(&mut value, visitor);
    *reading = match code {
        0 => Reading::Known(value),
        8.. => Reading::Unknown(Unreadable(i32::try_from(unzigzag(code - 8)).unwrap_or(0))),
        plain => Reading::Unknown(PLAIN.get(plain as usize - 1).copied().unwrap_or(Absent)),
    };
}
