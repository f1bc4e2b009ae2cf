//! `replay`: recordings and scenarios, decided again by this version.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use eviction_config::load_agent;
use eviction_core::record::DecisionRecord;

use super::output::{Ended, Out, StreamFormat, columns, complain, complain_unread, table};
use crate::cli::configuration::ProfileArg;
use crate::daemon::Failure;
use crate::scenario::expected::compare;
use crate::scenario::format::{Case, Outcome};
use crate::scenario::read::{self, Found};
use crate::scenario::recording::{self, Replay, Unread, Verified};
use crate::scenario::run::{self, Overrides};
use crate::telemetry::recording::reader::is_recording;

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
    /// AgentConfiguration file (eviction-agent.io/v1alpha1) in place of that of the scenarios
    #[arg(long, value_name = "FILE", help_heading = "Policy")]
    config: Option<PathBuf>,
    /// Eviction rules to follow, in place of those of the configuration
    #[arg(long, value_enum, help_heading = "Policy")]
    profile: Option<ProfileArg>,
    /// Output format [default: table]
    #[arg(short, long, value_enum, conflicts_with = "verify", help_heading = "Output")]
    output: Option<StreamFormat>,
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    errors: usize,
}

/// What is decided by in place of what recordings say.
pub(super) fn overrides(config: Option<&Path>, profile: Option<ProfileArg>) -> Result<Overrides, Failure> {
    let agent = config.map(|file| load_agent(Some(file))).transpose().map_err(|problems| {
        let problems = problems.0.into_iter();
        Failure::all(problems.map(|problem| format!("read agent configuration: {problem}")).collect())
    })?;
    Ok(Overrides { agent, profile: profile.map(Into::into) })
}

/// Runs the verb: 0 if all went well, 1 if a scenario failed or is none.
pub(super) fn run(args: &ReplayArgs, out: &mut Out) -> Result<ExitCode, Ended> {
    let ReplayArgs { files, scenarios, verify, config, profile, output } = args;
    let overrides = overrides(config.as_deref(), *profile)?;
    let default = if scenarios.is_some() { StreamFormat::Jsonl } else { StreamFormat::Table };
    let format = output.unwrap_or(default);
    let mut tally = Tally::default();
    let (mut broken, mut rows) = (None, Vec::new());
    for file in files.iter().chain(scenarios) {
        if is_recording(file) {
            if config.is_some() || profile.is_some() {
                let error = "--config and --profile do not change a recording";
                return Err(Failure::usage(error).help("use `what-if`").into());
            }
            match verify {
                true => verify_recording(file, &mut tally, out)?,
                false => rows.extend(recorded_evictions(file, &mut tally)),
            }
            continue;
        }
        read::each(file, &mut |found| {
            if broken.is_some() {
                return;
            }
            let written = outcome(found, &overrides).map(|(outcome, expected)| match (verify, format) {
                (true, _) => judge(&outcome, &expected, &mut tally, out),
                (false, StreamFormat::Jsonl) => print(&outcome, &mut tally, out),
                (false, StreamFormat::Table) => {
                    tally.passed += 1;
                    rows.extend(decisions(&outcome));
                    Ok(())
                }
            });
            let written = written.unwrap_or_else(|cause| {
                tally.errors += 1;
                complain(&format!("error: {cause}\n"));
                Ok(())
            });
            broken = written.err();
        });
    }
    if let Some(error) = broken {
        return Err(error.into());
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

/// A row for each eviction of a scenario, or one that says that there is none.
fn decisions(outcome: &Outcome) -> Vec<[String; 5]> {
    let Outcome { name, config_error, config_error_stage: _, steps } = outcome;
    let name = name.escape_debug().to_string();
    let none = || "-".to_owned();
    if let Some(error) = config_error {
        return vec![[
            name,
            none(),
            none(),
            none(),
            format!("configuration refused: {}", error.escape_debug()),
        ]];
    }
    let evictions = steps.iter().flat_map(|step| step.evictions.iter().map(move |it| (&step.at, it)));
    let rows: Vec<_> = evictions
        .map(|(at, it)| {
            let pod = format!("{}/{}", it.namespace, it.name).escape_debug().to_string();
            let grace_period = format!("{}s", it.grace_period_seconds);
            [name.clone(), at.clone(), pod, grace_period, it.message.trim().escape_debug().to_string()]
        })
        .collect();
    if rows.is_empty() { vec![[name, none(), none(), none(), "no eviction".to_owned()]] } else { rows }
}

/// Decides a recording again and compares each decision.
fn verify_recording(file: &Path, tally: &mut Tally, out: &mut Out) -> Result<(), Ended> {
    let Verified { same, different, lost, errors } = match recording::verify(file) {
        Ok(verified) => verified,
        Err(error) => {
            let text = format!("read {}: {error}", file.display());
            Verified { errors: vec![Unread { text, is_cut: false }], ..Verified::default() }
        }
    };
    tally.passed += same;
    tally.failed += different.len();
    for text in different {
        writeln!(out, "{}: {text}", file.display())?;
    }
    tally.errors += errors.iter().filter(|error| !complain_unread(error)).count();
    if lost > 0 {
        complain(&format!("warning: {}: the inputs of {lost} decisions are lost\n", file.display()));
    }
    Ok(())
}

/// A row for each eviction that a recording comes to.
fn recorded_evictions(file: &Path, tally: &mut Tally) -> Vec<[String; 5]> {
    let (mut replay, mut rows) = (Replay::default(), Vec::new());
    let read = recording::each(file, &mut |item| match item {
        Ok(item) => {
            let Some(decision) = replay.take(item).filter(recording::evicts) else { return };
            let record = DecisionRecord::of(&decision);
            for eviction in record.evaluation().into_iter().flat_map(|it| &it.evictions) {
                let grace_period = format!("{}s", eviction.grace_period_seconds);
                let message = eviction.message.trim().escape_debug().to_string();
                let name = file.display().to_string();
                rows.push([
                    name,
                    record.at.to_string(),
                    eviction.pod.to_string().escape_debug().to_string(),
                    grace_period,
                    message,
                ]);
            }
        }
        Err(unread) => {
            replay.interrupt();
            tally.errors += usize::from(!complain_unread(&unread));
        }
    });
    if let Err(cause) = read {
        tally.errors += 1;
        complain(&format!("error: read {}: {cause}\n", file.display()));
    }
    rows
}

/// What comes of a scenario, and the outcomes that are right.
fn outcome(found: Found, overrides: &Overrides) -> Result<(Outcome, Vec<Outcome>), String> {
    let Case { scenario, expected } = found?;
    let name = scenario.name.clone();
    let explained = run::run(scenario, overrides).map_err(|error| format!("replay {name}: {error}"))?;
    Ok((explained.outcome, expected))
}

fn print(outcome: &Outcome, tally: &mut Tally, out: &mut impl Write) -> io::Result<()> {
    tally.passed += 1;
    serde_json::to_writer(&mut *out, outcome)?;
    out.write_all(b"\n")
}

fn judge(outcome: &Outcome, expected: &[Outcome], tally: &mut Tally, out: &mut impl Write) -> io::Result<()> {
    if expected.is_empty() {
        tally.errors += 1;
        complain(&format!("error: check {}: no outcome is expected\n", outcome.name));
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
