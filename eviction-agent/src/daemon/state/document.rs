//! The content of the file. Pure: the clock and the identity are arguments.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::LoopState;
use crate::telemetry::queue::DecisionIds;
use eviction_core::time::Timestamp;
use eviction_node::clock::{Clock, Instant};

/// By which the file is known.
const KIND: &str = "eviction-agent-state";

/// The version of its form. Another form has another number.
const VERSION: u64 = 5;

/// What a file must agree with to be of use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// `/proc/sys/kernel/random/boot_id`: what was before the boot is over.
    pub(crate) boot_id: Box<str>,
    /// The name of the node's object, where the agent has one.
    pub(crate) node: Option<Box<str>>,
    /// The cgroup that stands for the node.
    pub(crate) cgroup_root: Box<str>,
    /// What is done to victims.
    pub(crate) act: Box<str>,
}

/// What every version begins with.
#[derive(Debug, Deserialize)]
struct Envelope {
    kind: Box<str>,
    version: u64,
}

/// The whole file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Document {
    kind: Box<str>,
    version: u64,
    #[serde(flatten)]
    identity: Identity,
    /// Which all times are of.
    pub(super) clock: Clock,
    pub(super) written: Timestamp,
    /// What decisions are called.
    pub(super) first_start_ms: DecisionIds,
    pub(super) state: LoopState,
}

/// Why a file is of no use.
#[derive(Debug, Error)]
pub(super) enum UnusableState {
    #[error("it is spoiled: {0}")]
    Spoiled(#[from] serde_json::Error),
    #[error("it is something else")]
    Foreign,
    #[error("it is of version {0}; this agent knows version {VERSION}")]
    Version(u64),
    #[error("it is of another boot of this machine, {0}")]
    Boot(Box<str>),
    #[error("it is of another node, {node} below cgroup {cgroup_root}")]
    Node { node: Box<str>, cgroup_root: Box<str> },
    #[error("it holds times that are still to come")]
    Future,
}

/// The file's content.
pub(super) fn write(
    identity: &Identity,
    names: DecisionIds,
    clock: Clock,
    written: Timestamp,
    state: &LoopState,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Document {
        kind: KIND.into(),
        version: VERSION,
        identity: identity.clone(),
        clock,
        written,
        first_start_ms: names,
        state: state.clone(),
    })
}

/// The content of a file for an agent of this identity, when the monotonic clock shows `mono_ns`.
pub(super) fn read(bytes: &[u8], identity: &Identity, mono_ns: u64) -> Result<Document, UnusableState> {
    let value: serde_json::Value = serde_json::from_slice(bytes)?;
    // What is no object with these fields is no state of ours, whatever else it is.
    let Ok(Envelope { kind, version }) = serde_json::from_value(value.clone()) else {
        return Err(UnusableState::Foreign);
    };
    match (&*kind, version) {
        (KIND, VERSION) => {}
        (KIND, version) => return Err(UnusableState::Version(version)),
        _ => return Err(UnusableState::Foreign),
    }
    let mut document: Document = serde_json::from_value(value)?;
    let Identity { boot_id, node, cgroup_root, act } = &document.identity;
    if *boot_id != identity.boot_id {
        return Err(UnusableState::Boot(boot_id.clone()));
    }
    if (node, cgroup_root) != (&identity.node, &identity.cgroup_root) {
        let node = node.clone().unwrap_or_else(|| "without a name".into());
        return Err(UnusableState::Node { node, cgroup_root: cgroup_root.clone() });
    }
    let now = document.clock.at(mono_ns);
    if document.written > now.wall || document.state.is_of_the_future(now) {
        return Err(UnusableState::Future);
    }
    // What another action has begun is nothing to go on with, nor does it count.
    if *act != identity.act {
        document.state.forget_evictions();
    }
    Ok(document)
}

impl LoopState {
    fn is_of_the_future(&self, now: Instant) -> bool {
        let published = self.published.iter().flatten().flat_map(|it| [it.since, it.hard_at]).flatten();
        self.rate_limits.iter().any(|kill| kill.at_ns > now.mono_ns)
            || self.engine.times().chain(published).any(|at| at > now.wall)
    }

    fn forget_evictions(&mut self) {
        self.rate_limits.clear();
        self.engine.in_flight.clear();
        self.engine.counted.clear();
    }
}

#[cfg(test)]
mod tests;
