//! `replay`: replays recordings and scenarios with this version.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use eviction_config::load_agent;
use eviction_core::policy::preferences::Profile;

use super::explain::ExplainLine;
use super::output::{
    Out, StreamFormat, VerbError, columns, report_unreadable, table, write_json_line, write_stderr,
};
use crate::cli::configuration::profile_parser;
use crate::daemon::Failure;
use crate::daemon::configuration::failure_of;
use crate::scenario::expected::compare;
use crate::scenario::format::{Case, Outcome};
use crate::scenario::read::{self, CaseResult};
use crate::scenario::recording::{self, Replay, Verification};
use crate::scenario::run::{self, Overrides};
use crate::telemetry::recording::reader::{SegmentError, is_recording};

/// Decide recordings and scenarios again with this version, and print the decisions
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Recording (a directory of `recorder.directory` or one of its segments), or scenarios: a file, a
    /// directory, a stream with one per line, or - for standard input; may be compressed with zstd (.zst)
    #[arg(value_name = "FILE", required_unless_present = "scenarios", conflicts_with = "scenarios")]
    files: Vec<PathBuf>,
    /// The same as FILE, printed as JSON lines
    #[arg(long, value_name = "PATH", help_heading = "Testing")]
    scenarios: Option<PathBuf>,
    /// Compare with the recorded or expected decisions; exit code 1 if one differs
    #[arg(long, visible_alias = "check")]
    verify: bool,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Output format [default: table]
    #[arg(short, long, value_enum, conflicts_with = "verify", help_heading = "Output")]
    output: Option<StreamFormat>,
}

/// The policy of scenarios.
#[derive(Debug, Args)]
pub(super) struct PolicyArgs {
    /// AgentConfiguration file (eviction-agent.io/v1alpha1) in place of that of the scenarios
    #[arg(long, value_name = "FILE", help_heading = "Policy")]
    config: Option<PathBuf>,
    /// Eviction rules to follow, in place of those of the configuration
    #[arg(long, value_parser = profile_parser(), help_heading = "Policy")]
    profile: Option<Profile>,
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    errors: usize,
}

impl PolicyArgs {
    /// Returns whether an option is given. Recordings and running agents have their own policy.
    pub(super) fn is_given(&self) -> bool {
        self.config.is_some() || self.profile.is_some()
    }

    /// Returns the overrides of the agent configuration.
    pub(super) fn overrides(&self) -> Result<Overrides, Failure> {
        let agent = self.config.as_deref().map(|file| load_agent(Some(file))).transpose();
        let agent = agent.map_err(|problems| failure_of("agent", problems))?;
        Ok(Overrides { agent, profile: self.profile })
    }
}

/// Runs the verb. Exit code 0 on success, 1 if a scenario failed or is invalid.
pub(super) fn run(args: &ReplayArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let ReplayArgs { files, scenarios, verify, policy, output } = args;
    let overrides = policy.overrides()?;
    let default = if scenarios.is_some() { StreamFormat::Jsonl } else { StreamFormat::Table };
    let format = output.unwrap_or(default);
    let (mut tally, mut rows) = (Tally::default(), Vec::new());
    for file in files.iter().chain(scenarios) {
        if is_recording(file) {
            if policy.is_given() {
                let error = "--config and --profile do not change a recording";
                return Err(Failure::usage(error).help("use `what-if`").into());
            }
            match verify {
                true => verify_recording(file, &mut tally, out)?,
                false => replay_recording(file, format, &mut rows, &mut tally, out)?,
            }
            continue;
        }
        for found in read::cases(file) {
            match (outcome(found, &overrides), verify, format) {
                (Err(cause), ..) => {
                    tally.errors += 1;
                    write_stderr(&format!("error: {cause}\n"));
                }
                (Ok((outcome, expected)), true, _) => check_outcome(&outcome, &expected, &mut tally, out)?,
                (Ok((outcome, _)), false, StreamFormat::Jsonl) => write_json_line(&outcome, out)?,
                (Ok((outcome, _)), false, StreamFormat::Table) => rows.extend(decisions(&outcome)),
            }
        }
    }
    match (verify, format) {
        (true, _) => writeln!(out, "{} passed, {} failed", tally.passed, tally.failed)?,
        (false, StreamFormat::Table) => {
            let heading = ["SCENARIO", "TIME", "POD", "GRACE PERIOD", "MESSAGE"];
            out.write_all(table(heading, rows, columns()).as_bytes())?;
        }
        (false, StreamFormat::Jsonl) => {}
    }
    Ok(match tally {
        Tally { failed: 0, errors: 0, .. } => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Returns a row for each eviction of a scenario, or one row that reports that there is none.
fn decisions(outcome: &Outcome) -> Vec<[String; 5]> {
    let Outcome { name, config_error, config_error_stage: _, steps } = outcome;
    let name = name.escape_debug().to_string();
    let without_eviction = |why: String| {
        let none = || "-".to_owned();
        vec![[name.clone(), none(), none(), none(), why]]
    };
    if let Some(error) = config_error {
        return without_eviction(format!("configuration refused: {}", error.escape_debug()));
    }
    let evictions = steps.iter().flat_map(|step| step.evictions.iter().map(move |it| (&step.at, it)));
    let rows: Vec<_> = evictions
        .map(|(at, it)| {
            let pod = format!("{}/{}", it.namespace, it.name);
            eviction_row(&name, at, &pod, it.grace_period_seconds, &it.message)
        })
        .collect();
    if rows.is_empty() { without_eviction("no eviction".to_owned()) } else { rows }
}

fn eviction_row(name: &str, at: &str, pod: &str, grace_period_seconds: i64, message: &str) -> [String; 5] {
    let [pod, message] = [pod, message.trim()].map(|text| text.escape_debug().to_string());
    [name.to_owned(), at.to_owned(), pod, format!("{grace_period_seconds}s"), message]
}

/// Replays a recording and compares each decision.
fn verify_recording(file: &Path, tally: &mut Tally, out: &mut Out) -> Result<(), VerbError> {
    let verified = recording::verify(file).unwrap_or_else(|error| {
        let text = format!("read {}: {error}", file.display());
        Verification { errors: vec![SegmentError { text, is_cut: false }], ..Verification::default() }
    });
    let Verification { same, different, lost, errors } = verified;
    tally.passed += same;
    tally.failed += different.len();
    for text in different {
        writeln!(out, "{}: {text}", file.display())?;
    }
    tally.errors += report_unreadable(&errors);
    if lost > 0 {
        write_stderr(&format!("warning: {}: the inputs of {lost} decisions are lost\n", file.display()));
    }
    Ok(())
}

/// Replays a recording. Adds a row for each eviction, or writes each decision that evicts as a line of JSON.
fn replay_recording(
    file: &Path,
    format: StreamFormat,
    rows: &mut Vec<[String; 5]>,
    tally: &mut Tally,
    out: &mut impl Write,
) -> io::Result<()> {
    let name = file.display().to_string();
    let mut replay = match Replay::of(file) {
        Ok(replay) => replay,
        Err(cause) => {
            tally.errors += 1;
            write_stderr(&format!("error: read {name}: {cause}\n"));
            return Ok(());
        }
    };
    for decision in replay.by_ref().filter_map(|(_, decision)| decision).filter(recording::evicts) {
        let record = recording::record_without_ended(&decision);
        if format == StreamFormat::Jsonl {
            write_json_line(&ExplainLine { scenario: &name, report: &record }, out)?;
            continue;
        }
        let at = record.at.to_string();
        for it in record.evaluation().into_iter().flat_map(|it| &it.evictions) {
            let pod = it.pod.to_string();
            rows.push(eviction_row(&name, &at, &pod, it.grace_period_seconds, &it.message));
        }
    }
    tally.errors += report_unreadable(&replay.errors);
    Ok(())
}

/// Runs a scenario. Returns its outcome and the expected outcomes.
fn outcome(found: CaseResult, overrides: &Overrides) -> Result<(Outcome, Vec<Outcome>), String> {
    let Case { scenario, expected } = found?;
    let name = scenario.name.clone();
    let explained = run::run(scenario, overrides).map_err(|error| format!("replay {name}: {error}"))?;
    Ok((explained.outcome, expected))
}

fn check_outcome(
    outcome: &Outcome,
    expected: &[Outcome],
    tally: &mut Tally,
    out: &mut impl Write,
) -> io::Result<()> {
    if expected.is_empty() {
        tally.errors += 1;
        write_stderr(&format!("error: check {}: no outcome is expected\n", outcome.name));
        return Ok(());
    }
    match compare(outcome, expected) {
        None => {
            tally.passed += 1;
            Ok(())
        }
        Some(difference) => {
            tally.failed += 1;
            writeln!(out, "{}: {difference}", outcome.name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::recording_tests::golden_recording;

    #[test]
    fn recorded_evictions_are_rows_or_lines_of_json() {
        let folder = golden_recording();
        let (mut rows, mut lines) = (Vec::new(), Vec::new());
        for format in [StreamFormat::Table, StreamFormat::Jsonl] {
            replay_recording(folder.path(), format, &mut rows, &mut Tally::default(), &mut lines).unwrap();
        }
        assert_eq!((rows.len(), &*rows[0][2]), (1, "default/pod-a"));
        let line: serde_json::Value = serde_json::from_slice(&lines).unwrap();
        assert_eq!(line["evaluation"]["evictions"][0]["pod"]["name"], "pod-a");
    }
}
