use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::daemon::rate_limit::RateLimitEntry;
use eviction_core::condition::RaisedCondition;
use eviction_core::eviction::{Basis, ExpectedRelease};
use eviction_core::in_flight::{ApiPhase, EvictionEnd, InFlightEviction};
use eviction_core::node_conditions::{ConditionStatus, PublishedCondition};
use eviction_core::pod::PodName;
use eviction_core::pods::RateLimitKey;
use eviction_core::protection::CountedEviction;
use eviction_core::signal::{NodeCondition, Signal};
use eviction_core::state::EngineState;
use eviction_core::threshold::MetSince;
use eviction_core::units::GoDuration;

const SECOND: u64 = 1_000_000_000;

fn identity() -> Identity {
    Identity {
        boot_id: "this-boot".into(),
        node: Some("n1".into()),
        cgroup_root: "/".into(),
        action: "evict".into(),
    }
}

/// The machine booted at second 900, and the file is written at second 1000.
fn clock() -> Clock {
    serde_json::from_value(json!("1970-01-01T00:15:00Z")).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn names() -> DecisionIds {
    serde_json::from_value(json!(77)).unwrap()
}

fn pod() -> Arc<PodName> {
    Arc::new(PodName { uid: "u".into(), namespace: "shop".into(), name: "web".into() })
}

fn kill(decision: u64, second: u64) -> RateLimitEntry {
    RateLimitEntry { pod: pod(), at_ns: second * SECOND, decision }
}

fn state() -> LoopState {
    let mut expected = [ExpectedRelease::UNKNOWN; Signal::COUNT];
    expected[Signal::MemoryAvailable as usize] = ExpectedRelease { amount: 7, basis: Basis::Anonymous };
    LoopState {
        number: 0,
        engine: EngineState {
            last_sync: Some(at(999)),
            met: vec![MetSince {
                signal: Signal::MemoryAvailable,
                value: "100Mi".into(),
                grace_period: GoDuration::from_secs(60),
                first_seen: at(990),
                grace_period_over: false,
            }],
            conditions: vec![RaisedCondition { condition: NodeCondition::PidPressure, at: at(995) }],
            in_flight: vec![InFlightEviction {
                pod: pod(),
                signal: "memory.available",
                hard: true,
                decided_at: at(996),
                since: at(997),
                grace_period_seconds: 1,
                expected,
                ended: None,
                decision: Some(17),
                api: Some(ApiPhase::Accepted),
                killing: true,
                termination_reported: false,
                restored: false,
            }],
            counted: vec![CountedEviction {
                at: at(992),
                key: Arc::new(RateLimitKey {
                    uid: "v".into(),
                    namespace: "shop".into(),
                    owner: Some("rs".into()),
                }),
            }],
            oom_killed: [("w".into(), at(991))].into(),
            pdb_refused: [("x".into(), at(993))].into(),
            paused_until: Some(at(1_020)),
        },
        rate_limits: vec![kill(16, 90), kill(15, 95), kill(17, 96)],
        decisions: 17,
        published: Some(NodeCondition::ALL.map(|condition| PublishedCondition {
            status: match condition {
                NodeCondition::PidPressure => ConditionStatus::True,
                _ => ConditionStatus::Unknown,
            },
            since: (condition == NodeCondition::PidPressure).then(|| at(994)),
            hard_at: Some(at(995)),
        })),
    }
}

fn write_state(state: &LoopState) -> Vec<u8> {
    let new = Document::new(identity(), names());
    serde_json::to_vec(&Document { clock: clock(), written: at(1_000), state: state.clone(), ..new }).unwrap()
}

fn written() -> Value {
    serde_json::from_slice(&write_state(&state())).unwrap()
}

/// Reads the file three seconds later.
fn read_bytes(bytes: &[u8]) -> Result<Document, String> {
    Document::read(bytes, &identity(), 103 * SECOND)
}

fn read_value(value: &Value) -> Result<Document, String> {
    read_bytes(&serde_json::to_vec(value).unwrap())
}

#[test]
fn the_state_and_the_clock_are_restored_unchanged() {
    let document = read_value(&written()).unwrap();
    assert_eq!((document.clock, document.written), (clock(), at(1_000)));
    assert_eq!(document.names, names());
    assert_eq!(document.state, state());
}

#[test]
fn evictions_of_another_action_are_not_restored() {
    let mut value = written();
    value["action"] = json!("evict-dry-run");
    let LoopState { engine, rate_limits, decisions, .. } = read_value(&value).unwrap().state;
    assert!(engine.in_flight.is_empty() && engine.counted.is_empty());
    assert_eq!(rate_limits, []);
    assert_eq!((engine.conditions.len(), engine.oom_killed.len(), decisions), (1, 1, 17));
}

#[test]
fn the_result_of_an_eviction_is_persisted() {
    for ended in [
        EvictionEnd::Terminated,
        EvictionEnd::Expired,
        EvictionEnd::Failed("2 processes outlive SIGKILL".into()),
    ] {
        let mut state = state();
        state.engine.in_flight[0].ended = Some(ended);
        assert_eq!(read_bytes(&write_state(&state)).unwrap().state, state);
    }
}

#[test]
fn a_negative_release_is_read_as_none() {
    let mut value = written();
    let place = &mut value["state"]["engine"]["inFlight"][0]["expected"][Signal::MemoryAvailable as usize];
    assert_eq!(place.take(), json!({"release": 7, "basis": "anonymous"}));
    *place = json!({"release": -7, "basis": "anonymous"});
    let document = read_value(&value).unwrap();
    assert_eq!(document.state.engine.in_flight[0].release(Signal::MemoryAvailable).amount, 0);
}

#[test]
fn an_unusable_state_file_is_rejected_with_a_reason() {
    let with = |path: &str, value: Value| {
        let mut all = written();
        *all.pointer_mut(path).unwrap() = value;
        read_value(&all).unwrap_err()
    };
    assert!(with("/bootId", json!("other")).starts_with("it is of another boot"));
    assert_eq!(with("/cgroupRoot", json!("/other")), "it is of another node, n1 below cgroup /other");
    assert_eq!(with("/node", json!(null)), "it is of another node, without a name below cgroup /");
    assert_eq!(with("/version", json!(3)), "it is of version 3; this agent knows version 7");
    assert_eq!(with("/kind", json!("eviction-agent-else")), "it is something else");
    let later = "1970-01-01T00:16:43.000000001Z";
    for time in [
        "/written",
        "/state/engine/lastSync",
        "/state/engine/met/0/firstSeen",
        "/state/engine/inFlight/0/since",
        "/state/engine/counted/0/at",
        "/state/engine/oomKilled/w",
        "/state/engine/pdbRefused/x",
        "/state/published/1/hardAt",
    ] {
        assert_eq!(with(time, json!(later)), "it holds times that are still to come", "{time}");
    }
    let later = json!(103 * SECOND + 1);
    assert_eq!(with("/state/rateLimits/0/atNs", later), "it holds times that are still to come");
    assert!(with("/state/decisions", json!(-1)).starts_with("it is spoiled: "));
    assert!(with("/state/engine/met", json!([{}])).starts_with("it is spoiled: "));
    assert!(with("/state/engine/inFlight/0/signal", json!("magic")).contains("unknown label \"magic\""));
    assert!(with("/state/published", json!([])).starts_with("it is spoiled: "));
    assert!(with("/state/engine/inFlight/0/expected", json!([])).starts_with("it is spoiled: "));
    let release = json!({"release": 7, "basis": "anonymous", "more": 1});
    assert!(with("/state/engine/inFlight/0/expected/0", release).contains("unknown field `more`"));
    let mut more = written();
    more["state"]["more"] = json!(1);
    assert!(read_value(&more).unwrap_err().contains("unknown field `more`"));
    // Of a later version nothing else needs to be parsed.
    let later = json!({"kind": KIND, "version": 9, "boot": {}});
    assert!(read_value(&later).unwrap_err().starts_with("it is of version 9;"));
    assert_eq!(read_value(&json!([1])).unwrap_err(), "it is something else");
    assert!(read_bytes(b"").unwrap_err().starts_with("it is spoiled: "));
    let whole = write_state(&state());
    for end in 0..whole.len() {
        assert!(read_bytes(&whole[..end]).is_err(), "cut at {end}");
    }
}

proptest! {
    #[test]
    fn corrupt_bytes_do_not_panic(bytes: Vec<u8>, place in 0usize..600, byte: u8) {
        let _ = read_bytes(&bytes);
        let mut spoiled = write_state(&state());
        let place = place % spoiled.len();
        spoiled[place] = byte;
        let _ = read_bytes(&spoiled);
    }
}

#[test]
fn a_file_is_replaced_as_a_whole_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = StateFile::at(folder.path().join("not/yet/state.json"));
    assert_eq!(file.read().unwrap(), None);
    for bytes in [&b"one"[..], b"another", b""] {
        file.write(bytes).unwrap();
        assert_eq!(file.read().unwrap().as_deref(), Some(bytes));
    }
    let names = fs::read_dir(file.path.parent().unwrap()).unwrap().count();
    assert_eq!(names, 1, "nothing is left beside it");
    // A file that a kill in the middle has left does no harm.
    fs::write(file.with_suffix(".new"), vec![b'x'; 100]).unwrap();
    assert_eq!(file.read().unwrap().as_deref(), Some(&b""[..]));
    file.write(b"next").unwrap();
    assert_eq!(file.read().unwrap().as_deref(), Some(&b"next"[..]));
}

#[test]
fn a_file_that_was_set_aside_is_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = StateFile::at(folder.path().join("state.json"));
    for text in ["first", "second"] {
        file.write(text.as_bytes()).unwrap();
        let aside = file.set_aside().unwrap();
        assert_eq!(fs::read_to_string(aside).unwrap(), text);
        assert_eq!(file.read().unwrap(), None);
    }
}

#[test]
fn directories_pipes_and_oversized_files_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    fs::create_dir(&path).unwrap();
    assert!(StateFile::at(path.clone()).read().is_err());
    assert!(StateFile::at(path.clone()).write(b"x").is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "what was begun is cleared away");
    let long = folder.path().join("long");
    File::create(&long).unwrap().set_len(MAX_BYTES + 1).unwrap();
    assert_eq!(StateFile::at(long).read().unwrap().as_deref(), Some(&b""[..]));
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(StateFile::at(pipe).read().is_err(), "without a wait");
}

#[test]
fn a_failed_write_keeps_the_previous_content() {
    let folder = tempfile::tempdir().unwrap();
    let file = StateFile::at(folder.path().join("state.json"));
    file.write(b"good").unwrap();
    // A link that another process has put there is not followed.
    let other = folder.path().join("other");
    fs::write(&other, "not ours").unwrap();
    std::os::unix::fs::symlink(&other, file.with_suffix(".new")).unwrap();
    assert!(file.write(b"better").is_err());
    assert_eq!(fs::read_to_string(&other).unwrap(), "not ours");
    assert_eq!(file.read().unwrap().as_deref(), Some(&b"good"[..]));
    file.write(b"better").unwrap();
    assert_eq!(file.read().unwrap().as_deref(), Some(&b"better"[..]));
}

fn writer(path: PathBuf) -> (Sender<LoopState>, StateWriter, DurableRevision) {
    let identity =
        Identity { boot_id: "b".into(), node: None, cgroup_root: "/".into(), action: "evict".into() };
    let document = Document::new(identity, DecisionIds::of_this_start());
    let metrics = Arc::new(Metrics::new("0", "0"));
    let (sender, writer) = StateWriter::new(StateFile::at(path), document, &metrics).unwrap();
    let written = writer.durable_revision();
    (sender, writer, written)
}

fn numbered(number: u64) -> LoopState {
    LoopState { number, decisions: number, ..LoopState::default() }
}

fn decisions(path: &Path) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    value["state"]["decisions"].as_u64().unwrap()
}

#[tokio::test]
async fn a_wait_ends_when_the_state_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let (mut sender, writer, mut written) = writer(path.clone());
    let work = tokio::spawn(writer.run());
    for number in 1..20 {
        sender.send(numbered(number)).unwrap();
        written.wait_for(number).await;
        assert_eq!(decisions(&path), number);
    }
    // A state that is still in the channel is written before the end.
    sender.send(numbered(20)).unwrap();
    drop(sender);
    work.await.unwrap().unwrap();
    assert_eq!(decisions(&path), 20);
    assert_eq!(written.metrics.state_writes.with(["late"]).get(), 0);
}

#[tokio::test]
async fn a_wait_ends_when_the_write_fails() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let (mut sender, writer, mut written) = writer(folder.path().join("file/state.json"));
    let work = tokio::spawn(writer.run());
    sender.send(numbered(1)).unwrap();
    written.wait_for(1).await;
    let of = |result| written.metrics.state_writes.with([result]).get();
    assert_eq!((of("failed"), of("late")), (1, 0));
    drop(sender);
    work.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_failed_write_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("file");
    std::fs::write(&in_the_way, "").unwrap();
    let path = in_the_way.join("state.json");
    let (mut sender, mut writer, mut written) = writer(path.clone());
    writer.retry_interval = Duration::from_millis(1);
    let work = tokio::spawn(writer.run());
    sender.send(numbered(1)).unwrap();
    written.wait_for(1).await;
    std::fs::remove_file(&in_the_way).unwrap();
    while written.metrics.state_writes.with(["written"]).get() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(decisions(&path), 1);
    drop(sender);
    work.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_hanging_write_delays_only_the_first_wait() {
    // The writer does not run.
    let (_sender, _writer, mut written) = writer(PathBuf::from("/nowhere"));
    for number in 1..10 {
        written.wait_for(number).await;
    }
    assert_eq!(written.metrics.state_writes.with(["late"]).get(), 1);
}
