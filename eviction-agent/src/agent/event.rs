//! What `run` prints: one line an event, for people or for machines. docs/reference/events.md is its contract.

mod api_server;
mod kill;
mod limit;
mod people;
mod place;
mod reflex;
mod story;
mod tasks;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

pub use api_server::ApiServer;
pub use kill::{OomKill, Victim};
pub use limit::Limit;
pub use place::Place;
pub use reflex::Reflex;
pub use story::{ContainerEnded, ContainerStatus};
pub use tasks::Tasks;

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
    /// A status that came after the verdict on its container differs from it.
    ContainerStatus(Box<ContainerStatus>),
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
    /// A group's memory limit is near, or is so no more.
    Limit(Box<Limit>),
    /// The API server cannot be asked any more, or can again.
    ApiServer(ApiServer),
    /// The agent ends.
    Stopped(Stopped),
}

/// See [`Event::Started`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Started {
    pub version: &'static str,
    pub action: &'static str,
    pub dry_run: &'static str,
    pub profile: &'static str,
    pub node: Node,
    pub sources: Vec<Source>,
    pub pods: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
}

/// What counts as the node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Node {
    pub root: String,
    pub memory_capacity: u64,
    pub pid_capacity: u64,
}

/// See [`Event::Source`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Source {
    pub source: String,
    pub rung: String,
    pub reason: String,
}

/// See [`Event::Pods`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Pods {
    pub pods: usize,
    pub with_cgroup: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_cgroup: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strange_cgroups: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// See [`Event::Threshold`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
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
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Condition {
    pub condition: &'static str,
    pub status: &'static str,
}

/// See [`Event::Decision`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Decision {
    pub id: u64,
    pub decision: String,
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
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
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
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Eviction {
    pub id: u64,
    pub decision: String,
    pub pod: String,
    pub uid: String,
    pub outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub mono_ns: u64,
    pub decided_to_now_us: u64,
    /// It says nothing of the eviction itself, but of what is written beside it.
    #[serde(skip)]
    pub is_beside: bool,
}

/// See [`Event::Unknown`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Unknown {
    pub signal: &'static str,
    pub why: String,
}

/// See [`Event::Blind`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Blind {
    pub signal: &'static str,
    pub state: &'static str,
}

/// See [`Event::Refused`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Refusal {
    pub signal: &'static str,
    pub reason: &'static str,
    pub available: i64,
    pub capacity: i64,
}

/// See [`Event::Configuration`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
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
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Lost {
    pub records: u64,
    pub invalid: u64,
    pub no_room: u64,
}

/// See [`Event::Stopped`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]
pub struct Stopped {
    pub why: String,
}
