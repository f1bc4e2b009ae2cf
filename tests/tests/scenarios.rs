//! Every scenario of `tests/scenarios`: what the engine makes of it must be one of the outcomes
//! that are expected. Those of `kubelet/` are what the kubelet's own eviction manager was seen
//! to do, those of `enhanced/` are ours.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use eviction_agent::scenario::expected::compare;
use eviction_agent::scenario::read;
use eviction_agent::scenario::run::{Overrides, run};
use serde_json::Value;

/// Fewer would mean that files were lost.
const AT_LEAST_OF_THE_KUBELET: usize = 85;
const AT_LEAST_OF_OURS: usize = 60;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name)
}

/// Runs a folder; how many scenarios there are, all of which came out as expected.
fn passed(folder_name: &str) -> usize {
    let (mut passed, mut failures) = (0, Vec::new());
    read::each(&folder(folder_name), &mut |found| {
        let case = match found {
            Ok(case) => case,
            Err(error) => return failures.push(error),
        };
        let name = case.scenario.name.clone();
        assert!(!case.expected.is_empty(), "{name} expects nothing");
        match run(case.scenario, &Overrides::default()) {
            Ok(explained) => match compare(&explained.outcome, &case.expected) {
                None => passed += 1,
                Some(difference) => failures.push(format!("{name}: {difference}")),
            },
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{passed} scenarios of {folder_name}/ came out as expected");
    passed
}

#[test]
fn the_kubelet_profile_decides_as_the_kubelet_did() {
    let passed = passed("kubelet");
    assert!(passed >= AT_LEAST_OF_THE_KUBELET, "only {passed} scenarios found");
}

#[test]
fn the_enhanced_profile_decides_as_operators_want() {
    let passed = passed("enhanced");
    assert!(passed >= AT_LEAST_OF_OURS, "only {passed} scenarios found");
}

/// Everything that a scenario of ours may say. A misspelt field would say nothing.
const OF_A_SCENARIO: [&str; 7] =
    ["name", "description", "kubeletConfiguration", "agentConfiguration", "filesystems", "pods", "steps"];
const OF_A_STEP: [&str; 18] = [
    "at",
    "evicted",
    "memory",
    "propose",
    "accept",
    "activePods",
    "oomKills",
    "containersEnded",
    "diskInfoError",
    "containerFsInfoError",
    "summary",
    "summaryError",
    "summaryAfterReclaim",
    "summaryAfterReclaimError",
    "imageGcError",
    "containerGcError",
    "killError",
    "admit",
];

#[test]
fn scenarios_of_ours_are_named_after_their_pain_and_say_why() {
    let mut names = HashMap::new();
    for entry in std::fs::read_dir(folder("enhanced")).unwrap() {
        let file = entry.unwrap().path();
        let place = file.display().to_string();
        let case: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let scenario = &case["scenario"];
        let name = scenario["name"].as_str().unwrap_or_else(|| panic!("{place} has no name")).to_owned();
        assert_eq!(file.file_name().unwrap().to_str(), Some(&*format!("{name}.json")), "{place}");
        let description = scenario["description"].as_str().unwrap_or_default();
        assert!(description.len() >= 80, "{place}: the description says neither pain nor reason");
        assert!(!scenario["agentConfiguration"].is_null(), "{place} is none of ours: no agentConfiguration");
        known(scenario, &OF_A_SCENARIO, &place);
        for step in scenario["steps"].as_array().unwrap() {
            known(step, &OF_A_STEP, &place);
        }
        let other = names.insert(description.to_owned(), place.clone());
        assert_eq!(other, None, "{place} is described like another");
    }
    assert!(!names.is_empty());
}

fn known(object: &Value, fields: &[&str], place: &str) {
    for key in object.as_object().unwrap().keys() {
        assert!(fields.contains(&key.as_str()), "{place}: nothing reads the field {key}");
    }
}
