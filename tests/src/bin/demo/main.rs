//! The demo: short stories on a small node, with real cgroups, real processes and real kernel events. Each is
//! checked from outside the agent.
//!
//! `cargo xtask demo` builds what it needs and runs seven of them. `cargo xtask vm` runs all, including those
//! that need their own machine, and repeats some with each backend of a source.
#![forbid(unsafe_code)]

mod backends;
mod checks;
mod cluster;
mod disk;
mod forks;
mod group;
mod hard;
mod oom;
mod peer;
mod pods;
mod print;
mod runaway;
mod soft;
mod testbed;
mod timeline;
mod variant;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use tests::agent;
use tests::interrupt::{self, Interrupt, Interrupted};
use tests::node::MIB;

use crate::checks::StoryResult;
use crate::disk::Shortage;
use crate::hard::Cache;
use crate::oom::Level;
use crate::print::Printer;
use crate::testbed::{Skip, Testbed};
use crate::variant::Variant;

#[derive(Debug, Parser)]
#[command(about = "Runs short stories of node pressure with the real agent, and checks each")]
struct Args {
    /// Print the results as JSON lines on standard output, and the text on standard error
    #[arg(long)]
    json: bool,
    /// The agent's file; default: beside this program
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// Fail if a story was skipped, as on a machine that is known to run them all
    #[arg(long)]
    deny_skips: bool,
    /// This machine may be brought to its limits, for nothing else uses it: run the stories that do
    #[arg(long)]
    own_machine: bool,
    /// This machine is slow, as an emulated one is: grace periods are longer
    #[arg(long)]
    slow: bool,
    /// Run the stories of a source with each of the backends below the best that it has here
    #[arg(long, conflicts_with_all = ["stories", "own_machine"])]
    each_backend: bool,
    /// Run the story with a real API server instead
    #[arg(long, conflicts_with_all = ["stories", "own_machine", "each_backend"])]
    cluster: bool,
    /// Run only the stories of these names
    #[arg(value_name = "STORY")]
    stories: Vec<String>,
}

/// A story: its name in JSON, its description in the text, and its function.
struct Story {
    name: &'static str,
    subject: &'static str,
    when: When,
    run: fn(&mut Testbed<'_>) -> Result<()>,
}

/// When a story is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Unless other stories are named.
    Always,
    /// With `--own-machine`, or when it is named.
    Asked,
    /// With `--own-machine` only.
    OwnMachine,
    /// With `--cluster`, or when it is named.
    Cluster,
}

const STORIES: [Story; 18] = [
    Story {
        name: "hard",
        subject: "a runaway grows past memory.available",
        when: When::Always,
        run: |testbed| hard::run(testbed, Cache::Empty, Variant::None),
    },
    Story {
        name: "hard, page cache full",
        subject: "the same with the page cache full, which is how nodes are",
        when: When::Always,
        run: |testbed| hard::run(testbed, Cache::Full, Variant::None),
    },
    Story {
        name: "soft",
        subject: "a spike is forgiven, a longer one is not",
        when: When::Always,
        run: |testbed| soft::run(testbed, Variant::None),
    },
    Story {
        name: "oom",
        subject: "the kernel kills at a container's own limit, which is no eviction",
        when: When::Always,
        run: |testbed| oom::run(testbed, Level::Container),
    },
    Story { name: "forks", subject: "a fork bomb eats the process ids", when: When::Always, run: forks::run },
    Story {
        name: "disk",
        subject: "a pod fills nodefs",
        when: When::Always,
        run: |testbed| disk::run(testbed, Shortage::BYTES, Variant::None),
    },
    Story {
        name: "inodes",
        subject: "a pod takes the inodes of nodefs",
        when: When::Always,
        run: |testbed| disk::run(testbed, Shortage::INODES, Variant::None),
    },
    Story {
        name: "oom, pod",
        subject: "the kernel kills at a pod's limit, which no container has",
        when: When::Asked,
        run: |testbed| oom::run(testbed, Level::Pod),
    },
    Story {
        name: "oom, group",
        subject: "the kernel kills a whole container (memory.oom.group), which is one story",
        when: When::Asked,
        run: group::run,
    },
    Story {
        name: "hard, cgroups come and go",
        subject: "pods are made and removed all the while",
        when: When::Asked,
        run: |testbed| hard::run(testbed, Cache::Empty, Variant::Churn),
    },
    Story {
        name: "beside earlyoom, 128 MiB/s",
        subject: "how far beyond the threshold, and how far with earlyoom in our place",
        when: When::Asked,
        run: |testbed| peer::run(testbed, 128 * MIB),
    },
    Story {
        name: "beside earlyoom, full speed",
        subject: "the same as fast as it goes",
        when: When::Asked,
        run: |testbed| peer::run(testbed, 0),
    },
    Story {
        name: "oom, node",
        subject: "the machine itself has no memory left",
        when: When::OwnMachine,
        run: |testbed| oom::run(testbed, Level::Node),
    },
    Story {
        name: "hard, a CPU goes",
        subject: "a CPU is unplugged while the agent watches",
        when: When::OwnMachine,
        run: |testbed| hard::run(testbed, Cache::Empty, Variant::CpuUnplugged),
    },
    Story {
        name: "hard, the clock steps",
        subject: "the wall clock jumps an hour forth and a day back",
        when: When::OwnMachine,
        run: |testbed| hard::run(testbed, Cache::Empty, Variant::ClockSteps),
    },
    Story {
        name: "soft, the clock steps",
        subject: "a grace period is no shorter and no longer for it",
        when: When::OwnMachine,
        run: |testbed| soft::run(testbed, Variant::ClockSteps),
    },
    Story {
        name: "disk, the clock steps",
        subject: "a pod fills nodefs after the wall clock has jumped",
        when: When::OwnMachine,
        run: |testbed| disk::run(testbed, Shortage::BYTES, Variant::ClockSteps),
    },
    Story {
        name: "cluster",
        subject: "a runaway is evicted through a real API server",
        when: When::Cluster,
        run: cluster::run,
    },
];

fn main() -> ExitCode {
    interrupt::exit("demo", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let Args { json, agent, deny_skips, own_machine, slow, each_backend, cluster, stories } = args;
    let selected = match cluster {
        true => STORIES.iter().filter(|story| story.when == When::Cluster).collect(),
        false => selected_stories(stories, *own_machine)?,
    };
    let interrupt = Interrupt::install()?;
    let agent = agent.clone().map_or_else(agent::binary, Ok)?;
    let printer = Printer::new(*json);
    let mut runner =
        Runner { parts: (&agent, &interrupt, &printer), passed: 0, failed: 0, skipped: 0, slow: *slow };
    if *each_backend {
        for backends in backends::FORCED_SOURCES {
            for forced in backends.lower_backends(&agent)? {
                for story in STORIES.iter().filter(|story| backends.stories.contains(&story.name)) {
                    runner.run(story, Some(&forced))?;
                }
            }
        }
    } else {
        selected.into_iter().try_for_each(|story| runner.run(story, None))?;
    }
    let Runner { parts: _, passed, failed, skipped, slow: _ } = runner;
    printer.total(passed, failed, skipped);
    Ok(failed == 0 && !(*deny_skips && skipped > 0))
}

/// Runs stories, and counts how they ended.
struct Runner<'a> {
    parts: (&'a Path, &'a Interrupt, &'a Printer),
    passed: usize,
    failed: usize,
    skipped: usize,
    slow: bool,
}

impl Runner<'_> {
    fn run(&mut self, story: &Story, forced: Option<&str>) -> Result<()> {
        let (agent, interrupt, printer) = self.parts;
        printer.title(story.name, story.subject);
        let mut testbed = Testbed::new(agent, interrupt, printer);
        testbed.slow = self.slow;
        testbed.forced = forced;
        let result = (story.run)(&mut testbed);
        testbed.check_recordings();
        let end = match result {
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => match error.downcast::<Skip>() {
                Ok(Skip(why)) => StoryResult::Skipped(why),
                Err(error) => testbed.checks.end(Some(&error)),
            },
            Ok(()) => testbed.checks.end(None),
        };
        match end {
            StoryResult::Passed => self.passed += 1,
            StoryResult::Failed(_) => self.failed += 1,
            StoryResult::Skipped(_) => self.skipped += 1,
        }
        printer.end(story.name, &end, &testbed);
        Ok(())
    }
}

fn selected_stories(names: &[String], own_machine: bool) -> Result<Vec<&'static Story>> {
    if let Some(name) = names.iter().find(|name| STORIES.iter().all(|story| story.name != name.as_str())) {
        let known = STORIES.map(|story| format!("`{}`", story.name)).join(", ");
        bail!("there is no story `{name}`; there are {known}");
    }
    let is_named = |story: &&Story| names.iter().any(|name| name == story.name);
    if let Some(story) =
        STORIES.iter().filter(is_named).find(|story| story.when == When::OwnMachine && !own_machine)
    {
        bail!("the story `{}` endangers everything on this machine: it needs --own-machine", story.name);
    }
    Ok(STORIES
        .iter()
        .filter(|story| match names {
            [] => match story.when {
                When::Always => true,
                When::Asked | When::OwnMachine => own_machine,
                When::Cluster => false,
            },
            _ => is_named(story),
        })
        .collect())
}
