//! The audit after the soak: what the agent said is held against itself, and what it recorded against
//! its own pipeline.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::agent::{self, Event};
use tests::node::MIB;

/// The hard threshold of the stories, see [`crate::evict::hard`].
const THRESHOLD: u64 = 64 * MIB;

/// The decisions of which the last that was said is that nobody knows what came of it.
pub(super) fn open(heard: &[Event]) -> BTreeSet<u64> {
    let mut open = BTreeSet::new();
    for event in heard.iter().filter(|event| event.kind() == "eviction_progress") {
        let id = event.number("id").unwrap();
        match event.text("result") {
            "unknown" => open.insert(id),
            _ => open.remove(&id),
        };
    }
    open
}

/// Each eviction has its decision, nobody goes by two, and `went` have gone.
pub(super) fn of_what_was_said(heard: &[Event], went: usize) {
    let decided: BTreeMap<u64, &str> = heard
        .iter()
        .filter(|event| event.kind() == "eviction_decision")
        .map(|event| (event.number("id").unwrap(), event.text("pod_uid")))
        .collect();
    let mut accepted: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    let mut gone = BTreeSet::new();
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
                gone.insert(event.text("pod_uid"));
            }
            _ => {}
        }
    }
    for (uid, decisions) in &accepted {
        assert_eq!(decisions.len(), 1, "{uid} went by {decisions:?}");
    }
    assert!(went > 0, "there was pressure, and somebody went");
    gone.extend(accepted.keys());
    assert!(gone.len() >= went, "{} of {went} went by a decision", gone.len());
}

/// The pipeline decides each of them once more as it did; nobody goes whom it protects, nor while there
/// is enough.
pub(super) fn of_what_was_recorded(recording: &Path, heard: &[Event], protected: &[String]) {
    let lines = run("export", recording, &[]);
    let decisions = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let decisions =
        decisions.filter(|it| it["kind"] == "decision").map(|mut it| it["decision"]["pass"].take());
    let recorded: Vec<Value> =
        decisions.filter(|it| it["evictions"].as_array().is_some_and(|all| !all.is_empty())).collect();
    let mut reported: Vec<&str> = heard
        .iter()
        .filter(|event| event.kind() == "eviction_decision")
        .map(|event| event.text("pod_uid"))
        .collect();
    let mut went: Vec<&str> = recorded.iter().flat_map(|it| uids(&it["evictions"])).collect();
    reported.sort_unstable();
    went.sort_unstable();
    assert_eq!(reported, went, "each decision is recorded, and nothing else");
    for it in &recorded {
        let memory = it["signals"].as_array().unwrap().iter().find(|it| it["signal"] == "memory.available");
        let available = memory.unwrap()["available"].as_u64().unwrap();
        assert!(available < THRESHOLD, "there was enough: {it}");
        let ranked = uids(&it["candidates"]);
        assert!(protected.iter().all(|uid| ranked.contains(&uid.as_str())), "all were there: {it}");
    }
    assert!(went.iter().all(|uid| !protected.iter().any(|it| it == uid)), "{went:?}, {protected:?}");
    let said = run("replay", recording, &["--verify"]);
    assert!(said.ends_with(" passed, 0 failed\n"), "{said}");
    let passed: usize = said.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(passed >= recorded.len(), "{passed} of {}", recorded.len());
}

fn run(verb: &str, recording: &Path, more: &[&str]) -> String {
    let output = Command::new(agent::binary().unwrap()).arg(verb).arg(recording).args(more).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{verb}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn uids(pods: &Value) -> Vec<&str> {
    let pods = pods.as_array().unwrap();
    pods.iter().map(|it| it.pointer("/pod/uid").and_then(Value::as_str).unwrap()).collect()
}
