//! Tests that a recording can be read, as far as it is complete.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use eviction_core::fixture::{arbitrary, at, hard, node, policy};
use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::policy::Policy;
use eviction_core::signal::Signal::MemoryAvailable;
use eviction_core::snapshot::{ContainerStatValues, FsUsage, PodStatValues, Snapshot};
use eviction_core::time::Timestamp;
use proptest::prelude::*;

use super::format::pod_json;
use super::reader::{Item, Segment, SegmentError, copy_end, find, is_recording};
use super::writer::{Limits, Writer};
use super::{Key, Recorded, SegmentHeader};

/// Returns limits that a test does not reach.
pub(crate) fn limits(directory: &Path) -> Limits {
    let directory = directory.to_owned();
    Limits { directory, max_size: 1 << 30, max_age: Duration::from_secs(3600), min_free: 0 }
}

fn open(directory: &Path) -> Writer {
    Writer::open(limits(directory), SegmentHeader { run: "test".to_owned(), ..SegmentHeader::default() })
        .unwrap()
}

/// Returns the key of an engine that has only its policy and its disk layout.
pub(crate) fn key_of(policy: Policy) -> Key {
    Key {
        at: at(0),
        policy,
        dry_run: false,
        state: Default::default(),
        layout: Some(Default::default()),
        terminating: Vec::new(),
        api: ApiReachability::Reachable,
        lost: 0,
        pods: Arc::default(),
    }
}

fn key() -> Recorded {
    // Before the first layout is read, a key has none.
    Recorded::Key(Box::new(Key { layout: None, ..key_of(policy(vec![hard(MemoryAvailable, "100")])) }))
}

/// Writes each entry as a tick, and returns the bytes of the file.
fn written(directory: &Path, recorded: &[Recorded]) -> Vec<u8> {
    let mut writer = open(directory);
    for one in recorded {
        writer.take(one, |at| at).unwrap();
        writer.flush().unwrap();
    }
    fs::read(&find(directory).unwrap()[0]).unwrap()
}

fn read(bytes: &[u8]) -> (Vec<Item>, Option<SegmentError>) {
    read_all(Segment::read(bytes))
}

fn read_file(file: &Path) -> (Vec<Item>, Option<SegmentError>) {
    read_all(Segment::open(file))
}

/// Returns the items of a segment, and the error at its end.
fn read_all<R: Read>(segment: Result<Segment<R>, SegmentError>) -> (Vec<Item>, Option<SegmentError>) {
    let mut items = Vec::new();
    let read = segment.and_then(|mut segment| {
        while let Some(item) = segment.next_item()? {
            items.push(item);
        }
        Ok(())
    });
    (items, read.err())
}

/// Returns an item in a form that can be compared.
fn shown(item: &Item) -> String {
    match item {
        Item::Pods(at, all) => shown_pods(*at, all.iter().map(|pod| &**pod)),
        Item::Input(input) => format!("{input:?}"),
        Item::Usage(at, sample) => format!("{at} {sample:?}"),
        other => format!("{other:?}"),
    }
}

fn shown_pods<'a>(at: Timestamp, all: impl Iterator<Item = &'a eviction_core::pod::Pod>) -> String {
    format!("{at} {:?}", all.map(pod_json).collect::<Vec<_>>())
}

/// Returns a sample with usages that grow page by page, and with a container and a volume.
pub(super) fn sample(second: i64, pods: u64) -> Arc<Snapshot> {
    let mut snapshot = Snapshot::of_node(node(1 << 30, 1 << 40, at(second)));
    let grows = |pod: u64| Some((pod << 20) + 4096 * second.unsigned_abs() * (pod % 3));
    for pod in 0..pods {
        let values = PodStatValues { memory_working_set: grows(pod), ..PodStatValues::default() };
        snapshot.add_pod(&format!("uid-{pod}"), values);
        let memory_working_set = grows(pod);
        snapshot.add_container(
            "main",
            ContainerStatValues { memory_working_set, ..ContainerStatValues::default() },
        );
        snapshot.add_volume("data", FsUsage { used: grows(pod), inodes: Some(pod) });
    }
    Arc::new(snapshot)
}

fn samples() -> Vec<Recorded> {
    let input = |second| Input { at: at(second), event: Event::Sample(sample(second, 3)) };
    let inputs = (0..5).map(|second| Recorded::Input(input(second)));
    [key()].into_iter().chain(inputs).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn recorded_inputs_are_read_back_unchanged(inputs in arbitrary::inputs()) {
        let folder = tempfile::tempdir().unwrap();
        let inputs: Vec<_> =
            inputs.into_iter().filter(|it| !matches!(it.event, Event::Admission(_))).collect();
        let expected = inputs.iter().map(|input| match &input.event {
            Event::Pods(pods) => shown_pods(input.at, pods.pods().iter().map(|known| &known.pod)),
            _ => format!("{input:?}"),
        });
        let expected: Vec<_> = expected.collect();
        let recorded: Vec<_> =
            [key()].into_iter().chain(inputs.into_iter().map(Recorded::Input)).collect();
        let (items, error) = read(&written(folder.path(), &recorded));
        prop_assert!(error.is_none(), "{:?}", error);
        let is_input = |item: &&Item| matches!(item, Item::Input(_) | Item::Pods(..));
        // The first pods are those of the key.
        let inputs: Vec<_> = items.iter().filter(is_input).skip(1).map(shown).collect();
        prop_assert_eq!(inputs, expected);
    }

    #[test]
    fn arbitrary_bytes_do_not_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let begun = [super::format::begin(), bytes.clone()].concat();
        read(&bytes);
        read(&begun);
    }

    #[test]
    fn flipped_bit_is_detected_and_earlier_items_are_unchanged(place in 0usize..10_000, bit in 0u8..8) {
        let folder = tempfile::tempdir().unwrap();
        let whole = written(folder.path(), &samples());
        let expected: Vec<_> = read(&whole).0.iter().map(shown).collect();
        let mut flipped = whole.clone();
        let place = place % whole.len();
        flipped[place] ^= 1 << bit;
        let (items, error) = read(&flipped);
        prop_assert!(error.is_some(), "{place}");
        let items: Vec<_> = items.iter().map(shown).collect();
        prop_assert_eq!(&items[..], &expected[..items.len()]);
    }
}

#[test]
fn cut_off_segment_is_read_up_to_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let whole = written(folder.path(), &samples());
    let expected: Vec<_> = read(&whole).0.iter().map(shown).collect();
    assert_eq!(expected.len(), 4 + 5, "header, clock, key, pods and samples: {expected:?}");
    let mut most = 0;
    for length in 0..whole.len() {
        let (items, error) = read(&whole[..length]);
        let items: Vec<_> = items.iter().map(shown).collect();
        assert!(items.len() >= most && items.len() < expected.len() && items == expected[..items.len()]);
        most = items.len();
        assert!(error.as_ref().is_none_or(|error| error.is_cut), "{length}: {error:?}");
    }
    assert_eq!(most, expected.len() - 1);
}

#[test]
fn other_versions_and_other_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = written(folder.path(), &samples());
    for version in [1, 2, 3, 5] {
        bytes[6] = version;
        let error = read(&bytes).1.unwrap().text;
        let expected = format!("format version {version} is not supported, this program reads version 4");
        assert_eq!(error, expected);
    }
    assert_eq!(read(b"{\"scenario\": 1}").1.unwrap().text, "not a recording");
}

#[test]
fn frames_of_unknown_kinds_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = written(folder.path(), &samples());
    let items = read(&bytes).0.len();
    // An empty frame of the unknown kind 200.
    let head = [200, 0, 0, 0, 0];
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head);
    bytes.extend(head.into_iter().chain(hasher.finalize().to_le_bytes()));
    let (all, error) = read(&bytes);
    assert!(error.is_none() && all.len() == items, "{error:?}");
}

#[test]
fn a_directory_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path());
    let error = Writer::open(limits(folder.path()), SegmentHeader::default()).unwrap_err();
    assert_eq!(error.to_string(), "another agent records there");
    drop(first);
    open(folder.path());
}

#[test]
fn small_changes_of_usages_are_left_out_and_large_ones_are_exact() {
    let folder = tempfile::tempdir().unwrap();
    let usage = |second| Recorded::Usage(at(second), sample(second, 3));
    let input = Recorded::Input(Input { at: at(200), event: Event::Sample(sample(200, 3)) });
    let recorded = [key(), usage(1), usage(100), usage(1000), input];
    let items = read(&written(folder.path(), &recorded)).0;
    let used = items.iter().filter_map(|item| match item {
        Item::Usage(_, sample) => Some(Arc::clone(sample)),
        Item::Input(Input { event: Event::Sample(sample), .. }) => Some(Arc::clone(sample)),
        _ => None,
    });
    let used: Vec<_> =
        used.map(|sample| sample.pod(2).unwrap().values().memory_working_set.unwrap()).collect();
    let exact = |second: u64| (2 << 20) + 2 * 4096 * second;
    assert_eq!(used, [exact(1), exact(1), exact(1000), exact(200)]);
}

#[test]
fn complete_segments_are_compressed_and_read_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let plain = written(folder.path(), &samples());
    assert!(is_recording(folder.path()));
    // The file that a killed agent leaves.
    fs::write(folder.path().join("00000000-half.part"), "").unwrap();
    let mut writer = open(folder.path());
    writer.take(&key(), |at| at).unwrap();
    while writer.compress().unwrap() {}
    let found = find(folder.path()).unwrap();
    let names: Vec<_> = found.iter().map(|it| it.extension().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["zst", "rec"]);
    // A reader that found the plain segment before its compression reads the compressed one.
    for file in [&found[0], &found[0].with_extension("")] {
        let (items, error) = read_file(file);
        assert!(error.is_none(), "{error:?}");
        assert!(items.iter().map(shown).eq(read(&plain).0.iter().map(shown)), "{items:?}");
    }
}

/// Returns the items of a compressed segment with these bytes, and the error at its end.
fn read_compressed(folder: &Path, bytes: &[u8]) -> (Vec<String>, Option<SegmentError>) {
    let file = folder.join("damaged.rec.zst");
    fs::write(&file, bytes).unwrap();
    let (items, error) = read_file(&file);
    (items.iter().map(shown).collect(), error)
}

#[test]
fn cut_off_or_damaged_compressed_segment_is_read_up_to_the_error() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), &samples());
    let mut writer = open(folder.path());
    while writer.compress().unwrap() {}
    let whole = fs::read(&find(folder.path()).unwrap()[0]).unwrap();
    let (expected, error) = read_compressed(folder.path(), &whole);
    assert!(error.is_none() && expected.len() == 4 + 5, "{error:?} {expected:?}");
    for length in 0..whole.len() {
        let (items, error) = read_compressed(folder.path(), &whole[..length]);
        assert!(items == expected[..items.len()], "{length}: {items:?}");
        assert!(error.is_some(), "{length}");
    }
    for bit in 0..8 * whole.len() {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let (items, error) = read_compressed(folder.path(), &flipped);
        assert!(items == expected[..items.len()], "{bit}: {items:?}");
        // The zstd header has bits without an effect.
        assert!(error.is_some() || items.len() == expected.len(), "{bit}");
    }
}

#[test]
fn the_oldest_segments_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = limits(folder.path());
    small.max_size = 1;
    let mut writer = Writer::open(small, SegmentHeader::default()).unwrap();
    for _ in 0..3 {
        writer.take(&key(), |at| at).unwrap();
    }
    writer.enforce_limits().unwrap();
    let left = find(folder.path()).unwrap();
    assert!(left.len() == 1 && left[0].to_string_lossy().contains("00000002-"), "{left:?}");
    drop(writer);
    let mut greedy = limits(folder.path());
    greedy.min_free = u64::MAX;
    let mut writer = Writer::open(greedy, SegmentHeader::default()).unwrap();
    let error = writer.take(&key(), |at| at).unwrap_err();
    assert_eq!(error.to_string(), "the disk has too little free space");
    assert!(find(folder.path()).unwrap().is_empty() && !writer.is_open());
}

#[test]
fn a_step_of_the_clock_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(folder.path());
    let hours = |hours: i64| move |at: Timestamp| at + jiff::SignedDuration::from_hours(hours);
    let input = |second| Recorded::Input(Input { at: at(second), event: Event::ApplyProposed });
    writer.take(&key(), hours(0)).unwrap();
    writer.take(&input(1), hours(0)).unwrap();
    writer.take(&input(2), hours(-2)).unwrap();
    writer.flush().unwrap();
    let steps = read_file(&find(folder.path()).unwrap()[0]).0.into_iter().filter_map(|item| match item {
        Item::Clock(offset) => Some(offset / 3_600_000_000_000),
        _ => None,
    });
    assert_eq!(steps.collect::<Vec<_>>(), [0, -2]);
}

#[test]
fn a_file_that_cannot_be_written_ends_the_segment() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(folder.path());
    writer.take(&key(), |at| at).unwrap();
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(writer.take(&key(), |at| at).is_err() && !writer.is_open());
    let input = Recorded::Input(Input { at: at(1), event: Event::ApplyProposed });
    writer.take(&input, |at| at).unwrap();
    writer.flush().unwrap();
}

#[test]
fn a_segment_after_an_error_does_not_continue_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(folder.path());
    writer.take(&key(), |at| at).unwrap();
    writer.abort();
    writer.take(&key(), |at| at).unwrap();
    let found = find(folder.path()).unwrap();
    assert!(found.len() == 2 && found[1].to_string_lossy().contains("00000002-"), "{found:?}");
}

#[test]
fn compression_of_a_removed_segment_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = limits(folder.path());
    small.max_size = 1;
    let mut writer = Writer::open(small, SegmentHeader::default()).unwrap();
    writer.take(&key(), |at| at).unwrap();
    writer.end();
    assert!(writer.compress().unwrap());
    writer.enforce_limits().unwrap();
    while writer.compress().unwrap() {}
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}

#[test]
fn the_end_of_a_recording_is_copied_into_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = open(folder.path());
    for _ in 0..4 {
        samples().iter().for_each(|recorded| writer.take(recorded, |at| at).unwrap());
        writer.flush().unwrap();
    }
    let hour = Duration::from_secs(3600);
    let segments = find(folder.path()).unwrap();
    let old = segments[0].metadata().unwrap().modified().unwrap() - 2 * hour;
    File::options().write(true).open(&segments[0]).unwrap().set_modified(old).unwrap();
    writer.end();
    // The last one is compressed first.
    while writer.compress().unwrap() && find(folder.path()).unwrap()[3] == segments[3] {}
    // One segment is damaged, and one is still being written.
    let mut damaged = fs::read(&segments[1]).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&segments[1], damaged).unwrap();
    let half = fs::read(&segments[2]).unwrap();
    fs::write(&segments[2], &half[..half.len() - 1]).unwrap();

    let copy = folder.path().join("copy.rec.zst");
    let left_out = copy_end(folder.path(), hour, &mut File::create(&copy).unwrap()).unwrap();
    assert!(left_out.len() == 1 && left_out[0].contains("a checksum is wrong"), "{left_out:?}");
    let (items, error) = read_file(&copy);
    assert!(error.is_none(), "{error:?}");
    let items: Vec<_> = items.iter().map(shown).collect();
    let of_one: Vec<_> = read(&half).0.iter().map(shown).collect();
    let of_next = of_one.iter().map(|item| item.replace("segment: 2", "segment: 3"));
    let expected: Vec<_> = of_one[..of_one.len() - 1].iter().cloned().chain(of_next).collect();
    assert_eq!(items, expected);
    let error = |path: &Path| copy_end(path, hour, &mut Vec::new()).unwrap_err().to_string();
    assert!(error(&folder.path().join("none")).contains("No such file"));
    assert!(error(&segments[1]).ends_with("a checksum is wrong"), "the reason if nothing can be copied");
}
