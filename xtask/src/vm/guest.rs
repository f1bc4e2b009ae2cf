//! One guest: booted, listened to, and ended.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::init::{END, MARK, Ramdisk};
use super::kernels::Kernel;
use super::{Cgroups, Machine};

/// Emulated, a guest takes a minute or two; a busy host takes longer.
const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// Bytes of the guest's disk: the page cache is filled from it.
const DISK: u64 = 3 << 30;

/// A guest to be.
pub(super) struct Guest<'a> {
    pub(super) machine: &'a Machine,
    pub(super) kernel: &'a Kernel,
    pub(super) ramdisk: &'a Ramdisk,
    pub(super) verbose: bool,
}

/// What a guest told.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Told {
    /// `uname -r`; empty if it did not boot.
    pub(super) release: String,
    /// Source and rung, as `check` has them.
    pub(super) rungs: Vec<(String, String)>,
    pub(super) stories: Vec<Story>,
    /// What went wrong beside the stories.
    pub(super) wrong: Vec<String>,
}

/// A story of the demo.
#[derive(Debug, PartialEq)]
pub(super) struct Story {
    pub(super) name: String,
    /// Nothing if it was skipped.
    pub(super) ok: Option<bool>,
    pub(super) why: String,
    line: Value,
}

impl Story {
    /// As the demo told it, with the kernel.
    pub(super) fn line(&self, kernel: &str) -> Value {
        let mut line = self.line.clone();
        line["kernel"] = json!(kernel);
        line
    }
}

impl Told {
    pub(super) fn passed(&self) -> usize {
        self.stories.iter().filter(|story| story.ok == Some(true)).count()
    }

    pub(super) fn failed(&self) -> usize {
        self.stories.iter().filter(|story| story.ok == Some(false)).count() + self.wrong.len()
    }

    pub(super) fn skipped(&self) -> usize {
        self.stories.iter().filter(|story| story.ok.is_none()).count()
    }
}

/// Ends the emulator, whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guest<'_> {
    pub(super) fn run(&self) -> Result<Told> {
        let disk = self.ramdisk.file.with_file_name("disk");
        File::create(&disk).and_then(|file| file.set_len(DISK)).context("make the guest's disk")?;
        crate::shell::read(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk))?;
        let mut running = Running(self.command(&disk).spawn().context("run qemu-system-x86_64")?);
        let output = running.0.stdout.take().context("the guest's output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut heard = Vec::new();
        let start = Instant::now();
        let ended = loop {
            match lines.recv_timeout(PATIENCE.saturating_sub(start.elapsed())) {
                Ok(line) => {
                    if self.verbose {
                        eprintln!("{}: {line}", self.machine.name);
                    }
                    let is_end = line.strip_prefix(MARK) == Some(END);
                    heard.push(line);
                    if is_end {
                        break Ok(());
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break Err("it ended before its last word"),
                Err(mpsc::RecvTimeoutError::Timeout) => break Err("it did not end in time"),
            }
        };
        if running.0.try_wait().context("wait for the guest")?.is_none()
            && ended.is_err()
            && start.elapsed() < PATIENCE
        {
            bail!("vm: {}: its output ended while it ran", self.machine.name);
        }
        let mut told = understand(&heard);
        if let Err(why) = ended {
            let last = heard.iter().rev().find(|line| !line.is_empty()).map_or("nothing", String::as_str);
            told.wrong.push(format!("{why}; it said last: {last}"));
        }
        Ok(told)
    }

    fn command(&self, disk: &std::path::Path) -> Command {
        let Machine { cgroups, append, .. } = self.machine;
        let cgroups = match cgroups {
            Cgroups::V1 => "v1",
            Cgroups::V2 => "v2",
        };
        let mut command = Command::new("qemu-system-x86_64");
        command
            // Its 16-byte compare-and-exchange goes wrong in some versions.
            .args(["-accel", "tcg,thread=multi", "-cpu", "max,-cx16", "-m", "1280", "-smp", "2"])
            .args(["-nographic", "-no-reboot", "-nic", "none"])
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(&self.ramdisk.file)
            .arg("-drive")
            .arg(format!("file={},if=none,id=disk,format=raw,cache=unsafe", disk.display()))
            .args(["-device", "nvme,drive=disk,serial=disk"])
            .arg("-append")
            .arg(format!("console=ttyS0 quiet loglevel=1 psi=1 panic=-1 eviction_cgroups={cgroups} {append}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        command
    }
}

/// What the lines of a guest say.
fn understand(lines: &[String]) -> Told {
    let mut told = Told::default();
    let release = section(lines, "release");
    told.release = release.first().map(|line| (*line).clone()).unwrap_or_default();
    if told.release.is_empty() {
        told.wrong.push("it did not boot".to_owned());
        return told;
    }
    let check: String = section(lines, "check").iter().map(|line| line.as_str()).collect();
    match serde_json::from_str::<Value>(&check) {
        Ok(findings) => {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let sources = findings["sources"].as_array().into_iter().flatten();
            told.rungs = sources.map(|source| (text(&source["source"]), text(&source["rung"]))).collect();
            if findings["would_start"] != json!(true) {
                told.wrong.push(format!("run would not start: {}", findings["problems"]));
            }
        }
        Err(error) => told.wrong.push(format!("check: {error}")),
    }
    let parsed =
        section(lines, "demo").into_iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    for line in parsed.filter(|line| line.get("story").is_some()) {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let skipped = line.get("skipped").is_some_and(|skipped| *skipped != json!(false));
        let ok = if skipped { None } else { Some(line["ok"] == json!(true)) };
        told.stories.push(Story { name: text("story"), ok, why: text("why"), line });
    }
    if told.stories.is_empty() {
        told.wrong.push("the demo told no story".to_owned());
    }
    let leftovers = section(lines, "leftovers");
    if !leftovers.is_empty() {
        told.wrong.push(format!("{} cgroups are left over", leftovers.len()));
    }
    told
}

/// The lines between a mark and the next.
fn section<'a>(lines: &'a [String], name: &str) -> Vec<&'a String> {
    lines
        .iter()
        .skip_while(|line| line.strip_prefix(MARK) != Some(name))
        .skip(1)
        .take_while(|line| !line.starts_with(MARK))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_a_guest_says_is_understood() {
        let told = understand(&lines(
            "SeaBIOS\n@@vm release\n6.1.0\n@@vm check\n{\"would_start\": true,\n \"sources\": [{\"source\": \"oom\", \"rung\": \"r\"}]}\n\
             @@vm demo\nhard: a tale\n{\"story\": \"hard\", \"ok\": true}\n{\"story\": \"soft\", \"ok\": false, \"why\": \"late\"}\n\
             {\"task\": \"demo\"}\n@@vm leftovers\n@@vm end\n",
        ));
        assert_eq!(told.release, "6.1.0");
        assert_eq!(told.rungs, [("oom".to_owned(), "r".to_owned())]);
        assert_eq!((told.passed(), told.failed(), told.skipped()), (1, 1, 0));
        assert_eq!(told.stories[1].why, "late");
        assert_eq!(told.stories[0].line("6.1")["kernel"], json!("6.1"));
    }

    #[test]
    fn a_guest_that_does_not_boot_or_leaves_something_has_failed() {
        assert_eq!(understand(&lines("SeaBIOS\nKernel panic\n")).failed(), 1);
        let told = understand(&lines(
            "@@vm release\n6.1\n@@vm check\nnothing\n@@vm demo\n@@vm leftovers\n/sys/fs/cgroup/x\n",
        ));
        assert_eq!(told.failed(), 3, "{told:?}");
    }
}
