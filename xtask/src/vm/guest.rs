//! One guest: boots it, reads its output, and ends it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::Machine;
use super::init::{END, MARK};
use crate::build::Platform;
use crate::shell;

/// The timeout for a guest. Emulated, it takes some minutes; a busy host takes longer.
const TIMEOUT: Duration = Duration::from_secs(3 * 60 * 60);

/// The parts of a guest.
pub(super) struct Guest<'a> {
    pub(super) machine: &'a Machine,
    pub(super) image: &'a Path,
    pub(super) ramdisk: &'a Path,
    pub(super) disk: &'a Path,
    /// Whether its output is shown while it runs.
    pub(super) verbose: bool,
    /// Whether each of its CPUs has a thread of the emulator; otherwise they take turns on one.
    pub(super) thread_each: bool,
}

/// The process of the emulator, which ends when this is dropped.
struct QemuProcess(Child);

impl Drop for QemuProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guest<'_> {
    /// Runs the guest to its end. Its output is written to `log`, where it can be followed. If it ends too
    /// early, the host writes the reason to `log` as well.
    pub(super) fn run(&self, log: &mut File) -> Result<()> {
        let mut command = self.command();
        let mut process =
            QemuProcess(command.spawn().with_context(|| format!("run {}", shell::command_line(&command)))?);
        let output = process.0.stdout.take().context("the guest's output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut last = String::new();
        let start = Instant::now();
        let ended = loop {
            match lines.recv_timeout(TIMEOUT.saturating_sub(start.elapsed())) {
                Ok(line) => {
                    if self.verbose {
                        eprintln!("{}: {line}", self.machine.name);
                    }
                    writeln!(log, "{line}").context("keep what the guest says")?;
                    if line.strip_prefix(MARK) == Some(END) {
                        break None;
                    }
                    if !line.is_empty() {
                        last = line;
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break Some("it ended before its last word"),
                Err(mpsc::RecvTimeoutError::Timeout) => break Some("it did not end in time"),
            }
        };
        if let Some(why) = ended {
            writeln!(log, "{MARK}{ENDED_EARLY}{why}; it said last: {last}")
                .context("keep why the guest ended")?;
        }
        Ok(())
    }

    fn command(&self) -> Command {
        let Machine { append, platform, .. } = self.machine;
        let (console, machine): (_, &[&str]) = match platform {
            // QEMU's 16-byte compare-and-exchange goes wrong in some versions. Its `rep stosb` works byte by
            // byte, and at some bytes a second on a page that had code in it: the guest must not use it to
            // clear its pages. Five levels of page tables, and the checks of the kernel's own access, cost time
            // at each access and each system call.
            Platform::Amd64 => ("ttyS0", &["-cpu", "max,-cx16,-erms,-fsrm,-la57,-smap,-smep,-pku"]),
            // Without pointer authentication, which is slow when emulated.
            Platform::Arm64 => ("ttyAMA0", &["-machine", "virt", "-cpu", "cortex-a72"]),
        };
        let accelerator = if self.thread_each { "tcg,thread=multi" } else { "tcg,thread=single" };
        // A task that is ended by a signal runs no destructors, and the guest would run for hours.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(format!("qemu-system-{}", platform.rpm_arch()))
            .args(["-accel", accelerator])
            .args(machine)
            .args(["-m", "1280", "-smp", "2"])
            .args(["-nographic", "-no-reboot", "-nic", "none"])
            .arg("-kernel")
            .arg(self.image)
            .arg("-initrd")
            .arg(self.ramdisk)
            .arg("-drive")
            .arg(format!("file={},if=none,id=disk,format=raw,cache=unsafe", self.disk.display()))
            .args(["-device", "nvme,drive=disk,serial=disk"])
            .arg("-append")
            // An emulated CPU does not speculate, and the mitigations make everything a quarter slower.
            .arg(format!("console={console} quiet loglevel=1 psi=1 panic=-1 mitigations=off {append}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        command
    }
}

/// The mark of the line that the host writes into a guest's log: why the guest ended too early.
pub(super) const ENDED_EARLY: &str = "wrong ";

/// The mark of the host's line in a guest's log.
pub(super) const HOST: &str = "host ";

/// Describes the kernel's package and the current state of the host, on which the values of a guest depend.
pub(super) fn describe_host(package: &str) -> String {
    let day =
        shell::read(Command::new("date").args(["--utc", "+%Y-%m-%d"])).map(|text| text.trim().to_owned());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let day = day.unwrap_or_else(|_| "some day".to_owned());
    format!("{package}, {day}, load {load} on {cpus} CPUs")
}
