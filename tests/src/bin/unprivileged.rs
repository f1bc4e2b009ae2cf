//! Runs a program as an ordinary user with exactly these capabilities: `unprivileged --capabilities BPF,PERFMON
//! -- eviction-agent check`. The limit of its locked memory is that of kernels before 5.16, on every kernel:
//! otherwise a small program could lock all of its memory without a capability.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::Parser;
use rustix::process::{Resource, Rlimit, setrlimit};
use tests::privileges;

/// `MLOCK_LIMIT` of include/uapi/linux/resource.h before 5.16.
const LOCKED: u64 = 64 << 10;

#[derive(Debug, Parser)]
#[command(about = "Runs a program as an ordinary user with exactly these capabilities")]
struct Args {
    /// Without CAP_, for instance BPF,PERFMON
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    capabilities: Vec<String>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("error: unprivileged: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<std::convert::Infallible> {
    let Args { capabilities, command } = args;
    let names: Vec<&str> = capabilities.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    let limit = Rlimit { current: Some(LOCKED), maximum: Some(LOCKED) };
    setrlimit(Resource::Memlock, limit).context("limit locked memory")?;
    privileges::keep_only(&names)?;
    let (program, arguments) = command.split_first().context("no program")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("run {}", program.display()))
}
