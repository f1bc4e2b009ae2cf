//! `cargo xtask vm`: the agent and its stories on other kernels than this machine's.
//!
//! Each guest is one of Debian's cloud kernels in QEMU, emulated, with an initial RAM disk of busybox and the
//! project's programs on a disk. [`programs`] lists them, and another one is a line there. What counts is that
//! the stories pass; times under emulation are only good for comparing two programs in one guest.

mod expect;
mod guest;
mod init;
mod kernels;
mod programs;
mod results;
mod table;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use crate::build::{self, Platform};
use crate::setup::{self, Need, Tools};
use crate::shell;
use guest::{Guest, HOST, describe_host};
use init::{GuestFiles, MARK};
use kernels::{Cache, Kernel};
use programs::{Kind, PROGRAMS, Program};
use results::GuestResults;

/// The version of control groups that a guest mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cgroups {
    V1,
    V2,
}

/// A guest that can be run.
#[derive(Debug)]
struct Machine {
    /// The name by which it is selected.
    name: &'static str,
    platform: Platform,
    /// The series of the kernel, with which the versions of Debian's packages begin.
    series: &'static str,
    cgroups: Cgroups,
    /// Additional words of the kernel's command line.
    append: &'static str,
    /// Whether it is part of `--short`.
    short: bool,
}

impl Machine {
    const fn new(name: &'static str, series: &'static str, cgroups: Cgroups) -> Self {
        Self { name, platform: Platform::Amd64, series, cgroups, append: "", short: false }
    }

    /// Returns whether it runs only the programs of `--short`, unless others are named.
    fn is_short(&self) -> bool {
        // The other programs are built from the same source, and take hours under emulation.
        self.platform != Platform::HOST
    }
}

const MACHINES: &[Machine] = &[
    Machine::new("5.10", "5.10", Cgroups::V2),
    Machine::new("5.10-v1", "5.10", Cgroups::V1),
    Machine::new("6.1", "6.1", Cgroups::V2),
    Machine::new("6.1-v1", "6.1", Cgroups::V1),
    Machine { short: true, ..Machine::new("6.12", "6.12", Cgroups::V2) },
    Machine::new("7.2", "7.2", Cgroups::V2),
    // BPF may not read kernel memory there, so everything depends on the fallbacks.
    Machine { append: "lockdown=confidentiality", ..Machine::new("7.2-lockdown", "7.2", Cgroups::V2) },
    Machine { platform: Platform::Arm64, ..Machine::new("6.12-arm64", "6.12", Cgroups::V2) },
];

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// One kernel alone, unless some are named, and there what takes least time
    #[arg(long)]
    short: bool,
    /// Show what the guests print
    #[arg(long)]
    verbose: bool,
    /// Emulate each CPU of a guest on a thread of its own, and not all in turn on one: where one runs what another has
    /// just replaced, kernels that patch themselves may panic (docs/reference/kernel-matrix.md)
    #[arg(long)]
    thread_each: bool,
    /// Run this program of the list (xtask/src/vm/programs.rs) alone; may be repeated. The guest's output is
    /// kept in a log of its own, which neither `--last` nor `--write` reads
    #[arg(long, value_name = "PROGRAM")]
    only: Vec<String>,
    /// Boot nothing: read the results of the guests' last runs
    #[arg(long, conflicts_with_all = ["short", "only"])]
    last: bool,
    /// Put the tables of all kernels, each as it was last run on this machine, into docs/reference/kernel-matrix.md
    #[arg(long)]
    write: bool,
    /// 5.10, 5.10-v1, 6.1, 6.1-v1, 6.12, 7.2, 7.2-lockdown, 6.12-arm64; all without any
    #[arg(value_name = "KERNEL")]
    kernels: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Args { json, short, verbose: _, thread_each: _, only: _, last, write, kernels } = args;
    let chosen = select_machines(kernels, *short)?;
    let all = if *last { last_results(chosen)? } else { run_guests(args, &chosen)? };
    let total = |index: usize| all.iter().map(|(_, results)| results.counts()[index]).sum::<usize>();
    let [passed, failed, skipped] = [0, 1, 2].map(total);
    // A program that fits no guest was not run, and has not passed.
    ensure!(passed + failed + skipped > 0, "vm: nothing was run: no program of those fits these guests");
    let text = table::render(&all);
    if *json {
        for (machine, results) in &all {
            results.stories.iter().for_each(|story| println!("{}", story.line_with_kernel(machine.name)));
        }
        eprint!("{text}");
        println!("{}", json!({"task": "vm", "passed": passed, "failed": failed, "skipped": skipped}));
    } else {
        print!("{text}");
    }
    if *write {
        let all = last_results(MACHINES)?;
        ensure!(all.len() == MACHINES.len(), "vm: --write needs a run of every kernel; nothing is written");
        table::write_page(&all)?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type MachineResults = Vec<(&'static Machine, GuestResults)>;

fn run_guests(args: &Args, chosen: &[&'static Machine]) -> Result<MachineResults> {
    let selected = select("program", PROGRAMS, |program| program.name, &args.only)?;
    let mut all = Vec::new();
    for platform in [Platform::Amd64, Platform::Arm64] {
        let machines: Vec<_> =
            chosen.iter().copied().filter(|machine| machine.platform == platform).collect();
        if !machines.is_empty() {
            all.extend(run_platform(args, platform, &machines, &selected)?);
        }
    }
    Ok(all)
}

/// Runs the guests of a platform, which share what is built and fetched.
fn run_platform(
    args: &Args,
    platform: Platform,
    machines: &[&'static Machine],
    selected: &[&'static Program],
) -> Result<MachineResults> {
    let Args { json: _, short, verbose, thread_each, only, last: _, write: _, kernels: _ } = args;
    let is_selected = |machine: &Machine, program: &Program| {
        program.is_for(machine.cgroups, (*short || machine.is_short()) && only.is_empty())
    };
    let runs_somewhere = |program: &&Program| machines.iter().any(|machine| is_selected(machine, program));
    let selected: Vec<_> = selected.iter().copied().filter(runs_somewhere).collect();
    let guests = if platform == Platform::HOST { Need::Guests } else { Need::Arm64Guests };
    let tools = setup::ensure(&[platform.needs(), &[Need::Guests, Need::FileSystems, guests]].concat())?;
    let guest_files = GuestFiles::new(&build(&selected, platform, &tools)?, platform)?;
    let cache = Cache::open(platform)?;
    if selected.iter().any(|program| program.needs_earlyoom) {
        ensure!(platform == Platform::HOST, "vm: programs beside earlyoom are for linux/amd64 alone");
        guest_files.add_earlyoom(&cache)?;
    }
    let mut all = Vec::new();
    for &machine in machines {
        let programs: Vec<_> =
            selected.iter().copied().filter(|program| is_selected(machine, program)).collect();
        eprintln!("vm: {}: fetching its kernel, if it is not here", machine.name);
        let Kernel { version, image, modules } = cache.kernel(machine.series)?;
        let path = log_path(machine, !only.is_empty())?;
        eprintln!("vm: {}: booting {version}; all it says is in {}", machine.name, path.display());
        let mut log = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        writeln!(log, "{MARK}{HOST}{}", describe_host(&version)).context("begin a guest's log")?;
        let busybox = cache.busybox()?;
        let ramdisk = guest_files.ramdisk(machine, &programs, &busybox, &modules)?;
        let disk = guest_files.disk()?;
        let (verbose, thread_each) = (*verbose, *thread_each);
        Guest { machine, image: &image, ramdisk: &ramdisk, disk: &disk, verbose, thread_each }
            .run(&mut log)?;
        let results = read(machine, &path)?;
        eprint!("{}", table::summary(machine, &results));
        all.push((machine, results));
    }
    Ok(all)
}

/// Unpacks a package of another suite of Debian, `name/suite`, over what is in a folder.
pub(crate) fn unpack(package: &str, folder: &Path) -> Result<()> {
    let unpacked = Cache::open(Platform::HOST)?.extract(package)?;
    shell::run(Command::new("cp").arg("-r").arg(unpacked.path().join(".")).arg(folder))
}

/// Returns the results of the guests' last runs, without the guests that were never run.
fn last_results(machines: impl IntoIterator<Item = &'static Machine>) -> Result<MachineResults> {
    let mut all = Vec::new();
    for machine in machines {
        let path = log_path(machine, false)?;
        if path.exists() {
            all.push((machine, read(machine, &path)?));
        } else {
            eprintln!("vm: {}: there is no {}", machine.name, path.display());
        }
    }
    Ok(all)
}

fn read(machine: &Machine, log: &Path) -> Result<GuestResults> {
    let text = fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
    let mut results = GuestResults::read(&text);
    expect::check_expectations(machine, &mut results);
    Ok(results)
}

/// Returns the file with a guest's output, which is kept until the guest is run again.
fn log_path(machine: &Machine, only_some: bool) -> Result<PathBuf> {
    let folder = shell::create_folder(shell::target_folder()?.join("xtask/vm"))?;
    let suffix = if only_some { "-only" } else { "" };
    Ok(folder.join(format!("{}{suffix}.log", machine.name)))
}

/// Builds the agent, the programs that others start, and those that are selected.
fn build(selected: &[&Program], platform: Platform, tools: &Tools) -> Result<Vec<PathBuf>> {
    const STARTED_BY_OTHERS: [&str; 6] =
        ["eviction-agent", "workload", "unprivileged", "stepper", "storm", "bench_oom"];
    let folder = build::static_programs(&["eviction-agent", "tests"], platform, tools)?;
    let of = |kind: Kind| {
        selected.iter().filter(move |program| program.kind == kind).map(|program| program.target)
    };
    let names: BTreeSet<&str> = of(Kind::Stories).chain(STARTED_BY_OTHERS).collect();
    let mut files: Vec<_> = names.iter().map(|name| folder.join(name)).collect();
    let tests: BTreeSet<&str> = of(Kind::Tests).collect();
    if !tests.is_empty() {
        // On the disk they have the names of their targets, without the build's hash.
        files.extend(crate::test::static_tests(&tests.into_iter().collect::<Vec<_>>(), platform, tools)?);
    }
    Ok(files)
}

fn select_machines(names: &[String], short: bool) -> Result<Vec<&'static Machine>> {
    let mut machines = select("kernel", MACHINES, |machine| machine.name, names)?;
    machines.retain(|machine| machine.short || !short || !names.is_empty());
    Ok(machines)
}

/// Returns those that are named, or all if there are no names.
fn select<T>(
    what: &str,
    all: &'static [T],
    name: impl Fn(&T) -> &'static str,
    names: &[String],
) -> Result<Vec<&'static T>> {
    let known: Vec<_> = all.iter().map(&name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("vm: there is no {what} `{unknown}`; there are {}", known.join(", "));
    }
    let is_selected = |it: &&T| names.is_empty() || names.iter().any(|wanted| wanted == name(it));
    Ok(all.iter().filter(is_selected).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(selected: &[&str], short: bool) -> Vec<&'static str> {
        let selected: Vec<_> = selected.iter().map(|name| (*name).to_owned()).collect();
        select_machines(&selected, short).unwrap().iter().map(|machine| machine.name).collect()
    }

    #[test]
    fn all_machines_are_selected_unless_some_are_named() {
        assert_eq!(names(&[], false).len(), MACHINES.len());
        assert_eq!(names(&[], true), ["6.12"]);
        assert_eq!(names(&["7.2", "6.1-v1"], true), ["6.1-v1", "7.2"]);
        let error = select_machines(&["4.19".to_owned()], false).unwrap_err().to_string();
        assert!(error.contains("`4.19`") && error.contains("6.12"), "{error}");
    }
}
