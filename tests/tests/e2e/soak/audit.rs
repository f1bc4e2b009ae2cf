//! The audit after the soak: compares the agent's events with each other, and its recording with its own pipeline.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::agent::{self, Event};
use tests::node::MIB;

/// The hard threshold of the tests, see [`crate::evict::hard`].
const THRESHOLD: u64 = 64 * MIB;

/// Returns the decisions with an unknown result as their last one.
pub(super) fn unknown_decisions(heard: &[Event]) -> BTreeSet<u64> {
    let mut unknown_decisions = BTreeSet::new();
    for event in heard.iter().filter(|event| event.kind() == "eviction_progress") {
        let id = event.number("id").unwrap();
        match event.text("result") {
            "unknown" => unknown_decisions.insert(id),
            _ => unknown_decisions.remove(&id),
        };
    }
    unknown_decisions
}

/// Asserts that each eviction has its decision, that no pod is evicted by two, and that there were `evicted` evictions.
pub(super) fn check_events(heard: &[Event], evicted: usize) {
    let decided: BTreeMap<u64, &str> = heard
        .iter()
        .filter(|event| event.is_decision())
        .map(|event| (event.number("id").unwrap(), event.text("pod_uid")))
        .collect();
    let mut accepted: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    let mut terminated = BTreeSet::new();
    for event in heard.iter().filter(|event| event.kind() == "eviction_progress") {
        let id = event.number("id").unwrap();
        assert_eq!(
            decided.get(&id),
            Some(&event.text("pod_uid")),
            "each eviction has its decision: {event:?}"
        );
        match event.text("result") {
            "accepted" => {
                accepted.entry(event.text("pod_uid")).or_default().insert(id);
            }
            "terminated" => {
                terminated.insert(event.text("pod_uid"));
            }
            _ => {}
        }
    }
    for (uid, decisions) in &accepted {
        assert_eq!(decisions.len(), 1, "{uid} went by {decisions:?}");
    }
    assert!(evicted > 0, "there was pressure, and pods were evicted");
    terminated.extend(accepted.keys());
    assert!(terminated.len() >= evicted, "{} of {evicted} went by a decision", terminated.len());
}

/// Asserts that the pipeline decides each of them again as it did, that no protected pod is evicted, and none while
/// there is enough memory.
pub(super) fn check_recording(recording: &Path, heard: &[Event], protected: &[String]) {
    let lines = run("export", recording, &[]);
    let decisions = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let decisions =
        decisions.filter(|it| it["kind"] == "decision").map(|mut it| it["decision"]["evaluation"].take());
    let recorded: Vec<Value> =
        decisions.filter(|it| it["evictions"].as_array().is_some_and(|all| !all.is_empty())).collect();
    let mut reported: Vec<&str> =
        heard.iter().filter(|event| event.is_decision()).map(|event| event.text("pod_uid")).collect();
    let mut evicted: Vec<&str> = recorded.iter().flat_map(|it| uids(&it["evictions"])).collect();
    reported.sort_unstable();
    evicted.sort_unstable();
    assert_eq!(reported, evicted, "each decision is recorded, and nothing else");
    for it in &recorded {
        let memory = it["signals"].as_array().unwrap().iter().find(|it| it["signal"] == "memory.available");
        let available = memory.unwrap()["available"].as_u64().unwrap();
        assert!(available < THRESHOLD, "there was enough: {it}");
        let ranked = uids(&it["candidates"]);
        assert!(protected.iter().all(|uid| ranked.contains(&uid.as_str())), "all were there: {it}");
    }
    assert!(evicted.iter().all(|uid| !protected.iter().any(|it| it == uid)), "{evicted:?}, {protected:?}");
    let stdout = run("replay", recording, &["--verify"]);
    assert!(stdout.ends_with(" passed, 0 failed\n"), "{stdout}");
    let passed: usize = stdout.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(passed >= recorded.len(), "{passed} of {}", recorded.len());
}

fn run(verb: &str, recording: &Path, more: &[&str]) -> String {
    let output = Command::new(agent::binary().unwrap()).arg(verb).arg(recording).args(more).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{verb}: {stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}

fn uids(pods: &Value) -> Vec<&str> {
    let pods = pods.as_array().unwrap();
    pods.iter().map(|it| it.pointer("/pod/uid").and_then(Value::as_str).unwrap()).collect()
}
