//! `replay`: what was seen once more, through the engine of today.

mod explain;
#[cfg(test)]
mod recorded;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::explain::{ExplainArgs, Explanations};
use super::profile::ProfileArg;
use crate::config::load_agent;
use crate::journal::Went;
use crate::scenario::compare::{Difference, compare};
use crate::scenario::format::{Case, Outcome};
use crate::scenario::read::{self, Found};
use crate::scenario::run::{Explained, Overrides, explain_under, run_under};

/// Run scenarios through the engine.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Scenarios: a file, a folder, a stream with one a line, or - for standard input; each
    /// may be compressed with zstd (.zst).
    #[arg(long, value_name = "PATH", required = true)]
    scenarios: PathBuf,
    /// Compare with the expected outcomes, instead of printing outcomes.
    #[arg(long)]
    check: bool,
    /// AgentConfiguration file (eviction-agent.io/v1alpha1) for all scenarios, in the place of their
    /// own.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Whose decisions, whatever the configuration says; default: what it says.
    #[arg(long, value_enum)]
    profile: Option<ProfileArg>,
    #[command(flatten)]
    explanation: ExplainArgs,
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    errors: usize,
}

/// Runs the verb: 0 if all went well, 1 if a scenario failed or is none.
pub(super) fn run(args: &ReplayArgs) -> ExitCode {
    let ReplayArgs { scenarios, check, config, profile, explanation } = args;
    let agent = match config.as_deref().map(|file| load_agent(Some(file))).transpose() {
        Ok(agent) => agent,
        Err(problems) => {
            for problem in problems.0 {
                eprintln!("error: read agent configuration: {problem}");
            }
            return ExitCode::FAILURE;
        }
    };
    let overrides = Overrides { agent, profile: profile.map(Into::into) };
    let mut out = BufWriter::new(io::stdout().lock());
    let mut tally = Tally::default();
    let mut broken = None;
    let mut explanations = Explanations::new(explanation);
    read::each(scenarios, &mut |found| {
        let written = if explanation.explain {
            explained(found, &overrides).map(|explained| explanations.write(&explained, &mut out))
        } else {
            outcome(found, &overrides).map(|(outcome, right)| match check {
                true => judge(&outcome, &right, &mut tally, &mut out),
                false => print(&outcome, &mut tally, &mut out),
            })
        };
        let written = written.unwrap_or_else(|cause| {
            tally.errors += 1;
            eprintln!("error: {cause}");
            Ok(())
        });
        broken = broken.take().or(written.err());
    });
    if let Some(complaint) = explanations.complaint() {
        tally.errors += 1;
        eprintln!("error: {complaint}");
    }
    if *check {
        let Tally { passed, failed, .. } = tally;
        let written = writeln!(out, "{passed} passed, {failed} failed");
        broken = broken.or(written.err());
    }
    if let Some(cause) = broken.or(out.flush().err()) {
        if cause.kind() != io::ErrorKind::BrokenPipe {
            eprintln!("error: write standard output: {cause}");
        }
        return ExitCode::FAILURE;
    }
    match tally {
        Tally { failed: 0, errors: 0, .. } => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// What is right.
enum Right {
    /// One of these.
    Expected(Vec<Outcome>),
    /// Of a recorded decision: these go, and nobody else.
    Went(Vec<Went>),
}

fn outcome(found: Found, overrides: &Overrides) -> Result<(Outcome, Right), String> {
    let Case { scenario, expected, went } = found.map_err(|error| error.to_string())?;
    let name = scenario.name.clone();
    let outcome = run_under(scenario, overrides).map_err(|error| format!("replay {name}: {error}"))?;
    Ok((outcome, went.map_or(Right::Expected(expected), Right::Went)))
}

fn explained(found: Found, overrides: &Overrides) -> Result<Explained, String> {
    let Case { scenario, expected: _, went: _ } = found.map_err(|error| error.to_string())?;
    let name = scenario.name.clone();
    explain_under(scenario, overrides).map_err(|error| format!("replay {name}: {error}"))
}

fn print(outcome: &Outcome, tally: &mut Tally, out: &mut impl Write) -> io::Result<()> {
    tally.passed += 1;
    serde_json::to_writer(&mut *out, outcome)?;
    out.write_all(b"\n")
}

fn judge(outcome: &Outcome, right: &Right, tally: &mut Tally, out: &mut impl Write) -> io::Result<()> {
    let expected = match right {
        Right::Expected(expected) => expected,
        Right::Went(went) => return judge_recorded(outcome, went, tally, out),
    };
    if expected.is_empty() {
        tally.errors += 1;
        eprintln!("error: check {}: no outcome is expected", outcome.name);
        return Ok(());
    }
    match compare(outcome, expected) {
        None => {
            tally.passed += 1;
            Ok(())
        }
        Some(difference) => {
            tally.failed += 1;
            report(&outcome.name, &difference, out)
        }
    }
}

/// Whether those go that went.
fn judge_recorded(
    outcome: &Outcome,
    went: &[Went],
    tally: &mut Tally,
    out: &mut impl Write,
) -> io::Result<()> {
    let (go, mut went) = (outcome.went(), went.to_vec());
    went.sort();
    if go == went {
        tally.passed += 1;
        return Ok(());
    }
    tally.failed += 1;
    let names = |list: &[Went]| {
        let each = list.iter().map(|it| format!("{} (grace period {} s)", it.uid, it.grace_period_seconds));
        let all = each.collect::<Vec<_>>().join(", ");
        if all.is_empty() { "nobody".to_owned() } else { all }
    };
    let why = outcome.config_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    writeln!(out, "{}: went:\n  recorded {}\n  found    {}{why}", outcome.name, names(&went), names(&go))
}

fn report(name: &str, difference: &Difference, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{name}: {difference}")
}
