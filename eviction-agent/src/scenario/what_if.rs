//! Replays a recording under changes, to find which pods would have been evicted.
//!
//! Two engines get the same inputs, one of them under the changes. Until their evictions differ, the results
//! are facts. From then on the simulated node differs from the recorded one, and the results are projections:
//! an evicted pod releases the memory that it used, and a pod that is not evicted keeps the usage that it had
//! when it was evicted in the recording. So the usage of a pod that would have grown further is too small.

mod changes;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use eviction_core::decision::{Action, Decision};
use eviction_core::engine::Engine;
use eviction_core::input::{Event, Input};
use eviction_core::pod::Pod;
use eviction_core::reading::Reading;
use eviction_core::signal::Signal;
use eviction_core::signal_filter::observe;
use eviction_core::snapshot::{MemoryStats, NodeStats, PodStats, Snapshot};
use eviction_core::time::{Timestamp, later};
use eviction_core::units::GoDuration;
use serde::Serialize;

pub use changes::Changes;
use changes::name;

use super::recording::{Replay, engine, known_pods};
use crate::telemetry::recording::Key;
use crate::telemetry::recording::reader::{Item, SegmentError};

/// A decision that evicts in the recording, under the changes, or in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The time.
    pub at: Timestamp,
    /// Pods that were evicted.
    pub recorded: Vec<String>,
    /// Pods that would be evicted under the changes.
    pub what_if: Vec<String>,
    /// Whether the simulated node already differed from the recorded one.
    pub projected: bool,
}

/// The results of the recording, or of the replay under changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayResult {
    /// The number of evictions.
    pub evictions: usize,
    /// The least `memory.available`, bytes.
    pub least_available: Option<i64>,
    /// The least of `memory.available` less its hard threshold, bytes.
    pub least_headroom: Option<i64>,
}

/// The comparison of a recording with its replay under changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// The decisions that evict.
    pub rows: Vec<Row>,
    /// The results of the recording.
    pub recorded: ReplayResult,
    /// The results under the changes.
    pub what_if: ReplayResult,
    /// Parts of the recording that cannot be read.
    pub errors: Vec<SegmentError>,
}

impl Comparison {
    /// Returns whether the same pods are evicted at the same times.
    pub fn is_same(&self) -> bool {
        self.rows.iter().all(|row| row.recorded == row.what_if)
    }
}

/// Compares a recording with itself under changes.
///
/// # Errors
/// If the recording cannot be found or read, the changes make no valid configuration, or name a pod that the
/// recording does not have.
pub fn compare(path: &Path, changes: &Changes) -> Result<Comparison, String> {
    let recorded = Replay::of(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    let mut replays = ParallelReplay { changes: changes.clone(), recorded, ..ParallelReplay::default() };
    while let Some((item, decision)) = replays.recorded.next() {
        replays.take(&item, decision.as_ref())?;
    }
    if replays.what_if.is_none()
        && let Some(error) = replays.recorded.errors.first()
    {
        return Err(error.text.clone());
    }
    replays.comparison.errors = replays.recorded.errors;
    let named = changes.requests.keys().chain(changes.priorities.keys());
    let named = named.chain(&changes.protect).chain(&changes.without);
    let unknown: Vec<_> =
        named.filter(|name| !replays.pod_names.contains(*name)).map(String::as_str).collect();
    if unknown.is_empty() {
        Ok(replays.comparison)
    } else {
        Err(format!("no such pod in the recording: {}", unknown.join(", ")))
    }
}

#[derive(Default)]
struct ParallelReplay {
    changes: Changes,
    recorded: Replay,
    what_if: Option<Engine>,
    projected: bool,
    /// The current pods of the recording.
    pods: Vec<Arc<Pod>>,
    /// The last usage of pods.
    usage: Arc<Snapshot>,
    /// Pods that were evicted under the changes while the results are projections, with the time at which
    /// they terminate.
    termination_times: BTreeMap<Box<str>, Timestamp>,
    /// Pods that were evicted only in the recording, with their usage at that time.
    surviving: BTreeMap<Box<str>, (Arc<Pod>, Snapshot)>,
    /// Pods of the recording that do not exist under the changes.
    without: HashSet<Box<str>>,
    /// The names of all pods of the recording.
    pod_names: BTreeSet<String>,
    comparison: Comparison,
}

impl ParallelReplay {
    /// Processes an item. `decision`: what the engine of the recording has decided on it.
    fn take(&mut self, item: &Item, decision: Option<&Decision>) -> Result<(), String> {
        match item {
            Item::Key(key) if self.recorded.has_started_engine() => {
                // From this key on, the simulated node is the recorded one again.
                self.termination_times.clear();
                self.surviving.clear();
                self.projected = !self.changes.without.is_empty();
                let policy = self.changes.policy(&key.policy)?;
                self.what_if = Some(engine(&Key { policy, ..(**key).clone() }));
            }
            Item::Pods(at, pods) => {
                self.pods.clone_from(pods);
                self.pod_names.extend(pods.iter().map(|pod| name(pod)));
                let without = pods.iter().filter(|pod| self.changes.without.contains(&name(pod)));
                self.without = without.map(|pod| pod.uid.clone()).collect();
                self.update_pods(*at);
            }
            Item::Usage(_, usage) => self.usage = Arc::clone(usage),
            Item::Seed(raised) => {
                if let Some(engine) = &mut self.what_if {
                    engine.seed_conditions(raised.iter().copied());
                }
            }
            Item::Input(input) => self.take_input(input, decision)?,
            Item::Header(_) | Item::Key(_) | Item::Decision(_) | Item::Clock(_) => {}
        }
        Ok(())
    }

    fn take_input(&mut self, input: &Input, recorded: Option<&Decision>) -> Result<(), String> {
        let at = input.at;
        self.terminate_due_pods(at);
        let event = match &input.event {
            Event::Sample(sample) => {
                if !sample.is_empty() {
                    self.usage = Arc::clone(sample);
                }
                update_minimums(&mut self.comparison.recorded, self.recorded.engine(), &sample.node);
                let sample = self.changed_sample(at, sample);
                update_minimums(&mut self.comparison.what_if, self.what_if.as_ref(), &sample.node);
                Event::Sample(sample)
            }
            Event::Reclaimed(Ok(sample)) => Event::Reclaimed(Ok(self.changed_sample(at, sample))),
            Event::Propose(policy) => match self.changes.policy(policy) {
                Ok(policy) => Event::Propose(Box::new(policy)),
                Err(_) => return Ok(()),
            },
            // Results of evictions that did not happen under the changes.
            Event::Evicted { uid, .. } if self.surviving.contains_key(uid) => return Ok(()),
            Event::Executing { .. } if self.projected => return Ok(()),
            other => other.clone(),
        };
        let Some(engine) = &mut self.what_if else { return Ok(()) };
        let what_if = engine.step(Input { at, event });
        self.shorten_grace(at, &what_if);
        let (recorded, what_if) = (recorded.map(evicted).unwrap_or_default(), evicted(&what_if));
        if recorded.is_empty() && what_if.is_empty() {
            return Ok(());
        }
        let projected = self.projected;
        let uids = |all: &[(Arc<Pod>, i64)]| all.iter().map(|(pod, _)| pod.uid.clone()).collect::<Vec<_>>();
        self.projected |= uids(&recorded) != uids(&what_if);
        self.comparison.recorded.evictions += recorded.len();
        self.comparison.what_if.evictions += what_if.len();
        let names = |all: &[(Arc<Pod>, i64)]| all.iter().map(|(pod, _)| name(pod)).collect();
        let row = Row { at, recorded: names(&recorded), what_if: names(&what_if), projected };
        self.comparison.rows.push(row);
        for (pod, _) in &recorded {
            let is_elsewhere =
                uids(&what_if).contains(&pod.uid) || self.termination_times.contains_key(&pod.uid);
            if !is_elsewhere && !self.changes.without.contains(&name(pod)) {
                self.surviving
                    .insert(pod.uid.clone(), (Arc::clone(pod), usage_of_pod(&pod.uid, &self.usage)));
            }
        }
        for (pod, grace_period_seconds) in what_if {
            if self.projected {
                let end = later(at, GoDuration::from_secs(grace_period_seconds));
                self.termination_times.insert(pod.uid.clone(), end);
            }
        }
        Ok(())
    }

    /// Shortens the grace periods of terminating pods as a decision under the changes does.
    fn shorten_grace(&mut self, at: Timestamp, decision: &Decision) {
        let Some(evaluation) = decision.evaluation() else { return };
        for action in &decision.actions {
            if let Action::ShortenGrace(eviction) = action
                && let Some(known) = evaluation.pods.get(eviction.pod)
                && let Some(end) = self.termination_times.get_mut(&known.pod.uid)
            {
                *end = later(at, GoDuration::from_secs(eviction.grace_period_seconds)).min(*end);
            }
        }
    }

    /// Terminates the pods whose grace period under the changes has ended.
    fn terminate_due_pods(&mut self, at: Timestamp) {
        let Some(engine) = &mut self.what_if else { return };
        let is_active = |uid: &str| engine.pods().index_of(uid).is_some();
        let due = self.termination_times.iter().filter(|(uid, end)| **end <= at && is_active(uid));
        let due: Vec<_> = due.map(|(uid, _)| uid.clone()).collect();
        if due.is_empty() {
            return;
        }
        for uid in due {
            self.surviving.remove(&uid);
            engine.step(Input { at, event: Event::Evicted { uid, result: Ok(()) } });
        }
        self.update_pods(at);
    }

    /// Updates the pods of the engine under the changes.
    fn update_pods(&mut self, at: Timestamp) {
        let has_terminated = |pod: &Pod| self.termination_times.get(&pod.uid).is_some_and(|end| *end <= at);
        let is_present = |pod: &&Arc<Pod>| !has_terminated(pod) && !self.without.contains(&pod.uid);
        let mut pods: Vec<_> = self.pods.iter().filter(is_present).map(|pod| self.changes.pod(pod)).collect();
        let surviving = self.surviving.values().map(|(pod, _)| pod);
        let is_missing = |pod: &&Arc<Pod>| !self.pods.iter().any(|other| other.uid == pod.uid);
        pods.extend(surviving.filter(is_missing).map(|pod| self.changes.pod(pod)));
        let Some(engine) = &mut self.what_if else { return };
        let pods = known_pods(&pods, engine);
        engine.step(Input { at, event: Event::Pods(pods) });
    }

    /// Returns the sample under the changes. It has the pods if the recorded sample has them or if they must
    /// be ranked.
    fn changed_sample(&self, at: Timestamp, sample: &Arc<Snapshot>) -> Arc<Snapshot> {
        let Some(engine) = &self.what_if else { return Arc::clone(sample) };
        let is_same =
            self.termination_times.is_empty() && self.surviving.is_empty() && self.changes.without.is_empty();
        if is_same && (!sample.is_empty() || !engine.needs_pods(at, &sample.node)) {
            return Arc::clone(sample);
        }
        let stats = if sample.is_empty() { &self.usage } else { sample };
        let exists = |pod: &PodStats<'_>| {
            let uid = pod.uid();
            !self.without.contains(uid)
                && (!self.termination_times.contains_key(uid) || engine.pods().index_of(uid).is_some())
        };
        let mut node = sample.node;
        let (existing, removed): (Vec<_>, Vec<_>) = stats.pods().partition(exists);
        let surviving = self.surviving_stats(stats);
        let sum = |pods: &[PodStats<'_>]| pods.iter().copied().map(memory_used).sum();
        adjust_memory(&mut node, sum(&removed), sum(&surviving));
        let mut changed = Snapshot::of_node(node);
        if !sample.is_empty() || engine.needs_pods(at, &node) {
            existing.into_iter().chain(surviving).for_each(|pod| copy(pod, &mut changed));
        }
        Arc::new(changed)
    }

    /// Returns the usage of the pods that were evicted only in the recording and have terminated there.
    fn surviving_stats(&self, stats: &Snapshot) -> Vec<PodStats<'_>> {
        if self.surviving.is_empty() {
            return Vec::new();
        }
        let measured: HashSet<&str> = stats.pods().map(PodStats::uid).collect();
        let surviving = self.surviving.values().flat_map(|(_, then)| then.pods());
        surviving.filter(|pod| !measured.contains(pod.uid())).collect()
    }
}

/// Updates the least available memory and headroom of a result by a sample.
fn update_minimums(result: &mut ReplayResult, engine: Option<&Engine>, node: &NodeStats) {
    let Some(policy) = engine.map(Engine::policy) else { return };
    let Some(observation) = observe(node, policy.rules.memory().measure).get(Signal::MemoryAvailable) else {
        return;
    };
    let least = |least: &mut Option<i64>, value: i64| *least = Some(least.map_or(value, |it| it.min(value)));
    least(&mut result.least_available, observation.available);
    let hard = policy.thresholds.iter().find(|it| it.signal == Signal::MemoryAvailable && it.is_hard());
    if let Some(hard) = hard {
        let below = hard.value.quantity(observation.capacity).value();
        least(&mut result.least_headroom, observation.available.saturating_sub(below));
    }
}

/// Returns the pods that a decision evicts, with their grace periods in seconds.
fn evicted(decision: &Decision) -> Vec<(Arc<Pod>, i64)> {
    let Some(evaluation) = decision.evaluation() else { return Vec::new() };
    let pods = decision.actions.iter().filter_map(|action| match action {
        Action::Evict(eviction) => {
            let pod = &evaluation.pods.get(eviction.pod)?.pod;
            Some((Arc::new(pod.clone()), eviction.grace_period_seconds))
        }
        Action::RecordEvent(_) | Action::Reclaim(_) | Action::ShortenGrace(_) => None,
    });
    pods.collect()
}

fn memory_used(pod: PodStats<'_>) -> u64 {
    pod.values().memory_working_set.unwrap_or(0)
}

fn copy(pod: PodStats<'_>, snapshot: &mut Snapshot) {
    snapshot.add_pod(pod.uid(), pod.values());
    for (name, values) in pod.containers() {
        snapshot.add_container(name, values);
    }
    for (name, values) in pod.volumes() {
        snapshot.add_volume(name, values);
    }
}

/// Returns the usage of one pod.
fn usage_of_pod(uid: &str, usage: &Snapshot) -> Snapshot {
    let mut snapshot = Snapshot::default();
    usage.pods().filter(|pod| pod.uid() == uid).for_each(|pod| copy(pod, &mut snapshot));
    snapshot
}

/// Adjusts the memory of the node: `freed` bytes are free under the changes, and `held` bytes are not.
fn adjust_memory(node: &mut NodeStats, freed: u64, held: u64) {
    let more = |value: u64| value.saturating_add(freed).saturating_sub(held);
    let less = |value: u64| value.saturating_add(held).saturating_sub(freed);
    for memory in [&mut node.memory, &mut node.allocatable_memory] {
        if let Reading::Known(MemoryStats { available, working_set, .. }) = memory {
            *available = available.map(more);
            *working_set = working_set.map(less);
        }
    }
    let available = &mut node.memory_detail.mem_available;
    *available = available.map(more);
}

/// Returns the comparison as lines of text, without the table.
pub fn summary(comparison: &Comparison) -> String {
    let mut text = String::new();
    for (name, result) in [("recorded", &comparison.recorded), ("what if", &comparison.what_if)] {
        let ReplayResult { evictions, least_available, least_headroom } = result;
        let bytes = |bytes: &Option<i64>| {
            bytes.map_or_else(|| "unknown".to_owned(), |it| eviction_core::units::display_bytes(it.into()))
        };
        let (available, headroom) = (bytes(least_available), bytes(least_headroom));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{name}: {evictions} evictions, least memory.available {available}, least headroom {headroom}"
        );
    }
    text
}
