//! The demo: four short stories on a node in small, with real cgroups, real processes and real
//! kernel events, each ended by a verdict that is checked from outside the agent.
//!
//! `cargo xtask demo` builds what it needs and runs it.
#![forbid(unsafe_code)]

mod forks;
mod hard;
mod oom;
mod pods;
mod print;
mod runaway;
mod scene;
mod soft;
mod timeline;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use tests::interrupt::{Interrupt, Interrupted};
use tests::{agent, workload};

use crate::print::Printer;
use crate::scene::{Scene, Skip};
use crate::verdict::End;

#[derive(Debug, Parser)]
#[command(about = "Tells four short stories of node pressure with the real agent, and checks each")]
struct Args {
    /// Print the verdicts as JSON lines on standard output, and the tale on standard error
    #[arg(long)]
    json: bool,
    /// The agent's file; default: beside this program
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// Fail if a story was skipped, as on a machine that is known to tell them all
    #[arg(long)]
    deny_skips: bool,
    /// Tell only the stories of these names
    #[arg(value_name = "STORY")]
    stories: Vec<String>,
}

/// A story: its name for machines, its subject for people, and how it goes.
struct Story {
    name: &'static str,
    subject: &'static str,
    tell: fn(&mut Scene<'_>) -> Result<()>,
}

const STORIES: [Story; 5] = [
    Story {
        name: "hard",
        subject: "a runaway grows past memory.available",
        tell: |scene| hard::tell(scene, hard::Cache::Empty),
    },
    Story {
        name: "hard, page cache full",
        subject: "the same with the page cache full, which is how nodes are",
        tell: |scene| hard::tell(scene, hard::Cache::Full),
    },
    Story { name: "soft", subject: "a spike is forgiven, a longer one is not", tell: soft::tell },
    Story {
        name: "oom",
        subject: "the kernel kills at a container's own limit, which is no eviction",
        tell: oom::tell,
    },
    Story { name: "forks", subject: "a fork bomb eats the process ids", tell: forks::tell },
];

/// As a shell reports what was ended by SIGINT.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("interrupted; everything is cleared away");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("error: demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool> {
    let Args { json, agent, deny_skips, stories } = args;
    let told = chosen(stories)?;
    let interrupt = Interrupt::install()?;
    let agent = agent.clone().map_or_else(agent::binary, Ok)?;
    let workload = workload::binary()?;
    let printer = Printer::new(*json);
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for story in told {
        printer.title(story.name, story.subject);
        let mut scene = Scene::new(&agent, &workload, &interrupt, &printer);
        let end = match (story.tell)(&mut scene) {
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => match error.downcast::<Skip>() {
                Ok(Skip(why)) => End::Skipped(why),
                Err(error) => scene.checks.end_with(&error),
            },
            Ok(()) => scene.checks.end(),
        };
        match end {
            End::Passed => passed += 1,
            End::Failed(_) => failed += 1,
            End::Skipped(_) => skipped += 1,
        }
        printer.end(story.name, &end, &scene);
    }
    printer.total(passed, failed, skipped);
    Ok(failed == 0 && !(*deny_skips && skipped > 0))
}

fn chosen(names: &[String]) -> Result<Vec<&'static Story>> {
    if let Some(name) = names.iter().find(|name| STORIES.iter().all(|story| story.name != name.as_str())) {
        let known = STORIES.map(|story| format!("`{}`", story.name)).join(", ");
        bail!("there is no story `{name}`; there are {known}");
    }
    Ok(STORIES
        .iter()
        .filter(|story| names.is_empty() || names.iter().any(|name| name == story.name))
        .collect())
}
