//! Invalid and extreme inputs as scenarios: truncated, in another order, repeated, huge, under the profile that they
//! were not written for. None may panic, none may evict a pod that must stay, and the same input must give the same
//! bytes.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::HashSet;
use std::path::Path;

use eviction_agent::scenario::format::{Case, Outcome, Scenario};
use eviction_agent::scenario::run::{Overrides, run};
use eviction_core::policy::preferences::Profile;
use serde_json::{Value, json};

const PROFILES: [Profile; 2] = [Profile::Kubelet, Profile::Enhanced];

/// Returns every scenario of the repository, as JSON.
fn scenarios() -> Vec<Value> {
    let mut scenarios = Vec::new();
    for folder in ["kubelet", "enhanced"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(folder);
        for entry in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read(entry.unwrap().path()).unwrap();
            let mut case: Value = serde_json::from_slice(&text).unwrap();
            scenarios.push(case["scenario"].take());
        }
    }
    assert!(scenarios.len() > 140, "only {} scenarios", scenarios.len());
    scenarios
}

fn outcome(scenario: &Value, profile: Profile) -> Outcome {
    let scenario: Scenario = serde_json::from_value(scenario.clone()).unwrap();
    let name = scenario.name.clone();
    let overrides = Overrides { profile: Some(profile), ..Overrides::default() };
    run(scenario, &overrides).unwrap_or_else(|error| panic!("{name}: {error}")).outcome
}

/// Returns the UIDs of pods that no eviction may ever name: static pods, their mirror pods, and pods with a system
/// priority.
fn critical(scenario: &Value) -> HashSet<String> {
    let pods = scenario["pods"].as_array().into_iter().flatten();
    let is_critical = |pod: &&Value| {
        let annotations = &pod["metadata"]["annotations"];
        let source = &annotations["kubernetes.io/config.source"];
        !annotations["kubernetes.io/config.mirror"].is_null()
            || source.as_str().is_some_and(|source| source != "api")
            || pod["spec"]["priority"].as_i64() >= Some(2_000_000_000)
    };
    pods.filter(is_critical)
        .map(|pod| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Asserts what holds for every input: the same bytes again, no critical pod evicted, no pod evicted twice in one
/// evaluation.
fn assert_sane(scenario: &Value) {
    let critical = critical(scenario);
    for profile in PROFILES {
        let first = outcome(scenario, profile);
        let bytes = serde_json::to_string(&first).unwrap();
        assert_eq!(serde_json::to_string(&outcome(scenario, profile)).unwrap(), bytes);
        for step in &first.steps {
            let mut evicted = HashSet::new();
            for eviction in &step.evictions {
                assert!(!critical.contains(&eviction.uid), "{} evicts a critical pod: {bytes}", first.name);
                assert!(evicted.insert(&eviction.uid), "{} evicts a pod twice at once: {bytes}", first.name);
            }
        }
    }
}

#[test]
fn every_scenario_runs_under_both_profiles() {
    scenarios().iter().for_each(assert_sane);
}

#[test]
fn scenarios_with_reordered_repeated_or_missing_steps_are_handled() {
    for scenario in scenarios() {
        let Some(steps) = scenario["steps"].as_array().filter(|steps| !steps.is_empty()).cloned() else {
            continue;
        };
        let reversed: Vec<_> = steps.iter().rev().cloned().collect();
        let repeated: Vec<_> = steps.iter().chain(&steps).chain(&reversed).cloned().collect();
        let doubled: Vec<_> = steps.iter().flat_map(|step| [step.clone(), step.clone()]).collect();
        let last = steps.last().into_iter().cloned().collect();
        for steps in [reversed, repeated, doubled, last] {
            let mut scenario = scenario.clone();
            scenario["steps"] = Value::Array(steps);
            assert_sane(&scenario);
        }
    }
}

#[test]
fn a_truncated_scenario_is_a_parse_error() {
    let text =
        include_str!("../scenarios/kubelet/memory-min-reclaim-keeps-the-threshold-met.json").trim_end();
    assert!(serde_json::from_str::<Case>(text).is_ok());
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        assert!(serde_json::from_str::<Case>(&text[..end]).is_err(), "cut off at byte {end}");
    }
}

/// Returns a node with 10,000 pods of three containers; every second pod has no statistics. Pods that exceed their
/// request have statistics; some of those without have no request.
fn crowded(critical: bool) -> Value {
    let (mut pods, mut stats) = (Vec::new(), Vec::new());
    for place in 0..10_000_u64 {
        let uid = format!("pod-{place}");
        let request = if place % 4 == 0 { json!({}) } else { json!({"requests": {"memory": "100Mi"}}) };
        let container = |name: &str| json!({"name": name, "resources": request});
        let priority = if critical { 2_000_000_000 } else { place % 7 * 100 };
        let owner =
            json!([{"kind": "ReplicaSet", "name": "rs", "uid": format!("rs-{place}"), "controller": true}]);
        pods.push(json!({
            "metadata": {"name": uid, "namespace": "default", "uid": uid, "ownerReferences": owner},
            "spec": {"priority": priority, "containers": [container("a"), container("b"), container("c")]},
        }));
        if place % 2 == 1 {
            // Pods 3, 11, 19… exceed the request of 300Mi.
            let used = if place % 8 == 3 { 400 << 20 } else { 10 << 20 } + place;
            stats.push(json!({"podRef": {"uid": uid}, "memory": {"workingSetBytes": used}}));
        }
    }
    let memory =
        json!({"time": "2026-01-05T08:00:00Z", "availableBytes": 1 << 20, "workingSetBytes": 8_u64 << 30});
    json!({
        "name": "crowded",
        "kubeletConfiguration": {"evictionHard": {"memory.available": "100Mi"}},
        "pods": pods,
        "steps": [{"at": "2026-01-05T08:00:00Z", "summary": {"node": {"memory": memory}, "pods": stats}}],
    })
}

#[test]
fn ten_thousand_pods_are_ranked_when_half_have_no_statistics() {
    let scenario = crowded(false);
    let evicted = |profile| -> Vec<u64> {
        let outcome = outcome(&scenario, profile);
        let evictions = outcome.steps[0].evictions.iter();
        evictions.map(|it| it.uid.trim_start_matches("pod-").parse().unwrap()).collect()
    };
    // The kubelet's ranking takes pods without statistics first: of these the one with the lowest priority.
    let by_kubelet = evicted(Profile::Kubelet);
    assert_eq!(by_kubelet.len(), 1);
    assert_eq!((by_kubelet[0] % 2, by_kubelet[0] % 7), (0, 0), "{by_kubelet:?}");
    let by_enhanced = evicted(Profile::Enhanced);
    assert!(!by_enhanced.is_empty());
    for place in by_enhanced {
        assert_eq!((place % 8, place % 7), (3, 0), "pod-{place} is not known to exceed its request");
    }
}

#[test]
fn ten_thousand_critical_pods_are_not_evicted() {
    let scenario = crowded(true);
    assert_sane(&scenario);
    for profile in PROFILES {
        assert!(outcome(&scenario, profile).steps[0].evictions.is_empty());
    }
}
