//! Reports of the golden recording, and of one with hostile names.

use std::path::Path;

use eviction_core::fixture::{at, enhanced, hard, memory_of, node, pod, policy, sample, set_by, snapshot};
use eviction_core::input::{Event, Input};
use eviction_core::oom::OomKill;
use eviction_core::pod::Pod;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::NodeStats;

use super::recording::read;
use super::*;
use crate::scenario::recording::evicts;
use crate::scenario::recording_tests::golden_recording;
use crate::telemetry::recording::tests::{key_of, limits};
use crate::telemetry::recording::writer::Writer;
use crate::telemetry::recording::{Recorded, SegmentHeader};

fn golden() -> Report {
    let report = read(golden_recording().path(), |all| all).unwrap();
    Report { source: "golden".to_owned(), version: "0.0.0", ..report }
}

#[test]
fn the_golden_recording_is_reported_as_markdown() {
    insta::assert_snapshot!(golden().markdown());
}

#[test]
fn the_golden_recording_is_reported_as_json() {
    let value: serde_json::Value = serde_json::from_str(&golden().json()).unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&value).unwrap());
}

#[test]
fn a_part_of_a_recording_is_reported() {
    let folder = golden_recording();
    let report = read(folder.path(), |_| (at(2), at(4))).unwrap();
    assert_eq!((report.from, report.to), (at(2), at(4)));
    assert_eq!(report.signals[0].least, 200);
    assert!(report.decisions.is_empty() && report.pods.iter().all(|pod| pod.evicted.is_none()));
    let error = read(folder.path(), |_| (at(500), at(600))).unwrap_err();
    assert!(error.contains("the recording goes from 2026-01-05T08:00:01Z to"), "{error}");
    assert!(read(Path::new("/nowhere"), |all| all).unwrap_err().contains("/nowhere"));
}

#[test]
fn oom_kills_are_reported_and_an_oom_group_is_one_event() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(limits(folder.path()), SegmentHeader::default()).unwrap();
    let mut write = |recorded: Recorded| writer.take(&recorded, |at| at).unwrap();
    write(Recorded::Key(Box::new(key_of(policy(Vec::new())))));
    for (second, pid, oom_group) in [(1, 7, None), (1, 7, None), (2, 8, Some(42)), (2, 9, Some(42))] {
        let kill = OomKill { at: Some(at(second)), pid, oom_group, ..OomKill::default() };
        let event = Event::OomKill(Box::new(kill));
        write(Recorded::Input(Input { at: at(second), event }));
    }
    writer.flush().unwrap();
    let report = read(folder.path(), |all| all).unwrap();
    let kills: Vec<_> = report.events.iter().map(|it| (it.at, &*it.event, &*it.message)).collect();
    let text = |pid: u32, group: &str| {
        format!(
            "kernel OOM kill of a process (pid {pid}) in an unknown cgroup: limit unknown{group}; not an eviction"
        )
    };
    let (single, group) = (text(7, ""), text(8, "; whole OOM group killed, 2 processes"));
    assert_eq!(kills, [(at(1), "oom_kill", &*single), (at(2), "oom_kill", &*group)]);
}

#[test]
fn changes_of_signals_conditions_and_the_configuration_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(limits(folder.path()), SegmentHeader::default()).unwrap();
    let mut write = |recorded: Recorded| writer.take(&recorded, |at| at).unwrap();
    let policy = enhanced(vec![hard(Signal::MemoryAvailable, "100")], |it| it.unavailable_after_samples = 2);
    write(Recorded::Key(Box::new(key_of(policy.clone()))));
    let fails = || Event::SampleFailed(UnknownReason::Failed);
    let proposal = Event::Propose(Box::new(policy));
    for (second, event) in (1..).zip([sample(1, 500, &[]), fails(), fails(), sample(4, 500, &[]), proposal]) {
        write(Recorded::Input(Input { at: at(second), event }));
        write(Recorded::Decision(serde_json::json!({"at": at(second)}).to_string()));
    }
    writer.flush().unwrap();
    let report = read(folder.path(), |all| all).unwrap();
    let events: Vec<_> = report.events.iter().map(|it| (it.at, &*it.severity, &*it.event)).collect();
    let expected = [
        (at(3), "error", "signal_unavailable"),
        (at(3), "warning", "condition"),
        (at(4), "info", "signal_unavailable"),
        (at(4), "info", "condition"),
        (at(5), "debug", "config_change"),
    ];
    assert_eq!(events, expected);
    assert!(report.events[1].message.ends_with("is Unknown"), "{:?}", report.events[1]);
}

#[test]
fn cut_off_recording_is_reported_up_to_the_cut() {
    let folder = golden_recording();
    let file = folder.path().join("00000000-golden.rec");
    let bytes = std::fs::read(&file).unwrap();
    let whole = read(folder.path(), |all| all).unwrap();
    for length in (0..bytes.len()).step_by(97) {
        std::fs::write(&file, &bytes[..length]).unwrap();
        if let Ok(report) = read(folder.path(), |all| all) {
            assert!(report.to <= whole.to && report.decisions.len() <= 1, "{length}");
        }
    }
    let mut damaged = bytes.clone();
    damaged[bytes.len() - 40] ^= 4;
    std::fs::write(&file, damaged).unwrap();
    let report = read(folder.path(), |all| all).unwrap();
    assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
}

/// A name that no API server accepts, with markup for each output format.
const HOSTILE: &str = "</script><script>alert(1)</script>|`<!--\u{2028}*x*";

const MI: u64 = 1 << 20;

/// Writes a recording of `seconds` seconds and `pods` pods. Every 200 s a pod starts, grows and is evicted. The first
/// one is [`HOSTILE`].
fn record(directory: &Path, seconds: i64, pods: usize) {
    let mut writer = Writer::open(limits(directory), SegmentHeader::default()).unwrap();
    let mut write = |recorded: Recorded| writer.take(&recorded, |at| at).unwrap();
    let policy = policy(vec![hard(Signal::MemoryAvailable, "512Mi"), hard(Signal::NodeFsAvailable, "10%")]);
    let worker = |number: usize| Pod {
        name: format!("worker-7c9d8f6b5d-{number:05}").into(),
        ..pod(&format!("00000000-0000-4000-8000-{number:012}"), "200Mi")
    };
    let workers: Vec<_> = (1..pods).map(worker).collect();
    let key = key_of(policy.clone());
    let mut engine = crate::scenario::recording::engine(&key);
    write(Recorded::Key(Box::new(key)));
    let mut apply = |engine: &mut eviction_core::engine::Engine, second, event: Event| {
        let input = Input { at: at(second), event };
        write(Recorded::Input(input.clone()));
        evicts(&engine.step(input))
    };
    let (mut hog, mut terminates_at) = (None, None);
    for second in 1..seconds {
        let phase = second % 200;
        let before = hog.clone();
        if phase == 1 {
            (hog, terminates_at) = (Some(format!("hog-{second}")), None);
        } else if terminates_at == Some(second) {
            let uid: Box<str> = hog.take().unwrap_or_default().into();
            apply(&mut engine, second, Event::Evicted { uid, result: Ok(()) });
        }
        if hog != before {
            let name = |uid: &str| if uid == "hog-1" { HOSTILE.into() } else { uid.into() };
            let of_hog = hog.iter().map(|uid| Pod { name: name(uid), ..pod(uid, "100Mi") });
            let all = set_by(&policy, workers.iter().cloned().chain(of_hog).collect());
            apply(&mut engine, second, Event::Pods(all));
        }
        let grown = hog.as_ref().map_or(0, |_| u64::try_from(phase * 16).unwrap() * MI);
        let wave = |number: u64| (second.unsigned_abs() * number) % 37;
        let used = workers.iter().zip(1..);
        let used = used.map(|(pod, number)| memory_of(&pod.uid, (100 + wave(number)) * MI + number * 4096));
        let used: Vec<_> = used.chain(hog.iter().map(|uid| memory_of(uid, 50 * MI + grown))).collect();
        let sample = snapshot(node_with(3000 * MI - grown + wave(3) * MI, second), &used);
        if apply(&mut engine, second, Event::Sample(sample)) {
            terminates_at.get_or_insert(second + 3);
        }
    }
    writer.flush().unwrap();
}

/// Returns the stats of a node of 16Gi with a disk of 64Gi.
fn node_with(available: u64, second: i64) -> NodeStats {
    let mut node = node(available, 20 << 30, at(second));
    if let Reading::Known(memory) = &mut node.memory {
        memory.working_set = Some((16 << 30) - available);
    }
    if let Reading::Known(fs) = &mut node.node_fs {
        fs.capacity = Some(64 << 30);
    }
    node
}

#[test]
fn hostile_names_are_not_markup_in_markdown() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 400, 5);
    let report = read(folder.path(), |all| all).unwrap();
    assert!(report.decisions.iter().any(|it| it.evicted[0].ends_with(HOSTILE)), "{:?}", report.decisions);
    let text = report.markdown();
    for line in text.lines().filter(|line| !line.starts_with("    ")) {
        assert!(!line.contains("<script>") && !line.contains("<!--"), "{line}");
    }
}

#[test]
fn hostile_names_are_not_markup_in_the_html_page() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 400, 5);
    let page = read(folder.path(), |all| all).unwrap().html().unwrap();
    assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (3, 3));
    assert!(!page.contains("<script>") && !page.contains("{{"));
    let nonce = |page: &str| page.split("nonce-").nth(1).unwrap()[..32].to_owned();
    let other = read(folder.path(), |all| all).unwrap().html().unwrap();
    assert_ne!(nonce(&page), nonce(&other), "a nonce that is known protects from nothing");
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["decisions"][0]["evicted"][0], format!("default/{HOSTILE}"), "it is what it was");
}

#[test]
fn report_size_is_bounded_for_a_long_recording() {
    let folder = tempfile::tempdir().unwrap();
    // `cargo xtask report` opens the page of this recording.
    let recording_dir = std::env::var_os("EVICTION_AGENT_RECORDING").map(std::path::PathBuf::from);
    let folder = recording_dir.as_deref().unwrap_or(folder.path());
    record(folder, 600, 110);
    let report = read(folder, |all| all).unwrap();
    let series = &report.signals[0].available;
    assert!(series.len() <= 301 && series.len() > 250, "{}", series.len());
    assert_eq!((report.pods.len(), report.pods_omitted), (PODS, 112 - PODS));
    assert_eq!((report.ranking.len(), report.ranking_omitted), (RANKS, 109 - RANKS));
    assert!(report.events.len() <= EVENTS && report.decisions.len() <= DECISIONS);
    assert!(report.signals[0].least < 512 << 20, "the least is kept");
    let page = report.html().unwrap();
    assert!(page.len() <= 300 << 10, "{} bytes", page.len());
}

#[test]
fn running_agent_is_reported_from_its_api_responses() {
    use crate::telemetry::live::state::{NodeState, PodState, SignalState, ThresholdState};
    let state = |second: i64, available: i64| NodeState {
        at: at(second),
        node: Some("worker-1".to_owned()),
        signals: vec![SignalState {
            signal: "memory.available".to_owned(),
            available: Some(available),
            capacity: Some(1000),
            thresholds: vec![ThresholdState {
                threshold: "hard".to_owned(),
                source: "kubelet".to_owned(),
                value: 100,
                ..ThresholdState::default()
            }],
        }],
        pods: vec![PodState {
            rank: Some(1),
            namespace: "shop".to_owned(),
            pod: "web".to_owned(),
            pod_uid: "u".to_owned(),
            usage: Some(second),
            ..PodState::default()
        }],
        ..NodeState::default()
    };
    let event = r#"{"seq":7,"at":"2026-01-05T08:00:02Z","event":"eviction_decision","severity":"warning","message":"evict","namespace":"shop","pod":"web","pod_uid":"u","candidates":[{"namespace":"shop","pod":"web","usage":5,"priority":0}]}"#;
    let mut live = live::LiveReport::new(&state(0, 900));
    live.take(&state(0, 900), "");
    live.take(&state(2, 80), &format!("{event}\nno JSON\n"));
    let report = live.report();
    assert_eq!(live.cursor().target(), "/v1/events?since=7&agent_start=0");
    assert_eq!((report.signals[0].least, report.decisions[0].candidates.len()), (80, 1));
    assert_eq!((report.pods[0].peak, report.pods[0].evicted), (2, Some(at(2))));
    assert!(report.html().unwrap().contains("connect-src 'self'"));
    live.take(&state(5000, 700), "");
    let report = live.report();
    assert_eq!((report.from, report.signals[0].least), (at(4400), 700), "ten minutes are remembered");
}

#[test]
fn series_keeps_the_least_value_of_each_interval_with_its_time() {
    let mut series = Series::default();
    let times = [0, 400, 900, 1000, 700, 2500];
    for (time, value) in times.into_iter().zip([5, 3, 4, 9, 1, 2]) {
        series.push(Timestamp::from_millisecond(time).unwrap(), value, 1000, i64::min);
    }
    assert_eq!((series.times_ms, series.values), (vec![400, 1000, 2500], vec![3, 9, 2]));
}
