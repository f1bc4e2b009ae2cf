//! An engine that begins with the key of a segment decides as the recorded one.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use crate::scenario::recording::engine;
use crate::telemetry::recording::Key;
use eviction_config::{kubelet_policy, parse_agent};
use eviction_core::decision::Decision;
use eviction_core::engine::Engine;
use eviction_core::fixture::{at, memory_of, node, pod, set_by, snapshot, step};
use eviction_core::input::{ApiReachability, Event};
use eviction_core::oom::OomKill;
use eviction_core::pod::{EmptyDir, Owner, Pod, Volume};
use eviction_core::policy::Policy;
use eviction_core::progress::{EvictionResult, NotEvicted};
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

/// Pods that differ in all that has a say.
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
enum Happening {
    Look {
        available: u64,
        usage: [u64; 5],
    },
    Outcome(usize, Result<(), NotEvicted>),
    /// Its object is gone.
    Leaves(usize),
    Kill(usize),
}

fn happenings() -> impl Strategy<Value = Vec<(i64, Happening)>> {
    let results = vec![Ok(()), Err("busy".into()), Err(NotEvicted::PdbDenied), Err(NotEvicted::NotAsked)];
    let happening = prop_oneof![
    6 => (select(vec![100u64, 300, 350, 900]), any::<[u8; 5]>()).prop_map(|(available, usage)| {
    Happening::Look { available, usage: usage.map(u64::from) }
    }),
    2 => (0..5usize, select(results)).prop_map(|(pod, result)| Happening::Outcome(pod, result)),
    1 => (0..5usize).prop_map(Happening::Leaves),
    1 => (0..5usize).prop_map(Happening::Kill),
    ];
    proptest::collection::vec((0..8i64, happening), 1..30)
}

/// The pods that are evicted, with their grace periods.
fn evicted(decision: &Decision) -> Vec<(Box<str>, i64)> {
    let record = DecisionRecord::of(decision);
    let evictions = record.evaluation().into_iter().flat_map(|it| &it.evictions);
    evictions.map(|it| (it.pod.uid.clone(), it.grace_period_seconds)).collect()
}

/// Lets it all happen, and has each sample decided by a second engine as well. How many evicted.
fn play(profile: &str, happenings: Vec<(i64, Happening)>) -> Result<usize, TestCaseError> {
    let policy = policy(profile);
    let mut engine = Engine::new(policy.clone());
    step(&mut engine, 0, Event::DiskLayout(Ok(Default::default())));
    let (mut here, mut leaving, mut now, mut replayed) = (pods(), Vec::<Box<str>>::new(), 0, 0);
    let mut looked = 0;
    step(&mut engine, 0, Event::Pods(set_by(&policy, here.clone())));
    for (pause, happening) in happenings {
        now += pause;
        match happening {
            Happening::Look { available, usage } => {
                let used: Vec<_> = here
                    .iter()
                    .map(|pod| {
                        memory_of(&pod.uid, usage[UIDS.iter().position(|it| **it == *pod.uid).unwrap()])
                    })
                    .collect();
                let look = snapshot(node(available, 900, at(now)), &used);
                let mut again = self::engine(&Key {
                    at: at(now),
                    policy: policy.clone(),
                    dry_run: false,
                    state: engine.state(),
                    layout: Some(Default::default()),
                    terminating: leaving.clone(),
                    api: ApiReachability::Reachable,
                    lost: 0,
                    pods: Arc::default(),
                });
                step(&mut again, now, Event::Pods(set_by(&policy, here.clone())));
                let decision = step(&mut engine, now, Event::Sample(Arc::clone(&look)));
                let again = step(&mut again, now, Event::Sample(look));
                // An agent samples every ten seconds at least; grace periods do not survive a longer gap. A sample that
                // was decided on before is none to the first engine.
                let is_seamless = now - std::mem::replace(&mut looked, now) <= 30;
                if is_seamless && !evicted(&decision).is_empty() {
                    prop_assert_eq!(evicted(&again), evicted(&decision));
                    replayed += 1;
                }
            }
            Happening::Outcome(pod, result) => {
                let uid: Box<str> = UIDS[pod].into();
                step(&mut engine, now, Event::Evicted(EvictionResult { uid, result }));
            }
            Happening::Leaves(pod) => {
                here.retain(|it| *it.uid != *UIDS[pod]);
                leaving.push(UIDS[pod].into());
                step(&mut engine, now, Event::Terminating(leaving.clone()));
                step(&mut engine, now, Event::Pods(set_by(&policy, here.clone())));
            }
            Happening::Kill(pod) => {
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
fn each_decision_is_made_once_more_as_it_was(happenings in happenings()) {
play("Enhanced", happenings.clone())?;
play("Kubelet", happenings)?;
}
}

#[test]
fn there_are_decisions_to_replay() {
    let look = |available| Happening::Look { available, usage: [200, 150, 100, 250, 250] };
    let happenings = || {
        vec![(0, look(100)), (1, Happening::Outcome(0, Ok(()))), (1, Happening::Leaves(0)), (8, look(100))]
    };
    // The second goes by what is remembered of the first: another of its owner would be beyond the limit.
    assert_eq!(play("Enhanced", happenings()).unwrap(), 2);
    assert_eq!(play("Kubelet", happenings()).unwrap(), 2);
}
