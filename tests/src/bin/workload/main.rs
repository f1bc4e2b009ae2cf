//! Processes that put pressure on a node in one defined way, for tests, the demo and benchmarks.
//!
//! Every mode is limited by its own arguments, and ends with the thread that started it. Events are printed on
//! standard output as JSON lines `{"event": …, "pid": …, "ns": …}` with CLOCK_MONOTONIC nanoseconds; `--stamps`
//! writes a finer record that survives SIGKILL (see `tests::stamps`).

mod cli;
mod disk;
mod forks;
mod grow;
mod lifeline;
mod measure;
mod pace;
mod region;
mod term;

use std::fs::File;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use tests::clock;
use tests::stamps::Writer;

use crate::cli::{Cli, Mode};
use crate::grow::Growth;
use crate::region::{Anonymous, Pages, Region as _};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: workload: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::too_many_lines, reason = "an arm a mode")]
fn run(cli: Cli) -> Result<()> {
    let Cli { wait, join, chroot, stamps, on_term, term_delay, mode } = cli;
    let parent = getppid().context("no parent process to die with")?;
    die_with_parent(parent)?;
    let stamps = match stamps {
        Some(path) => Writer::create(&path)?,
        None => Writer::discarding()?,
    };
    term::install(stamps, on_term, term_delay)?;

    // Memory that is only touched to warm it up is charged to the cgroup that started the workload.
    let growth = match &mode {
        Mode::Grow { growth, .. }
        | Mode::Spike { growth, .. }
        | Mode::Child { growth, .. }
        | Mode::Hold { growth } => Some(Growth::prepare(growth)?),
        Mode::Cache { cache, .. } => Some(Growth::prepare_cache(cache)?),
        Mode::Forks(_)
        | Mode::Lock { .. }
        | Mode::Busy { .. }
        | Mode::Churn { .. }
        | Mode::Write { .. }
        | Mode::Allocate { .. }
        | Mode::Create { .. }
        | Mode::Measure { .. } => None,
    };
    for group in join {
        let file = group.join("cgroup.procs");
        std::fs::write(&file, std::process::id().to_string())
            .with_context(|| format!("join cgroup {}", group.display()))?;
    }
    if let Some(root) = chroot {
        rustix::process::chroot(&root).with_context(|| format!("change the root to {}", root.display()))?;
    }
    print_event("ready", &[]);
    if wait && !read_go(std::io::stdin().lock())? {
        return Ok(());
    }

    stamps.go();
    print_event("go", &[]);
    match mode {
        Mode::Grow { exit, .. } => {
            let growth = growth.context("nothing prepared")?.run(stamps)?;
            print_event("grown", &[("bytes", growth.touched())]);
            if !exit {
                hold_forever();
            }
        }
        Mode::Hold { .. } => {
            let growth = growth.context("nothing prepared")?.run(stamps)?;
            print_event("holding", &[("bytes", growth.touched())]);
            hold_forever();
        }
        Mode::Spike { hold, .. } => {
            let growth = growth.context("nothing prepared")?.run(stamps)?;
            print_event("grown", &[("bytes", growth.touched())]);
            std::thread::sleep(hold);
            drop(growth);
            print_event("freed", &[]);
            hold_forever();
        }
        Mode::Cache { again, .. } => {
            let mut growth = growth.context("nothing prepared")?.run(stamps)?;
            print_event("cached", &[("bytes", growth.touched())]);
            if !again {
                hold_forever();
            }
            loop {
                growth = growth.run(stamps)?;
            }
        }
        Mode::Child { times, .. } => {
            let growth = growth.context("nothing prepared")?;
            let parent = getpid();
            for _ in 0..times {
                let Some(child) = forks::fork()? else {
                    die_with_parent(parent)?;
                    growth.run(stamps)?;
                    hold_forever();
                };
                print_event("child", &[("child", child.as_raw_nonzero().get() as u64)]);
                let (code, signal) = forks::wait(child)?;
                print_event("child-ended", &[("code", code), ("signal", signal)]);
            }
            hold_forever();
        }
        Mode::Forks(forks) => forks::run(&forks, parent, stamps)?,
        Mode::Churn { size } => {
            let mut region = Anonymous::map(size, Pages::Small)?;
            loop {
                region.touch(0, size)?;
                region.give_back()?;
            }
        }
        Mode::Write { file, size, rate, how, block } => {
            let _open = disk::write(&file, size, rate, how, block, stamps)?;
            hold_forever();
        }
        Mode::Allocate { file, size } => {
            let _open = disk::allocate(&file, size)?;
            hold_forever();
        }
        Mode::Create { dir, max, rate } => {
            disk::create(&dir, max, rate, stamps)?;
            hold_forever();
        }
        Mode::Measure { what, count, dir } => measure::run(what, count, dir.as_deref())?,
        Mode::Lock { dir } => {
            let folder = File::open(&dir).with_context(|| format!("open {}", dir.display()))?;
            flock(&folder, FlockOperation::NonBlockingLockExclusive)
                .with_context(|| format!("lock {}", dir.display()))?;
            print_event("locked", &[]);
            hold_forever();
        }
        Mode::Busy { threads } => busy(threads),
    }
    Ok(())
}

fn die_with_parent(parent: Pid) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("ask to die with the parent")?;
    if getppid() != Some(parent) {
        bail!("the parent is gone already");
    }
    Ok(())
}

/// Returns whether a line was read before the end of the input.
fn read_go(mut input: impl std::io::BufRead) -> Result<bool> {
    let mut line = String::new();
    let read = input.read_line(&mut line).context("wait for the go")?;
    Ok(read > 0)
}

/// Prints one JSON line at once.
fn print_event(event: &str, values: &[(&str, u64)]) {
    let mut line = format!(r#"{{"event":"{event}","pid":{},"ns":{}"#, std::process::id(), clock::now());
    for (key, value) in values {
        line.push_str(&format!(r#","{key}":{value}"#));
    }
    line.push_str("}\n");
    // A closed output is no reason to stop.
    let _ = std::io::stdout().write_all(line.as_bytes());
    let _ = std::io::stdout().flush();
}

/// Keeps what is held until a signal ends the process.
fn hold_forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn busy(threads: u32) -> ! {
    for _ in 1..threads {
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    loop {
        std::hint::spin_loop();
    }
}
