//! What was recorded comes out of the replay as it went.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use crate::scenario::format::Case;
use crate::scenario::run::run;
use crate::telemetry::decision_log::{DecisionInputs, scenario};
use eviction_config::{kubelet_policy, parse_agent};
use eviction_core::engine::Engine;
use eviction_core::fixture::{at, memory_of, node, pod, set_by, snapshot, step};
use eviction_core::input::Event;
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

/// Lets it all happen, and replays each decision by which somebody goes. How many there were.
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
                let before = DecisionInputs { policy: policy.clone(), memory: engine.state() };
                let decision = step(&mut engine, now, Event::Sample(Arc::clone(&look)));
                // An agent looks each ten seconds at least: whoever comes after it takes no more for seamless.
                let is_seamless = now - std::mem::replace(&mut looked, now) <= 30;
                let Some(recorded) = scenario("decision", &before, &decision, &DecisionRecord::of(&decision))
                    .filter(|_| is_seamless)
                else {
                    continue;
                };
                // As it is read from the file.
                let case: Case = serde_json::from_str(&recorded.to_string()).unwrap();
                let outcome = run(case.scenario).unwrap();
                prop_assert_eq!(&outcome.config_error, &None);
                let mut went = case.went.unwrap();
                went.sort();
                prop_assert_eq!(outcome.went(), went, "{}", recorded);
                replayed += 1;
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

#[test]
fn a_decision_that_would_be_another_one_is_told() {
    let policy = policy("Enhanced");
    let mut engine = Engine::new(policy.clone());
    step(&mut engine, 0, Event::DiskLayout(Ok(Default::default())));
    step(&mut engine, 0, Event::Pods(set_by(&policy, pods())));
    let before = DecisionInputs { policy, memory: engine.state() };
    let used = UIDS.map(|uid| memory_of(uid, 150));
    let decision = step(&mut engine, 1, Event::Sample(snapshot(node(100, 900, at(1)), &used)));
    let mut recorded = scenario("decision", &before, &decision, &DecisionRecord::of(&decision)).unwrap();
    recorded["went"][0]["uid"] = json!("d");
    let case: Case = serde_json::from_value(recorded).unwrap();
    let outcome = run(case.scenario).unwrap();
    let (mut tally, mut out) = (super::Tally::default(), Vec::new());
    super::judge(&outcome, &super::Right::Went(case.went.unwrap()), &mut tally, &mut out).unwrap();
    assert_eq!((tally.passed, tally.failed), (0, 1));
    let said = String::from_utf8(out).unwrap();
    assert!(said.starts_with("decision: went:\n  recorded d (grace period 1 s)"), "{said}");
}
