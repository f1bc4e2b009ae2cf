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

#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eviction_config::ActionSettings;
use eviction_core::node_conditions::PublishedCondition;
use eviction_core::signal::NodeCondition;
use eviction_core::state::EngineState;
use eviction_core::time::{Timestamp, since};
use eviction_node::clock::{Clock, Instant, mono_ns};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use super::rate_limit::RateLimitEntry;
use crate::daemon::configuration::Options;
use crate::daemon::control_loop::StateSender;
use crate::error::{Failure, chain};
use crate::spsc::{Receiver, Sender, channel};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::queue::DecisionIds;

/// The name of the file in the state directory.
pub(crate) const STATE_FILE: &str = "state.json";

/// The suffixes of a file that is being written, and of one that cannot be used.
pub(crate) const SUFFIXES: [&str; 2] = [".new", ".set-aside"];

/// The maximum size of a file in the state directory in bytes. A longer file is not one of the agent's.
const MAX_BYTES: u64 = 4 << 20;

/// The kind of the file, which identifies it.
const KIND: &str = "eviction-agent-state";

/// The version of the format. Another format has another number.
const VERSION: u64 = 7;

/// The kernel's file with the id of this boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The capacity of the channel for states while a write is slow: only the latest counts.
const CHANNEL_CAPACITY: usize = 16;

/// How long a request to the API server waits for a write: a disk that hangs must not stop evictions.
const WAIT_TIMEOUT: Duration = Duration::from_secs(1);

/// After which time a failed write is tried again, if no new state comes before.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

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
    let node_name = options.configuration.node_name.as_deref().filter(|_| in_cluster);
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
    Some(fs::read_to_string(BOOT_ID).ok()?.trim().to_owned()).filter(|id| !id.is_empty())
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

/// Writes the states of the control loop.
#[derive(Debug)]
pub(crate) struct StateWriter {
    receiver: Receiver<LoopState>,
    file: StateFile,
    /// The document that is written next, or was written last.
    document: Document,
    /// The number of the last state that was written or failed to be written: there is no more to wait for.
    written: watch::Sender<u64>,
    retry_interval: Duration,
    metrics: Arc<Metrics>,
}

/// Lets requests wait until a state is on the disk.
#[derive(Clone, Debug)]
pub(crate) struct DurableRevision {
    progress: watch::Receiver<u64>,
    /// The last number when a wait timed out: until there is another one no wait is repeated.
    timed_out_at: Option<u64>,
    metrics: Arc<Metrics>,
}

impl StateWriter {
    /// Returns the sender for the control loop, and the writer.
    ///
    /// # Errors
    /// If the channel cannot be created.
    fn new(
        file: StateFile,
        document: Document,
        metrics: &Arc<Metrics>,
    ) -> Result<(Sender<LoopState>, Self), Failure> {
        let (sender, receiver) = channel(CHANNEL_CAPACITY)
            .map_err(|error| Failure::because("make the channel to the state writer", &error))?;
        let (written, metrics) = (watch::Sender::new(0), Arc::clone(metrics));
        let retry_interval = RETRY_INTERVAL;
        Ok((sender, Self { receiver, file, document, written, retry_interval, metrics }))
    }

    /// Returns what requests wait for.
    pub(crate) fn durable_revision(&self) -> DurableRevision {
        let (progress, metrics) = (self.written.subscribe(), Arc::clone(&self.metrics));
        DurableRevision { progress, timed_out_at: None, metrics }
    }

    /// Writes until the control loop has ended. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the channel cannot be watched.
    pub(crate) async fn run(mut self) -> Result<(), Failure> {
        let failed =
            |error: std::io::Error| Failure::because("watch the channel to the state writer", &error);
        let wakeups = self.receiver.wakeups().map_err(failed)?;
        let mut works = true;
        loop {
            let next = self.receiver.recv(&wakeups);
            let next = if works { Ok(next.await) } else { timeout(self.retry_interval, next).await };
            match next {
                Ok(state) => match state.map_err(failed)? {
                    Some(state) => self.document.state = state,
                    None => return Ok(()),
                },
                // The state that could not be written is written again.
                Err(_elapsed) => {}
            }
            // Only the latest state counts.
            while let Ok(state) = self.receiver.try_recv() {
                self.document.state = state;
            }
            let result = self.write().await;
            let name = if result.is_ok() { "written" } else { "failed" };
            self.metrics.state_writes.with([name]).inc();
            self.log_result(&result, works);
            works = result.is_ok();
            self.written.send_replace(self.document.state.number);
        }
    }

    async fn write(&mut self) -> Result<(), String> {
        self.document.clock = Clock::start();
        self.document.written = self.document.clock.now().wall;
        let content = serde_json::to_vec(&self.document).map_err(|error| chain(&error))?;
        let file = self.file.clone();
        let written = tokio::task::spawn_blocking(move || file.write(&content)).await;
        written.map_err(|error| chain(&error))?.map_err(|error| chain(&error))
    }

    /// Logs a result that differs from the previous one.
    fn log_result(&self, result: &Result<(), String>, worked: bool) {
        let file = self.file.path.display();
        match result {
            Ok(()) if !worked => tracing::info!(%file, "the state can be written again"),
            Err(why) if worked => tracing::warn!(
                %file, why,
                "the state cannot be written: decisions go on, but a restarted agent will not know them"
            ),
            _ => {}
        }
    }
}

impl DurableRevision {
    /// Waits until the state of this number was written, failed to be written, or takes too long.
    pub(crate) async fn wait_for(&mut self, number: u64) {
        let now = *self.progress.borrow();
        if self.timed_out_at == Some(now) || now >= number {
            return;
        }
        let is_done = |written: &u64| *written >= number;
        let is_late = timeout(WAIT_TIMEOUT, self.progress.wait_for(is_done)).await.is_err();
        if is_late {
            self.timed_out_at = Some(*self.progress.borrow());
            self.metrics.state_writes.with(["late"]).inc();
        }
    }
}

/// A file in the state directory: read once, set aside if it cannot be used, and replaced as a whole.
#[derive(Clone, Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
}

impl StateFile {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the content; `None` if there is no file.
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_BYTES {
            // Too long is treated like a corrupt file.
            bytes.clear();
        }
        Ok(Some(bytes))
    }

    /// Reads a JSON value; `None` if there is no file.
    ///
    /// # Errors
    /// The file and the cause, if it cannot be used.
    pub(crate) fn read_json<T: DeserializeOwned>(&self) -> Result<Option<T>, String> {
        let failed = |why: &dyn std::fmt::Display| format!("read {}: {why}", self.path.display());
        let bytes = self.read().map_err(|error| failed(&error))?;
        bytes.map(|bytes| serde_json::from_slice(&bytes).map_err(|error| failed(&error))).transpose()
    }

    /// Replaces the file by a JSON value, as [`Self::write`] does.
    pub(crate) fn write_json(&self, value: &impl Serialize) -> io::Result<()> {
        self.write(&serde_json::to_vec(value)?)
    }

    /// Renames the file, so that it can be examined later. Replaces a file that was set aside before.
    fn set_aside(&self) -> io::Result<PathBuf> {
        let aside = self.with_suffix(SUFFIXES[1]);
        fs::rename(&self.path, &aside)?;
        Ok(aside)
    }

    /// Replaces the file as a whole or not at all, also if the machine stops at any moment.
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let new = self.with_suffix(SUFFIXES[0]);
        let written = write_new(&new, bytes).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                fs::create_dir_all(folder)?;
                write_new(&new, bytes)
            }
            _ => Err(error),
        });
        let exchanged = written.and_then(|()| fs::rename(&new, &self.path));
        if exchanged.is_err() {
            // A full disk needs the space.
            drop(fs::remove_file(&new));
        }
        exchanged?;
        File::open(folder)?.sync_all()
    }

    fn with_suffix(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        name.into()
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(flags).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
