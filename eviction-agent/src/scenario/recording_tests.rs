//! Tests of replays of recordings, unchanged and under changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use eviction_core::engine::Engine;
use eviction_core::fixture::{at, hard, memory_of, node, pod, policy, quantity, set_by, snapshot};
use eviction_core::input::{Event, Input};
use eviction_core::oom::{ContainerEnded, OomKill};
use eviction_core::reading::UnknownReason;
use eviction_core::record::{DecisionRecord, RecordSubject};
use eviction_core::signal::Signal::MemoryAvailable;

use super::playback::Playback;
use super::recording::{explained, verify};
use super::what_if::{Changes, Comparison, compare};
use crate::report;
use crate::telemetry::recording::reader::{Item, Items};
use crate::telemetry::recording::tests::{key_of, limits};
use crate::telemetry::recording::writer::Writer;
use crate::telemetry::recording::{Key, Recorded, SegmentHeader};

/// The available memory, second by second. A pod is evicted when it is below 100.
const AVAILABLE: [u64; 8] = [900, 500, 350, 200, 90, 206, 400, 800];

/// Runs an engine and records its inputs in two segments.
fn record(directory: &Path, boot: &str) {
    let header = SegmentHeader { run: boot.to_owned(), boot_id: boot.to_owned(), ..SegmentHeader::default() };
    let mut writer = Writer::open(limits(directory), header).unwrap();
    let policy = policy(vec![hard(MemoryAvailable, "100")]);
    let mut engine = Engine::new(policy.clone());
    let all = set_by(&policy, vec![pod("a", "10"), pod("b", "300")]);
    let rest = set_by(&policy, vec![pod("b", "300")]);
    let mut write =
        |recorded: Recorded| writer.take(&recorded, |at| at).and_then(|()| writer.flush()).unwrap();
    let key = |second: i64, engine: &Engine| {
        Recorded::Key(Box::new(Key {
            at: at(second),
            state: engine.state(),
            pods: Arc::clone(engine.pods()),
            ..key_of(policy.clone())
        }))
    };
    write(key(0, &engine));
    engine.step(Input { at: at(0), event: Event::DiskLayout(Ok(Default::default())) });
    let mut apply = |engine: &mut Engine, second: i64, event: Event| {
        let input = Input { at: at(second), event };
        write(Recorded::Input(input.clone()));
        let decision = engine.step(input);
        if !decision.actions.is_empty() {
            let record = DecisionRecord::of(&decision);
            write(Recorded::Decision(serde_json::to_string(&record).unwrap()));
        }
    };
    apply(&mut engine, 0, Event::Pods(Arc::clone(&all)));
    for (second, available) in (1..).zip(AVAILABLE) {
        let used: &[_] = &[memory_of("a", 120), memory_of("b", 200)];
        let used = if second > 5 { &used[1..] } else { used };
        let sample = snapshot(node(available, 900, at(second)), used);
        apply(&mut engine, second, Event::Sample(sample));
        if second == 5 {
            let result = Event::Evicted { uid: "a".into(), result: Ok(()) };
            apply(&mut engine, second, result);
            apply(&mut engine, second, Event::Pods(Arc::clone(&rest)));
        }
    }
    write(key(9, &engine));
}

fn recorded() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), "test");
    folder
}

fn changed(change: impl FnOnce(&mut Changes)) -> Comparison {
    let mut changes = Changes::default();
    change(&mut changes);
    compare(recorded().path(), &changes).unwrap()
}

fn rows(comparison: &Comparison) -> Vec<(i64, String, String, bool)> {
    let row = |row: &super::what_if::Row| {
        let second = row.at.as_second() - at(0).as_second();
        (second, row.recorded.join(","), row.what_if.join(","), row.projected)
    };
    comparison.rows.iter().map(row).collect()
}

fn threshold(value: &str) -> impl FnOnce(&mut Changes) + use<'_> {
    move |changes| drop(changes.kubelet.insert("evictionHard.memory.available".into(), value.into()))
}

#[test]
fn replay_of_a_recording_makes_the_same_decisions() {
    let verified = verify(recorded().path()).unwrap();
    assert_eq!(verified.same, 1, "{verified:?}");
    assert!(verified.different.is_empty() && verified.errors.is_empty(), "{verified:?}");
}

#[test]
fn explanation_of_a_recording_has_its_oom_kills_and_terminated_containers() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(limits(folder.path()), SegmentHeader::default()).unwrap();
    let mut write = |recorded: Recorded| writer.take(&recorded, |at| at).unwrap();
    write(Recorded::Key(Box::new(key_of(policy(Vec::new())))));
    let kill = OomKill { pod_uid: Some("a".into()), pid: 7, ..OomKill::default() };
    let end = ContainerEnded { pod_uid: "a".into(), container: "main".into(), ..ContainerEnded::default() };
    for (second, event) in [
        (1, Event::OomKill(Box::new(kill))),
        (2, Event::ContainerEnded(Box::new(end))),
        (100, Event::SampleFailed(UnknownReason::Absent)),
    ] {
        write(Recorded::Input(Input { at: at(second), event }));
    }
    writer.flush().unwrap();
    let (explained, errors) = explained(folder.path(), (at(0), at(200))).unwrap();
    assert!(errors.is_empty());
    let reports = explained.reports.iter();
    let reports: Vec<_> = reports
        .map(|it| (it.at, matches!(it.subject, RecordSubject::Oom(_)), it.terminations.len()))
        .collect();
    assert_eq!(reports, [(at(1), true, 0), (at(2), true, 0), (at(100), false, 1)]);
}

#[test]
fn replay_starts_a_new_engine_after_a_boot() {
    let folder = tempfile::tempdir().unwrap();
    // The clock of the second boot begins at the same time as that of the first.
    record(folder.path(), "first boot");
    record(folder.path(), "second boot");
    let verified = verify(folder.path()).unwrap();
    assert_eq!((verified.same, verified.lost), (2, 0), "{verified:?}");
    assert!(verified.different.is_empty() && verified.errors.is_empty(), "{verified:?}");
    let comparison = compare(folder.path(), &Changes::default()).unwrap();
    let all: Vec<_> = comparison.rows.iter().map(|row| (&row.recorded[..], row.projected)).collect();
    let evicted = ["default/pod-a".to_owned()];
    assert_eq!(all, [(&evicted[..], false), (&evicted[..], false)]);
}

#[test]
fn differing_decision_is_reported_with_its_field() {
    let folder = recorded();
    let segment = folder.path().join("00000000-20260105T080000Z.rec");
    // The same inputs with another decision.
    let other = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(limits(other.path()), SegmentHeader::default()).unwrap();
    for item in Items::of_files([segment]) {
        let recorded = match item.unwrap() {
            Item::Key(key) => Recorded::Key(key),
            Item::Input(input) => Recorded::Input(input),
            Item::Pods(at, pods) if !pods.is_empty() => {
                let pods = pods.iter().map(|pod| (**pod).clone()).collect();
                let policy = policy(vec![hard(MemoryAvailable, "100")]);
                Recorded::Input(Input { at, event: Event::Pods(set_by(&policy, pods)) })
            }
            Item::Decision(mut record) => {
                record["evaluation"]["evictions"][0]["grace_period_seconds"] = 7.into();
                Recorded::Decision(record.to_string())
            }
            _ => continue,
        };
        writer.take(&recorded, |at| at).unwrap();
    }
    writer.flush().unwrap();
    let verified = verify(other.path()).unwrap();
    let [difference] = &verified.different[..] else { panic!("{verified:?}") };
    let expected = "evaluation.evictions[0].grace_period_seconds: recorded 7, decided again";
    assert!(difference.contains(expected), "{difference}");
}

#[test]
fn what_if_without_changes_equals_the_recording() {
    let comparison = changed(|_| {});
    assert!(comparison.is_same());
    assert_eq!(rows(&comparison), [(5, "default/pod-a".into(), "default/pod-a".into(), false)]);
    assert_eq!(comparison.recorded, comparison.what_if);
    assert_eq!(comparison.recorded.least_available, Some(90));
    assert_eq!(comparison.recorded.least_headroom, Some(-10));
}

#[test]
fn higher_threshold_evicts_earlier_and_frees_the_usage_of_the_pod() {
    let comparison = changed(threshold("250"));
    let expected = [
        (4, String::new(), "default/pod-a".into(), false),
        (5, "default/pod-a".to_owned(), "default/pod-b".into(), true),
    ];
    // 90 and the 120 of the pod are 210, which is still below the threshold.
    assert_eq!(rows(&comparison), expected);
    assert!(!comparison.is_same());
    let gentle = changed(threshold("205"));
    assert_eq!(rows(&gentle)[..1], [(4, String::new(), "default/pod-a".into(), false)]);
    assert_eq!(gentle.what_if.evictions, 1);
    assert_eq!(gentle.what_if.least_available, Some(200));
}

#[test]
fn lower_threshold_keeps_the_pod_and_its_usage() {
    let comparison = changed(threshold("40"));
    assert_eq!(rows(&comparison), [(5, "default/pod-a".into(), String::new(), false)]);
    // In the next second the recording has 206, and the pod would use 120 of them.
    assert_eq!(comparison.what_if.least_available, Some(86));
    assert_eq!(comparison.what_if.evictions, 0);
}

#[test]
fn changes_of_requests_and_pods_change_the_evicted_pod() {
    let comparison = changed(|changes| {
        changes.requests.insert("default/pod-a".into(), quantity("500"));
        changes.requests.insert("default/pod-b".into(), quantity("1"));
    });
    assert_eq!(rows(&comparison), [(5, "default/pod-a".into(), "default/pod-b".into(), false)]);
    let comparison = changed(|changes| changes.without = ["default/pod-a".into()].into());
    assert_eq!(rows(&comparison), [(5, "default/pod-a".into(), String::new(), true)]);
    assert_eq!(comparison.what_if.least_available, Some(206), "90 and 120 are more than that");
    let comparison = changed(|changes| {
        changes.agent.insert("profile".into(), "Enhanced".into());
        changes.protect.insert("default/pod-a".into());
    });
    assert_eq!(rows(&comparison), [(5, "default/pod-a".into(), "default/pod-b".into(), false)]);
    let comparison = changed(|changes| changes.priorities = BTreeMap::from([("default/pod-a".into(), 9)]));
    assert_eq!(rows(&comparison)[0].1, "default/pod-a");
}

#[test]
fn protected_pod_stays_protected_after_its_eviction_in_the_recording() {
    let comparison = changed(|changes| {
        changes.agent.insert("profile".into(), "Enhanced".into());
        changes.protect.insert("default/pod-a".into());
        threshold("300")(changes);
    });
    // In second 6 there are 206 and the 200 of pod-b, less the 120 of pod-a: again below the threshold.
    let expected = [
        (4, String::new(), "default/pod-b".to_owned(), false),
        (5, "default/pod-a".to_owned(), String::new(), true),
    ];
    assert_eq!(rows(&comparison), expected);
    assert_eq!(comparison.what_if.least_available, Some(200));
}

#[test]
fn invalid_changes_are_rejected() {
    let error_of = |changes: Changes| compare(recorded().path(), &changes).unwrap_err();
    let field = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let changes = Changes { kubelet: field("evictionHard.memory.available", "much"), ..Changes::default() };
    assert!(error_of(changes).contains("the changed configuration is refused"));
    let changes = Changes { kubelet: field("evictionSoft.memory.available", "1Gi"), ..Changes::default() };
    assert!(error_of(changes).contains("grace period"));
    let changes = Changes { kubelet: field("evictionMaxPodGracePeriod.x", "1"), ..Changes::default() };
    assert_eq!(error_of(changes), "evictionMaxPodGracePeriod.x: is no field of a KubeletConfiguration");
    let changes = Changes { agent: field("policy.nothing", "1"), ..Changes::default() };
    assert!(error_of(changes).contains("policy.nothing"));
    let changes = Changes { without: ["default/none".into()].into(), ..Changes::default() };
    assert_eq!(error_of(changes), "no such pod in the recording: default/none");
}

/// The file with the first version 4 recording, in hexadecimal digits.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recording-v4.hex")
}

/// Returns the golden file as a recording.
pub(crate) fn golden_recording() -> tempfile::TempDir {
    let text = fs::read_to_string(golden()).unwrap();
    let bytes = text.lines().flat_map(|line| {
        (0..line.len() / 2).map(|byte| u8::from_str_radix(&line[2 * byte..2 * byte + 2], 16).unwrap())
    });
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("00000000-golden.rec"), bytes.collect::<Vec<u8>>()).unwrap();
    folder
}

#[test]
fn the_first_recordings_can_still_be_read() {
    if std::env::var_os("UPDATE_RECORDING").is_some() {
        let bytes = fs::read(recorded().path().join("00000000-20260105T080000Z.rec")).unwrap();
        let lines = bytes.chunks(50).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect());
        fs::write(golden(), lines.collect::<Vec<String>>().join("\n") + "\n").unwrap();
    }
    let folder = golden_recording();
    let verified = verify(folder.path()).unwrap();
    assert!(verified.same == 1 && verified.different.is_empty(), "{verified:?}");
    assert!(verified.errors.is_empty(), "{verified:?}");
}

#[test]
fn a_recording_of_an_earlier_version_is_an_error_with_the_versions() {
    let folder = golden_recording();
    let file = folder.path().join("00000000-golden.rec");
    let mut bytes = fs::read(&file).unwrap();
    bytes[6] = 3;
    fs::write(&file, bytes).unwrap();
    let why = "format version 3 is not supported, this program reads version 4";
    let expected = format!("read {}: {why}", file.display());
    let verified = verify(folder.path()).unwrap();
    assert!(verified.errors[0].text == expected && !verified.errors[0].is_cut, "{verified:?}");
    assert_eq!(report::recording::read(folder.path(), |all| all).unwrap_err(), expected);
    assert_eq!(compare(folder.path(), &Changes::default()).unwrap_err(), expected);
    let error = Playback::open(folder.path()).map(drop).unwrap_err().to_string();
    assert_eq!(error, format!("no sample in the recording: {expected}"));
}
