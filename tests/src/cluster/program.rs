//! A program of the cluster: started with its output in a file, watched, and ended.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use crate::agent::describe;
use crate::process::{self, Process, die_with_parent};

/// The number of log lines that an error quotes.
const QUOTED: usize = 6;

/// A running program. It is killed when it is dropped, or when the thread that started it ends.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    process: Process,
    log: PathBuf,
}

impl Program {
    /// Starts the program, with its output appended to `<name>.log` in the folder.
    pub(crate) fn start(name: &'static str, command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("write {}", log.display()))?;
        command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("share a log")?)
            .stderr(file)
            // Limits the memory of Go programs, which have no limit by default.
            .env("GOMEMLIMIT", "1500MiB");
        die_with_parent(command);
        Ok(Self { name, process: Process::spawn(command)?, log })
    }

    /// Fails if the program has ended by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.process.child().try_wait().context("read the state of a child")? {
            None => Ok(()),
            Some(status) => bail!("{} ended ({}); {}", self.name, describe(status), self.tail()),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        process::signal(self.pid(), signal)
    }

    /// Kills the program with SIGKILL, and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.process.wait().with_context(|| format!("end {}", self.name))?;
        Ok(())
    }

    /// Returns the end of its log.
    pub(crate) fn tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let mut lines: Vec<&str> = text.lines().rev().take(QUOTED).collect();
        lines.reverse();
        format!("its log {} ends with: {}", self.log.display(), lines.join(" | "))
    }
}

/// Returns ports on which no process listens. Another process may take one before it is used; callers that
/// start a server then try again with others.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // All listeners stay open until all ports are known, so that no two are the same.
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
        *port = listener.local_addr().context("read the port found")?.port();
        held.push(listener);
    }
    Ok(ports)
}
