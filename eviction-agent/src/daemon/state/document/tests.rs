use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use std::sync::Arc;

use crate::daemon::state::{ApiPhaseState, EvictionProgress, RateLimitState};
use eviction_core::expected_release::{Basis, ExpectedRelease};
use eviction_core::in_flight::Failure;
use eviction_core::node_conditions::pressure::Status;
use eviction_core::pod::PodName;
use eviction_core::pods::RateLimitKey;
use eviction_core::signal::{Resource, Signal};
use eviction_core::state::{CountedEviction, Ended, EvictionState, MetSince, PodEventTime};
use eviction_kill::CountedKill;

fn identity() -> Identity {
    Identity {
        boot_id: "this-boot".into(),
        node: Some("n1".into()),
        cgroup_root: "/".into(),
        act: "evict".into(),
    }
}

/// 100 s after the boot; the engine's clock shows `steady`.
fn clocks(boot_seconds: i64, steady: i64) -> Clocks {
    let mono_ns = u64::try_from(boot_seconds).unwrap() * 1_000_000_000;
    Clocks { boot_ns: boot_seconds * 1_000_000_000, steady: Timestamp::from_second(steady).unwrap(), mono_ns }
}

fn kill(decision: u64, second: u64) -> CountedKill {
    let pod = PodName { uid: "u".into(), namespace: "shop".into(), name: "web".into() };
    CountedKill { pod: Arc::new(pod), at_ns: second * 1_000_000_000, decision }
}

fn kept() -> LoopState {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut expected = [ExpectedRelease::UNKNOWN; Signal::COUNT];
    expected[Signal::MemoryAvailable as usize] = ExpectedRelease { amount: 7, basis: Basis::Anonymous };
    LoopState {
        number: 3,
        memory: EngineState {
            looked: Some(at(999)),
            met: vec![MetSince {
                signal: Signal::MemoryAvailable,
                value: "100Mi".into(),
                grace_period: GoDuration::from_secs(60),
                first_seen: at(990),
                ripe: false,
            }],
            conditions: vec![Raised { condition: NodeCondition::PidPressure, at: at(995) }],
            flights: vec![EvictionState {
                uid: "u".into(),
                namespace: "shop".into(),
                name: "web".into(),
                label: "memory.available",
                hard: true,
                decided_at: at(996),
                since: at(997),
                grace_period_seconds: 1,
                expected,
                ended: None,
            }],
            counted: vec![CountedEviction {
                at: at(992),
                account: Arc::new(RateLimitKey {
                    uid: "v".into(),
                    namespace: "shop".into(),
                    owner: Some("rs".into()),
                }),
            }],
            oom_killed: vec![PodEventTime { uid: "w".into(), at: at(991) }],
            forbidden: vec![PodEventTime { uid: "x".into(), at: at(993) }],
            held_until: Some(at(1_020)),
        },
        evictions: vec![EvictionProgress {
            decision: 17,
            pod: Arc::new(PodName { uid: "u".into(), namespace: "shop".into(), name: "web".into() }),
            signal: Some(Signal::MemoryAvailable),
            resource: Resource::Memory,
            hard: true,
            decided_mono_ns: 96_000_000_000,
            grace_seconds: 1,
            by_api: Some(ApiPhaseState::Accepted),
            by_kill: false,
            told_gone: false,
        }],
        pace: RateLimitState { by_api: vec![kill(17, 96)], by_kill: vec![kill(16, 90), kill(15, 95)] },
        decisions: 17,
        said: Some(CONDITIONS.map(|condition| PublishedCondition {
            status: if condition == NodeCondition::PidPressure { Status::True } else { Status::Unknown },
            since: (condition == NodeCondition::PidPressure).then(|| at(994)),
            hard_at: Some(at(995)),
        })),
    }
}

fn written() -> Value {
    serde_json::from_slice(&write(&identity(), DecisionIds::since(77), clocks(100, 1_000), &kept()).unwrap())
        .unwrap()
}

fn read_value(value: &Value) -> Result<RestoredState, UnusableState> {
    read(&serde_json::to_vec(value).unwrap(), &identity(), clocks(103, 5_003))
}

#[test]
fn the_next_agent_knows_the_same_on_its_own_clocks() {
    let recalled = read_value(&written()).unwrap();
    assert_eq!(recalled.written, Timestamp::from_second(5_000).unwrap());
    assert_eq!((recalled.decisions, &recalled.evictions), (17, &kept().evictions));
    assert_eq!(recalled.names, DecisionIds::since(77));
    let second = |second| Some(Timestamp::from_second(second).unwrap());
    let pids = PublishedCondition { status: Status::True, since: second(4_994), hard_at: second(4_995) };
    assert_eq!(recalled.said.map(|said| said[NodeCondition::PidPressure as usize]), Some(pids));
    assert_eq!(recalled.pace, kept().pace);
    let EngineState { looked, met, conditions, flights, counted, oom_killed, forbidden, held_until } =
        recalled.memory;
    assert_eq!(held_until, Some(Timestamp::from_second(1_020 + 4_000).unwrap()), "still to come");
    let before = kept().memory;
    let later = |second: i64| Timestamp::from_second(second + 4_000).unwrap();
    assert_eq!(looked, Some(later(999)));
    assert_eq!(met, [MetSince { first_seen: later(990), ..before.met[0].clone() }]);
    assert_eq!(conditions, [Raised { at: later(995), ..before.conditions[0] }]);
    assert_eq!(
        flights,
        [EvictionState { decided_at: later(996), since: later(997), ..before.flights[0].clone() }]
    );
    assert_eq!(counted, [CountedEviction { at: later(992), ..before.counted[0].clone() }]);
    assert_eq!(oom_killed, [PodEventTime { at: later(991), ..before.oom_killed[0].clone() }]);
    assert_eq!(forbidden, [PodEventTime { at: later(993), ..before.forbidden[0].clone() }]);
}

#[test]
fn another_hand_goes_on_with_nothing_that_this_one_has_begun() {
    let mut value = written();
    value["act"] = json!("evict-dry-run");
    let recalled = read_value(&value).unwrap();
    assert!(recalled.evictions.is_empty() && recalled.memory.flights.is_empty());
    assert!(recalled.pace == RateLimitState::default() && recalled.memory.counted.is_empty());
    let memory = recalled.memory;
    assert_eq!((memory.conditions.len(), memory.oom_killed.len(), recalled.decisions), (1, 1, 17));
}

#[test]
fn how_an_eviction_ended_is_kept() {
    for ended in [
        Ended::Gone,
        Ended::Failed(Failure::Expired),
        Ended::Failed(Failure::Reported("2 processes outlive SIGKILL".into())),
    ] {
        let mut kept = kept();
        kept.memory.flights[0].ended = Some(ended.clone());
        let bytes = write(&identity(), DecisionIds::since(77), clocks(100, 1_000), &kept).unwrap();
        let recalled = read(&bytes, &identity(), clocks(103, 5_003)).unwrap();
        assert_eq!(recalled.memory.flights[0].ended, Some(ended));
    }
}

#[test]
fn what_counts_is_bounded() {
    let mut kept = kept();
    kept.pace.by_kill = (0..5_000).map(|decision| kill(decision, 50)).collect();
    let bytes = write(&identity(), DecisionIds::since(77), clocks(100, 1_000), &kept).unwrap();
    let pace = read(&bytes, &identity(), clocks(103, 5_003)).unwrap().pace;
    assert_eq!((pace.by_kill.len(), pace.by_kill.last()), (1024, Some(&kill(4_999, 50))));
}

#[test]
fn what_is_of_no_use_says_why() {
    let with = |field: &str, value: Value| {
        let mut all = written();
        all[field] = value;
        read_value(&all).unwrap_err().to_string()
    };
    assert!(with("boot_id", json!("other")).starts_with("it is of another boot"));
    assert_eq!(with("cgroup_root", json!("/other")), "it is of another node, n1 below cgroup /other");
    assert_eq!(with("node", json!(null)), "it is of another node, without a name below cgroup /");
    assert_eq!(with("version", json!(1)), "it is of version 1; this agent knows version 3");
    assert_eq!(with("kind", json!("eviction-agent-else")), "it is something else");
    assert_eq!(with("written_ns", json!(103_000_000_001_i64)), "it holds times that are still to come");
    let later = json!({"by_api": [], "by_kill": [{
        "decision": 1, "uid": "", "namespace": "", "name": "", "at_ns": 103_000_000_001_i64,
    }]});
    assert_eq!(with("pace", later), "it holds times that are still to come");
    assert!(with("decisions", json!(-1)).starts_with("it is spoiled: "));
    assert!(with("more", json!(1)).contains("unknown field `more`"));
    assert!(with("met", json!([{}])).starts_with("it is spoiled: "));
    // Of a later version nothing else has to be understood.
    let later = json!({"kind": KIND, "version": 9, "boot": {}});
    assert!(matches!(read_value(&later), Err(UnusableState::Version(9))));
    assert!(matches!(read_value(&json!([1])), Err(UnusableState::Foreign)));
    assert!(matches!(read(b"", &identity(), clocks(1, 1)), Err(UnusableState::Spoiled(_))));
    let whole = serde_json::to_vec(&written()).unwrap();
    for end in 0..whole.len() {
        assert!(read(&whole[..end], &identity(), clocks(103, 1)).is_err(), "cut at {end}");
    }
}

#[test]
fn what_is_impossible_is_left_out() {
    let mut value = written();
    value["flights"][0]["label"] = json!("magic");
    value["said"].as_array_mut().unwrap().pop();
    let recalled = read_value(&value).unwrap();
    assert!(recalled.memory.flights.is_empty());
    assert_eq!(recalled.said, None);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes: Vec<u8>, place in 0usize..600, byte: u8) {
        let _ = read(&bytes, &identity(), clocks(103, 5_003));
        let mut spoiled = serde_json::to_vec(&written()).unwrap();
        let place = place % spoiled.len();
        spoiled[place] = byte;
        let _ = read(&spoiled, &identity(), clocks(103, 5_003));
    }
}
