//! `cargo xtask vm`: the agent and the stories of the demo on kernels that are not this machine's.
//!
//! Each guest is one of Debian's cloud kernels in QEMU, emulated where there is no KVM, with an
//! initial RAM disk of busybox and our programs. What counts is that the stories come true; times
//! under emulation say nothing.

mod guest;
mod init;
mod kernels;
mod table;

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::json;

use crate::build;
use crate::setup::{self, Need};
use guest::Guest;
use init::Ramdisk;
use kernels::Cache;

/// Which version of control groups a guest mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cgroups {
    V1,
    V2,
}

/// A machine to be.
#[derive(Debug)]
struct Machine {
    /// By which it is asked for.
    name: &'static str,
    /// Of the kernel, as Debian's packages begin.
    series: &'static str,
    cgroups: Cgroups,
    /// Additional words of the kernel's command line.
    append: &'static str,
    /// Part of `--short`.
    short: bool,
}

const MACHINES: &[Machine] = &[
    Machine { name: "5.10", series: "5.10", cgroups: Cgroups::V2, append: "", short: false },
    Machine { name: "5.10-v1", series: "5.10", cgroups: Cgroups::V1, append: "", short: false },
    Machine { name: "6.1", series: "6.1", cgroups: Cgroups::V2, append: "", short: false },
    Machine { name: "6.1-v1", series: "6.1", cgroups: Cgroups::V1, append: "", short: false },
    Machine { name: "6.12", series: "6.12", cgroups: Cgroups::V2, append: "", short: true },
    Machine { name: "7.2", series: "7.2", cgroups: Cgroups::V2, append: "", short: false },
    // BPF may read no kernel memory there: the fallbacks carry everything.
    Machine {
        name: "7.2-lockdown",
        series: "7.2",
        cgroups: Cgroups::V2,
        append: "lockdown=confidentiality",
        short: false,
    },
];

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// One kernel alone, unless some are named
    #[arg(long)]
    short: bool,
    /// Show what the guests print
    #[arg(long)]
    verbose: bool,
    /// 5.10, 5.10-v1, 6.1, 6.1-v1, 6.12, 7.2, 7.2-lockdown; all without any
    #[arg(value_name = "KERNEL")]
    kernels: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Args { json, short, verbose, kernels } = args;
    let chosen = choose(kernels, *short)?;
    let tools = setup::ensure(&[Need::Bpf, Need::Musl, Need::Guests])?;
    let programs = build::static_programs(&["eviction-agent", "tests"], &tools)?;
    let cache = Cache::open()?;
    let ramdisk = Ramdisk::pack(&programs)?;
    let mut all = Vec::new();
    for machine in chosen {
        eprintln!("vm: {}: fetching its kernel, if it is not here", machine.name);
        let kernel = cache.kernel(machine.series)?;
        eprintln!("vm: {}: booting {}", machine.name, kernel.version);
        let told = Guest { machine, kernel: &kernel, ramdisk: &ramdisk, verbose: *verbose }.run()?;
        eprint!("{}", table::summary(machine, &told));
        if *json {
            told.stories.iter().for_each(|story| println!("{}", story.line(machine.name)));
        }
        all.push((machine, told));
    }
    let failed = all.iter().map(|(_, told)| told.failed()).sum::<usize>();
    let passed = all.iter().map(|(_, told)| told.passed()).sum::<usize>();
    let skipped = all.iter().map(|(_, told)| told.skipped()).sum::<usize>();
    let text = table::render(&all);
    if *json {
        eprint!("{text}");
        println!("{}", json!({"task": "vm", "passed": passed, "failed": failed, "skipped": skipped}));
    } else {
        print!("{text}");
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn choose(names: &[String], short: bool) -> Result<Vec<&'static Machine>> {
    if let Some(name) = names.iter().find(|name| MACHINES.iter().all(|machine| machine.name != name.as_str()))
    {
        let known: Vec<_> = MACHINES.iter().map(|machine| machine.name).collect();
        bail!("vm: there is no kernel `{name}`; there are {}", known.join(", "));
    }
    let is_chosen = |machine: &&Machine| match names {
        [] => !short || machine.short,
        names => names.iter().any(|name| name == machine.name),
    };
    Ok(MACHINES.iter().filter(is_chosen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(asked: &[&str], short: bool) -> Vec<&'static str> {
        let asked: Vec<_> = asked.iter().map(|name| (*name).to_owned()).collect();
        choose(&asked, short).unwrap().iter().map(|machine| machine.name).collect()
    }

    #[test]
    fn all_or_those_that_are_named() {
        assert_eq!(names(&[], false).len(), MACHINES.len());
        assert_eq!(names(&[], true), ["6.12"]);
        assert_eq!(names(&["7.2", "6.1-v1"], true), ["6.1-v1", "7.2"]);
        let error = choose(&["4.19".to_owned()], false).unwrap_err().to_string();
        assert!(error.contains("`4.19`") && error.contains("6.12"), "{error}");
    }
}
