//! The selection of backends on the command line.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::{Command, Output, Stdio};

use eviction_bpf::EventClass;
use eviction_bpf::attach_methods::{ATTACH_METHODS, names};
use serde_json::Value;
use tests::agent;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(agent::binary().unwrap());
    command.args(arguments).env("NO_COLOR", "1").stdin(Stdio::null());
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns the findings of `check` with these options.
fn findings(options: &[&str]) -> Value {
    let output = run(&[&["check", "-o", "json"], options].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
}

fn source<'f>(findings: &'f Value, name: &str) -> &'f Value {
    let sources = findings["sources"].as_array().unwrap();
    sources.iter().find(|source| source["source"] == name).unwrap()
}

#[test]
fn an_unknown_backend_is_an_error_that_lists_the_known_ones() {
    for verb in ["run", "check"] {
        for option in ["--backend", "--disable-backend"] {
            let output = run(&[verb, option, "tp_btf mod_memcg"]);
            assert_eq!(output.status.code(), Some(2), "{verb} {option}");
            let text = stderr(&output);
            for name in names() {
                assert!(text.contains(&format!("`{name}`")), "{verb} {option}: {name}: {text}");
            }
        }
    }
}

#[test]
fn the_timer_cannot_be_disabled() {
    let output = run(&["run", "--disable-backend", "timerfd"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("falls back to"), "{}", stderr(&output));
}

#[test]
fn a_requested_backend_is_used_or_the_start_fails_with_the_reason() {
    let mut used = 0;
    for backend in ATTACH_METHODS.iter().filter(|backend| backend.class == EventClass::Charge) {
        let found = findings(&["--backend", backend.name]);
        let charge = source(&found, "charge");
        let problems = found["problems"].as_array().unwrap();
        match found["would_start"].as_bool().unwrap() {
            true => {
                used += 1;
                assert_eq!((&charge["backend"], problems.len()), (&Value::from(backend.name), 0), "{found}");
            }
            false => {
                let problem = problems[0].as_str().unwrap();
                let start = format!("backend {}: ", backend.name);
                assert!(problem.len() > start.len() && problem.starts_with(&start), "{problem}");
                assert!(!problem.contains("not available"), "with the reason: {problem}");
                assert_eq!(charge["backend"], "none");
            }
        }
    }
    assert!(used > 0 || source(&findings(&[]), "charge")["backend"] == "none");
}

#[test]
fn selecting_the_timer_disables_charge_backends_and_keeps_oom_backends() {
    let (found, all) = (findings(&["--backend", "timerfd"]), findings(&[]));
    assert_eq!(found["would_start"], true, "{found}");
    for name in ["charge", "charge near"] {
        assert_eq!(source(&found, name)["backend"], "none", "{found}");
        assert!(source(&found, name)["reason"].as_str().unwrap().contains("another backend was requested"));
    }
    assert_eq!(source(&found, "oom"), source(&all, "oom"));
}
