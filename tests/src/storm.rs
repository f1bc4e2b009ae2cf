//! Drives the program `storm`: a process in each of many cgroups that fires the kernel's hooks.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Returns how much memory the process of the cgroup with this number holds, bytes.
pub fn held_bytes(group: usize) -> usize {
    (1 + group % 16) * (64 << 10)
}

/// A running storm. Dropping it ends all of its processes.
#[derive(Debug)]
pub struct Storm {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Storm {
    /// Starts a process in each of these cgroups of the memory controller; the processes wait.
    ///
    /// # Errors
    /// If the program cannot be started, or a process cannot join its cgroup.
    pub fn start(program: &Path, groups: &[PathBuf]) -> Result<Self> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("the storm's output")?);
        let mut storm = Self { child, input, output };
        for group in groups {
            storm.send(&group.join("cgroup.procs").display().to_string())?;
        }
        storm.send("")?;
        storm.expect("ready")?;
        Ok(storm)
    }

    /// Lets the processes run.
    ///
    /// # Errors
    /// If the storm has ended.
    pub fn go(&mut self) -> Result<()> {
        self.send("go")
    }

    /// Stops the processes. They keep the memory that they hold, and some hold a little more.
    ///
    /// # Errors
    /// If the storm has ended.
    pub fn pause(&mut self) -> Result<()> {
        self.send("pause")?;
        self.expect("paused")
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("the storm's input")?;
        writeln!(input, "{line}").context("send to the storm")
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("hear the storm")?;
        ensure!(line.trim_end() == word, "the storm says {line:?}, not {word}");
        Ok(())
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        // The program ends with its input, and its processes with it.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
