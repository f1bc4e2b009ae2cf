//! `cargo xtask e2e`: stories with a real Kubernetes. Each is a test of `tests/tests/e2e` or, with a real node,
//! of `tests/tests/kubelet`, and runs in its own process.

pub(crate) mod kubernetes;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use signal_hook::consts::SIGINT;

use crate::build::{self, Platform};
use crate::image;
use crate::setup::{self, Need};
use crate::shell;
use crate::story::{self, Story};
use crate::test;
use crate::test::report::Report;
use crate::vm;

/// The test programs with the stories.
const TARGETS: [&str; 2] = ["e2e", "kubelet"];

/// The environment variable with the folder of containerd and its programs for the tests; as in
/// `tests/src/cluster/node/programs.rs`.
const NODE: &str = "EVICTION_AGENT_NODE_PROGRAMS";

/// The environment variable that makes a cluster wait for Ctrl-C before it ends; as in
/// `tests/src/cluster/keep.rs`.
const KEEP: &str = "EVICTION_AGENT_KEEP_CLUSTER";

/// The environment variable with the image of `cargo xtask image` for the stories of [`IMAGE_STORIES`]; as in
/// `tests/tests/kubelet/image.rs`.
const IMAGE: &str = "EVICTION_AGENT_IMAGE";
const IMAGE_STORIES: [&str; 2] = ["image::", "installed::"];

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
    let mut node = setup::ensure_for_tests(Need::Node).node;
    if let (Some(folder), Some(suite)) = (&mut node, containerd) {
        *folder = node_with_containerd_of(folder, suite)?;
    }
    let helm = setup::ensure_for_tests(Need::Helm);
    // A story without its programs reports that, and is counted as skipped.
    let folder = kubernetes::ensure().inspect_err(|error| eprintln!("{error:#}")).ok();
    let targets: Vec<&str> =
        TARGETS.iter().flat_map(|&target| ["--test", target]).chain(["--bins"]).collect();
    let built = test::build(&["eviction-agent", "tests"], &targets, &tools)?;

    let logs = shell::create_folder(shell::target_folder()?.join("xtask/e2e"))?;
    let mut all = Vec::new();
    // Ctrl-C ends the current story, which cleans up meanwhile; the others are not run then.
    let interrupted = Arc::new(AtomicBool::new(false));
    if *keep {
        signal_hook::flag::register(SIGINT, Arc::clone(&interrupted)).context("catch Ctrl-C")?;
    }
    for program in &built.tests {
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
        let start = |arguments: &[&str]| {
            let mut command = program.start(&built.programs);
            command.args(arguments);
            command.envs(folder.iter().map(|folder| (kubernetes::FOLDER, folder)));
            command.envs(node.iter().map(|folder| (NODE, folder)));
            command.envs(helm.test_variables());
            if *keep {
                command.env(KEEP, "1");
            }
            command
        };
        let names = select_stories(&shell::read(&mut start(&["--list", "--format=terse"]))?, stories);
        let needs_image = names.iter().any(|name| IMAGE_STORIES.iter().any(|part| name.starts_with(part)));
        let image = needs_image.then(|| pack_image(&logs)).transpose()?;
        for name in names {
            if interrupted.load(Ordering::Relaxed) {
                break;
            }
            print_line(*json, &format!("{name}:"));
            let mut story = start(&[]);
            story.envs(image.iter().map(|path| (IMAGE, path)));
            let story = run_story(&name, story, &logs, *keep)?;
            print_line(*json, &story.text());
            if *json {
                println!("{}", story.line);
            }
            all.push(story);
        }
    }
    if all.is_empty() {
        bail!("e2e: no story has a name with {} in it", stories.join(" or "));
    }
    let [passed, failed, skipped] = story::counts(&all);
    print_line(*json, &format!("{passed} passed, {failed} failed, {skipped} skipped"));
    if *json {
        println!("{}", json!({"task": "e2e", "passed": passed, "failed": failed, "skipped": skipped}));
    }
    Ok(if failed == 0 && !(*deny_skips && skipped > 0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the programs of a node with the containerd of another suite of Debian, in a folder beside the usual
/// one.
fn node_with_containerd_of(node: &Path, suite: &str) -> Result<PathBuf> {
    let folder = node.with_file_name(format!("node-{suite}"));
    if !folder.exists() {
        eprintln!("e2e: fetching the containerd of {suite} into {}", folder.display());
        // The folder gets its name when it is complete.
        let partial = folder.with_extension("partial");
        shell::run(Command::new("rm").arg("-rf").arg(&partial))?;
        shell::run(Command::new("cp").arg("-r").arg(node).arg(&partial))?;
        vm::unpack(&format!("containerd/{suite}"), &partial)?;
        std::fs::rename(&partial, &folder).with_context(|| format!("write {}", folder.display()))?;
    }
    Ok(folder)
}

/// Packs the image of an agent for this machine, unoptimised.
fn pack_image(logs: &Path) -> Result<PathBuf> {
    let agent = (Platform::Amd64, build::agent(false)?);
    let archive = logs.join("image.oci.tar");
    image::pack(&[agent], &archive)?;
    Ok(archive)
}

/// Prints a line of text.
fn print_line(json: bool, line: &str) {
    if json {
        eprintln!("{line}");
    } else {
        println!("{line}");
    }
}

/// Returns the stories of libtest's list that are selected.
fn select_stories(list: &str, filters: &[String]) -> Vec<String> {
    list.lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|name| filters.is_empty() || filters.iter().any(|part| name.contains(part.as_str())))
        .map(str::to_owned)
        .collect()
}

fn run_story(name: &str, mut command: Command, logs: &Path, keep: bool) -> Result<Story> {
    command.args(["--exact", name, "--test-threads=1"]);
    if keep {
        // The output of the cluster is for the user who waits.
        let text = run_and_echo(command.arg("--nocapture")).with_context(|| format!("run {name}"))?;
        return Ok(story::of_test(name, &Report::read(name, &text), &text));
    }
    let log = logs.join(format!("{}.log", name.replace("::", "-")));
    command.arg("--show-output");
    let (report, text) = test::run_to_end(name, command, &log)?;
    Ok(story::of_test(name, &report, &text))
}

/// Runs a command to its end. Prints its output at once, and returns it.
fn run_and_echo(command: &mut Command) -> Result<String> {
    let (reader, writer) = std::io::pipe().context("make a pipe")?;
    command.stdout(writer.try_clone().context("share a pipe")?).stderr(writer);
    let mut child = command.spawn()?;
    // The pipe ends when the child closes its ends of it.
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
    fn stories_are_selected_by_a_part_of_their_name() {
        let list = "server::a_watch: test\nserver::evictions: test\nsome::bench: benchmark\n";
        let select_stories = |filters: &[&str]| {
            select_stories(list, &filters.iter().map(|&it| it.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(select_stories(&[]), ["server::a_watch", "server::evictions"]);
        assert_eq!(select_stories(&["watch", "none"]), ["server::a_watch"]);
        assert!(select_stories(&["bench"]).is_empty());
    }
}
