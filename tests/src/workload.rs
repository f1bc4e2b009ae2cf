//! Starts the `workload` program of this package.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::cgroup::Group;
use crate::process::Process;

/// Finds the program.
///
/// # Errors
/// If there is none.
pub fn binary() -> Result<PathBuf> {
    crate::binary::find("workload")
}

/// A running workload that has joined its cgroup and waits for the go. It is killed when it is dropped.
#[derive(Debug)]
pub struct Workload {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Workload {
    /// Starts `workload <mode> <arguments>` inside `group` and waits until it is ready.
    pub fn start<S: AsRef<OsStr>>(group: &Group, arguments: impl IntoIterator<Item = S>) -> Result<Self> {
        let mut join = std::ffi::OsString::new();
        for dir in group.dirs() {
            if !join.is_empty() {
                join.push(",");
            }
            join.push(dir);
        }
        let mut command = Command::new(binary()?);
        command.arg("--wait").arg("--join").arg(join).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command)?;
        let input = process.child().stdin.take().context("no standard input")?;
        let output = process.child().stdout.take().context("no standard output")?;
        let mut workload = Self { process, input, output: BufReader::new(output) };
        workload.wait_event("ready")?;
        Ok(workload)
    }

    /// Starts a workload and lets it go at once.
    pub fn run<S: AsRef<OsStr>>(group: &Group, arguments: impl IntoIterator<Item = S>) -> Result<Self> {
        let mut workload = Self::start(group, arguments)?;
        workload.go()?;
        Ok(workload)
    }

    /// Starts a workload that holds `size`, and waits until it does.
    pub fn hold(group: &Group, size: &str) -> Result<Self> {
        let mut workload = Self::run(group, ["hold", "--size", size])?;
        workload.wait_event("holding")?;
        Ok(workload)
    }

    /// Lets it begin.
    pub fn go(&mut self) -> Result<()> {
        self.input.write_all(b"go\n").context("send the go to a workload")
    }

    /// Reads its lines until one has the event `event`, and returns that one. Blocks while the workload runs
    /// and prints nothing.
    pub fn wait_event(&mut self, event: &str) -> Result<Value> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line).context("read from a workload")?;
            if read == 0 {
                bail!("workload {} ended before {event:?}", self.pid());
            }
            let value: Value =
                serde_json::from_str(&line).with_context(|| format!("line of a workload: {line:?}"))?;
            if value["event"] == event {
                return Ok(value);
            }
        }
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
