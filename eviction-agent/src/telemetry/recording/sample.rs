//! The encoding of samples: the time and the values of the node as JSON, then the values of the pods as numbers.
//!
//! A sample has more than a thousand numbers of pods, most of which have not changed since the previous sample. So
//! each is written as its difference to the number at the same place there, and unchanged numbers are only counted.
//! The same functions serve both directions: they pass each number to a closure, which writes or replaces it.

use eviction_core::snapshot::{ContainerStatValues, FsUsage, NodeStats, PodStatValues, PodStats, Snapshot};
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
    numbers: Numbers,
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
        self.numbers.before.clear();
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
        self.numbers.start();
        let mut write =
            |number: &mut u64, is_bytes| self.numbers.write(*number, is_bytes && skips_small_changes, out);
        for pod in snapshot.pods() {
            pod_values(&mut pod.values(), &mut write);
            pod.containers().for_each(|(_, mut values)| container_values(&mut values, &mut write));
            pod.volumes().for_each(|(_, mut values)| volume_values(&mut values, &mut write));
        }
        self.numbers.end_run(out);
        Ok(())
    }

    /// Reads a sample.
    pub(super) fn read(&mut self, payload: &[u8]) -> Result<(Timestamp, Snapshot), String> {
        let mut node = Deserializer::from_slice(payload).into_iter::<(Timestamp, NodeStats)>();
        let read = node.next().ok_or("an empty sample")?;
        let mut rest = payload.get(node.byte_offset()..).unwrap_or_default();
        let (at, node) = read.map_err(|error| error.to_string())?;
        let mut snapshot = Snapshot::of_node(node);
        if rest.is_empty() {
            return Ok((at, snapshot));
        }
        self.numbers.start();
        let mut is_short = false;
        let mut read = |number: &mut u64, _| match self.numbers.read(&mut rest) {
            Some(read) => *number = read,
            None => is_short = true,
        };
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
                let mut values = FsUsage::default();
                volume_values(&mut values, &mut read);
                snapshot.add_volume(name, values);
            }
        }
        if is_short || self.numbers.unchanged > 0 || !rest.is_empty() {
            return Err("a sample does not fit its names".to_owned());
        }
        Ok((at, snapshot))
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

fn volume_values(values: &mut FsUsage, visit: &mut impl FnMut(&mut u64, bool)) {
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

/// The numbers of the previous sample, to which those of the next one are differences.
#[derive(Debug, Default)]
struct Numbers {
    before: Vec<u64>,
    /// The index of the next number.
    index: usize,
    /// The number of unchanged values that are not written yet, or that were read and not used yet.
    unchanged: u64,
}

impl Numbers {
    /// Starts a sample.
    fn start(&mut self) {
        (self.index, self.unchanged) = (0, 0);
    }

    /// Returns the number at this place in the previous sample, and goes on to the next place.
    fn next(&mut self) -> &mut u64 {
        if self.index == self.before.len() {
            self.before.push(0);
        }
        self.index += 1;
        &mut self.before[self.index - 1]
    }

    /// Writes a number. `skips_small_change`: a small change counts as none.
    fn write(&mut self, number: u64, skips_small_change: bool, out: &mut Vec<u8>) {
        let before = self.next();
        let is_small = || number.abs_diff(*before) <= MIN_CHANGE_BYTES.max(*before / 100);
        if number == *before || (skips_small_change && *before > 0 && number > 0 && is_small()) {
            self.unchanged += 1;
            return;
        }
        let difference = number.wrapping_sub(*before).cast_signed();
        *before = number;
        self.end_run(out);
        // The zigzag form: small for a number near 0, and never 0 for another number.
        write_varint(((difference << 1) ^ (difference >> 63)).cast_unsigned(), out);
    }

    /// Writes the number of unchanged values.
    fn end_run(&mut self, out: &mut Vec<u8>) {
        if self.unchanged > 0 {
            write_varint(0, out);
            write_varint(std::mem::take(&mut self.unchanged), out);
        }
    }

    /// Reads a number from the beginning of `rest`, which it removes. Returns `None` if there is none.
    fn read(&mut self, rest: &mut &[u8]) -> Option<u64> {
        if self.unchanged == 0 {
            let code = read_varint(rest)?;
            if code != 0 {
                let difference = (code >> 1) ^ (code & 1).wrapping_neg();
                let number = self.next();
                *number = number.wrapping_add(difference);
                return Some(*number);
            }
            self.unchanged = read_varint(rest).filter(|count| *count > 0)?;
        }
        self.unchanged -= 1;
        Some(*self.next())
    }
}

/// Appends a number with seven bits per byte, the lowest first (LEB128).
fn write_varint(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a number from the beginning of `rest`, which it removes. Returns `None` if it has no end.
fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::fixture::{at, node};

    fn codec() -> Codec {
        let names =
            |uid: &str| PodNames { uid: uid.into(), containers: Vec::new(), volumes: vec!["v".into()] };
        Codec { names: vec![names("a"), names("b")], numbers: Numbers::default() }
    }

    fn sample(used: u64) -> Snapshot {
        let mut snapshot = Snapshot::of_node(node(1, 2, at(0)));
        for uid in ["a", "b"] {
            let values = PodStatValues { bytes_elsewhere: Some(used), ..PodStatValues::default() };
            let volume = FsUsage { used: Some(used), inodes: None };
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
