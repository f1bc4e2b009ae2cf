//! `replay --scenarios`, and verbs that read recordings, as a user calls them.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const AGENT: &str = env!("CARGO_BIN_EXE_eviction-agent");
const STEP: &str = r#"{"at": "2026-01-05T09:00:00.50+01:00", "summary": {"node": {"memory":
    {"availableBytes": 1, "workingSetBytes": 9}}, "pods": []}}"#;

/// A scenario on one line, and what is expected of it.
fn case(name: &str, conditions: &str) -> String {
    let step = STEP.replace('\n', "");
    format!(
        r#"{{"scenario": {{"name": "{name}", "kubeletConfiguration": {{"evictionHard": {{"memory.available": "2"}}}}, "filesystems": {{}}, "pods": [], "steps": [{step}]}}, "expected": [{{"name": "{name}", "configError": null, "steps": [{{"at": "2026-01-05T08:00:00.5Z", "nodeConditions": [{conditions}], "events": [{{"object": "Node/node", "type": "Warning", "reason": "EvictionThresholdMet", "message": "Attempting to reclaim memory"}}]}}]}}]}}"#
    )
}

fn good(name: &str) -> String {
    case(name, r#""MemoryPressure""#)
}

fn replay(path: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output =
        Command::new(AGENT).args(["replay", "--scenarios"]).arg(path).args(arguments).output().unwrap();
    texts(&output)
}

fn texts(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let code = output.status.code().unwrap();
    (code, text(&output.stdout), text(&output.stderr))
}

fn written(folder: &tempfile::TempDir, name: &str, text: &str) -> std::path::PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn matching_outcomes_exit_with_0() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(&folder, "two.jsonl", &format!("{}\n\n{}\n", good("a"), good("b")));
    let (code, out, err) = replay(&path, &["--check"]);
    assert_eq!((code, &*out, &*err), (0, "2 passed, 0 failed\n", ""));
}

#[test]
fn a_divergence_names_scenario_step_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(&folder, "one.json", &case("calm", ""));
    let (code, out, _) = replay(&path, &["--check", "--profile", "kubelet"]);
    assert_eq!(code, 1);
    assert_eq!(
        out,
        "calm: steps[0].nodeConditions[0]:\n  expected nothing\n  found    \"MemoryPressure\"\n\
         0 passed, 1 failed\n"
    );
}

#[test]
fn outcomes_are_printed_one_per_line() {
    let folder = tempfile::tempdir().unwrap();
    written(&folder, "b.json", &good("second"));
    written(&folder, "a.jsonl", &good("first"));
    written(&folder, "notes.txt", "no scenario");
    let (code, out, _) = replay(folder.path(), &[]);
    let names = out.lines().map(|line| {
        let outcome: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(outcome["steps"][0]["at"], "2026-01-05T08:00:00.5Z");
        outcome["name"].as_str().unwrap().to_owned()
    });
    assert_eq!((code, names.collect::<Vec<_>>()), (0, vec!["first".into(), "second".into()]));
}

#[test]
fn malformed_lines_are_reported_by_line_and_other_lines_still_run() {
    let folder = tempfile::tempdir().unwrap();
    let lines = [
        &good("a")[..70],
        &good("b"),
        r#"{"scenario": {"name": "c", "steps": [{"at": "noon"}]}}"#,
        r#"{"expected": []}"#,
        &good("d"),
        r#"{"scenario": {"name": "e", "steps": [{"at": "2026-01-05T08:00:00Z"}]}, "expected": [{}]}"#,
        &good("f")[..99],
    ];
    let path = written(&folder, "some.jsonl", &lines.join("\n"));
    let (code, out, err) = replay(&path, &["--check"]);
    assert_eq!((code, &*out), (1, "2 passed, 0 failed\n"));
    let errors: Vec<_> = err.lines().collect();
    assert_eq!(errors.len(), 5, "{err}");
    for (error, line) in errors.iter().zip([1, 3, 4]) {
        let start = format!("error: parse {}:{line}: ", path.display());
        assert!(error.starts_with(&start), "{error}");
    }
    assert!(errors[2].contains("missing field `scenario`"), "{err}");
    assert_eq!(errors[3], "error: replay e: steps[0]: neither summary nor summaryError");
    assert!(errors[4].contains(":7: EOF while parsing"), "{err}");
}

#[test]
fn error_in_a_multi_line_value_names_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = "{\n \"scenario\": {\n  \"name\": \"a\",\n  \"steps\": 7\n }\n}\n";
    let path = written(&folder, "one.json", text);
    let (code, _, err) = replay(&path, &[]);
    assert_eq!(code, 1);
    assert!(err.starts_with(&format!("error: parse {}:4: ", path.display())), "{err}");
}

#[test]
fn standard_input_and_compressed_files_are_read() {
    let mut child = Command::new(AGENT)
        .args(["replay", "--scenarios", "-", "--check"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(good("a").as_bytes()).unwrap();
    let (code, out, _) = texts(&child.wait_with_output().unwrap());
    assert_eq!((code, &*out), (0, "1 passed, 0 failed\n"));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.jsonl.zst");
    std::fs::write(&path, zstd_raw(good("a").as_bytes())).unwrap();
    let (code, out, err) = replay(&path, &["--check"]);
    assert_eq!((code, &*out, &*err), (0, "1 passed, 0 failed\n", ""));
    std::fs::write(&path, b"no zstd").unwrap();
    assert_eq!(replay(&path, &["--check"]).0, 1);
    // Joined files are read to the end, and what is cut off is said.
    let frame = |name| zstd_raw(format!("{}\n", good(name)).as_bytes());
    let two = [frame("a"), frame("b")].concat();
    std::fs::write(&path, &two).unwrap();
    assert_eq!(replay(&path, &["--check"]).1, "2 passed, 0 failed\n");
    std::fs::write(&path, &two[..two.len() - 5]).unwrap();
    let (code, out, err) = replay(&path, &["--check"]);
    assert_eq!((code, &*out), (1, "1 passed, 0 failed\n"), "{err}");
    assert!(err.contains("one.jsonl.zst"), "{err}");
}

/// A zstd frame with one uncompressed block (RFC 8878, 3.1.1).
fn zstd_raw(content: &[u8]) -> Vec<u8> {
    let size = u32::try_from(content.len()).unwrap();
    let single_segment_with_four_byte_size = 0b1010_0000;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, single_segment_with_four_byte_size];
    frame.extend(size.to_le_bytes());
    frame.extend(&(size << 3 | 1).to_le_bytes()[..3]);
    frame.extend(content);
    frame
}

#[test]
fn wrong_usage_and_missing_files_have_different_exit_codes() {
    let (code, _, err) = replay(Path::new("/nowhere/at/all"), &[]);
    assert_eq!(code, 1);
    assert!(err.starts_with("error: read /nowhere/at/all: "), "{err}");
    assert_eq!(replay(Path::new("-"), &["--profile", "nobody"]).0, 2);
}

const AGENT_FILE: &str = "apiVersion: eviction-agent.io/v1alpha1\nkind: AgentConfiguration\nprofile: Enhanced\n\
    policy:\n  signals:\n  - {signal: memory.available, hard: \"1\"}\n";

/// The end of the first pass, which only the enhanced profile tells, and the conditions.
fn first_step(out: &str) -> (Option<String>, usize) {
    let outcome: serde_json::Value = serde_json::from_str(out).unwrap();
    let step = &outcome["steps"][0];
    let end = step["report"]["end"].as_str().map(str::to_owned);
    (end, step["nodeConditions"].as_array().unwrap().len())
}

#[test]
fn profile_and_config_flags_apply_to_all_scenarios() {
    let folder = tempfile::tempdir().unwrap();
    let plain = written(&folder, "plain.json", &good("a"));
    let own = good("a").replace("\"pods\"", r#""agentConfiguration": {"profile": "Enhanced"}, "pods""#);
    let own = written(&folder, "own.json", &own);
    let agent = written(&folder, "agent.yaml", AGENT_FILE);
    let agent = agent.to_str().unwrap();
    let no_pods = Some("no_pods".to_owned());
    let no_pressure = Some("no_pressure".to_owned());
    for (path, arguments, expected) in [
        (&plain, &[][..], (None, 1)),
        (&own, &[], (no_pods.clone(), 1)),
        (&plain, &["--profile", "enhanced"], (no_pods, 1)),
        (&own, &["--profile", "kubelet"], (None, 1)),
        // The threshold of the file is not met.
        (&plain, &["--config", agent], (no_pressure.clone(), 0)),
        (&own, &["--config", agent], (no_pressure, 0)),
        (&own, &["--config", agent, "--profile", "kubelet"], (None, 1)),
    ] {
        let (code, out, err) = replay(path, arguments);
        assert_eq!((code, &*err), (0, ""), "{arguments:?}");
        assert_eq!(first_step(&out), expected, "{arguments:?} {out}");
    }
}

#[test]
fn invalid_config_flag_ends_replay_with_all_errors() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = written(&folder, "a.json", &good("a"));
    let agent =
        written(&folder, "agent.yaml", &AGENT_FILE.replace("hard", "herd").replace("policy", "polisy"));
    let (code, out, err) = replay(&scenario, &["--config", agent.to_str().unwrap()]);
    assert_eq!((code, &*out), (1, ""));
    let start = format!(
        "error: read agent configuration: {}: polisy: is not known here (did you mean `policy`?)",
        agent.display()
    );
    assert_eq!(err.trim_end(), start);
    let (code, _, err) = replay(&scenario, &["--config", "/no/such/file"]);
    assert_eq!(code, 1);
    assert!(err.starts_with("error: read agent configuration: /no/such/file: No such file"), "{err}");
}

#[test]
fn scenario_step_about_an_unknown_pod_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let text = good("a").replacen("\"at\"", r#""evictionResults": [{"uid": "absent"}], "at""#, 1);
    let path = written(&folder, "a.json", &text);
    let (code, _, err) = replay(&path, &[]);
    assert_eq!((code, &*err), (1, "error: replay a: steps[0].evictionResults: no pod has uid \"absent\"\n"));
}

/// Writes the golden recording into a folder, and as the next segment a copy with a wrong byte near its end.
fn half_damaged_recording() -> tempfile::TempDir {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut files = std::fs::read_dir(fixtures).unwrap().map(|file| file.unwrap().path());
    let text =
        std::fs::read_to_string(files.find(|it| it.extension().is_some_and(|it| it == "hex")).unwrap());
    let digits: Vec<u8> = text.unwrap().bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let mut bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("00000000-whole.rec"), &bytes).unwrap();
    let damaged = bytes.len() - 40;
    bytes[damaged] ^= 4;
    std::fs::write(folder.path().join("00000001-damaged.rec"), bytes).unwrap();
    folder
}

#[test]
fn a_damaged_segment_is_an_error_beside_the_output_of_the_others() {
    let folder = half_damaged_recording();
    let run = |path: &Path, arguments: &[&str]| {
        let output = Command::new(AGENT).args(arguments).arg(path).env("NO_COLOR", "1").output().unwrap();
        texts(&output)
    };
    for arguments in [
        &["replay"][..],
        &["explain"],
        &["export"],
        &["export", "-o", "openmetrics"],
        &["what-if"],
        &["what-if", "--sweep", "memory.available=1..200"],
    ] {
        let (code, out, err) = run(folder.path(), arguments);
        assert!(code == 1 && !out.is_empty(), "{arguments:?}: {code} {out}");
        assert!(err.starts_with("error: read ") && err.matches("a checksum is wrong").count() == 1, "{err}");
        let (code, _, err) = run(&folder.path().join("00000000-whole.rec"), arguments);
        assert_eq!((code, &*err), (0, ""), "{arguments:?}");
    }
}
