//! Properties that hold for any events.

use crate::pods::DESCHEDULER_EVICT;
use crate::pods::DESCHEDULER_PREFER_NO_EVICTION;
use crate::pods::EVICT;
use crate::pods::PRIORITY_HINT;
use std::collections::{BTreeMap, BTreeSet};

use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::decision::Action;
use crate::disk_layout::DiskLayout;
use crate::engine::Engine;
use crate::eviction::Cause;
use crate::fixture::{at, hard, memory_of, node, pod, policy, set_by, snapshot, soft, step};
use crate::input::Event;
use crate::oom::OomKill;
use crate::pod::{Owner, Pod};
use crate::pods::KnownPod;
use crate::policy::preferences::{
    EvictionLimit, EvictionOrder, HardEvictions, Preferences, ProtectionRule, RateLimitScope, SoftEvictions,
};
use crate::policy::{Policy, Rules};
use crate::signal::Signal::MemoryAvailable;
use crate::units::GoDuration;

/// The shortest window and period, and the largest amount by which the clock is set back.
const SHORTEST: i64 = 20;

fn preferences() -> impl Strategy<Value = Preferences> {
    let evict =
        select(&[EvictionOrder::First, EvictionOrder::Normal, EvictionOrder::Last, EvictionOrder::Never][..]);
    let rule = (select(&["a", "b"][..]), evict).prop_map(|(namespace, evict)| ProtectionRule {
        namespaces: vec![namespace.into()],
        selector: None,
        priority_classes: Vec::new(),
        order: evict,
    });
    let limit = |scope| {
        (1..4u32, SHORTEST..90).prop_map(move |(max_evictions, window)| EvictionLimit {
            scope,
            max_evictions,
            window: GoDuration::from_secs(window),
        })
    };
    let limits = (of(limit(RateLimitScope::Owner)), of(limit(RateLimitScope::Namespace)))
        .prop_map(|(owner, namespace)| owner.into_iter().chain(namespace).collect());
    let period = of(SHORTEST..90).prop_map(|period| GoDuration::from_secs(period.unwrap_or(0)));
    (prop::collection::vec(rule, 0..2), limits, period, any::<[bool; 2]>()).prop_map(
        |(
            protection,
            limits,
            cool_down_after_oom_kill,
            [override_opt_out, evict_pods_without_controller],
        )| Preferences {
            protection,
            rate_limits: limits,
            cool_down_after_oom_kill,
            hard: HardEvictions { override_opt_out },
            soft: SoftEvictions { evict_pods_without_controller, ..SoftEvictions::default() },
            ..Preferences::default()
        },
    )
}

fn any_pod(uid: usize) -> impl Strategy<Value = Pod> {
    let annotation = select(
        &[
            (EVICT, "false"),
            (EVICT, "true"),
            (EVICT, "perhaps"),
            (PRIORITY_HINT, "-100"),
            (PRIORITY_HINT, "100"),
            (PRIORITY_HINT, "last"),
            (DESCHEDULER_EVICT, ""),
            (DESCHEDULER_EVICT, "false"),
            (DESCHEDULER_PREFER_NO_EVICTION, ""),
        ][..],
    );
    let owner = of(select(&["x", "y"][..]));
    let rest = (select(&["a", "b", "c"][..]), select(&["1", "500"][..]), 0..3i32);
    (owner, prop::collection::vec(annotation, 0..2), rest).prop_map(
        move |(owner, annotations, (namespace, memory, priority))| Pod {
            owner: owner.map(|name| Owner { kind: "Job".into(), name: name.into(), uid: name.into() }),
            annotations: annotations.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
            namespace: namespace.into(),
            priority: Some(priority),
            ..pod(&format!("{uid}"), memory)
        },
    )
}

fn any_pods() -> impl Strategy<Value = Vec<Pod>> {
    (0..10).map(any_pod).collect::<Vec<_>>()
}

#[derive(Clone, Debug)]
enum GuardEvent {
    /// A sample with this much available memory.
    Sample(u64),
    /// The kernel kills a process of a pod.
    OomKill(usize),
    /// The eviction of a pod failed.
    Failed(usize),
}

/// The events, each with the seconds since the last one. The clock is set back as well, but never by more
/// than a window in total.
fn history() -> impl Strategy<Value = Vec<(i64, GuardEvent)>> {
    let event = prop_oneof![
    6 => select(&[50, 200, 900][..]).prop_map(GuardEvent::Sample),
    1 => (0..10usize).prop_map(GuardEvent::OomKill),
    1 => (0..10usize).prop_map(GuardEvent::Failed),
    ];
    let steps = (0..15i64, 0..SHORTEST / 2, event);
    prop::collection::vec(steps, 1..60).prop_map(|steps| {
        let mut latest = 0;
        let at = |(forward, back, event)| {
            latest += forward;
            (latest - back, event)
        };
        steps.into_iter().map(at).collect()
    })
}

struct EvictedPod {
    seconds: i64,
    uid: Box<str>,
    namespace: Box<str>,
    owner: Option<Box<str>>,
}

/// Applies all events, and checks each eviction against what is known of its pod.
fn run_history(
    policy: &Policy,
    pods: &[Pod],
    history: Vec<(i64, GuardEvent)>,
) -> Result<Vec<EvictedPod>, TestCaseError> {
    let preferences = policy.rules.preferences.clone().unwrap_or_default();
    let mut engine = Engine::new(policy.clone());
    let set = set_by(policy, pods.to_vec());
    step(&mut engine, 0, Event::DiskLayout(Ok(DiskLayout::default())));
    step(&mut engine, 0, Event::Pods(set));
    let mut kills: BTreeMap<Box<str>, Vec<i64>> = BTreeMap::new();
    let mut evicted: Vec<EvictedPod> = Vec::new();
    for (seconds, event) in history {
        let uid = |pod: usize| pods[pod].uid.clone();
        match event {
            GuardEvent::OomKill(pod) => {
                kills.entry(uid(pod)).or_default().push(seconds);
                let kill = OomKill { pod_uid: Some(uid(pod)), ..OomKill::default() };
                step(&mut engine, seconds, Event::OomKill(Box::new(kill)));
            }
            GuardEvent::Failed(pod) => {
                evicted.retain(|evicted| evicted.uid != uid(pod));
                let outcome = Event::Evicted { uid: uid(pod), result: Err("busy".into()) };
                step(&mut engine, seconds, outcome);
            }
            GuardEvent::Sample(memory) => {
                let usage: Vec<_> = pods.iter().map(|pod| memory_of(&pod.uid, 100)).collect();
                let mut stats = node(memory, 900, at(seconds));
                if let crate::reading::Reading::Known(memory) = &mut stats.memory {
                    memory.time = None;
                }
                let decision = step(&mut engine, seconds, Event::Sample(snapshot(stats, &usage)));
                let Some(evaluation) = decision.evaluation() else { continue };
                for action in &decision.actions {
                    let Action::Evict(eviction) = action else { continue };
                    let known = evaluation.pods.get(eviction.pod).unwrap();
                    let Cause::Threshold { threshold: index } = eviction.cause else { continue };
                    let is_hard = evaluation.threshold(index).unwrap().is_hard();
                    check_eviction_allowed(&preferences, known, is_hard)?;
                    let period = preferences.cool_down_after_oom_kill.as_nanos() / 1_000_000_000;
                    let last = kills.get(&known.pod.uid).and_then(|kills| kills.iter().max());
                    prop_assert!(last.is_none_or(|last| (seconds - last).abs() >= period), "cooling down");
                    evicted.retain(|evicted| evicted.uid != known.pod.uid);
                    evicted.push(EvictedPod {
                        seconds,
                        uid: known.pod.uid.clone(),
                        namespace: known.pod.namespace.clone(),
                        owner: known.protection.rate_limit_key.owner.clone(),
                    });
                    check_limits(&preferences.rate_limits, &evicted)?;
                }
            }
        }
    }
    Ok(evicted)
}

fn check_eviction_allowed(
    preferences: &Preferences,
    known: &KnownPod,
    is_hard: bool,
) -> Result<(), TestCaseError> {
    prop_assert_ne!(known.protection.order, EvictionOrder::Never);
    let overridden = is_hard && preferences.hard.override_opt_out;
    prop_assert!(known.protection.order != EvictionOrder::OptedOut || overridden);
    prop_assert!(
        !known.protection.without_controller || is_hard || preferences.soft.evict_pods_without_controller
    );
    Ok(())
}

/// Checks the limits within any window, wherever it begins.
fn check_limits(limits: &[EvictionLimit], evicted: &[EvictedPod]) -> Result<(), TestCaseError> {
    for limit in limits {
        let window = limit.window.as_nanos() / 1_000_000_000;
        let group_keys: BTreeSet<_> =
            evicted.iter().filter_map(|evicted| group_key(limit.scope, evicted)).collect();
        for (start, key) in evicted
            .iter()
            .flat_map(|evicted| group_keys.iter().map(|group_key| (evicted.seconds, *group_key)))
        {
            let within = |evicted: &&EvictedPod| (start..start + window).contains(&evicted.seconds);
            let is_in_group = |evicted: &&EvictedPod| group_key(limit.scope, evicted) == Some(key);
            let count = evicted.iter().filter(within).filter(is_in_group).count();
            prop_assert!(count <= limit.max_evictions as usize, "{count} of {key} from {start} s on");
        }
    }
    Ok(())
}

fn group_key(scope: RateLimitScope, evicted: &EvictedPod) -> Option<&str> {
    match scope {
        RateLimitScope::Namespace => Some(&evicted.namespace),
        RateLimitScope::Owner => evicted.owner.as_deref(),
    }
}

proptest! {
#![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

#[test]
fn protected_pods_are_not_evicted_and_rate_limits_hold_in_any_window(
preferences in preferences(),
pods in any_pods(),
history in history(),
) {
let thresholds = vec![hard(MemoryAvailable, "100"), soft(MemoryAvailable, "300", 5)];
let policy = Policy { rules: Rules::enhanced(&preferences), ..policy(thresholds) };
run_history(&policy, &pods, history)?;
}

/// This holds for any clock, also one that jumps to the first and last possible times.
 #[test]
fn no_time_makes_the_guard_panic(
preferences in preferences(),
pods in any_pods(),
times in prop::collection::vec(crate::fixture::arbitrary::time(), 1..40),
) {
let rules = Rules::enhanced(&preferences);
let policy = Policy { rules: rules.clone(), ..policy(Vec::new()) };
let mut guard = EvictionGuard::default();
for (at, pod) in times.into_iter().zip(pods.iter().cycle()) {
let known = KnownPod::new(pod.clone(), &policy);
if guard.refusal(&rules, at, Some(&hard(MemoryAvailable, "100")), true, &known).is_none() {
guard.record_eviction(&rules, at, &known);
}
guard.record_oom_kill(&rules, at, &pod.uid);
}
}
}
