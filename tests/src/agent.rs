//! The agent as a program: started as a user starts it, listened to line by line, and ended.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::clock;
use crate::interrupt::{Interrupt, LOOK};
use crate::metrics::Metrics;
use crate::node::Node;
use crate::process::HANG;
use crate::process::die_with_parent;

mod options;
mod recording;

pub use options::Options;
pub use recording::Recording;

/// Finds the agent's binary: where the test task says, or beside the running program.
///
/// # Errors
/// If there is none.
pub fn binary() -> Result<PathBuf> {
    crate::binary::find("eviction-agent")
}

/// A configuration with which the agent acts at the kubelet's own threshold, so that figures are those
/// that a story set.
///
/// # Errors
/// If it cannot be written.
pub fn at_the_line(node: &Node) -> Result<PathBuf> {
    let file = node.file("agent.yaml");
    let text =
        "apiVersion: eviction-agent.io/v1alpha1\nkind: AgentConfiguration\nthresholdMargin: {mode: Never}\n";
    std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

/// A line that the agent printed.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When the line arrived, nanoseconds of `CLOCK_MONOTONIC`.
    pub heard_ns: u64,
    /// What it says.
    pub value: Value,
}

impl Event {
    /// Its kind.
    pub fn kind(&self) -> &str {
        self.text("event")
    }

    /// A field that is a text; empty where there is none.
    pub fn text(&self, field: &str) -> &str {
        self.value.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// The pod as `namespace/name`; empty where there is none.
    pub fn pod(&self) -> String {
        full_name(&self.value)
    }

    /// A field that is a whole number, none below zero.
    pub fn number(&self, field: &str) -> Option<u64> {
        self.value.get(field).and_then(Value::as_u64)
    }
}

/// The pod of an event, or of an entry of a list, as `namespace/name`; empty where there is none.
pub fn full_name(value: &Value) -> String {
    let text = |field| value.get(field).and_then(Value::as_str);
    text("namespace")
        .zip(text("pod"))
        .map_or_else(String::new, |(namespace, pod)| format!("{namespace}/{pod}"))
}

/// A running agent; ended, the hard way if need be, when it goes out of scope.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    lines: Receiver<Line>,
    heard: Vec<Event>,
    ended: bool,
    log: Log,
    interrupt: Interrupt,
    recording: Option<Recording>,
}

type Line = Result<Event, String>;

/// A guard against an agent that hangs, no measure of its speed.
pub const GUARD: Duration = HANG;

impl Agent {
    /// Starts the agent and waits until it says that it has.
    ///
    /// # Errors
    /// If it cannot be started, or ends at once: then with what it printed.
    pub fn start(options: &Options, interrupt: &Interrupt) -> Result<Self> {
        let mut agent = Self::spawn(options, interrupt)?;
        agent.wait_for("its `started` event", GUARD, |event| event.kind() == "started")?;
        Ok(agent)
    }

    /// The same. What it records is decided again when it has ended: a difference is a panic.
    ///
    /// # Errors
    /// As above, or if its configuration cannot be changed.
    pub fn start_recorded(options: &Options, interrupt: &Interrupt) -> Result<Self> {
        let (recording, options) = Recording::begin(options)?;
        let mut agent = Self::start(&options, interrupt)?;
        agent.recording = Some(recording);
        Ok(agent)
    }

    fn spawn(options: &Options, interrupt: &Interrupt) -> Result<Self> {
        let Options {
            binary,
            kubelet_config,
            pods,
            cgroup_root,
            memory_capacity,
            pid_capacity,
            action,
            config,
            more,
        } = options;
        let mut command = Command::new(binary);
        command
            .arg("run")
            .arg("--kubelet-config")
            .arg(kubelet_config)
            .args(["--cgroup-root", cgroup_root])
            .args(["--memory-capacity", &memory_capacity.to_string()])
            .args(["--pid-capacity", &pid_capacity.to_string()])
            .args(["--action", action, "--output", "json", "--listen-address", "127.0.0.1:0"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(pods) = pods {
            command.arg("--pods-file").arg(pods);
        }
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        die_with_parent(&mut command);
        let mut child = command.spawn().with_context(|| format!("start {}", binary.display()))?;
        let stdout = child.stdout.take().context("the agent's output")?;
        let stderr = child.stderr.take().context("the agent's log")?;
        let (to, lines) = mpsc::channel();
        std::thread::spawn(move || listen(stdout, &to));
        let log = Log::default();
        let kept = log.clone();
        std::thread::spawn(move || kept.keep(stderr));
        Ok(Self {
            child,
            lines,
            heard: Vec::new(),
            ended: false,
            log,
            interrupt: interrupt.clone(),
            recording: None,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All that it has said until now.
    ///
    /// # Errors
    /// If it said what is not an event, or has ended.
    pub fn heard(&mut self) -> Result<&[Event]> {
        loop {
            match self.lines.try_recv() {
                Ok(line) => self.hear(line)?,
                Err(TryRecvError::Empty) => return Ok(&self.heard),
                Err(TryRecvError::Disconnected) => {
                    bail!("the agent ended by itself ({}){}", self.how_it_ended()?, self.log.tail());
                }
            }
        }
    }

    /// Whether the agent knows that so many victims are gone, and that the last pressure is over.
    pub fn is_settled(&mut self, evictions: usize) -> Result<bool> {
        let heard = self.heard()?;
        let is_end =
            |event: &&Event| event.kind() == "eviction_progress" && event.text("result") == "terminated";
        let gone = heard.iter().filter(is_end).count();
        let threshold = heard.iter().rev().find(|event| event.kind() == "threshold");
        let is_over = threshold.is_none_or(|event| event.text("state") == "cleared");
        Ok(gone >= evictions && is_over)
    }

    /// The first event, of those said already and those to come, that `fits`.
    ///
    /// # Errors
    /// If the agent ends, says what is not an event, or none comes for so long that it must hang.
    pub fn wait_for(&mut self, what: &str, guard: Duration, fits: impl Fn(&Event) -> bool) -> Result<Event> {
        let end = Instant::now() + guard;
        let mut seen = 0;
        loop {
            while let Some(event) = self.heard.get(seen) {
                if fits(event) {
                    return Ok(event.clone());
                }
                seen += 1;
            }
            self.interrupt.check()?;
            if self.ended {
                bail!("the agent ended ({}) before {what}{}", self.how_it_ended()?, self.log.tail());
            }
            if Instant::now() >= end {
                bail!("the agent did not say {what} for {} s{}", guard.as_secs(), self.log.tail());
            }
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => self.hear(line)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.ended = true,
            }
        }
    }

    fn hear(&mut self, line: Line) -> Result<()> {
        match line {
            Ok(event) => self.heard.push(event),
            Err(error) => bail!("the agent printed {error}"),
        }
        Ok(())
    }

    /// Asks its endpoint.
    ///
    /// # Errors
    /// If it has none or does not answer.
    pub fn metrics(&self) -> Result<Metrics> {
        let started = self.heard.iter().find(|event| event.kind() == "started");
        let listen = started.map_or("", |event| event.text("listen_address"));
        let address: SocketAddr =
            listen.parse().with_context(|| format!("the agent's address `{listen}`"))?;
        Metrics::read(address)
    }

    /// The backend that a source uses, and why.
    pub fn backend(&self, source: &str) -> Option<(String, String)> {
        let started = self.heard.iter().find(|event| event.kind() == "started")?;
        let sources = started.value.get("sources")?.as_array()?;
        let found = sources.iter().find(|s| s.get("source").and_then(Value::as_str) == Some(source))?;
        let text = |field| found.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        Some((text("backend"), text("reason")))
    }

    /// Ends it as an operator does, with SIGTERM, and says how it ended.
    ///
    /// # Errors
    /// If it does not end, or ended by itself before.
    pub fn stop(mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait().context("look at the agent")? {
            bail!("the agent had ended by itself: {}{}", describe(status), self.log.tail());
        }
        signal(&self.child, rustix::process::Signal::TERM)?;
        let child = &mut self.child;
        self.interrupt
            .until("the agent ends on SIGTERM", GUARD, || child.try_wait().context("wait for the agent"))
    }

    /// Ends it at this very instant, with SIGKILL. All that it has said.
    ///
    /// # Errors
    /// If it said what is not an event, or had ended before.
    pub fn kill(mut self) -> Result<Vec<Event>> {
        if let Some(status) = self.child.try_wait().context("look at the agent")? {
            bail!("the agent had ended by itself: {}{}", describe(status), self.log.tail());
        }
        self.child.kill().context("kill the agent")?;
        self.child.wait().context("wait for the killed agent")?;
        // What was being written is cut off.
        while let Ok(line) = self.lines.recv() {
            if let Ok(event) = line {
                self.heard.push(event);
            }
        }
        Ok(std::mem::take(&mut self.heard))
    }

    /// For who reads why a test failed.
    fn say_what_it_said(&mut self) {
        const LAST: usize = 60;
        while let Ok(Ok(event)) = self.lines.try_recv() {
            self.heard.push(event);
        }
        eprintln!("the last that the agent said{}", self.log.tail());
        for event in &self.heard[self.heard.len().saturating_sub(LAST)..] {
            eprintln!("{}", event.value);
        }
    }

    fn how_it_ended(&mut self) -> Result<String> {
        let child = &mut self.child;
        let status = self.interrupt.until("the agent's end, its output having ended", GUARD, || {
            child.try_wait().context("wait for the agent")
        })?;
        Ok(describe(status))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Time to detach and to thaw what it may have frozen; what it leaves, others clear away.
        let end = Instant::now() + Duration::from_secs(2);
        let mut asked = false;
        while let Ok(None) = self.child.try_wait() {
            if !asked {
                asked = signal(&self.child, rustix::process::Signal::TERM).is_ok();
            }
            if !asked || Instant::now() >= end {
                break;
            }
            std::thread::sleep(LOOK);
        }
        // Both fail only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.say_what_it_said();
        } else if let Some(Err(error)) = self.recording.as_ref().map(Recording::verify) {
            panic!("{error:#}");
        }
    }
}

fn signal(child: &Child, signal: rustix::process::Signal) -> Result<()> {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal)
        .with_context(|| format!("send {signal:?} to the agent"))
}

/// An end as people say it.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn listen(stdout: impl Read, to: &mpsc::Sender<Line>) {
    for line in BufReader::new(stdout).lines() {
        let heard_ns = clock::now();
        let event = match line {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(value @ Value::Object(_)) => Ok(Event { heard_ns, value }),
                _ => Err(format!("what is not an event: `{line}`")),
            },
            Err(error) => Err(format!("what cannot be read: {error}")),
        };
        if to.send(event).is_err() {
            return;
        }
    }
}

/// The last lines of the agent's log.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<VecDeque<String>>>);

impl Log {
    const KEPT: usize = 12;

    fn keep(&self, stderr: impl Read) {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == Self::KEPT {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    }

    fn tail(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = kept.iter().map(String::as_str).collect();
        format!("; its log ends with: {}", lines.join(" | "))
    }
}
