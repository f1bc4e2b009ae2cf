//! Every scenario of `tests/scenarios`: the engine's result must be one of the expected outcomes. Those of `kubelet/`
//! were observed in the kubelet's own eviction manager, those of `enhanced/` are the project's own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use eviction_agent::scenario::expected::compare;
use eviction_agent::scenario::read;
use eviction_agent::scenario::run::{Overrides, run};
use serde_json::Value;

/// The minimum number of scenarios. Fewer would mean that files were lost.
const MIN_KUBELET_SCENARIOS: usize = 85;
const MIN_ENHANCED_SCENARIOS: usize = 60;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name)
}

/// Runs the scenarios of a folder, and asserts that all have an expected outcome. Returns their number.
fn count_passed(folder_name: &str) -> usize {
    let (mut passed, mut failures) = (0, Vec::new());
    for found in read::cases(&folder(folder_name)) {
        let case = match found {
            Ok(case) => case,
            Err(error) => {
                failures.push(error);
                continue;
            }
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
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{passed} scenarios of {folder_name}/ came out as expected");
    passed
}

#[test]
fn the_kubelet_profile_decides_as_the_kubelet_does() {
    let passed = count_passed("kubelet");
    assert!(passed >= MIN_KUBELET_SCENARIOS, "only {passed} scenarios found");
}

#[test]
fn the_enhanced_profile_has_the_expected_outcomes() {
    let passed = count_passed("enhanced");
    assert!(passed >= MIN_ENHANCED_SCENARIOS, "only {passed} scenarios found");
}

#[test]
fn enhanced_scenarios_have_unique_descriptions() {
    let mut names = HashMap::new();
    for entry in std::fs::read_dir(folder("enhanced")).unwrap() {
        let file = entry.unwrap().path();
        let path = file.display().to_string();
        let case: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let scenario = &case["scenario"];
        let name = scenario["name"].as_str().unwrap_or_else(|| panic!("{path} has no name")).to_owned();
        assert_eq!(file.file_name().unwrap().to_str(), Some(&*format!("{name}.json")), "{path}");
        let description = scenario["description"].as_str().unwrap_or_default();
        assert!(description.len() >= 80, "{path}: the description says neither pain nor reason");
        assert!(!scenario["agentConfiguration"].is_null(), "{path} is none of ours: no agentConfiguration");
        let other = names.insert(description.to_owned(), path.clone());
        assert_eq!(other, None, "{path} is described like another");
    }
    assert!(!names.is_empty());
}
