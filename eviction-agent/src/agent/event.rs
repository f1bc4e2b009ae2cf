//! What `run` prints: one line an event, for people or for machines. docs/events.md is its contract.

mod kill;
mod reflex;
mod story;
mod tasks;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use jiff::Timestamp;
use serde::Serialize;

pub use kill::{OomKill, Victim};
pub use reflex::Reflex;
pub use story::ContainerEnded;
pub use tasks::Tasks;

use super::text::bytes;

/// A line: when, and what.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Everything is attached and the first look is done.
    Started(Started),
    /// A source moved to another rung.
    Source(Source),
    /// The pods file was read anew.
    Pods(Pods),
    /// A threshold is met for the first time, or is no longer.
    Threshold(Threshold),
    /// A node condition changed.
    Condition(Condition),
    /// A pod was chosen.
    Decision(Box<Decision>),
    /// What came of a decision.
    Eviction(Eviction),
    /// The kernel carried out a decision that was made ahead.
    Reflex(Box<Reflex>),
    /// The kernel killed a process for want of memory.
    OomKill(Box<OomKill>),
    /// A container ended, and this is why.
    ContainerEnded(Box<ContainerEnded>),
    /// A signal cannot be read.
    Unknown(Unknown),
    /// A signal has been unknown for long, or is known again.
    Blind(Blind),
    /// Readings of a signal are not believed.
    Refused(Refusal),
    /// The configuration was changed.
    Configuration(Configuration),
    /// Kernel records were lost or of an unknown form.
    Lost(Lost),
    /// A cgroup forks too fast, or has almost as many tasks as it may have.
    Tasks(Box<Tasks>),
    /// The agent ends.
    Stopped(Stopped),
}

/// See [`Event::Started`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Started {
    pub version: &'static str,
    pub act: &'static str,
    pub profile: &'static str,
    pub node: Node,
    pub sources: Vec<Source>,
    pub pods: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
}

/// What counts as the node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Node {
    pub root: String,
    pub memory_capacity: u64,
    pub pid_capacity: u64,
}

/// See [`Event::Source`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Source {
    pub source: String,
    pub rung: String,
    pub reason: String,
}

/// See [`Event::Pods`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Pods {
    pub pods: usize,
    pub with_cgroup: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_cgroup: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strange_cgroups: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// See [`Event::Threshold`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Threshold {
    pub signal: &'static str,
    pub kind: &'static str,
    pub state: &'static str,
    pub value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
    pub seen_by: String,
}

/// See [`Event::Condition`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Condition {
    pub condition: &'static str,
    pub status: &'static str,
}

/// See [`Event::Decision`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Decision {
    pub id: u64,
    pub signal: &'static str,
    pub kind: &'static str,
    pub pod: String,
    pub uid: String,
    pub grace_seconds: i64,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    pub value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<u64>,
    pub seen_by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_us: Option<u64>,
    pub candidates: Vec<Candidate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_mono_ns: Option<u64>,
    pub seen_mono_ns: u64,
    pub decided_mono_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_to_decided_us: Option<u64>,
}

/// One of the ranked pods, first the one that goes first.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Candidate {
    pub pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<i64>,
    pub priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed_over: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forks_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_stall: Option<f64>,
}

/// See [`Event::Eviction`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Eviction {
    pub id: u64,
    pub pod: String,
    pub uid: String,
    pub outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub mono_ns: u64,
    pub decided_to_now_us: u64,
}

/// See [`Event::Unknown`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Unknown {
    pub signal: &'static str,
    pub why: String,
}

/// See [`Event::Blind`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Blind {
    pub signal: &'static str,
    pub state: &'static str,
}

/// See [`Event::Refused`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Refusal {
    pub signal: &'static str,
    pub reason: &'static str,
    pub available: i64,
    pub capacity: i64,
}

/// See [`Event::Configuration`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Configuration {
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub would_evict: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// See [`Event::Lost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Lost {
    pub records: u64,
    pub invalid: u64,
    pub no_room: u64,
}

/// See [`Event::Stopped`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/events.md is the one place that describes the fields")]
pub struct Stopped {
    pub why: String,
}

/// The line for people.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} {}", self.at, self.event)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(started) => started.fmt(f),
            Self::Source(Source { source, rung, reason }) => {
                write!(f, "source {source}: now {rung} ({reason})")
            }
            Self::Pods(pods) => pods.fmt(f),
            Self::Threshold(threshold) => threshold.fmt(f),
            Self::Condition(Condition { condition, status }) => {
                write!(f, "condition {condition} is {status}")
            }
            Self::Decision(decision) => decision.fmt(f),
            Self::Eviction(eviction) => eviction.fmt(f),
            Self::Reflex(reflex) => reflex.fmt(f),
            Self::OomKill(kill) => kill.fmt(f),
            Self::ContainerEnded(ended) => ended.fmt(f),
            Self::Unknown(Unknown { signal, why }) => write!(f, "{signal} is unknown: {why}"),
            Self::Blind(Blind { signal, state: "blind" }) => {
                write!(f, "{signal} has been unknown for long: nobody watches it")
            }
            Self::Blind(Blind { signal, state: _ }) => write!(f, "{signal} is known again"),
            Self::Refused(Refusal { signal, reason, available, capacity }) => {
                let reason = reason.replace('_', " ");
                write!(f, "{signal} is not believed: {reason}: {available} available of {capacity}")
            }
            Self::Configuration(configuration) => configuration.fmt(f),
            Self::Lost(Lost { records, invalid, no_room }) => {
                write!(
                    f,
                    "{records} kernel records lost, {invalid} of an unknown form, {no_room} figures without room; everything was looked at anew"
                )
            }
            Self::Tasks(tasks) => tasks.fmt(f),
            Self::Stopped(Stopped { why }) => write!(f, "stopped: {why}"),
        }
    }
}

impl fmt::Display for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, act, profile, node, sources, pods, listen } = self;
        let Node { root, memory_capacity, pid_capacity } = node;
        write!(
            f,
            "started {version}: {act}, profile {profile}, node {root} of {} and {pid_capacity} process ids, {pods} pods",
            bytes(*memory_capacity)
        )?;
        for Source { source, rung, .. } in sources {
            write!(f, "; {source}: {rung}")?;
        }
        match listen {
            Some(address) => write!(f, "; http://{address}/metrics"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, until, would_evict, errors } = self;
        write!(f, "changed configuration: {}", state.replace('_', " "))?;
        if !errors.is_empty() {
            return write!(f, ": {}; the last good one stays", errors.join("; "));
        }
        if let Some(until) = until {
            write!(f, " until {until}")?;
        }
        list(f, "would evict", would_evict)
    }
}

impl fmt::Display for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pods, with_cgroup, without_cgroup, strange_cgroups, error } = self;
        if let Some(error) = error {
            return write!(f, "pods: {error}; the last good list of {pods} stays");
        }
        write!(f, "pods: {pods}, {with_cgroup} with a cgroup")?;
        list(f, "without a cgroup", without_cgroup)?;
        list(f, "cgroups without a pod", strange_cgroups)
    }
}

fn list(f: &mut fmt::Formatter<'_>, what: &str, names: &[String]) -> fmt::Result {
    const SHOWN: usize = 5;
    if names.is_empty() {
        return Ok(());
    }
    write!(f, "; {what}: {}", names[..names.len().min(SHOWN)].join(", "))?;
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => write!(f, " and {more} more"),
        _ => Ok(()),
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { signal, kind, state, value, available, capacity: _, seen_by } = self;
        write!(f, "{kind} threshold {signal} < {value} {state}")?;
        if let Some(available) = available {
            write!(f, ", available {}", amount(signal, *available))?;
        }
        write!(f, " (seen by {seen_by})")
    }
}

/// A figure of a signal: bytes for memory and disk space, else a count.
fn amount(signal: &str, value: i64) -> String {
    match u64::try_from(value) {
        Ok(value) if signal.ends_with(".available") && signal != "pid.available" => bytes(value),
        _ => value.to_string(),
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write!(
            text,
            "decision {}: evict {} with {} s of grace: {}",
            self.id,
            self.pod,
            self.grace_seconds,
            self.message.trim_end()
        )?;
        write!(text, " Seen by {}", self.seen_by)?;
        if let Some(late) = self.crossed_to_decided_us {
            write!(text, ", decided {} after the kernel's stamp", milliseconds(late))?;
        }
        let passed = self
            .candidates
            .iter()
            .filter_map(|it| it.passed_over.as_ref().map(|why| format!("{} ({why})", it.pod)));
        let passed: Vec<_> = passed.collect();
        if !passed.is_empty() {
            write!(text, "; passed over: {}", passed.join(", "))?;
        }
        f.write_str(&text)
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, pod, uid: _, outcome, processes, why, mono_ns: _, decided_to_now_us } = self;
        write!(f, "eviction {id} of {pod}: {}", outcome.replace('_', " "))?;
        if let Some(processes) = processes {
            write!(f, ", {processes} processes")?;
        }
        if let Some(why) = why {
            write!(f, ": {why}")?;
        }
        write!(f, " ({} after the decision)", milliseconds(*decided_to_now_us))
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
fn milliseconds(us: u64) -> String {
    format!("{:.2} ms", us as f64 / 1000.0)
}
