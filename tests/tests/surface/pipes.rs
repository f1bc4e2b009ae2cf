//! A reader that stops reading: every verb ends quietly, with exit code 0.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use tests::agent;

const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");

/// Returns each verb that ends by itself, with the options that make it print most.
fn verbs() -> Vec<Vec<&'static str>> {
    let lines = [
        &["--help"][..],
        &["--version"],
        &["help"],
        &["help", "run"],
        &["run", "--help"],
        &["check"],
        &["check", "-o", "wide"],
        &["check", "-o", "json"],
        &["config"],
        &["config", "-o", "json"],
        &["config", "-o", "yaml"],
        &["explain", SCENARIO],
        &["explain", SCENARIO, "-o", "jsonl"],
        &["replay", SCENARIO],
        &["replay", "--scenarios", SCENARIO],
        &["top", "--help"],
        &["watch", "--help"],
        &["version"],
        &["version", "-o", "json"],
        &["completion", "bash"],
        &["completion", "nushell"],
        &["man"],
    ];
    lines.map(<[&str]>::to_vec).to_vec()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(agent::binary().unwrap());
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn every_verb_exits_if_its_pipe_is_closed_at_the_start() {
    for arguments in verbs() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(&arguments).stdout(writer).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {log}");
        assert!(!log.contains("panicked") && !log.contains("Broken pipe"), "{arguments:?}: {log}");
    }
}

#[test]
fn every_verb_exits_if_its_pipe_is_closed_after_a_line() {
    for arguments in verbs() {
        let mut child = command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        // The reader, and with it the pipe, is dropped after the statement.
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let output = child.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {log}");
        assert!(!line.is_empty() && !log.contains("panicked"), "{arguments:?}: {log}");
    }
}
