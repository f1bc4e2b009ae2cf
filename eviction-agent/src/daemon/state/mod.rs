//! The state that outlives the agent, in one small file of this boot: an agent that is started after a kill
//! continues with the same grace periods, conditions, and evictions.
//!
//! ```text
//! control loop ── LoopState (bounded, no lock) ─► StateWriter ─► file, on a thread for blocking work
//!        └─────── evictions ────────────────────► wait for the StateWriter ─► API server
//! ```
//! The control loop sends its whole state whenever it changes, so that the next one makes up for a lost one.
//! The loop never waits. A request to the API server is sent after the state with the eviction was written, or
//! when the write takes too long.
//!
//! The file contains these types, serialized by serde. All times in it are of one clock, [`Clock`], which an
//! agent takes over from the previous one, so that none has to be converted.
//!
//! [`Clock`]: eviction_node::clock::Clock

mod file;
#[cfg(test)]
mod tests;
mod writer;

use std::path::Path;
use std::sync::Arc;

use eviction_config::ActionSettings;
use eviction_core::node_conditions::pressure::PublishedCondition;
use eviction_core::signal::NodeCondition;
use eviction_core::state::EngineState;
use eviction_core::time::{Timestamp, since};
use eviction_node::clock::{Clock, Instant, mono_ns};
use serde::{Deserialize, Serialize};

use super::rate_limit::RateLimitEntry;
use crate::daemon::configuration::Options;
use crate::daemon::control_loop::StateSender;
use crate::error::{Failure, chain};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::queue::DecisionIds;
pub(crate) use file::StateFile;
pub(crate) use writer::{DurableRevision, StateWriter};

/// The name of the file in the state directory.
pub(crate) const STATE_FILE: &str = "state.json";

/// The suffixes of a file that is being written, and of one that cannot be used.
pub(crate) const SUFFIXES: [&str; 2] = [".new", ".set-aside"];

/// The kind of the file, which identifies it.
const KIND: &str = "eviction-agent-state";

/// The version of the format. Another format has another number.
const VERSION: u64 = 7;

/// The kernel's file with the id of this boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The state of the control loop that no sample contains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LoopState {
    /// The number of the state, counted from 1 by each agent.
    #[serde(skip)]
    pub(crate) number: u64,
    pub(crate) engine: EngineState,
    /// The evictions that count against the rate limits.
    pub(crate) rate_limits: Vec<RateLimitEntry>,
    /// The number of the last decision.
    pub(crate) decisions: u64,
    /// The node's conditions as they were published last, in the order of [`NodeCondition`].
    pub(crate) published: Option<[PublishedCondition; NodeCondition::COUNT]>,
}

/// The identity that a file must have to be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    /// `/proc/sys/kernel/random/boot_id`: state from before the boot does not apply.
    boot_id: Box<str>,
    /// The name of the node's object, if the agent has one.
    node: Option<Box<str>>,
    /// The cgroup that represents the node.
    cgroup_root: Box<str>,
    /// The action and the dry-run mode.
    action: Box<str>,
}

/// The content of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    kind: Box<str>,
    version: u64,
    #[serde(flatten)]
    identity: Identity,
    /// The clock of all times.
    clock: Clock,
    pub(crate) written: Timestamp,
    /// The ids of decisions, of these and of those that follow.
    #[serde(rename = "firstStartMs")]
    pub(crate) names: DecisionIds,
    pub(crate) state: LoopState,
}

/// Restores the state of the previous agent. Returns the sender and the writer of this agent's state, which is
/// `None` if no state is persisted, the ids of decisions, and the restored state.
///
/// # Errors
/// If the id of the boot cannot be read, or the channel to the writer cannot be created.
pub(crate) fn open(
    options: &Options,
    state_dir: Option<&Path>,
    action: ActionSettings,
    metrics: &Arc<Metrics>,
) -> Result<(StateSender, Option<StateWriter>, DecisionIds, Option<Document>), Failure> {
    let Some(dir) = state_dir else {
        return Ok((StateSender::default(), None, DecisionIds::of_this_start(), None));
    };
    let boot_id = read_boot_id()
        .ok_or_else(|| Failure::failed(format!("find out this boot's id: {BOOT_ID} is empty")))?;
    let in_cluster = options.configuration.in_cluster;
    let node_name = options.configuration.caller.node_name.as_deref().filter(|_| in_cluster);
    let identity = Identity {
        boot_id: boot_id.into(),
        node: node_name.map(Into::into),
        cgroup_root: options.cgroup_root.display().to_string().into(),
        action: action.to_string().into(),
    };
    let file = StateFile::at(dir.join(STATE_FILE));
    let restored = restore(&file, &identity);
    let names = restored.as_ref().map_or_else(DecisionIds::of_this_start, |restored| restored.names);
    let (sender, writer) = StateWriter::new(file, Document::new(identity, names), metrics)?;
    Ok((StateSender::new(sender), Some(writer), names, restored))
}

/// Returns the id of this boot; `None` if it cannot be read.
pub(crate) fn read_boot_id() -> Option<String> {
    Some(std::fs::read_to_string(BOOT_ID).ok()?.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Reads the state of the previous agent, and resumes its clock. Runs before anything else reads the time. A
/// file that cannot be used is set aside with a warning. Then, and without a file, the agent starts without
/// earlier state.
fn restore(file: &StateFile, identity: &Identity) -> Option<Document> {
    let shown = file.path.display();
    let bytes = file.read().unwrap_or_else(|error| {
        tracing::warn!(file = %shown, error = chain(&error), "the state of the previous agent cannot be read");
        None
    })?;
    match Document::read(&bytes, identity, mono_ns()) {
        Ok(document) => {
            let Document { clock, written, state, .. } = &document;
            let now = Clock::resume(*clock).now().wall;
            tracing::info!(
                file = %shown,
                age_ms = since(now, *written).as_nanos() / 1_000_000,
                conditions = state.engine.conditions.len(),
                evictions = state.engine.in_flight.iter().filter(|it| it.is_executing()).count(),
                decisions = state.decisions,
                "continuing from the state of the previous agent"
            );
            Some(document)
        }
        Err(why) => {
            let aside = file.set_aside().map_or_else(
                |error| format!("and it cannot be set aside: {error}"),
                |aside| format!("set aside as {}", aside.display()),
            );
            tracing::warn!(file = %shown, why, aside, "the state of the previous agent cannot be used");
            None
        }
    }
}

impl Document {
    /// Returns the document of an agent without any state.
    fn new(identity: Identity, names: DecisionIds) -> Self {
        let clock = Clock::start();
        let (written, state) = (clock.now().wall, LoopState::default());
        Self { kind: KIND.into(), version: VERSION, identity, clock, written, names, state }
    }

    /// Returns the content of a file for an agent of this identity, or why it cannot be used. `mono_ns` is the
    /// present time of the monotonic clock.
    fn read(bytes: &[u8], identity: &Identity, mono_ns: u64) -> Result<Self, String> {
        let spoiled = |error| format!("it is spoiled: {error}");
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(spoiled)?;
        // Any value without these fields is not a state of the agent.
        match (value["kind"].as_str(), value["version"].as_u64()) {
            (Some(KIND), Some(VERSION)) => {}
            (Some(KIND), Some(version)) => {
                return Err(format!("it is of version {version}; this agent knows version {VERSION}"));
            }
            _ => return Err("it is something else".to_owned()),
        }
        let mut document: Self = serde_json::from_value(value).map_err(spoiled)?;
        let Identity { boot_id, node, cgroup_root, action } = &document.identity;
        if *boot_id != identity.boot_id {
            return Err(format!("it is of another boot of this machine, {boot_id}"));
        }
        if (node, cgroup_root) != (&identity.node, &identity.cgroup_root) {
            let node = node.as_deref().unwrap_or("without a name");
            return Err(format!("it is of another node, {node} below cgroup {cgroup_root}"));
        }
        let now = document.clock.at(mono_ns);
        if document.written > now.wall || document.state.has_future_times(now) {
            return Err("it holds times that are still to come".to_owned());
        }
        // What another action has begun is not continued, and does not count.
        if *action != identity.action {
            document.state.forget_evictions();
        }
        Ok(document)
    }
}

impl LoopState {
    fn has_future_times(&self, now: Instant) -> bool {
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
