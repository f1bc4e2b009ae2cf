//! The agent as a process: starts it as a user does, reads its events line by line, and ends it.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::clock;
use crate::interrupt::{Interrupt, POLL_INTERVAL};
use crate::metrics::Metrics;
use crate::node::Node;
use crate::process::{self, HANG, die_with_parent};

mod event;
mod log;
mod options;
mod recording;

use self::log::Log;
pub use event::{Event, full_name};
pub use options::Options;
pub use recording::Recording;

/// Finds the agent's binary: at the path that the test task sets, or beside the running program.
///
/// # Errors
/// If there is none.
pub fn binary() -> Result<PathBuf> {
    crate::binary::find("eviction-agent")
}

/// Writes a configuration with which the agent acts at the kubelet's own threshold, so that values are those
/// that a scenario sets.
///
/// # Errors
/// If it cannot be written.
pub fn config_without_margin(node: &Node) -> Result<PathBuf> {
    node.write_agent_config(&json!({"thresholdMargin": {"mode": "Never"}}))
}

/// A running agent. Dropping it ends it, with SIGKILL if necessary.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    lines: Receiver<EventLine>,
    events: Vec<Event>,
    log: Log,
    interrupt: Interrupt,
    recording: Option<Recording>,
}

type EventLine = Result<Event, String>;

/// The timeout for an agent that hangs. It does not measure the agent's speed.
pub const GUARD: Duration = HANG;

impl Agent {
    /// Starts the agent and waits for its `started` event.
    ///
    /// # Errors
    /// If it cannot be started, or exits at once; the error then contains the end of its log.
    pub fn start(options: &Options, interrupt: &Interrupt) -> Result<Self> {
        Self::start_command(options.command("127.0.0.1:0"), interrupt)
    }

    /// Starts the agent by a command that prints the events as JSON lines, and waits for its `started` event.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_command(mut command: Command, interrupt: &Interrupt) -> Result<Self> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_parent(&mut command);
        let mut child = command.spawn().with_context(|| format!("start {:?}", command.get_program()))?;
        let stdout = child.stdout.take().context("the agent's output")?;
        let stderr = child.stderr.take().context("the agent's log")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || read_events(stdout, &sender));
        let log = Log::default();
        let log_reader = log.clone();
        std::thread::spawn(move || log_reader.read_lines(stderr));
        let mut agent =
            Self { child, lines, events: Vec::new(), log, interrupt: interrupt.clone(), recording: None };
        agent.wait_for("its `started` event", GUARD, |event| event.kind() == "started")?;
        Ok(agent)
    }

    /// Starts the agent as [`Self::start`] does, with a recording. When the agent has ended, the recording is
    /// replayed: a difference is a panic.
    ///
    /// # Errors
    /// As for [`Self::start`], or if its configuration cannot be changed.
    pub fn start_recorded(options: &Options, interrupt: &Interrupt) -> Result<Self> {
        let (recording, options) = Recording::begin(options)?;
        let mut agent = Self::start(&options, interrupt)?;
        agent.recording = Some(recording);
        Ok(agent)
    }

    /// Returns the process ID of the agent.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns all events that the agent has printed until now.
    ///
    /// # Errors
    /// If it printed something that is not an event, or has ended.
    pub fn events(&mut self) -> Result<&[Event]> {
        loop {
            match self.lines.try_recv() {
                Ok(line) => self.store(line)?,
                Err(TryRecvError::Empty) => return Ok(&self.events),
                Err(TryRecvError::Disconnected) => {
                    let end = self.wait_and_describe_exit()?;
                    bail!("the agent ended by itself ({end}){}", self.log.tail());
                }
            }
        }
    }

    /// Waits until the agent has reported the end of so many victims and of the last pressure.
    ///
    /// # Errors
    /// As for [`Self::events`], or if it does not report them within [`GUARD`].
    pub fn wait_for_recovery(&mut self, evictions: usize) -> Result<()> {
        self.interrupt.clone().until("the agent sees the end of its victim", GUARD, || {
            let events = self.events()?;
            let terminated = events.iter().filter(|event| event.is_result("terminated")).count();
            let threshold = events.iter().rev().find(|event| event.kind() == "threshold");
            let is_over = threshold.is_none_or(|event| event.text("state") == "cleared");
            Ok((terminated >= evictions && is_over).then_some(()))
        })
    }

    /// Returns how many victims the agent has chosen until now.
    ///
    /// # Errors
    /// As for [`Self::events`].
    pub fn count_decisions(&mut self) -> Result<usize> {
        Ok(self.events()?.iter().filter(|event| event.is_decision()).count())
    }

    /// Waits for the first event that `fits`, among those already read and those to come.
    ///
    /// # Errors
    /// If the agent ends, prints something that is not an event, or no event fits within `guard`.
    pub fn wait_for(&mut self, what: &str, guard: Duration, fits: impl Fn(&Event) -> bool) -> Result<Event> {
        self.wait_for_nth(1, what, guard, fits)
    }

    /// Waits for the nth event that `fits`, counted from 1, among those already read and those to come.
    ///
    /// # Errors
    /// As for [`Self::wait_for`].
    pub fn wait_for_nth(
        &mut self,
        nth: usize,
        what: &str,
        guard: Duration,
        fits: impl Fn(&Event) -> bool,
    ) -> Result<Event> {
        let end = Instant::now() + guard;
        let (mut checked, mut found) = (0, 0);
        loop {
            while let Some(event) = self.events.get(checked) {
                checked += 1;
                found += usize::from(fits(event));
                if found == nth {
                    return Ok(event.clone());
                }
            }
            self.interrupt.check()?;
            if Instant::now() >= end {
                bail!("the agent did not say {what} for {} s{}", guard.as_secs(), self.log.tail());
            }
            match self.lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) => self.store(line)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let end = self.wait_and_describe_exit()?;
                    bail!("the agent ended ({end}) before {what}{}", self.log.tail());
                }
            }
        }
    }

    /// Waits until the agent selects a pod, and returns the first decision.
    ///
    /// # Errors
    /// As for [`Self::wait_for`].
    pub fn wait_for_decision(&mut self) -> Result<Event> {
        self.wait_for("a decision", GUARD, Event::is_decision)
    }

    /// Waits for that result of the eviction of that pod, `namespace/name`.
    ///
    /// # Errors
    /// As for [`Self::wait_for`].
    pub fn wait_for_result(&mut self, pod: &str, result: &str) -> Result<Event> {
        let is_match = |event: &Event| event.is_result(result) && event.pod() == pod;
        self.wait_for(&format!("that {pod} is {result}"), GUARD, is_match)
    }

    /// Waits until a threshold is reported in that state, as [`Event::is_threshold`] has it.
    ///
    /// # Errors
    /// As for [`Self::wait_for`].
    pub fn wait_for_threshold(&mut self, state: &str) -> Result<Event> {
        self.wait_for(&format!("that a threshold is {state}"), GUARD, |event| event.is_threshold(state))
    }

    /// Waits until the agent has found the cgroups of so many pods.
    ///
    /// # Errors
    /// As for [`Self::wait_for`].
    pub fn wait_for_pods(&mut self, pods: usize) -> Result<Event> {
        let is_match =
            |event: &Event| event.kind() == "pods" && event.number("with_cgroup") == Some(pods as u64);
        self.wait_for(&format!("that it knows {pods} pods"), GUARD, is_match)
    }

    fn store(&mut self, line: EventLine) -> Result<()> {
        match line {
            Ok(event) => self.events.push(event),
            Err(error) => bail!("the agent printed {error}"),
        }
        Ok(())
    }

    /// Reads the metrics of the agent from its endpoint.
    ///
    /// # Errors
    /// If it has no endpoint, or the endpoint does not answer.
    pub fn metrics(&self) -> Result<Metrics> {
        Metrics::read(self.address()?)
    }

    /// Reads the sum of all series of that name with these labels from its endpoint; 0 if there is none.
    ///
    /// # Errors
    /// As for [`Self::metrics`].
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        Ok(self.metrics()?.sum(name, labels))
    }

    /// Reads that sum until it fits, and returns it.
    ///
    /// # Errors
    /// As for [`Self::metrics`], or if it does not fit within [`GUARD`].
    pub fn wait_for_metric(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        fits: impl Fn(f64) -> bool,
    ) -> Result<f64> {
        let mut value = f64::NAN;
        let found = self.interrupt.until(name, GUARD, || {
            value = self.metric(name, labels)?;
            Ok(fits(value).then_some(value))
        });
        found.with_context(|| format!("{name} of {labels:?} was {value} at last"))
    }

    /// Waits until a line of its log contains this text.
    ///
    /// # Errors
    /// If the agent ends, or no line does within [`GUARD`].
    pub fn wait_for_log(&mut self, text: &str) -> Result<()> {
        let interrupt = self.interrupt.clone();
        let found = interrupt.until(text, GUARD, || {
            self.check_running()?;
            Ok(self.log.contains(text).then_some(()))
        });
        found.with_context(|| format!("`{text}` is not in the agent's log{}", self.log.tail()))
    }

    /// Returns its `started` event.
    pub fn started(&self) -> Option<&Event> {
        self.events.iter().find(|event| event.kind() == "started")
    }

    /// Returns the address of its endpoint.
    ///
    /// # Errors
    /// If it has no endpoint.
    pub fn address(&self) -> Result<SocketAddr> {
        let listen = self.started().map_or("", |event| event.text("listen_address"));
        listen.parse().with_context(|| format!("the agent's address `{listen}`"))
    }

    /// Returns the backend that a source uses; `none` if it has none.
    pub fn backend(&self, source: &str) -> Option<String> {
        self.source_field(source, "backend")
    }

    /// Returns why a source uses that backend, or has none.
    pub fn backend_reason(&self, source: &str) -> Option<String> {
        self.source_field(source, "reason")
    }

    fn source_field(&self, source: &str, field: &str) -> Option<String> {
        let sources = self.started()?.value.get("sources")?.as_array()?;
        let found = sources.iter().find(|s| s.get("source").and_then(Value::as_str) == Some(source))?;
        Some(found.get(field)?.as_str()?.to_owned())
    }

    /// Returns whether a source has a backend at all: without one the source is `none`, or not listed.
    pub fn has_backend(&self, source: &str) -> bool {
        self.backend(source).is_some_and(|backend| !["", "none"].contains(&backend.as_str()))
    }

    /// Ends the agent with SIGTERM, as an operator does.
    ///
    /// # Errors
    /// If it does not end, ends with another exit code than 0 or by a signal, or has ended by itself before; the
    /// error then contains the end of its log.
    pub fn stop(mut self) -> Result<()> {
        self.check_running()?;
        process::signal(self.pid(), Signal::TERM)?;
        let status = self.wait("the agent ends on SIGTERM")?;
        ensure!(status.success(), "SIGTERM ended the agent with {}{}", describe(status), self.log.tail());
        Ok(())
    }

    /// Ends the agent with SIGKILL and returns all events that it has printed.
    ///
    /// # Errors
    /// If it has ended before.
    pub fn kill(mut self) -> Result<Vec<Event>> {
        self.check_running()?;
        self.child.kill().context("kill the agent")?;
        self.child.wait().context("wait for the killed agent")?;
        // The line that was being written is cut off, so it is ignored.
        while let Ok(line) = self.lines.recv() {
            if let Ok(event) = line {
                self.events.push(event);
            }
        }
        Ok(std::mem::take(&mut self.events))
    }

    /// Fails if the agent has ended by itself.
    fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait().context("read the state of the agent")? {
            None => Ok(()),
            Some(status) => bail!("the agent had ended by itself: {}{}", describe(status), self.log.tail()),
        }
    }

    /// Prints the last events and the end of the log, for the reader of a failed test.
    fn print_last_events(&mut self) {
        const LAST: usize = 60;
        while let Ok(Ok(event)) = self.lines.try_recv() {
            self.events.push(event);
        }
        eprintln!("the last that the agent said{}", self.log.tail());
        for event in &self.events[self.events.len().saturating_sub(LAST)..] {
            eprintln!("{}", event.value);
        }
    }

    fn wait_and_describe_exit(&mut self) -> Result<String> {
        Ok(describe(self.wait("the agent's end, its output having ended")?))
    }

    /// Waits for the end of the agent.
    fn wait(&mut self, what: &str) -> Result<ExitStatus> {
        let child = &mut self.child;
        self.interrupt.until(what, GUARD, || child.try_wait().context("wait for the agent"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Gives the agent time to detach and to thaw what it may have frozen. What it leaves behind is removed
        // elsewhere.
        let end = Instant::now() + Duration::from_secs(2);
        let mut signalled = false;
        while let Ok(None) = self.child.try_wait() {
            if !signalled {
                signalled = process::signal(self.pid(), Signal::TERM).is_ok();
            }
            if !signalled || Instant::now() >= end {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        // Both fail only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.print_last_events();
        } else if let Some(Err(error)) = self.recording.as_ref().map(Recording::verify) {
            panic!("{error:#}");
        }
    }
}

/// Describes an exit status: its code or its signal.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn read_events(stdout: impl Read, sender: &mpsc::Sender<EventLine>) {
    for line in BufReader::new(stdout).lines() {
        let read_ns = clock::now();
        let event = match line {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(value @ Value::Object(_)) => Ok(Event { read_ns, value }),
                _ => Err(format!("what is not an event: `{line}`")),
            },
            Err(error) => Err(format!("what cannot be read: {error}")),
        };
        if sender.send(event).is_err() {
            return;
        }
    }
}
