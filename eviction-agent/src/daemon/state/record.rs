//! What the file holds, as JSON has it. Times are nanoseconds of `CLOCK_BOOTTIME`.

use serde::{Deserialize, Serialize};

use super::ApiPhaseState;
use eviction_core::expected_release::ExpectedRelease;
use eviction_core::node_conditions::pressure::Status;
use eviction_core::signal::{NodeCondition, Resource, Signal};
use eviction_core::state::{Ended, wire};

/// By which the file is known.
pub(super) const KIND: &str = "eviction-agent-state";

/// Of this form. Another form has another number.
pub(super) const VERSION: u64 = 3;

/// What every version begins with.
#[derive(Debug, Deserialize)]
pub(super) struct Envelope {
    pub(super) kind: Box<str>,
    pub(super) version: u64,
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) kind: Box<str>,
    pub(super) version: u64,
    /// `/proc/sys/kernel/random/boot_id`: what was before the boot is over.
    pub(super) boot_id: Box<str>,
    /// The name of the node's object.
    pub(super) node: Option<Box<str>>,
    /// The group that stands for the node.
    pub(super) cgroup_root: Box<str>,
    /// What was done to victims.
    pub(super) act: Box<str>,
    pub(super) written_ns: i64,
    /// When the last pass was made.
    pub(super) looked_ns: Option<i64>,
    /// The number of the last decision.
    pub(super) decisions: u64,
    /// By what their names begin: when the first of these agents was started.
    pub(super) first_start_ms: i64,
    pub(super) met: Vec<Met>,
    pub(super) conditions: Vec<Condition>,
    pub(super) flights: Vec<InFlightRecord>,
    pub(super) evictions: Vec<EvictionRecord>,
    pub(super) pace: RateLimitRecord,
    /// The evictions that count against `policy.limits`.
    pub(super) counted: Vec<CountedEvictionRecord>,
    pub(super) oom_killed: Vec<PodEventTimeRecord>,
    /// Pods that their PodDisruptionBudgets do not let go for now.
    pub(super) forbidden: Vec<PodEventTimeRecord>,
    /// Until when nobody new may go. It may be still to come.
    pub(super) held_until_ns: Option<i64>,
    /// All conditions, or none.
    pub(super) said: Vec<PublishedConditionRecord>,
}

/// A threshold that is met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Met {
    pub(super) signal: Signal,
    pub(super) value: Box<str>,
    pub(super) grace_ns: i64,
    pub(super) first_seen_ns: i64,
    pub(super) ripe: bool,
}

/// A condition that was raised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Condition {
    pub(super) condition: NodeCondition,
    pub(super) raised_ns: i64,
}

/// What was said of a condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedConditionRecord {
    pub(super) condition: NodeCondition,
    pub(super) status: Status,
    pub(super) since_ns: Option<i64>,
    pub(super) hard_ns: Option<i64>,
}

/// What the engine knows of an eviction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InFlightRecord {
    pub(super) uid: Box<str>,
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) label: Box<str>,
    pub(super) hard: bool,
    pub(super) decided_ns: i64,
    pub(super) since_ns: i64,
    pub(super) grace_period_seconds: i64,
    #[serde(with = "wire::expected")]
    pub(super) expected: [ExpectedRelease; Signal::COUNT],
    pub(super) ended: Option<Ended>,
}

/// What the hands know of an eviction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EvictionRecord {
    pub(super) decision: u64,
    pub(super) uid: Box<str>,
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) signal: Option<Signal>,
    pub(super) resource: Resource,
    pub(super) hard: bool,
    pub(super) decided_ns: i64,
    pub(super) grace_seconds: u64,
    pub(super) by_api: Option<ApiPhaseState>,
    pub(super) by_kill: bool,
    pub(super) told_gone: bool,
}

/// What counts against the limits of the pace, for each hand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimitRecord {
    pub(super) by_api: Vec<Kill>,
    pub(super) by_kill: Vec<Kill>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kill {
    pub(super) decision: u64,
    pub(super) uid: Box<str>,
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) at_ns: i64,
}

/// An eviction that counts against limits, and of whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CountedEvictionRecord {
    pub(super) uid: Box<str>,
    pub(super) namespace: Box<str>,
    pub(super) owner: Option<Box<str>>,
    pub(super) at_ns: i64,
}

/// A pod, and when it was that something happened to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PodEventTimeRecord {
    pub(super) uid: Box<str>,
    pub(super) at_ns: i64,
}
