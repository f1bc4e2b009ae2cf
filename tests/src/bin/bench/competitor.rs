//! Other programs that watch a node: Debian's packages, unmodified.
//!
//! Each program that ends processes runs in its own process namespace, which contains only the program and the
//! processes that it must end.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ::tests::agent;
use ::tests::clock;
use ::tests::interrupt::Interrupt;
use ::tests::node::MIB;
use ::tests::process::Process;
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// The time for a program to start and to read the machine's memory for the first time.
const WARM: Duration = Duration::from_millis(1500);

/// A program that watches a node and is compared with the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Competitor {
    Earlyoom,
    Nohang,
}

impl Competitor {
    pub(crate) const ALL: [Self; 2] = [Self::Earlyoom, Self::Nohang];

    /// Returns the name in rows, with the version that the setup installs.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Earlyoom => "earlyoom 1.7",
            Self::Nohang => "nohang 0.2",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Earlyoom => "earlyoom",
            Self::Nohang => "nohang",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|competitor| competitor.name() == name)
    }

    /// Returns the greatest threshold that the program accepts on a machine with `total` bytes of memory,
    /// bytes.
    pub(crate) fn greatest_threshold(self, total: u64) -> u64 {
        match self {
            Self::Earlyoom => total,
            // nohang rejects half of the memory and more as an invalid value.
            Self::Nohang => total / 2,
        }
    }

    /// Returns the program's command with the default configuration.
    pub(crate) fn by_default(self, folder: Option<&Path>) -> Result<Command> {
        Ok(match self {
            Self::Earlyoom => command(folder, "usr/bin/earlyoom", ["-r", "3600"]),
            Self::Nohang => {
                let config = path_in(folder, "etc/nohang/nohang.conf").display().to_string();
                command(folder, "usr/sbin/nohang", ["--monitor", "--config", &config])
            }
        })
    }

    /// Starts the program with the threshold of [`Self::with_threshold`], and waits for [`WARM`] and a random part
    /// of half a second. Fails if the program has ended by then.
    pub(crate) fn start(
        self,
        threshold: u64,
        folder: Option<&Path>,
        scratch: &Path,
        interrupt: &Interrupt,
    ) -> Result<Process> {
        let mut process = Process::spawn(&mut self.with_threshold(threshold, folder, scratch)?)?;
        // A run starts at any moment of the program's timers.
        interrupt.sleep(WARM + Duration::from_nanos(clock::now() % 500_000_000))?;
        if !process.is_running()? {
            bail!("{} ended by itself: {}", self.name(), agent::describe(process.wait()?));
        }
        Ok(process)
    }

    /// Returns a command that sends SIGKILL when the machine has less than `bytes` available; `scratch` is a
    /// folder of the caller.
    fn with_threshold(self, bytes: u64, folder: Option<&Path>, scratch: &Path) -> Result<Command> {
        match self {
            Self::Earlyoom => {
                let kib = (bytes / 1024).to_string();
                // From the second value on, earlyoom sends SIGKILL instead of SIGTERM. It also waits for swap
                // to be short, which it always is at 100 %.
                let memory = format!("{kib},{kib}");
                Ok(command(folder, "usr/bin/earlyoom", ["-p", "-r", "0", "-M", &memory, "-s", "100,100"]))
            }
            Self::Nohang => {
                let config = scratch.join("nohang.conf");
                let shipped = path_in(folder, "etc/nohang/nohang.conf");
                let text = std::fs::read_to_string(&shipped)
                    .with_context(|| format!("read {}", shipped.display()))?;
                std::fs::write(&config, with_thresholds(&text, bytes / MIB)?)
                    .with_context(|| format!("write {}", config.display()))?;
                let config = config.display().to_string();
                Ok(command(folder, "usr/sbin/nohang", ["--monitor", "--config", &config]))
            }
        }
    }
}

/// Returns the shipped configuration with both thresholds at `mib` MiB: the hard one sends SIGKILL.
fn with_thresholds(text: &str, mib: u64) -> Result<String> {
    let keys = ["soft_threshold_min_mem", "hard_threshold_min_mem"];
    let has_key = |line: &str, key: &str| line.split('=').next().is_some_and(|name| name.trim() == key);
    if let Some(key) = keys.iter().find(|key| !text.lines().any(|line| has_key(line, key))) {
        bail!("the configuration of nohang has no {key}");
    }
    let line = |line: &str| match keys.iter().find(|key| has_key(line, key)) {
        Some(key) => format!("{key} = {mib} M\n"),
        None => format!("{line}\n"),
    };
    Ok(text.lines().map(line).collect())
}

/// Returns the command of a program in `folder`, which is laid out like `/`, or of the machine.
fn command<S: AsRef<OsStr>>(
    folder: Option<&Path>,
    path: &str,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(path_in(folder, path));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn path_in(folder: Option<&Path>, path: &str) -> PathBuf {
    folder.unwrap_or(Path::new("/")).join(path)
}

/// Returns the command in its own process namespace, which ends with it.
pub(crate) fn in_own_namespace(command: &Command) -> Command {
    let mut outer = Command::new("unshare");
    outer.args(["--pid", "--fork", "--kill-child=KILL", "--mount-proc"]);
    outer.arg(command.get_program()).args(command.get_args());
    outer.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    outer
}

/// Returns the command that runs a subcommand of this program. `folder` has the competitors.
pub(crate) fn own_command(subcommand: &str, folder: Option<&Path>) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.arg(subcommand);
    if let Some(folder) = folder {
        command.arg("--competitors-folder").arg(folder);
    }
    Ok(command)
}

/// Runs a command in its own process namespace until it ends, and returns the JSON that it prints.
///
/// # Errors
/// If it cannot be run, fails, or prints something else.
pub(crate) fn output_in_own_namespace(inside: &Command, name: &str, interrupt: &Interrupt) -> Result<Value> {
    let mut outer = in_own_namespace(inside);
    outer.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut process = Process::spawn(&mut outer)?;
    let out = process.child().stdout.take().context("the output of the namespace")?;
    let text = std::io::read_to_string(out).context("read from the namespace")?;
    let status = process.wait()?;
    interrupt.check()?;
    ensure!(status.success(), "{name} in its namespace: {}", agent::describe(status));
    serde_json::from_str(&text).with_context(|| format!("the output was `{text}`"))
}

/// Returns the command of node-exporter and the address at which it listens.
pub(crate) fn node_exporter(folder: Option<&Path>) -> Result<(Command, SocketAddr)> {
    // The port was free a moment ago, and no other process requests it here.
    let free = TcpListener::bind("127.0.0.1:0").context("find a free port")?.local_addr()?;
    let listen = format!("--web.listen-address={free}");
    Ok((command(folder, "usr/bin/prometheus-node-exporter", [listen]), free))
}

/// Returns the ID of the first child of a process.
pub(crate) fn child_of(process: &Process) -> Result<Option<u32>> {
    let pid = process.pid();
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    text.split_whitespace().next().map(|pid| pid.parse().context("the id of a child")).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_nohang_thresholds_are_set_and_other_lines_stay() {
        let shipped = "a = 1\n  soft_threshold_min_mem = 5 %\n# hard_threshold_min_mem = x\nhard_threshold_min_mem = 2 %\n";
        let set = with_thresholds(shipped, 300).unwrap();
        assert_eq!(
            set,
            "a = 1\nsoft_threshold_min_mem = 300 M\n# hard_threshold_min_mem = x\nhard_threshold_min_mem = 300 M\n"
        );
        assert!(with_thresholds("a = 1\n", 300).is_err());
    }
}
