//! The encoding of samples as numbers, each written as the difference to the number of the previous
//! sample.
//!
//! The same functions serve both directions: they pass each number to a [`Visitor`], which writes or
//! replaces it. Unchanged numbers are counted, not written.

use eviction_core::disk_layout::Parts;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::{
    ContainerStatValues, FsStats, MemoryDetail, MemoryStats, NodeStats, PodStatValues, ProcessStats,
    Snapshot, SnapshotBuilder, SourceId, VolumeStatValues,
};
use eviction_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// In a sample that was not passed to the engine, a value of a pod in bytes is written again only if it
/// has changed by more than this and by more than a percent.
const MIN_CHANGE_BYTES: u64 = 1 << 20;

/// The unit in bytes of differences that are a multiple of it, because differences of memory are whole
/// pages.
const PAGE: i64 = 4096;

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
            containers: pod.containers().map(|it| it.name().into()).collect(),
            volumes: pod.volumes().map(|it| it.name().into()).collect(),
        });
        Self(pods.collect())
    }

    /// Returns whether the sample has the same names. Allocates nothing.
    fn matches(&self, snapshot: &Snapshot) -> bool {
        let fits = |(names, pod): (&PodNames, eviction_core::snapshot::PodStats<'_>)| {
            *names.uid == *pod.uid()
                && names.containers.iter().map(|it| &**it).eq(pod.containers().map(|it| it.name()))
                && names.volumes.iter().map(|it| &**it).eq(pod.volumes().map(|it| it.name()))
        };
        self.0.len() == snapshot.len() && self.0.iter().zip(snapshot.pods()).all(fits)
    }
}

/// The names and numbers of the previous sample.
#[derive(Debug, Default)]
pub(super) struct Codec {
    names: Names,
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
            pod.containers().for_each(|it| container_values(&mut it.values(), &mut writer));
            pod.volumes().for_each(|it| volume_values(&mut it.values(), &mut writer));
        }
        writer.end_run();
    }

    /// Reads a sample into a snapshot.
    pub(super) fn read(
        &mut self,
        payload: &[u8],
        mut builder: SnapshotBuilder,
    ) -> Result<(SampleUse, Timestamp, Snapshot), &'static str> {
        let (usage, rest) = payload.split_first().ok_or("an empty sample")?;
        let known = [SampleUse::Sample, SampleUse::Reclaimed, SampleUse::Usage];
        let usage = known.into_iter().find(|it| *it as u8 == *usage).ok_or("an unknown kind of sample")?;
        let mut reader = Reader::new(&mut self.node, rest);
        let (mut at, mut node) = (Timestamp::UNIX_EPOCH, NodeStats::default());
        instant(&mut at, &mut reader);
        node_values(&mut node, at, &mut reader);
        let rest = reader.finish()?;
        builder.node(node);
        match rest.split_first().ok_or("a sample is too short")? {
            (0, []) => {}
            (1, rest) => {
                let mut reader = Reader::new(&mut self.pods, rest);
                for PodNames { uid, containers, volumes } in &self.names.0 {
                    let mut values = PodStatValues::default();
                    pod_values(&mut values, &mut reader);
                    let mut pod = builder.pod(uid, values);
                    for name in containers {
                        let mut values = ContainerStatValues::default();
                        container_values(&mut values, &mut reader);
                        pod.container(name, values);
                    }
                    for name in volumes {
                        let mut values = VolumeStatValues::default();
                        volume_values(&mut values, &mut reader);
                        pod.volume(name, values);
                    }
                }
                if !reader.finish()?.is_empty() {
                    return Err("a sample is too long");
                }
            }
            _ => return Err("a sample is too long"),
        }
        Ok((usage, at, builder.finish()))
    }
}

/// A visitor that reads or replaces numbers.
trait Visitor {
    /// Visits a number. `is_bytes`: small differences do not matter to users.
    fn number(&mut self, number: &mut u64, is_bytes: bool);
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
    } = node;
    for memory in [memory, allocatable_memory] {
        reading(memory, visitor, |MemoryStats { available, working_set, time: seen, source }, visitor| {
            [available, working_set].into_iter().for_each(|it| option(it, false, visitor));
            time(seen, at, visitor);
            source_id(source, visitor);
        });
    }
    for disk in [node_fs, image_fs, container_fs] {
        reading(disk, visitor, |stats, visitor| {
            let FsStats { available, capacity, inodes_free, inodes, time: seen, source } = stats;
            [available, capacity, inodes_free, inodes].into_iter().for_each(|it| option(it, false, visitor));
            time(seen, at, visitor);
            source_id(source, visitor);
        });
    }
    reading(processes, visitor, |ProcessStats { max, running, time: seen, source }, visitor| {
        for value in [max, running] {
            let mut bits = value.map(i64::cast_unsigned);
            option(&mut bits, false, visitor);
            *value = bits.map(u64::cast_signed);
        }
        time(seen, at, visitor);
        source_id(source, visitor);
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

fn source_id(SourceId(source): &mut SourceId, visitor: &mut impl Visitor) {
    let mut number = u64::from(*source);
    visitor.number(&mut number, false);
    *source = u8::try_from(number).unwrap_or(u8::MAX);
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

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// Writes differences.
struct Writer<'a> {
    before: &'a mut Vec<u64>,
    index: usize,
    /// The number of unchanged values that are not written yet.
    unchanged: u64,
    out: &'a mut Vec<u8>,
    skips_small_changes: bool,
}

impl<'a> Writer<'a> {
    fn new(before: &'a mut Vec<u64>, out: &'a mut Vec<u8>, skips_small_changes: bool) -> Self {
        Self { before, index: 0, unchanged: 0, out, skips_small_changes }
    }

    /// Writes the number of unchanged values.
    fn end_run(&mut self) {
        if self.unchanged > 0 {
            varint(0, self.out);
            varint(u128::from(std::mem::take(&mut self.unchanged)), self.out);
        }
    }
}

impl Visitor for Writer<'_> {
    fn number(&mut self, number: &mut u64, is_bytes: bool) {
        if self.index == self.before.len() {
            self.before.push(0);
        }
        let before = &mut self.before[self.index];
        self.index += 1;
        let is_small = || number.abs_diff(*before) <= MIN_CHANGE_BYTES.max(*before / 100);
        if *number == *before
            || (self.skips_small_changes && is_bytes && *before > 0 && *number > 0 && is_small())
        {
            self.unchanged += 1;
            return;
        }
        let difference = number.wrapping_sub(*before).cast_signed();
        *before = *number;
        self.end_run();
        let code = match difference % PAGE {
            0 => u128::from(zigzag(difference / PAGE)) << 1,
            _ => u128::from(zigzag(difference)) << 1 | 1,
        };
        varint(code, self.out);
    }
}

/// Appends a number with seven bits per byte, the lowest first.
fn varint(mut number: u128, out: &mut Vec<u8>) {
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

/// Reads differences and adds them up.
struct Reader<'a> {
    before: &'a mut Vec<u64>,
    index: usize,
    unchanged: u64,
    rest: &'a [u8],
    is_short: bool,
}

impl<'a> Reader<'a> {
    fn new(before: &'a mut Vec<u64>, rest: &'a [u8]) -> Self {
        Self { before, index: 0, unchanged: 0, rest, is_short: false }
    }

    fn finish(self) -> Result<&'a [u8], &'static str> {
        if self.is_short || self.unchanged > 0 {
            Err("a sample does not fit its names")
        } else {
            Ok(self.rest)
        }
    }

    fn varint(&mut self) -> u128 {
        let mut number = 0;
        for shift in (0..70).step_by(7) {
            let Some((byte, rest)) = self.rest.split_first() else { break };
            self.rest = rest;
            number |= u128::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return number;
            }
        }
        self.is_short = true;
        0
    }
}

impl Visitor for Reader<'_> {
    // The fast path, because most numbers did not change.
    #[inline]
    fn number(&mut self, number: &mut u64, _: bool) {
        let Some(before) = self.before.get(self.index).filter(|_| self.unchanged > 0) else {
            *number = self.next();
            return;
        };
        *number = *before;
        self.index += 1;
        self.unchanged -= 1;
    }
}

impl Reader<'_> {
    #[cold]
    fn next(&mut self) -> u64 {
        if self.index == self.before.len() {
            self.before.push(0);
        }
        let index = self.index;
        self.index += 1;
        if self.unchanged == 0 && !self.is_short {
            match self.varint() {
                0 => self.unchanged = u64::try_from(self.varint()).unwrap_or(0),
                code => {
                    let difference = unzigzag(u64::try_from(code >> 1).unwrap_or(0));
                    let difference = if code & 1 == 0 { difference.wrapping_mul(PAGE) } else { difference };
                    self.before[index] = self.before[index].wrapping_add(difference.cast_unsigned());
                    return self.before[index];
                }
            }
            self.is_short |= self.unchanged == 0;
        }
        self.unchanged = self.unchanged.saturating_sub(1);
        self.before[index]
    }
}
