//! The bench of OOM kills: kills at every level in many cgroups. Measures how many of them the agent reports,
//! and whether it names the right victim, cgroup and owner of the limit.
//!
//! `cargo xtask bench oom` builds the agent as it is shipped and runs this program. It fails if a kill is
//! missing, reported twice, or attributed to the wrong process.
#![forbid(unsafe_code)]

mod kill;
mod reported;
mod testbed;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use tests::agent;
use tests::bench::machine;
use tests::interrupt::{self, Interrupt};

use crate::kill::Level;
use crate::reported::LevelReport;
use crate::testbed::Testbed;

/// The backend where no program reports kills.
const NONE: &str = "none";

#[derive(Debug, Parser)]
#[command(about = "Causes OOM kills at every level, and compares them with what the agent reports")]
struct Args {
    /// Print JSON lines on standard output, and words on standard error
    #[arg(long)]
    json: bool,
    /// Make a story of each row as well, for the table of guests
    #[arg(long)]
    stories: bool,
    /// The agent's file; default: beside this program
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// What is measured, for the machine line
    #[arg(long, value_name = "COMMIT", default_value = "")]
    commit: String,
    /// Kills at limits of containers and pods
    #[arg(long, default_value_t = 1000)]
    kills: usize,
    /// Pods of two containers each, which are killed in turn
    #[arg(long, default_value_t = 50)]
    pods: usize,
    /// Kills of whole groups (memory.oom.group), where the machine has that
    #[arg(long, default_value_t = 0)]
    groups: usize,
    /// Kills for want of memory on the whole machine: for a guest that is there for nothing else
    #[arg(long, default_value_t = 0)]
    global: usize,
    /// Backends that the agent must not use
    #[arg(long, value_name = "BACKEND")]
    disable_backend: Vec<String>,
}

fn main() -> ExitCode {
    interrupt::exit("bench oom", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let Args { json, stories, agent, commit, kills, pods, groups, global, disable_backend } = args;
    if *pods == 0 {
        bail!("--pods 0: there is nothing to kill in");
    }
    let interrupt = Interrupt::install()?;
    let agent = agent.clone().map_or_else(agent::binary, Ok)?;
    let mut testbed = Testbed::new(&agent, *pods, *global > 0, disable_backend, interrupt)?;
    let emit = |line: &Value| {
        if *json {
            // A closed output is no reason to stop: the cgroups must be removed.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    };
    let backend = testbed.backend();
    // A story of the table of guests has what was reported, and the backend, which is forced if others were
    // disabled.
    let story = |mut row: Value, name: &str| {
        if *stories {
            row["story"] = json!(format!("kills, {name}"));
            row["backend"] = json!(backend);
            if !disable_backend.is_empty() && backend != NONE {
                row["forced"] = json!(backend);
            }
        }
        row
    };
    emit(&machine::line("oom", Some(&backend), commit)?);

    let counted = testbed::kernel_oom_kills()?;
    let mut expected = Vec::new();
    for nth in 0..*kills {
        expected.push(testbed.kill_at_limit(nth)?);
    }
    if *groups > 0 && !testbed.has_groups() {
        let why = "no groups are killed as a whole here: that is cgroup v2's";
        eprintln!("bench oom: {why}");
        if *stories {
            emit(&story(json!({"bench": "oom", "skipped": true, "why": why}), Level::Group.name()));
        }
    } else {
        for nth in 0..*groups {
            expected.push(testbed.kill_group(nth)?);
        }
    }
    for nth in 0..*global {
        expected.push(testbed.kill_globally(nth)?);
    }
    if backend == NONE {
        let counted = testbed::kernel_oom_kills()? - counted;
        let (_, unattributed) = testbed.reported(counted)?;
        let ok = unattributed == counted;
        let row = json!({"bench": "oom", "case": "counted alone", "ok": ok, "killed": counted, "unattributed": unattributed});
        emit(&story(row, "counted alone"));
        eprintln!(
            "no source of OOM kills can be used here: of {counted} that the kernel counts {unattributed} are reported"
        );
        return Ok(ok);
    }
    let (reported, unattributed) = testbed.reported(expected.len() as u64)?;
    let unexpected = reported::count_unexpected(&expected, &reported);
    let mut all_correct = unattributed == 0 && unexpected == 0;
    let mut text = String::new();
    for level in Level::ALL {
        let report = LevelReport::of(level, &expected, &reported);
        if report.killed > 0 {
            emit(&story(report.row(level), level.name()));
            text.push_str(&report.line(level));
            all_correct &= report.is_correct();
        }
    }
    let no_others = unattributed == 0 && unexpected == 0;
    let row = json!({"bench": "oom", "case": "beside", "ok": no_others, "unattributed": unattributed, "unexpected": unexpected});
    emit(&story(row, "no other reported"));
    text.push_str(&format!("unattributed {unattributed}, unexpected {unexpected}\n"));
    let _ = if *json { write!(std::io::stderr(), "{text}") } else { write!(std::io::stdout(), "{text}") };
    Ok(all_correct)
}
