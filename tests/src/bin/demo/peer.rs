//! The same runaway with the agent and with earlyoom: how far beyond its threshold each lets it grow. The agent
//! has a threshold on the working set and earlyoom one on MemAvailable, both at the same distance from where
//! the runaway begins; both end it by SIGTERM. Then the same with the agent's kernel kill, where the kernel
//! kills at the threshold.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Error, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::death::DeathWatcher;
use tests::growth::{Growth, Pages, WorkingSetGrowth};
use tests::meminfo;
use tests::node::{MIB, Node};
use tests::process::Process;
use tests::stamps::Record;
use tests::workload::Workload;

use crate::hard::PIDS;
use crate::pods;
use crate::testbed::{GUARD, Skip, Testbed};

/// The limit of the runaway in either case.
const MEMORY: u64 = 960 * MIB;
/// The growth at which the threshold is crossed.
const MAX_WORKING_SET: u64 = 520 * MIB;
/// The size to which the runaway would grow.
const SIZE: u64 = 900 * MIB;
/// The runs of each; medians are compared.
const RUNS: usize = 3;
/// Growth is stamped in steps of this size, so nothing smaller can be seen.
const GRANULARITY_MIB: f64 = 0.25;

/// The growth beyond the threshold, MiB.
#[derive(Clone, Copy, Debug)]
struct Overshoot {
    /// When the runaway received SIGTERM.
    signal: f64,
    /// When it was dead.
    death: f64,
}

/// A run with kernel kill on.
#[derive(Debug)]
struct WithKernelKill {
    overshoot: Overshoot,
    /// `None` if the kernel carried out the kill order. Otherwise the control loop, which checks the threshold
    /// as well, was first, and this is what the agent counts of its kernel kills.
    other_cause: Option<String>,
}

pub(crate) fn run(testbed: &mut Testbed<'_>, rate: u64) -> Result<()> {
    let earlyoom = find()?;
    let (mut ours, mut theirs, mut kernel_kills) = (Vec::new(), Vec::new(), Vec::new());
    // In turn, so that other load on the machine affects all.
    for _ in 0..RUNS {
        ours.push(with_agent(testbed, rate)?);
        theirs.push(with_earlyoom(testbed, rate, &earlyoom)?);
        kernel_kills.extend(with_kernel_kill(testbed, rate)?);
    }
    testbed.check("each ended the runaway each time", true, "");
    for (key, value) in [
        ("agent_signal_mib", at_signal(&ours)),
        ("agent_death_mib", at_death(&ours)),
        ("peer_signal_mib", at_signal(&theirs)),
        ("peer_death_mib", at_death(&theirs)),
        ("times_less_at_signal", at_signal(&theirs) / at_signal(&ours).max(GRANULARITY_MIB)),
        ("times_less_at_death", at_death(&theirs) / at_death(&ours).max(GRANULARITY_MIB)),
    ] {
        testbed.printer.line("median", format_args!("{key} {value:.2}"));
        testbed.value(key, value);
    }
    if kernel_kills.is_empty() {
        testbed.printer.line(
            "kernel kill",
            "no program that sees charges can be used here, so none could carry out a kill order",
        );
    } else {
        let others: Vec<_> = kernel_kills.iter().filter_map(|run| run.other_cause.as_deref()).collect();
        for why in &others {
            testbed.printer.line("kernel kill", format_args!("the agent was first: {why}"));
        }
        testbed.value("by_reflex", kernel_kills.len() - others.len());
        // If the kernel carried out no order at all, the values do not measure kernel kill.
        if others.len() < kernel_kills.len() {
            let at_death = at_death(&kernel_kills.iter().map(|run| run.overshoot).collect::<Vec<_>>());
            testbed.printer.line("median", format_args!("reflex_death_mib {at_death:.2}"));
            testbed.value("reflex_death_mib", at_death);
            testbed.value("times_less_with_reflex", self::at_death(&theirs) / at_death.max(GRANULARITY_MIB));
        }
    }
    testbed.value("runs", RUNS);
    Ok(())
}

fn at_signal(all: &[Overshoot]) -> f64 {
    median(all.iter().map(|overshoot| overshoot.signal).collect())
}

fn at_death(all: &[Overshoot]) -> f64 {
    median(all.iter().map(|overshoot| overshoot.death).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Creates a node with one pod, and the runaway in it, ready to go.
fn prepare(testbed: &Testbed<'_>, rate: u64) -> Result<(Node, Workload, PathBuf)> {
    let mut node = testbed.node(MEMORY, PIDS)?;
    let report = node.add(pods::report())?;
    let stamps = node.file("stamps");
    let (size, rate, file) = (SIZE.to_string(), rate.to_string(), stamps.display().to_string());
    let arguments = ["grow", "--touch-first", "--size", &size, "--rate", &rate, "--stamps", &file];
    let hog = testbed.process(node.pods[report].first()?, &arguments)?;
    Ok((node, hog, stamps))
}

/// Lets the runaway go, waits for its end, and returns how far it grew. `by` is SIGTERM, or SIGKILL at once.
fn measure_overshoot(
    testbed: &Testbed<'_>,
    node: &Node,
    mut hog: Workload,
    stamps: &Path,
    base: u64,
    by: Signal,
) -> Result<Overshoot> {
    let death = DeathWatcher::start(&node.pods[0].group, hog.pid())?;
    hog.go()?;
    let dead = death.wait(testbed.interrupt, GUARD)?;
    let record = Record::read(stamps)?;
    let signal = match by {
        Signal::TERM => record.term.context("the runaway died without SIGTERM")?,
        _ => dead,
    };
    let working_set = WorkingSetGrowth::new(Growth::of(&record), base, base + MAX_WORKING_SET, Pages::Fresh);
    let mib = |ns| working_set.overshoot(ns).map(|bytes| bytes as f64 / MIB as f64).context("no stamps");
    Ok(Overshoot { signal: mib(signal)?, death: mib(dead)? })
}

fn with_agent(testbed: &mut Testbed<'_>, rate: u64) -> Result<Overshoot> {
    let (node, hog, stamps) = prepare(testbed, rate)?;
    let base = node.working_set()?;
    let agent = testbed.agent(&node, &kubelet(base), "charge")?;
    let overshoot = measure_overshoot(testbed, &node, hog, &stamps, base, Signal::TERM)?;
    agent.stop()?;
    Ok(overshoot)
}

fn kubelet(base: u64) -> Value {
    let threshold = MEMORY - base - MAX_WORKING_SET;
    json!({"evictionHard": {"memory.available": threshold.to_string()}})
}

/// Returns `None` where no BPF program sees charges.
fn with_kernel_kill(testbed: &mut Testbed<'_>, rate: u64) -> Result<Option<WithKernelKill>> {
    let (node, hog, stamps) = prepare(testbed, rate)?;
    let base = node.working_set()?;
    let config = node.write_agent_config(&json!({"kernelKill": "HardMemory"}))?;
    let mut agent = testbed.agent_with(&node, &kubelet(base), "charge", Some(config))?;
    if !agent.has_backend("charge") {
        agent.stop()?;
        return Ok(None);
    }
    let overshoot = measure_overshoot(testbed, &node, hog, &stamps, base, Signal::KILL)?;
    let event = agent.wait_for("what ended the runaway", GUARD, |event| match event.kind() {
        "kernel_kill" => true,
        "eviction_decision" => event.text("detected_by") != "kernel_kill",
        _ => false,
    })?;
    let other_cause = match event.kind() {
        "kernel_kill" => None,
        _ => Some(agent.metrics()?.nonzero_series("eviction_agent_kernel_kill")),
    };
    agent.stop()?;
    Ok(Some(WithKernelKill { overshoot, other_cause }))
}

fn with_earlyoom(testbed: &Testbed<'_>, rate: u64, earlyoom: &[PathBuf; 2]) -> Result<Overshoot> {
    let (node, hog, stamps) = prepare(testbed, rate)?;
    let available = meminfo::available()?;
    let limit = available.checked_sub(MAX_WORKING_SET).context("this machine has too little memory")? / 1024;
    let [loader, program] = earlyoom;
    let folder = program.parent().context("the folder of earlyoom")?;
    let mut command = Command::new(loader);
    // It sends SIGTERM at the threshold, and SIGKILL at 1 KiB. With `-p` it raises its own priority.
    command.arg("--library-path").arg(folder).arg(program).args(["-p", "-M", &format!("{limit},1")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command)?;
    let mut log = BufReader::new(process.child().stderr.take().context("the output of earlyoom")?);
    let mut line = String::new();
    while !line.starts_with("sending SIGTERM") {
        line.clear();
        ensure!(log.read_line(&mut line).context("read from earlyoom")? > 0, "earlyoom ended");
    }
    // The rest of its output is discarded, so that it does not wait for a reader.
    let drain = std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(drop));
    let overshoot = measure_overshoot(testbed, &node, hog, &stamps, 0, Signal::TERM);
    drop(process);
    drop(drain.join());
    overshoot
}

/// Returns the loader and the program, in a folder beside this program.
fn find() -> Result<[PathBuf; 2]> {
    let own = std::env::current_exe().context("find this program")?;
    let folder = own.with_file_name("earlyoom");
    let files = ["ld-linux-x86-64.so.2", "earlyoom"].map(|name| folder.join(name));
    if files.iter().all(|file| file.is_file()) {
        Ok(files)
    } else {
        Err(Error::new(Skip(format!("there is no earlyoom in {}", folder.display()))))
    }
}
