use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::format::{EvictionOutcome, Outcome, StepOutcome};
use crate::scenario::expected::compare;
use crate::scenario::read;

fn outcome(messages: &[&str]) -> Outcome {
    let eviction =
        |message: &&str| EvictionOutcome { message: (*message).to_owned(), ..EvictionOutcome::default() };
    Outcome {
        name: "a".to_owned(),
        steps: vec![StepOutcome {
            evictions: messages.iter().map(eviction).collect(),
            ..StepOutcome::default()
        }],
        ..Outcome::default()
    }
}

fn failed(stage: &str, text: &str) -> Outcome {
    Outcome {
        config_error: Some(text.to_owned()),
        config_error_stage: stage.to_owned(),
        ..Outcome::default()
    }
}

#[test]
fn one_matching_expected_outcome_is_enough() {
    let expected = [outcome(&["x"]), outcome(&["y"])];
    assert_eq!(compare(&outcome(&["y"]), &expected), None);
}

#[test]
fn difference_is_to_the_most_similar_expected_outcome() {
    let expected = [outcome(&["other", "b"]), outcome(&["a", "b"])];
    let difference = compare(&outcome(&["a", "c"]), &expected).unwrap();
    assert_eq!(difference.path, "steps[0].evictions[1].message");
    assert_eq!(
        difference.to_string(),
        "steps[0].evictions[1].message:\n  expected \"b\" (the nearest of 2 outcomes)\n  found    \"c\""
    );
}

#[test]
fn extra_or_missing_items_are_a_difference() {
    let difference = |found: &[&str]| compare(&outcome(found), &[outcome(&["a"])]).unwrap();
    assert_eq!(difference(&["a", "b"]).path, "steps[0].evictions[1]");
    assert_eq!(difference(&["a", "b"]).expected, None);
    assert_eq!(difference(&[]).found, None);
}

#[test]
fn absent_annotations_differ_from_empty_annotations() {
    let mut empty = outcome(&["a"]);
    empty.steps[0].evictions[0].annotations = Some([].into());
    assert!(compare(&outcome(&["a"]), &[empty]).is_some());
}

#[test]
fn config_error_text_is_compared_for_thresholds_and_not_for_decode() {
    let differs = |stage: &str, text: &str| {
        let expected = [failed("thresholds", "bad"), failed("decode", "bad")];
        compare(&failed(stage, text), &expected).is_some()
    };
    assert!(!differs("thresholds", "bad"));
    assert!(differs("thresholds", "good"));
    assert!(!differs("decode", "good"));
    assert!(differs("validate", "bad"));
}

#[test]
fn absent_fields_have_defaults_and_unknown_fields_are_rejected() {
    let parsed: Outcome = serde_json::from_str(r#"{"name": "a", "steps": [{}]}"#).unwrap();
    assert_eq!(parsed.steps[0], StepOutcome::default());
    let unknown = serde_json::from_str::<Outcome>(r#"{"name": "a", "colour": "red"}"#);
    assert!(unknown.is_err());
}

#[test]
fn a_misspelled_key_is_an_error_that_names_it_and_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("case.json");
    for (key, text) in [
        (
            "pod",
            r#"{"scenario": {"name": "a",
            "pod": []}}"#,
        ),
        (
            "splitImageFS",
            r#"{"scenario": {"name": "a",
            "filesystems": {"splitImageFS": true}}}"#,
        ),
        (
            "sumary",
            r#"{"scenario": {"name": "a", "steps": [
            {"at": "2026-01-05T08:00:00Z", "sumary": null}]}}"#,
        ),
        (
            "evicitons",
            r#"{"scenario": {"name": "a"}, "expected": [{"steps": [
            {"evicitons": []}]}]}"#,
        ),
        (
            "resaon",
            r#"{"scenario": {"name": "a"}, "expected": [{"steps": [{"evictions": [
            {"conditions": [{"type": "Ready", "resaon": ""}]}]}]}]}"#,
        ),
        (
            "killsInPods",
            r#"{"scenario": {"name": "a"}, "expected": [{"steps": [{"report": {"oomKills": [
            {"pid": 1, "limitScope": "container", "victim": "init", "killsInPods": 2}]}}]}]}"#,
        ),
        (
            "causes",
            r#"{"scenario": {"name": "a"}, "expected": [{"steps": [{"report": {"terminations": [
            {"uid": "b", "container": "c", "causes": "other", "explanation": "other"}]}}]}]}"#,
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = read::cases(&file).next().unwrap().unwrap_err();
        let start = format!("parse {}:2: unknown field `{key}`", file.display());
        assert!(error.starts_with(&start), "{error}");
    }
}

#[test]
fn scenarios_are_read_from_streams_and_from_values_over_several_lines() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        let cases = read::cases(&file).map(|found| match found {
            Ok(case) => case.scenario.name,
            Err(error) => error.replace(&format!("{}/", folder.path().display()), ""),
        });
        cases.collect::<Vec<_>>()
    };
    let case = |name: &str| format!("{{\"scenario\": {{\"name\": {name:?}}}}}\n");
    assert_eq!(read("stream.jsonl", &format!("\n{}\n{}", case("a"), case("b"))), ["a", "b"]);
    assert_eq!(read("one.json", "{\n  \"scenario\":\n  {\"name\": \"a\"}\n}\n"), ["a"]);
    assert_eq!(read("empty.json", " \n"), [""; 0]);
    let wrong = read("wrong.jsonl", &format!("{{\n{}", case("b")));
    assert!(wrong[0].starts_with("parse wrong.jsonl:1: ") && wrong[1] == "b", "{wrong:?}");
    assert!(read("cut.json", "{\n\"scenario\":\n").join(" ").starts_with("parse cut.json:"));
    let all = read::cases(folder.path()).filter_map(Result::ok);
    assert_eq!(all.map(|case| case.scenario.name).collect::<String>(), "aabb");
    assert!(read::cases(&folder.path().join("none")).next().unwrap().unwrap_err().starts_with("read "));
}

#[test]
fn a_scenario_is_read_before_its_stream_ends() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    writer.write_all(b"{\"scenario\": {\"name\": \"a\"}}\n").unwrap();
    let (sender, found) = mpsc::channel();
    let first = move || read::cases(&path).next().map(|case| case.map(|case| case.scenario.name));
    std::thread::spawn(move || sender.send(first()));
    let found = found.recv_timeout(Duration::from_secs(60)).expect("it waits for the end of the stream");
    assert_eq!(found.unwrap().unwrap(), "a");
}
