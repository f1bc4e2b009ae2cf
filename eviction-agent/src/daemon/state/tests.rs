use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::daemon::rate_limit::RateLimitEntry;
use eviction_core::condition::RaisedCondition;
use eviction_core::eviction::{Basis, ExpectedRelease};
use eviction_core::in_flight::{ApiPhase, Ended, InFlightEviction};
use eviction_core::node_conditions::pressure::{PublishedCondition, Status};
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
            status: if condition == NodeCondition::PidPressure { Status::True } else { Status::Unknown },
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
    for ended in [Ended::Terminated, Ended::Expired, Ended::Failed("2 processes outlive SIGKILL".into())] {
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
