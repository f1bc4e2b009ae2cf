//! The environment of a story: the programs, the checks, the timeline and the values.

use std::fmt::{self, Display};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result};
use serde_json::{Map, Value};
use tests::agent::{Agent, Event, Options, Recording};
use tests::cgroup::Group;
use tests::interrupt::Interrupt;
use tests::mounts::Mounts;
use tests::node::{Node, Pod};
use tests::process::HANG;
use tests::workload::Workload;

use crate::checks::{Check, Checks};
use crate::print::Printer;
use crate::timeline::Timeline;

/// The error of a story that this machine cannot run: the reason.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) String);

impl Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// The timeout for what hangs. It does not measure speed.
pub(crate) const GUARD: Duration = HANG;

/// The environment of one story, and its results.
#[derive(Debug)]
pub(crate) struct Testbed<'a> {
    agent: &'a Path,
    /// Ends the demo on Ctrl-C.
    pub(crate) interrupt: &'a Interrupt,
    /// The output.
    pub(crate) printer: &'a Printer,
    /// The checks until now.
    pub(crate) checks: Checks,
    /// The timeline.
    pub(crate) timeline: Timeline,
    /// The values for the JSON line.
    pub(crate) values: Map<String, Value>,
    /// The backend that the agent used.
    pub(crate) backend: Option<String>,
    /// Whether the machine is slow, so that something short may take seconds.
    pub(crate) slow: bool,
    /// The backend that the agent must use.
    pub(crate) forced: Option<&'a str>,
    /// The recording of each agent.
    recordings: Vec<Recording>,
}

impl<'a> Testbed<'a> {
    pub(crate) fn new(agent: &'a Path, interrupt: &'a Interrupt, printer: &'a Printer) -> Self {
        Self {
            agent,
            interrupt,
            printer,
            checks: Checks::default(),
            timeline: Timeline::default(),
            values: Map::new(),
            backend: None,
            slow: false,
            forced: None,
            recordings: Vec::new(),
        }
    }

    /// Creates the node. A machine that does not allow cgroups cannot run the story.
    pub(crate) fn node(&self, memory: u64, pids: u64) -> Result<Node> {
        self.interrupt.check()?;
        Node::new("demo", memory, pids).map_err(|error| {
            if is_refusal(&error) {
                Error::new(Skip(format!("no cgroups can be made here: {error:#}")))
            } else {
                error
            }
        })
    }

    /// Starts the agent on the node, with this configuration of the kubelet and `--action kill`.
    pub(crate) fn agent(&mut self, node: &Node, config: &Value, source: &str) -> Result<Agent> {
        self.agent_with(node, config, source, None)
    }

    /// Does the same, with the file of a configuration of the agent.
    pub(crate) fn agent_with(
        &mut self,
        node: &Node,
        config: &Value,
        source: &str,
        own: Option<PathBuf>,
    ) -> Result<Agent> {
        let mut options = self.options(node, config)?;
        options.config = own;
        if let Some(forced) = self.forced {
            options.more = ["--backend", forced].map(str::to_owned).to_vec();
        }
        self.start(&options, source)
    }

    /// Returns the default options of the agent on the node.
    pub(crate) fn options(&self, node: &Node, config: &Value) -> Result<Options> {
        Options::of(self.agent, node, config)
    }

    /// Starts the agent, and prints which backend of that source it uses.
    pub(crate) fn start(&mut self, options: &Options, source: &str) -> Result<Agent> {
        let (recording, options) = Recording::begin(options)?;
        self.recordings.push(recording);
        let agent = Agent::start(&options, self.interrupt)?;
        if let Some(backend) = agent.backend(source) {
            let reason = agent.backend_reason(source).unwrap_or_default();
            self.printer.line("agent", format_args!("watches by {backend} ({reason})"));
            self.backend = Some(backend);
        }
        Ok(agent)
    }

    /// Checks, after the kernel has killed, that the agent evicts nothing.
    pub(crate) fn check_no_eviction(&mut self, agent: &mut Agent) -> Result<()> {
        // After this time an eviction would have been decided on, if the kill were taken for one.
        self.interrupt.sleep(Duration::from_millis(1500))?;
        let is_act = |event: &&Event| ["eviction_decision", "eviction_progress"].contains(&event.kind());
        let acts = agent.events()?.iter().filter(is_act).count();
        self.check("nothing was evicted", acts == 0, format_args!("{acts} acts"));
        Ok(())
    }

    /// Replays the recordings of the agents, which have ended.
    pub(crate) fn check_recordings(&mut self) {
        for recording in std::mem::take(&mut self.recordings) {
            // A kill by the kernel has no decision.
            let is_eviction = self.values.contains_key("detected_by");
            let (holds, why) = match recording.verify() {
                Ok(same) => (same > 0 || !is_eviction, format!("{same} decisions")),
                Err(error) => (false, format!("{error:#}")),
            };
            self.check("each decision of its recording is made again as it was", holds, why);
        }
    }

    /// Starts a process in a cgroup. It is ready, and waits for the go.
    pub(crate) fn process(&self, group: &Group, arguments: &[&str]) -> Result<Workload> {
        self.interrupt.check()?;
        Workload::start(group, arguments)
    }

    /// Starts a process in a cgroup and waits until it prints this event.
    pub(crate) fn start_and_wait(&self, group: &Group, arguments: &[&str], event: &str) -> Result<Workload> {
        let mut workload = self.process(group, arguments)?;
        workload.go()?;
        workload.wait_event(event)?;
        Ok(workload)
    }

    /// Adds and prints a check: what was expected, whether it holds, and what was seen.
    pub(crate) fn check(&mut self, expected: impl Into<String>, holds: bool, actual: impl Display) {
        let check = Check { expected: expected.into(), actual: (!holds).then(|| actual.to_string()) };
        self.printer.check(&check);
        self.checks.add(check);
    }

    /// Waits for the agent's decision and its result. Returns `None` for another pod, another signal or another
    /// result than the termination: the story then ends.
    pub(crate) fn wait_for_eviction(
        &mut self,
        agent: &mut Agent,
        signal: &str,
        pod: &Pod,
    ) -> Result<Option<Event>> {
        let decision = agent.wait_for_decision()?;
        let (chosen, reason) = (decision.pod(), decision.text("signal"));
        let right = chosen == pod.full_name() && reason == signal;
        let expected = format!("the agent chose {}, for {signal}", pod.full_name());
        self.check(expected, right, format_args!("{chosen}, for {reason}"));
        if !right {
            return Ok(None);
        }
        let ended = agent.wait_for("what came of it", GUARD, |event| {
            event.kind() == "eviction_progress"
                && event.number("id") == decision.number("id")
                && !["signalled", "killed"].contains(&event.text("result"))
        })?;
        let (result, why) = (ended.text("result"), ended.text("reason"));
        self.check("and says that it has terminated", result == "terminated", format_args!("{result} {why}"));
        Ok((result == "terminated").then_some(decision))
    }

    /// Records a value.
    pub(crate) fn value(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    /// Records the moments of a decision, as the agent and the BPF program reported them.
    pub(crate) fn mark_decision(&mut self, decision: &Event) {
        let detected_by = decision.text("detected_by").to_owned();
        if let Some(at) = decision.number("crossed_mono_ns") {
            self.timeline.mark("kernel", at, "the kernel program saw it");
        }
        if let Some(at) = decision.number("sampled_mono_ns") {
            self.timeline.mark("seen", at, format!("the agent sampled the node, triggered by {detected_by}"));
        }
        if let Some(at) = decision.number("decided_mono_ns") {
            self.timeline.mark("decided", at, format!("the agent chose {}", decision.pod()));
        }
        self.value("detected_by", detected_by);
    }
}

/// Returns whether an error means that the machine does not allow something, and is no fault.
fn is_refusal(error: &Error) -> bool {
    Mounts::discover().is_err()
        || error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
            .any(|cause| matches!(cause.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem))
}
