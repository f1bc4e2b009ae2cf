//! The bench of OOM kills: so many kills over so many cgroups at every level, how many of them the
//! agent tells of, and whether it names the right victim, group and owner of the limit.
//!
//! `cargo xtask bench oom` builds the agent as it is shipped and runs this. It fails if one kill is
//! missing, reported twice, or blamed on somebody else.
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
use tests::bench::machine;
use tests::interrupt::{self, Interrupt};
use tests::{agent, workload};

use crate::kill::Level;
use crate::reported::Tally;
use crate::testbed::Testbed;

/// No program tells of kills.
const NONE: &str = "none";

#[derive(Debug, Parser)]
#[command(about = "Has the kernel kill at every level, and holds what the agent tells against it")]
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
    let workload = workload::binary()?;
    let mut testbed = Testbed::set(&agent, workload, *pods, *global > 0, disable_backend, interrupt)?;
    let emit = |line: &Value| {
        if *json {
            // Who no longer listens is no reason to stop: the groups must go.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    };
    let backend = testbed.backend();
    // As the table of guests has it: what was reported, and by which backend, forced if others were denied.
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

    let counted = testbed::kills_of_the_machine()?;
    let mut expected = Vec::new();
    for nth in 0..*kills {
        expected.push(testbed.kill_at_a_limit(nth)?);
    }
    if *groups > 0 && !testbed.has_groups() {
        let why = "no groups are killed as a whole here: that is cgroup v2's";
        eprintln!("bench oom: {why}");
        if *stories {
            emit(&story(json!({"bench": "oom", "skipped": true, "why": why}), Level::Group.name()));
        }
    } else {
        for nth in 0..*groups {
            expected.push(testbed.kill_a_group(nth)?);
        }
    }
    for nth in 0..*global {
        expected.push(testbed.kill_globally(nth)?);
    }
    if backend == NONE {
        let counted = testbed::kills_of_the_machine()? - counted;
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
    let strange = reported::strangers(&expected, &reported);
    let mut all_right = unattributed == 0 && strange == 0;
    let mut text = String::new();
    for level in Level::ALL {
        let tally = Tally::of(level, &expected, &reported);
        if tally.killed > 0 {
            emit(&story(tally.row(), level.name()));
            text.push_str(&tally.line());
            all_right &= tally.is_right();
        }
    }
    let beside = unattributed == 0 && strange == 0;
    let row = json!({"bench": "oom", "case": "beside", "ok": beside, "unattributed": unattributed, "strange": strange});
    emit(&story(row, "no other reported"));
    text.push_str(&format!("unattributed {unattributed}, of nobody's killing {strange}\n"));
    let _ = if *json { write!(std::io::stderr(), "{text}") } else { write!(std::io::stdout(), "{text}") };
    Ok(all_right)
}
