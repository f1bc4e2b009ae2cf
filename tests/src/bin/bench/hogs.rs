//! Memory stressors of stress-ng, which grow as fast as they can and handle SIGTERM. Measures how far beyond
//! the threshold they are before they are dead, with the agent and with earlyoom, which sends SIGKILL at once.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ::tests::agent::{self, Agent};
use ::tests::bench::row::{Goal, Row};
use ::tests::cgroup::Group;
use ::tests::interrupt::Interrupt;
use ::tests::meminfo;
use ::tests::mounts::Hierarchy;
use ::tests::node::{MIB, Node, PodSpec};
use ::tests::process::Process;
use ::tests::workload::Workload;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::competitor::{self, Competitor};
use crate::reaction;
use crate::testbed::Testbed;

/// The memory of the node.
const MEMORY: u64 = 2048 * MIB;
const PIDS: u64 = 4096;
/// The memory that must stay available; a hog can go as far beyond the threshold.
const AVAILABLE: u64 = 256 * MIB;
/// The memory of the idle pod.
const QUIET: u64 = 64 * MIB;
/// The goal: the maximum growth beyond the threshold.
const GOAL_MIB: f64 = 48.0;
/// A hog that has not ended after this time has survived.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of stress-ng, by the name of the stressor.
const STRESSORS: [(&str, &[&str]); 7] = [
    ("vm", &["--vm", "4", "--vm-bytes", "4g"]),
    ("mmap", &["--mmap", "4", "--mmap-bytes", "4g"]),
    ("mremap", &["--mremap", "4", "--mremap-bytes", "4g"]),
    ("malloc", &["--malloc", "4", "--malloc-bytes", "4g", "--malloc-touch"]),
    ("bigheap", &["--bigheap", "4"]),
    ("brk", &["--brk", "4"]),
    ("memfd", &["--memfd", "4", "--memfd-bytes", "4g"]),
];

/// One hog, from its start to its end.
#[derive(Debug, Default)]
struct Run {
    beyond_mib: f64,
    decided_us: Option<f64>,
    oom_kills: u64,
    /// Whether SIGKILL came before the end of the grace period.
    grew: bool,
    ended: bool,
}

pub(crate) fn run(testbed: &mut Testbed, n: usize) -> Result<()> {
    reaction::print_machine(testbed)?;
    for (stressor, arguments) in STRESSORS {
        let case = format!("{stressor}, full");
        if !testbed.is_selected(&case) {
            continue;
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..n {
            testbed.interrupt.check()?;
            ours.push(with_agent(testbed, arguments).with_context(|| case.clone())?);
            theirs.push(with_earlyoom(testbed, arguments).with_context(|| case.clone())?);
        }
        let earlyoom =
            rows(&case, &theirs).into_iter().map(|row| row.program(Competitor::Earlyoom.program()));
        testbed.add_rows(earlyoom)?;
        let rows = rows(&case, &ours).into_iter().map(goal);
        testbed.add_rows(rows)?;
    }
    Ok(())
}

fn rows(case: &str, runs: &[Run]) -> Vec<Row> {
    let survived = runs.iter().filter(|run| !run.ended).count();
    let row =
        |metric, unit, values: Vec<f64>| Row::new(case, metric, unit, values).with("survived", survived);
    let beyond = runs.iter().map(|run| run.beyond_mib).collect();
    let decided: Vec<f64> = runs.iter().filter_map(|run| run.decided_us).collect();
    let killed = runs.iter().map(|run| run.oom_kills as f64).collect();
    let mut rows = vec![row("beyond threshold at death", "MiB", beyond), row("oom kills", "count", killed)];
    if !decided.is_empty() {
        let grew = runs.iter().filter(|run| run.grew).count();
        rows.push(row("decided", "us", decided).with("killed_on_growth", grew));
    }
    rows
}

fn goal(row: Row) -> Row {
    match row.metric {
        "beyond threshold at death" => row.goal(Goal::Max(GOAL_MIB)),
        "oom kills" => row.goal(Goal::Max(0.0)),
        _ => row,
    }
}

/// Creates a node with an idle pod and one for the hog, and returns the process of the idle one as well.
fn node() -> Result<(Node, Workload)> {
    let mut node = Node::new("hogs", MEMORY, PIDS)?;
    node.add(PodSpec::new("bench", "quiet", &["main"], QUIET / MIB * 2))?;
    node.add(PodSpec::new("bench", "hog", &["main"], 8))?;
    let quiet = Workload::hold(node.pods[0].first()?, &QUIET.to_string())?;
    Ok((node, quiet))
}

/// Returns how far beyond the threshold the peak was, MiB, if all but the hog use `others` bytes.
fn beyond(node: &Node, others: u64) -> Result<f64> {
    let pod = &node.pods[1];
    let file = pod.group.file(Hierarchy::Memory, ("memory.max_usage_in_bytes", "memory.peak"))?;
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let peak: u64 = text.trim().parse().with_context(|| format!("{}: `{text}`", file.display()))?;
    let most = others + peak.saturating_sub(pod.first()?.memory_stat("inactive_file")?);
    Ok((most as f64 - (MEMORY - AVAILABLE) as f64) / MIB as f64)
}

fn with_agent(testbed: &Testbed, arguments: &[&str]) -> Result<Run> {
    let (node, quiet) = node()?;
    let kubelet = json!({"evictionHard": {"memory.available": format!("{}Mi", AVAILABLE / MIB)}});
    let mut options = testbed.options(&node, &kubelet)?;
    options.config = Some(agent::config_without_margin(&node)?);
    let mut agent = Agent::start(&options, &testbed.interrupt)?;
    let others = node.working_set()?;
    let mut hog = Stressor::start(node.pods[1].first()?, &node.file("."), arguments)?;
    hog.go()?;
    let decision = agent.wait_for_decision()?;
    ensure!(decision.pod() == node.pods[1].full_name(), "{} was chosen", decision.pod());
    agent.wait_for_result(&decision.pod(), "terminated")?;
    let is_grown = |event: &agent::Event| event.text("reason").contains("since SIGTERM");
    let grew = agent.events()?.iter().any(is_grown);
    let since_crossing = decision.number("decided_mono_ns").zip(decision.number("crossed_mono_ns"));
    let run = Run {
        beyond_mib: beyond(&node, others)?,
        decided_us: since_crossing.map(|(decided, crossed)| decided.saturating_sub(crossed) as f64 / 1000.0),
        oom_kills: node.pods[1].first()?.oom_kills()?,
        grew,
        ended: true,
    };
    agent.stop()?;
    drop((hog, quiet));
    Ok(run)
}

/// Runs the hog with earlyoom in its own process namespace, with a threshold at the same distance below the
/// machine's available memory.
fn with_earlyoom(testbed: &Testbed, arguments: &[&str]) -> Result<Run> {
    let (node, quiet) = node()?;
    let others = node.working_set()?;
    let mut inside = competitor::own_command("beside-earlyoom", testbed.competitors.as_deref())?;
    inside.arg("--group").arg(node.pods[1].first()?.path());
    inside.arg("--scratch").arg(node.file("."));
    inside.args(["--distance", &(MEMORY - AVAILABLE - others).to_string()]);
    inside.arg("--").args(arguments);
    let reported = competitor::output_in_own_namespace(&inside, "earlyoom", &testbed.interrupt)?;
    let oom_kills = node.pods[1].first()?.oom_kills()?;
    let ended = reported["ended"] == true;
    let run = Run { beyond_mib: beyond(&node, others)?, oom_kills, ended, ..Run::default() };
    drop(quiet);
    Ok(run)
}

/// What is done in the namespace.
#[derive(Debug, clap::Args)]
pub(crate) struct BesideEarlyoom {
    #[arg(long)]
    group: PathBuf,
    #[arg(long)]
    scratch: PathBuf,
    #[arg(long)]
    distance: u64,
    #[arg(long)]
    competitors_folder: Option<PathBuf>,
    #[arg(last = true)]
    stressor: Vec<String>,
}

/// Lets the hog grow, and prints whether all of its processes have ended.
pub(crate) fn beside_earlyoom(args: &BesideEarlyoom) -> Result<()> {
    let BesideEarlyoom { group, scratch, distance, competitors_folder, stressor } = args;
    let interrupt = Interrupt::install()?;
    ensure!(std::process::id() == 1, "this is for a namespace of its own");
    let group = Group::existing(group)?;
    let stressor: Vec<&str> = stressor.iter().map(String::as_str).collect();
    let mut hog = Stressor::start(&group, scratch, &stressor)?;
    let threshold =
        meminfo::available()?.checked_sub(*distance).context("this machine has too little memory")?;
    let folder = competitors_folder.as_deref();
    let _earlyoom = Competitor::Earlyoom.start(threshold, folder, scratch, &interrupt)?;
    hog.go()?;
    let end = std::time::Instant::now() + PATIENCE;
    let mut ended = false;
    while !ended && std::time::Instant::now() < end {
        interrupt.sleep(Duration::from_millis(20))?;
        ended = !hog.process.is_running()? && group.processes().is_empty();
    }
    println!("{}", json!({"ended": ended}));
    Ok(())
}

/// stress-ng, in a cgroup from its start.
struct Stressor {
    process: Process,
}

impl Stressor {
    /// Starts a shell in the cgroup, which becomes stress-ng.
    fn start(group: &Group, folder: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new("sh");
        // With `--oomable`, stress-ng does not restart killed processes: earlyoom kills one after the other.
        command.args(["-c", "read go && exec stress-ng \"$@\"", "sh", "--oomable", "--quiet"]);
        command.args(["--timeout", "60"]).args(arguments).current_dir(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::spawn(&mut command)?;
        group.add(process.pid())?;
        Ok(Self { process })
    }

    fn go(&mut self) -> Result<()> {
        use std::io::Write as _;
        let input = self.process.child().stdin.as_mut().context("the input of a stressor")?;
        input.write_all(b"go\n").context("let a stressor go")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_beyond_the_goal_or_an_oom_kill_misses_the_goal() {
        let reached = |beyond: [f64; 2], oom_kills| {
            let run = |beyond_mib| Run { beyond_mib, oom_kills, ended: true, ..Run::default() };
            let rows: Vec<_> = rows("vm, full", &beyond.map(run)).into_iter().map(goal).collect();
            rows.iter().map(|row| (row.metric, row.reached())).collect::<Vec<_>>()
        };
        let (beyond, killed) = ("beyond threshold at death", "oom kills");
        assert_eq!(reached([20.0, 48.0], 0), [(beyond, Some(true)), (killed, Some(true))]);
        assert_eq!(reached([20.0, 48.1], 1), [(beyond, Some(false)), (killed, Some(false))]);
    }
}
