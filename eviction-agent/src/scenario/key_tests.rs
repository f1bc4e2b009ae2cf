//! Tests that an engine that starts with the key of a segment decides like the recorded one.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use crate::scenario::recording::engine;
use crate::telemetry::recording::Key;
use crate::telemetry::recording::tests::key_of;
use eviction_config::{kubelet_policy, parse_agent};
use eviction_core::decision::Decision;
use eviction_core::engine::Engine;
use eviction_core::fixture::{at, memory_of, node, pod, set_by, snapshot, step};
use eviction_core::input::Event;
use eviction_core::oom::OomKill;
use eviction_core::pod::{EmptyDir, Owner, Pod, Volume};
use eviction_core::policy::Policy;
use eviction_core::progress::NotEvicted;
use eviction_core::record::DecisionRecord;

const UIDS: [&str; 5] = ["a", "b", "c", "d", "e"];

fn policy(profile: &str) -> Policy {
    let kubelet = json!({
    "evictionHard": {"memory.available": "200"},
    "evictionSoft": {"memory.available": "400"},
    "evictionSoftGracePeriod": {"memory.available": "3s"},
    "evictionMinimumReclaim": {"memory.available": "50"},
    "evictionMaxPodGracePeriod": 20,
    "enforceNodeAllocatable": ["none"],
    });
    let agent = json!({"profile": profile, "policy": {
    "soft": {"evictPodsWithoutController": true},
    "coolDownAfterOomKill": "10s",
    "rateLimits": [{"scope": "Owner", "maxEvictions": 1, "window": "20s"}],
    "protection": [{"namespaces": ["never"], "order": "Never"}],
    }});
    parse_agent(&agent).unwrap().over(kubelet_policy(&kubelet).unwrap())
}

/// Returns pods that differ in every field that influences decisions.
fn pods() -> Vec<Pod> {
    let mut pods: Vec<Pod> = UIDS.iter().map(|uid| pod(uid, "10")).collect();
    let owner = Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "rs".into() };
    (pods[0].owner, pods[1].owner) = (Some(owner.clone()), Some(owner));
    pods[2].priority = Some(7);
    pods[2].termination_grace_period_seconds = Some(5);
    pods[3].namespace = "never".into();
    pods[3].labels.insert("app", "db".into());
    pods[4].priority = Some(2_000_001_000);
    let dir = EmptyDir { medium: "Memory".into(), size_limit: Some(eviction_core::fixture::quantity("1Gi")) };
    pods[4].volumes = vec![Volume { name: "cache".into(), empty_dir: Some(dir), ..Volume::default() }];
    pods
}

#[derive(Clone, Debug)]
enum TestEvent {
    Sample {
        available: u64,
        usage: [u64; 5],
    },
    EvictionEnds(usize, Result<(), NotEvicted>),
    /// The object of the pod is deleted.
    PodTerminates(usize),
    OomKills(usize),
}

fn events() -> impl Strategy<Value = Vec<(i64, TestEvent)>> {
    let results = vec![Ok(()), Err("busy".into()), Err(NotEvicted::PdbDenied), Err(NotEvicted::NotAsked)];
    let event = prop_oneof![
    6 => (select(vec![100u64, 300, 350, 900]), any::<[u8; 5]>()).prop_map(|(available, usage)| {
    TestEvent::Sample { available, usage: usage.map(u64::from) }
    }),
    2 => (0..5usize, select(results)).prop_map(|(pod, result)| TestEvent::EvictionEnds(pod, result)),
    1 => (0..5usize).prop_map(TestEvent::PodTerminates),
    1 => (0..5usize).prop_map(TestEvent::OomKills),
    ];
    proptest::collection::vec((0..8i64, event), 1..30)
}

/// Returns the evicted pods with their grace periods in seconds.
fn evicted(decision: &Decision) -> Vec<(Box<str>, i64)> {
    let record = DecisionRecord::of(decision);
    let evictions = record.evaluation().into_iter().flat_map(|it| &it.evictions);
    evictions.map(|it| (it.pod.uid.clone(), it.grace_period_seconds)).collect()
}

/// Applies all events, and compares the decision on each sample with that of a second engine. Returns the number of
/// compared decisions with evictions.
fn replay_and_compare(profile: &str, events: Vec<(i64, TestEvent)>) -> Result<usize, TestCaseError> {
    let policy = policy(profile);
    let mut engine = Engine::new(policy.clone());
    step(&mut engine, 0, Event::DiskLayout(Ok(Default::default())));
    let (mut active, mut terminating, mut now, mut replayed) = (pods(), Vec::<Box<str>>::new(), 0, 0);
    let mut sampled_at = 0;
    step(&mut engine, 0, Event::Pods(set_by(&policy, active.clone())));
    for (pause, event) in events {
        now += pause;
        match event {
            TestEvent::Sample { available, usage } => {
                let used: Vec<_> = active
                    .iter()
                    .map(|pod| {
                        memory_of(&pod.uid, usage[UIDS.iter().position(|it| **it == *pod.uid).unwrap()])
                    })
                    .collect();
                let sample = snapshot(node(available, 900, at(now)), &used);
                let mut restored = self::engine(&Key {
                    at: at(now),
                    state: engine.state(),
                    terminating: terminating.clone(),
                    ..key_of(policy.clone())
                });
                step(&mut restored, now, Event::Pods(set_by(&policy, active.clone())));
                let decision = step(&mut engine, now, Event::Sample(Arc::clone(&sample)));
                let restored = step(&mut restored, now, Event::Sample(sample));
                // An agent samples every ten seconds at least; grace periods do not survive a longer gap. The first
                // engine decides nothing on a sample that it has decided on before.
                let is_seamless = now - std::mem::replace(&mut sampled_at, now) <= 30;
                if is_seamless && !evicted(&decision).is_empty() {
                    prop_assert_eq!(evicted(&restored), evicted(&decision));
                    replayed += 1;
                }
            }
            TestEvent::EvictionEnds(pod, result) => {
                let uid: Box<str> = UIDS[pod].into();
                step(&mut engine, now, Event::Evicted { uid, result });
            }
            TestEvent::PodTerminates(pod) => {
                active.retain(|it| *it.uid != *UIDS[pod]);
                terminating.push(UIDS[pod].into());
                step(&mut engine, now, Event::Terminating(terminating.clone()));
                step(&mut engine, now, Event::Pods(set_by(&policy, active.clone())));
            }
            TestEvent::OomKills(pod) => {
                let kill = OomKill { pod_uid: Some(UIDS[pod].into()), ..OomKill::default() };
                step(&mut engine, now, Event::OomKill(Box::new(kill)));
            }
        }
    }
    Ok(replayed)
}

proptest! {
#![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

#[test]
fn engine_from_a_key_makes_the_same_decisions(events in events()) {
replay_and_compare("Enhanced", events.clone())?;
replay_and_compare("Kubelet", events)?;
}
}

#[test]
fn there_are_decisions_to_replay() {
    let sample = |available| TestEvent::Sample { available, usage: [200, 150, 100, 250, 250] };
    let events = || {
        vec![
            (0, sample(100)),
            (1, TestEvent::EvictionEnds(0, Ok(()))),
            (1, TestEvent::PodTerminates(0)),
            (8, sample(100)),
        ]
    };
    // The second eviction depends on the stored first one: another pod of the same owner would exceed the rate limit.
    assert_eq!(replay_and_compare("Enhanced", events()).unwrap(), 2);
    assert_eq!(replay_and_compare("Kubelet", events()).unwrap(), 2);
}
