//! `cargo xtask e2e`: stories with a real Kubernetes, each of them a test of `tests/tests/e2e` or, with
//! a real node, of `tests/tests/kubelet`, in a process of its own.

pub(crate) mod kubernetes;
mod outcome;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use signal_hook::consts::SIGINT;

use crate::build::{self, Platform};
use crate::chart;
use crate::image;
use crate::setup::{self, Need};
use crate::shell::{self, Metadata};
use crate::test;
use crate::test::report::Report;
use crate::vm;
use outcome::{End, Outcome};

/// The test programs with the stories.
const TARGETS: [&str; 2] = ["e2e", "kubelet"];

/// Names the tests the folder of containerd and what goes with it; as in
/// `tests/src/cluster/node/programs.rs`.
const NODE: &str = "EVICTION_AGENT_NODE_PROGRAMS";

/// Makes a cluster wait for Ctrl-C before it ends; as in `tests/src/cluster/keep.rs`.
const KEEP: &str = "EVICTION_AGENT_KEEP_CLUSTER";

/// Names those stories the image of `cargo xtask image`; as in `tests/tests/kubelet/image.rs`.
const IMAGE: &str = "EVICTION_AGENT_IMAGE";
const OF_IMAGE: [&str; 2] = ["image::", "installed::"];

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the results as JSON lines on standard output, and the rest on standard error
    #[arg(long)]
    json: bool,
    /// Fail if a story was skipped, as on a machine that is known to run them all
    #[arg(long)]
    deny_skips: bool,
    /// Before a story's cluster ends, say how to reach it, and wait for Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Run pods by the containerd of this suite of Debian, such as sid, which has version 2
    #[arg(long, value_name = "SUITE")]
    containerd: Option<String>,
    /// Run only the stories whose name contains one of these
    #[arg(value_name = "STORY")]
    stories: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Args { json, deny_skips, keep, containerd, stories } = args;
    let tools = setup::ensure(&[Need::Bpf])?;
    let node = setup::ensure(&[Need::Node]).inspect_err(|error| eprintln!("{error:#}")).ok();
    let mut node = node.and_then(|tools| tools.node);
    if let (Some(folder), Some(suite)) = (&mut node, containerd) {
        *folder = node_of_suite(folder, suite)?;
    }
    let helm = setup::ensure(&[Need::Helm]).inspect_err(|error| eprintln!("{error:#}")).unwrap_or_default();
    // A story that lacks its programs says so, and is counted as skipped.
    let folder = kubernetes::ensure().inspect_err(|error| eprintln!("{error:#}")).ok();
    let targets: Vec<&str> =
        TARGETS.iter().flat_map(|&target| ["--test", target]).chain(["--bins"]).collect();
    let built = test::build(&["eviction-agent", "tests"], &targets, &tools)?;

    let logs = Metadata::read()?.target_directory.join("xtask/e2e");
    std::fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
    let mut counts = Counts::default();
    // Ctrl-C is for the story, which clears away meanwhile; the others are not run then.
    let asked_to_end = Arc::new(AtomicBool::new(false));
    if *keep {
        signal_hook::flag::register(SIGINT, Arc::clone(&asked_to_end)).context("catch Ctrl-C")?;
    }
    for program in &built.tests {
        if asked_to_end.load(Ordering::Relaxed) {
            break;
        }
        let start = |arguments: &[&str]| {
            let mut command = program.start(&built.programs);
            command.args(arguments);
            if let Some(folder) = &folder {
                command.env(kubernetes::FOLDER, folder);
            }
            command.envs(node.iter().map(|folder| (NODE, folder)));
            command.envs(chart::programs(&helm));
            if *keep {
                command.env(KEEP, "1");
            }
            command
        };
        let names = chosen(&shell::read(&mut start(&["--list", "--format=terse"]))?, stories);
        let image = match names.iter().any(|name| OF_IMAGE.iter().any(|part| name.starts_with(part))) {
            true => Some(pack_image(&logs)?),
            false => None,
        };
        for name in names {
            if asked_to_end.load(Ordering::Relaxed) {
                break;
            }
            say(*json, &format!("{name}:"));
            let mut story = start(&[]);
            story.envs(image.iter().map(|path| (IMAGE, path)));
            let outcome = run_story(&name, story, &logs, *keep)?;
            counts.add(&outcome);
            say(*json, &outcome.for_people());
            if *json {
                println!("{}", outcome.line());
            }
        }
    }
    let Counts { passed, failed, skipped } = counts;
    if passed + failed + skipped == 0 {
        bail!("e2e: no story has a name with {} in it", stories.join(" or "));
    }
    say(*json, &format!("{passed} passed, {failed} failed, {skipped} skipped"));
    if *json {
        println!("{}", json!({"task": "e2e", "passed": passed, "failed": failed, "skipped": skipped}));
    }
    Ok(if failed == 0 && !(*deny_skips && skipped > 0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The programs of a node with the containerd of another suite of Debian, in a folder beside theirs.
fn node_of_suite(node: &Path, suite: &str) -> Result<PathBuf> {
    let folder = node.with_file_name(format!("node-{suite}"));
    if !folder.exists() {
        eprintln!("e2e: fetching the containerd of {suite} into {}", folder.display());
        // Whole or not at all.
        let half = folder.with_extension("half");
        shell::run(Command::new("rm").arg("-rf").arg(&half))?;
        shell::run(Command::new("cp").arg("-r").arg(node).arg(&half))?;
        vm::unpack(&format!("containerd/{suite}"), &half)?;
        std::fs::rename(&half, &folder).with_context(|| format!("write {}", folder.display()))?;
    }
    Ok(folder)
}

/// The image of an agent for this machine, unoptimised.
fn pack_image(logs: &Path) -> Result<PathBuf> {
    let agent = (Platform::Amd64, build::agent(false)?);
    let archive = logs.join("image.oci.tar");
    image::pack(&[agent], &archive)?;
    Ok(archive)
}

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match outcome.end {
            End::Passed => self.passed += 1,
            End::Failed(_) => self.failed += 1,
            End::Skipped(_) => self.skipped += 1,
        }
    }
}

/// A line for people.
fn say(json: bool, line: &str) {
    if json {
        eprintln!("{line}");
    } else {
        println!("{line}");
    }
}

/// Of libtest's list the stories that are asked for.
fn chosen(list: &str, asked: &[String]) -> Vec<String> {
    list.lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|name| asked.is_empty() || asked.iter().any(|part| name.contains(part.as_str())))
        .map(str::to_owned)
        .collect()
}

fn run_story(name: &str, mut command: Command, logs: &Path, keep: bool) -> Result<Outcome> {
    command.args(["--exact", name, "--test-threads=1"]);
    if keep {
        // What the cluster says is for the one who waits.
        let text = echoed(command.arg("--nocapture")).with_context(|| format!("run {name}"))?;
        return Ok(Outcome::read(name, &Report::read(name, &text), &text));
    }
    let log = logs.join(format!("{}.log", name.replace("::", "-")));
    command.arg("--show-output");
    let (report, text) = test::run_to_end(name, command, &log)?;
    Ok(Outcome::read(name, &report, &text))
}

/// Runs it to its end; all it says is shown at once, and handed back.
fn echoed(command: &mut Command) -> Result<String> {
    let (reader, writer) = std::io::pipe().context("make a pipe")?;
    command.stdout(writer.try_clone().context("share a pipe")?).stderr(writer);
    let mut child = command.spawn()?;
    // The pipe ends with the child's ends of it.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut text = String::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.context("read what it says")?;
        let line = String::from_utf8_lossy(&line);
        eprintln!("{line}");
        text.extend([&line, "\n"]);
    }
    child.wait()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stories_are_asked_for_by_a_part_of_their_name() {
        let list = "server::a_watch: test\nserver::evictions: test\nsome::bench: benchmark\n";
        let chosen =
            |asked: &[&str]| chosen(list, &asked.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
        assert_eq!(chosen(&[]), ["server::a_watch", "server::evictions"]);
        assert_eq!(chosen(&["watch", "none"]), ["server::a_watch"]);
        assert!(chosen(&["bench"]).is_empty());
    }
}
