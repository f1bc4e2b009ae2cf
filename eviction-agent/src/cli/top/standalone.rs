//! An agent that runs while `top` is shown, for nodes without a running agent.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::cli::client::SocketArgs;
use crate::daemon::{Failure, TIMER, backend_names};

/// The interval in which the child is checked, and the timeouts of its start and stop.
const POLL: Duration = Duration::from_millis(50);
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The running agent. It takes no action and attaches no BPF program. Dropping this value ends it.
#[derive(Debug)]
pub(super) struct Standalone {
    child: Child,
    directory: PathBuf,
}

impl Standalone {
    /// Starts the agent with these options of `run`, and waits until it answers.
    ///
    /// # Errors
    /// The errors that the agent reports, or if it cannot be started.
    pub(super) fn start(options: &[OsString]) -> Result<(Self, SocketArgs), Failure> {
        let failed = |error: io::Error| Failure::because("start an agent for top", &error);
        let directory = std::env::temp_dir().join(format!("eviction-agent-top-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&directory).map_err(failed)?;
        let log = File::create(directory.join("log"));
        let started = log.and_then(|log| {
            let mut command = Command::new("/proc/self/exe");
            command.args(["run", "--action=none", "--dry-run=none", "--listen-address=127.0.0.1:0"]);
            command.arg("--socket").arg(directory.join("agent.sock"));
            for name in backend_names().filter(|name| *name != TIMER) {
                command.args(["--disable-backend", name]);
            }
            command.args(options).env("RUST_LOG", "error");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            let end_with_parent = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
            // SAFETY: one system call, no allocation and no lock between fork and exec.
            unsafe { command.pre_exec(end_with_parent) };
            command.spawn()
        });
        let child = started.inspect_err(|_| drop(fs::remove_dir_all(&directory))).map_err(failed)?;
        let mut agent = Self { child, directory };
        let socket = SocketArgs { socket: agent.directory.join("agent.sock") };
        let begin = Instant::now();
        while !socket.has_agent() {
            let ended = agent.child.try_wait().map_err(failed)?;
            if ended.is_some() || begin.elapsed() > START_TIMEOUT {
                return Err(agent.failure());
            }
            std::thread::sleep(POLL);
        }
        Ok((agent, socket))
    }

    /// Returns the errors that the agent reports.
    fn failure(&self) -> Failure {
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let errors = log.lines().filter_map(|line| line.strip_prefix("error: "));
        let causes: Vec<_> = errors.map(|why| format!("start an agent for top: {why}")).collect();
        if causes.is_empty() {
            return Failure::failed("start an agent for top: it does not answer");
        }
        Failure::all(causes)
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        // Each call fails only for a process that has ended.
        let _ended = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begin = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if begin.elapsed() > STOP_TIMEOUT {
                drop(self.child.kill());
                drop(self.child.wait());
            }
            std::thread::sleep(POLL);
        }
        drop(fs::remove_dir_all(&self.directory));
    }
}
