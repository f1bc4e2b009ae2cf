//! Processes that press on a node in one defined way, for tests, the demo and benchmarks.
//!
//! Every mode is bounded by its own arguments, and ends with the thread that started it. Standard
//! output tells what happens as JSON lines `{"event": …, "pid": …, "ns": …}` with CLOCK_MONOTONIC
//! nanoseconds; `--stamps` keeps a finer record that outlives SIGKILL (see `tests::stamps`).

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
    let Cli { wait, join, stamps, on_term, term_delay, mode } = cli;
    let parent = getppid().context("no parent process to die with")?;
    die_with(parent)?;
    let stamps = match stamps {
        Some(path) => Writer::create(&path)?,
        None => Writer::nowhere()?,
    };
    term::install(stamps, on_term, term_delay)?;

    // Memory that is only touched to warm it up is charged to whoever started the workload.
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
        | Mode::Create { .. }
        | Mode::Measure { .. } => None,
    };
    for group in join {
        let file = group.join("cgroup.procs");
        std::fs::write(&file, std::process::id().to_string())
            .with_context(|| format!("join cgroup {}", group.display()))?;
    }
    say("ready", &[]);
    if wait && !has_go(std::io::stdin().lock())? {
        return Ok(());
    }

    stamps.go();
    say("go", &[]);
    match mode {
        Mode::Grow { exit, .. } => {
            let growth = growth.context("nothing prepared")?.run(stamps)?;
            say("grown", &[("bytes", growth.touched())]);
            if !exit {
                rest();
            }
        }
        Mode::Hold { .. } => {
            let growth = growth.context("nothing prepared")?.run(stamps)?;
            say("holding", &[("bytes", growth.touched())]);
            rest();
        }
        Mode::Spike { hold, .. } => {
            let growth = growth.context("nothing prepared")?.run(stamps)?;
            say("grown", &[("bytes", growth.touched())]);
            std::thread::sleep(hold);
            drop(growth);
            say("freed", &[]);
            rest();
        }
        Mode::Cache { again, .. } => {
            let mut growth = growth.context("nothing prepared")?.run(stamps)?;
            say("cached", &[("bytes", growth.touched())]);
            if !again {
                rest();
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
                    die_with(parent)?;
                    growth.run(stamps)?;
                    rest();
                };
                say("child", &[("child", child.as_raw_nonzero().get() as u64)]);
                let (code, signal) = forks::wait(child)?;
                say("child-ended", &[("code", code), ("signal", signal)]);
            }
            rest();
        }
        Mode::Forks(forks) => forks::run(&forks, parent, stamps)?,
        Mode::Churn { size } => {
            let mut region = Anonymous::map(size, Pages::Small)?;
            loop {
                region.touch(0, size)?;
                region.give_back()?;
            }
        }
        Mode::Write { file, size, rate } => {
            let _open = disk::write(&file, size, rate, stamps)?;
            rest();
        }
        Mode::Create { dir, max, rate } => {
            disk::create(&dir, max, rate, stamps)?;
            rest();
        }
        Mode::Measure { what, count, dir } => measure::run(what, count, dir.as_deref())?,
        Mode::Lock { dir } => {
            let folder = File::open(&dir).with_context(|| format!("open {}", dir.display()))?;
            flock(&folder, FlockOperation::NonBlockingLockExclusive)
                .with_context(|| format!("lock {}", dir.display()))?;
            say("locked", &[]);
            rest();
        }
        Mode::Busy { threads } => busy(threads),
    }
    Ok(())
}

fn die_with(parent: Pid) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("ask to die with the parent")?;
    if getppid() != Some(parent) {
        bail!("the parent is gone already");
    }
    Ok(())
}

/// Whether a line came before the end of the input.
fn has_go(mut input: impl std::io::BufRead) -> Result<bool> {
    let mut line = String::new();
    let read = input.read_line(&mut line).context("wait for the go")?;
    Ok(read > 0)
}

/// One JSON line, written at once.
fn say(event: &str, values: &[(&str, u64)]) {
    let mut line = format!(r#"{{"event":"{event}","pid":{},"ns":{}"#, std::process::id(), clock::now());
    for (key, value) in values {
        line.push_str(&format!(r#","{key}":{value}"#));
    }
    line.push_str("}\n");
    // Whoever started it may no longer listen; the work goes on.
    let _ = std::io::stdout().write_all(line.as_bytes());
    let _ = std::io::stdout().flush();
}

/// Keeps what is held until a signal ends the process.
fn rest() -> ! {
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
