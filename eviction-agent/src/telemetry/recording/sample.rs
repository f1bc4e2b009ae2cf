//! The encoding of samples: the time and the values of the node as JSON, then the values of the pods as numbers.
//!
//! A sample has more than a thousand numbers of pods, most of which have not changed since the previous sample. So
//! each is written as its difference to the number at the same place there, and unchanged numbers are only counted.
//! The same functions serve both directions: they pass each number to a closure, which writes or replaces it.

use eviction_core::snapshot::{
    ContainerStatValues, NodeStats, PodStatValues, PodStats, Snapshot, VolumeStatValues,
};
use eviction_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Deserializer;

/// In a sample that was not passed to the engine, a value of a pod in bytes is written again only if it
/// has changed by more than this and by more than a percent.
const MIN_CHANGE_BYTES: u64 = 1 << 20;

/// The names of a pod, its containers and its volumes, in the order of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PodNames {
    uid: Box<str>,
    containers: Vec<Box<str>>,
    volumes: Vec<Box<str>>,
}

impl PodNames {
    fn of(pod: PodStats<'_>) -> Self {
        Self {
            uid: pod.uid().into(),
            containers: pod.containers().map(|(name, _)| name.into()).collect(),
            volumes: pod.volumes().map(|(name, _)| name.into()).collect(),
        }
    }

    /// Returns whether a pod has the same names. Allocates nothing.
    fn matches(&self, pod: PodStats<'_>) -> bool {
        *self.uid == *pod.uid()
            && self.containers.iter().map(|it| &**it).eq(pod.containers().map(|(name, _)| name))
            && self.volumes.iter().map(|it| &**it).eq(pod.volumes().map(|(name, _)| name))
    }
}

/// The names and the numbers of the previous sample with pods.
#[derive(Debug, Default)]
pub(super) struct Codec {
    names: Vec<PodNames>,
    numbers: Vec<u64>,
}

impl Codec {
    /// Returns the names if they have to be written before this sample.
    pub(super) fn update_names(&mut self, snapshot: &Snapshot) -> Option<&[PodNames]> {
        let is_same = || self.names.iter().zip(snapshot.pods()).all(|(names, pod)| names.matches(pod));
        if snapshot.is_empty() || (self.names.len() == snapshot.len() && is_same()) {
            return None;
        }
        self.set_names(snapshot.pods().map(PodNames::of).collect());
        Some(&self.names)
    }

    /// Sets the names of the next samples.
    pub(super) fn set_names(&mut self, names: Vec<PodNames>) {
        self.names = names;
        self.numbers.clear();
    }

    /// Appends a sample. Small changes of pods are left out if that is wanted.
    pub(super) fn write(
        &mut self,
        at: Timestamp,
        snapshot: &Snapshot,
        skips_small_changes: bool,
        out: &mut Vec<u8>,
    ) -> serde_json::Result<()> {
        serde_json::to_writer(&mut *out, &(at, &snapshot.node))?;
        let mut writer =
            NumberWriter { before: &mut self.numbers, index: 0, unchanged: 0, out, skips_small_changes };
        let mut write = |number: &mut u64, is_bytes| writer.write(*number, is_bytes);
        for pod in snapshot.pods() {
            pod_values(&mut pod.values(), &mut write);
            pod.containers().for_each(|(_, mut values)| container_values(&mut values, &mut write));
            pod.volumes().for_each(|(_, mut values)| volume_values(&mut values, &mut write));
        }
        writer.end_run();
        Ok(())
    }

    /// Reads a sample.
    pub(super) fn read(&mut self, payload: &[u8]) -> Result<(Timestamp, Snapshot), String> {
        let mut node = Deserializer::from_slice(payload).into_iter::<(Timestamp, NodeStats)>();
        let read = node.next().ok_or("an empty sample")?;
        let rest = payload.get(node.byte_offset()..).unwrap_or_default();
        let (at, node) = read.map_err(|error| error.to_string())?;
        let mut snapshot = Snapshot::of_node(node);
        if rest.is_empty() {
            return Ok((at, snapshot));
        }
        let before = &mut self.numbers;
        let mut reader = NumberReader { before, index: 0, unchanged: 0, rest, is_short: false };
        let mut read = |number: &mut u64, _| *number = reader.read();
        for PodNames { uid, containers, volumes } in &self.names {
            let mut values = PodStatValues::default();
            pod_values(&mut values, &mut read);
            snapshot.add_pod(uid, values);
            for name in containers {
                let mut values = ContainerStatValues::default();
                container_values(&mut values, &mut read);
                snapshot.add_container(name, values);
            }
            for name in volumes {
                let mut values = VolumeStatValues::default();
                volume_values(&mut values, &mut read);
                snapshot.add_volume(name, values);
            }
        }
        match reader {
            NumberReader { is_short: false, unchanged: 0, rest: [], .. } => Ok((at, snapshot)),
            _ => Err("a sample does not fit its names".to_owned()),
        }
    }
}

fn pod_values(values: &mut PodStatValues, visit: &mut impl FnMut(&mut u64, bool)) {
    let PodStatValues {
        has_memory,
        memory_working_set,
        memory_anonymous,
        ephemeral_storage_used,
        process_count,
        bytes_elsewhere,
    } = values;
    flag(has_memory, visit);
    for value in [memory_working_set, memory_anonymous, ephemeral_storage_used, bytes_elsewhere] {
        option(value, true, visit);
    }
    option(process_count, false, visit);
}

fn container_values(values: &mut ContainerStatValues, visit: &mut impl FnMut(&mut u64, bool)) {
    let ContainerStatValues { memory_working_set, rootfs_used, rootfs_inodes, logs_used, logs_inodes } =
        values;
    [memory_working_set, rootfs_used, logs_used].into_iter().for_each(|it| option(it, true, visit));
    [rootfs_inodes, logs_inodes].into_iter().for_each(|it| option(it, false, visit));
}

fn volume_values(values: &mut VolumeStatValues, visit: &mut impl FnMut(&mut u64, bool)) {
    option(&mut values.used, true, visit);
    option(&mut values.inodes, false, visit);
}

fn flag(flag: &mut bool, visit: &mut impl FnMut(&mut u64, bool)) {
    let mut number = u64::from(*flag);
    visit(&mut number, false);
    *flag = number != 0;
}

/// Visits a value: whether it is known, and the number. `is_bytes`: small differences do not matter to users.
fn option(value: &mut Option<u64>, is_bytes: bool, visit: &mut impl FnMut(&mut u64, bool)) {
    let mut is_some = value.is_some();
    flag(&mut is_some, visit);
    let mut number = value.unwrap_or(0);
    visit(&mut number, is_bytes);
    *value = is_some.then_some(number);
}

/// Writes numbers as differences to those of the previous sample.
struct NumberWriter<'a> {
    before: &'a mut Vec<u64>,
    index: usize,
    /// The number of unchanged values that are not written yet.
    unchanged: u64,
    out: &'a mut Vec<u8>,
    skips_small_changes: bool,
}

impl NumberWriter<'_> {
    fn write(&mut self, number: u64, is_bytes: bool) {
        if self.index == self.before.len() {
            self.before.push(0);
        }
        let before = &mut self.before[self.index];
        self.index += 1;
        let is_small = || number.abs_diff(*before) <= MIN_CHANGE_BYTES.max(*before / 100);
        if number == *before
            || (self.skips_small_changes && is_bytes && *before > 0 && number > 0 && is_small())
        {
            self.unchanged += 1;
            return;
        }
        let difference = number.wrapping_sub(*before).cast_signed();
        *before = number;
        self.end_run();
        // The zigzag form: small for a number near 0, and never 0 for another number.
        varint(((difference << 1) ^ (difference >> 63)).cast_unsigned(), self.out);
    }

    /// Writes the number of unchanged values.
    fn end_run(&mut self) {
        if self.unchanged > 0 {
            varint(0, self.out);
            varint(std::mem::take(&mut self.unchanged), self.out);
        }
    }
}

/// Appends a number with seven bits per byte, the lowest first (LEB128).
fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads differences and adds them up.
struct NumberReader<'a> {
    before: &'a mut Vec<u64>,
    index: usize,
    unchanged: u64,
    rest: &'a [u8],
    is_short: bool,
}

impl NumberReader<'_> {
    fn read(&mut self) -> u64 {
        let index = self.index;
        self.index += 1;
        if index == self.before.len() {
            self.before.push(0);
        }
        if self.unchanged == 0 {
            match self.varint() {
                0 => {
                    self.unchanged = self.varint();
                    self.is_short |= self.unchanged == 0;
                }
                code => {
                    let difference = (code >> 1) ^ (code & 1).wrapping_neg();
                    self.before[index] = self.before[index].wrapping_add(difference);
                    return self.before[index];
                }
            }
        }
        self.unchanged = self.unchanged.saturating_sub(1);
        self.before[index]
    }

    fn varint(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let Some((byte, rest)) = self.rest.split_first() else { break };
            self.rest = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return number;
            }
        }
        self.is_short = true;
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::fixture::{at, node};

    fn codec() -> Codec {
        let names =
            |uid: &str| PodNames { uid: uid.into(), containers: Vec::new(), volumes: vec!["v".into()] };
        Codec { names: vec![names("a"), names("b")], numbers: Vec::new() }
    }

    fn sample(used: u64) -> Snapshot {
        let mut snapshot = Snapshot::of_node(node(1, 2, at(0)));
        for uid in ["a", "b"] {
            let values = PodStatValues { bytes_elsewhere: Some(used), ..PodStatValues::default() };
            let volume = VolumeStatValues { used: Some(used), inodes: None };
            snapshot.add_pod(uid, values).add_volume("v", volume);
        }
        snapshot
    }

    fn written(codec: &mut Codec, used: u64) -> Vec<u8> {
        let mut out = Vec::new();
        codec.write(at(1), &sample(used), false, &mut out).unwrap();
        out
    }

    #[test]
    fn every_number_is_read_back() {
        let (mut writer, mut reader) = (codec(), codec());
        for used in [0, 1, u64::MAX, 0, 1 << 63, (1 << 63) - 1, u64::MAX, u64::MAX] {
            let (time, read) = reader.read(&written(&mut writer, used)).unwrap();
            assert_eq!(time, at(1));
            assert!(read.pods().all(|pod| pod.values().bytes_elsewhere == Some(used)), "{used}");
            let volume = |pod: PodStats<'_>| pod.volumes().next().unwrap().1.used;
            assert!(read.pods().map(volume).eq([Some(used); 2]), "{used}");
        }
    }

    #[test]
    fn a_sample_that_does_not_fit_its_names_is_an_error() {
        let json = serde_json::to_vec(&(at(1), node(1, 2, at(0)))).unwrap();
        let whole = written(&mut codec(), 300);
        for length in (0..whole.len()).filter(|length| *length != json.len()) {
            assert!(codec().read(&whole[..length]).is_err(), "{length}");
        }
        assert!(codec().read(&json).unwrap().1.is_empty(), "a sample without pods");
        let read = |numbers: &[u8]| codec().read(&[&json, numbers].concat()).map(|(_, sample)| sample.len());
        assert_eq!(read(&[0, 30]), Ok(2), "fifteen numbers for each pod");
        // Too few, too many, a run of none, a number without an end, and the longest run.
        let longest = [&[0][..], &[255; 9], &[1]].concat();
        for numbers in [&[0, 29][..], &[0, 31], &[0, 30, 2], &[0, 0], &[0x80; 12], &longest] {
            assert_eq!(read(numbers), Err("a sample does not fit its names".to_owned()), "{numbers:?}");
        }
    }

    #[test]
    fn values_of_the_node_that_are_no_such_json_are_an_error() {
        let json = serde_json::to_string(&(at(1), node(1, 2, at(0)))).unwrap();
        let twice = json.replacen("\"node_fs\":", "\"node_fs\":{\"Unknown\":\"stale\"},\"node_fs\":", 1);
        let negative = json.replacen("\"awaited_bytes\":0", "\"awaited_bytes\":-1", 1);
        let infinite = json.replacen("\"awaited_bytes\":0", "\"awaited_bytes\":1e999", 1);
        assert!([&twice, &negative, &infinite].iter().all(|it| **it != json), "{json}");
        for json in ["", "[", "[1]", "null", "NaN", &*"[".repeat(100_000), &twice, &negative, &infinite] {
            assert!(codec().read(json.as_bytes()).is_err(), "{json}");
        }
    }
}
