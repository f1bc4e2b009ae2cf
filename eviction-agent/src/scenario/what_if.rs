//! A recording with something changed: which pods would have been evicted.
//!
//! Two engines are given the same inputs, one of them under the changes. Until their evictions differ, all is
//! fact. After that the world is another one, and what is decided is projected: a pod that goes gives back
//! what it used, and a pod that stays keeps what it used when it was evicted in the recording. A pod that
//! would have grown on is so shown too small.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;

use eviction_config::{kubelet_policy, parse_agent};
use eviction_core::decision::{Action, Decision};
use eviction_core::engine::Engine;
use eviction_core::input::{Event, Input};
use eviction_core::pod::{Pod, Resources};
use eviction_core::pods::EVICT;
use eviction_core::policy::Policy;
use eviction_core::progress::EvictionResult;
use eviction_core::reading::Reading;
use eviction_core::signal::Signal;
use eviction_core::signal_filter::observe;
use eviction_core::snapshot::{MemoryStats, NodeStats, PodStats, Snapshot, SnapshotBuilder};
use eviction_core::sorted_map::SortedMap;
use eviction_core::time::Timestamp;
use eviction_core::units::Quantity;
use serde::Serialize;
use serde_json::{Value, json};

use super::recording::{Replay, each, engine, known};
use super::settings;
use crate::telemetry::recording::Key;
use crate::telemetry::recording::reader::Item;

/// The changes. Pods are `NAMESPACE/NAME`.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Fields of the KubeletConfiguration, such as `evictionHard.memory.available`.
    pub kubelet: BTreeMap<String, String>,
    /// Fields of the AgentConfiguration, such as `policy.maxEvictionsPerSync`.
    pub agent: BTreeMap<String, String>,
    /// Memory requests of pods.
    pub requests: BTreeMap<String, Quantity>,
    /// Priorities of pods.
    pub priorities: BTreeMap<String, i32>,
    /// Pods that opt out of eviction.
    pub protect: BTreeSet<String>,
    /// Pods that are not there.
    pub without: BTreeSet<String>,
}

/// An eviction in one of the worlds or in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// When.
    pub at: Timestamp,
    /// Pods that were evicted.
    pub recorded: Vec<String>,
    /// Pods that would be.
    pub what_if: Vec<String>,
    /// The worlds had parted before.
    pub projected: bool,
}

/// What happened in a world.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct World {
    /// Evictions.
    pub evictions: usize,
    /// The least `memory.available`, bytes.
    pub least_available: Option<i64>,
    /// The least of `memory.available` less its hard threshold, bytes.
    pub least_headroom: Option<i64>,
}

/// Both worlds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Each decision that evicts.
    pub rows: Vec<Row>,
    /// As it was.
    pub recorded: World,
    /// As it would have been.
    pub what_if: World,
    /// Parts of the recording that cannot be read.
    pub errors: Vec<String>,
}

impl Comparison {
    /// Whether the same pods are evicted at the same time.
    pub fn is_same(&self) -> bool {
        self.rows.iter().all(|row| row.recorded == row.what_if)
    }
}

/// Compares a recording with itself under changes.
///
/// # Errors
/// If it cannot be found, the changes make no valid configuration, or name a pod that it does not have.
pub fn compare(path: &Path, changes: &Changes) -> Result<Comparison, String> {
    let mut both = Both { changes, projected: !changes.without.is_empty(), ..Both::new(changes) };
    let mut failed = None;
    let read = each(path, &mut |item| match item {
        Ok(item) if failed.is_none() => failed = both.take(item).err(),
        Ok(_) => {}
        Err(error) => {
            both.recorded.interrupt();
            both.comparison.errors.push(error.text);
        }
    });
    read.map_err(|error: io::Error| format!("read {}: {error}", path.display()))?;
    if let Some(failed) = failed {
        return Err(failed);
    }
    let named = changes.requests.keys().chain(changes.priorities.keys());
    let named = named.chain(&changes.protect).chain(&changes.without);
    let unknown: Vec<_> = named.filter(|name| !both.seen.contains(*name)).map(String::as_str).collect();
    if unknown.is_empty() {
        Ok(both.comparison)
    } else {
        Err(format!("no such pod in the recording: {}", unknown.join(", ")))
    }
}

/// The policy under the changes.
///
/// # Errors
/// What is wrong with them.
pub fn policy(recorded: &Policy, changes: &Changes) -> Result<Policy, String> {
    if changes.kubelet.is_empty() && changes.agent.is_empty() {
        return Ok(recorded.clone());
    }
    let mut kubelet = settings::kubelet(recorded);
    let mut agent = settings::agent(recorded);
    for (path, value) in &changes.kubelet {
        // Names of signals have dots.
        match path.split_once('.') {
            Some((map, signal)) => kubelet[map][signal] = json!(value),
            None => kubelet[path.as_str()] = parsed(value),
        }
    }
    for (path, value) in &changes.agent {
        let mut place = &mut agent;
        for key in path.split('.') {
            if !place.is_object() && !place.is_null() {
                return Err(format!("{path}: is no field of an AgentConfiguration"));
            }
            place = &mut place[key];
        }
        *place = parsed(value);
    }
    let wrong = |text: &str| format!("the changed configuration is refused: {text}");
    let kubelet = kubelet_policy(&kubelet).map_err(|error| wrong(&error.text))?;
    let agent = parse_agent(&agent).map_err(|problems| wrong(&problems.to_string()))?;
    let kubelet_thresholds = recorded.kubelet_thresholds.clone();
    Ok(Policy { kubelet_thresholds, ..agent.over(kubelet) })
}

/// A value of a configuration: JSON where it is, else a text.
fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}

struct Both<'a> {
    changes: &'a Changes,
    recorded: Replay,
    what_if: Option<Engine>,
    projected: bool,
    /// The pods of the recording as they are now.
    pods: Vec<Arc<Pod>>,
    /// What pods used last.
    usage: Arc<Snapshot>,
    /// Evicted in the changed world alone, and when they have ended there.
    gone: BTreeMap<Box<str>, Timestamp>,
    /// Evicted in the recording alone, with what they used then.
    kept: BTreeMap<Box<str>, (Arc<Pod>, Snapshot)>,
    /// Pods of the recording that are not there in the changed world at all.
    without: HashSet<Box<str>>,
    /// Every pod there was, by its name.
    seen: BTreeSet<String>,
    comparison: Comparison,
}

impl<'a> Both<'a> {
    fn new(changes: &'a Changes) -> Self {
        Self {
            changes,
            recorded: Replay::default(),
            what_if: None,
            projected: false,
            pods: Vec::new(),
            usage: Arc::default(),
            gone: BTreeMap::new(),
            kept: BTreeMap::new(),
            without: HashSet::new(),
            seen: BTreeSet::new(),
            comparison: Comparison::default(),
        }
    }

    fn take(&mut self, item: &Item) -> Result<(), String> {
        let recorded = self.recorded.take(item);
        match item {
            Item::Key(key) if self.recorded.has_begun() => {
                // The world is the recorded one again.
                self.gone.clear();
                self.kept.clear();
                self.projected = !self.changes.without.is_empty();
                let policy = policy(&key.policy, self.changes)?;
                self.what_if = Some(engine(&Key { policy, ..(**key).clone() }));
            }
            Item::Pods(at, pods) => {
                self.pods.clone_from(pods);
                self.seen.extend(pods.iter().map(|pod| name(pod)));
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
            Item::Input(input) => self.take_input(input, recorded.as_ref())?,
            Item::Header(_) | Item::Key(_) | Item::Decision(_) | Item::Clock(_) => {}
        }
        Ok(())
    }

    fn take_input(&mut self, input: &Input, recorded: Option<&Decision>) -> Result<(), String> {
        let at = input.at;
        self.settle(at);
        let event = match &input.event {
            Event::Sample(sample) => {
                if !sample.is_empty() {
                    self.usage = Arc::clone(sample);
                }
                self.note(true, &sample.node);
                let sample = self.changed(sample);
                self.note(false, &sample.node);
                Event::Sample(sample)
            }
            Event::Reclaimed(Ok(sample)) => Event::Reclaimed(Ok(self.changed(sample))),
            Event::Propose(policy) => match self::policy(policy, self.changes) {
                Ok(policy) => Event::Propose(Box::new(policy)),
                Err(_) => return Ok(()),
            },
            // Results of evictions that did not take place here.
            Event::Evicted(result) if self.kept.contains_key(&result.uid) => return Ok(()),
            Event::Executing { .. } if self.projected => return Ok(()),
            other => other.clone(),
        };
        let Some(engine) = &mut self.what_if else { return Ok(()) };
        let what_if = engine.step(Input { at, event });
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
            let is_elsewhere = uids(&what_if).contains(&pod.uid) || self.gone.contains_key(&pod.uid);
            if !is_elsewhere && !self.changes.without.contains(&name(pod)) {
                self.kept.insert(pod.uid.clone(), (Arc::clone(pod), only(&pod.uid, &self.usage)));
            }
        }
        for (pod, grace_period_seconds) in what_if {
            if self.projected {
                let grace = jiff::SignedDuration::from_secs(grace_period_seconds);
                self.gone.insert(pod.uid.clone(), at.checked_add(grace).unwrap_or(at));
            }
        }
        Ok(())
    }

    /// Ends what takes its grace period in the changed world.
    fn settle(&mut self, at: Timestamp) {
        let over: Vec<_> =
            self.gone.iter().filter(|(_, end)| **end <= at).map(|(uid, _)| uid.clone()).collect();
        let is_active = |engine: &Engine, uid: &str| engine.pods().index_of(uid).is_some();
        let mut has_changed = false;
        for uid in over {
            let Some(engine) = self.what_if.as_mut().filter(|it| is_active(it, &uid)) else { continue };
            self.kept.remove(&uid);
            engine.step(Input { at, event: Event::Evicted(EvictionResult { uid, result: Ok(()) }) });
            has_changed = true;
        }
        if has_changed {
            self.update_pods(at);
        }
    }

    /// The pods of the changed world.
    fn update_pods(&mut self, at: Timestamp) {
        let is_gone = |pod: &Pod| self.gone.get(&pod.uid).is_some_and(|end| *end <= at);
        let here = |pod: &&Arc<Pod>| !is_gone(pod) && !self.without.contains(&pod.uid);
        let mut pods: Vec<_> = self.pods.iter().filter(here).map(|pod| self.changed_pod(pod)).collect();
        let kept = self.kept.values().map(|(pod, _)| pod);
        let is_missing = |pod: &&Arc<Pod>| !self.pods.iter().any(|other| other.uid == pod.uid);
        pods.extend(kept.filter(is_missing).cloned());
        let Some(engine) = &mut self.what_if else { return };
        let pods = known(&pods, engine);
        engine.step(Input { at, event: Event::Pods(pods) });
    }

    fn changed_pod(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let Changes { requests, priorities, protect, .. } = self.changes;
        let name = name(pod);
        let mut changed = (**pod).clone();
        if let Some(request) = requests.get(&name) {
            let of_pod = changed.resources.get_or_insert_with(Resources::default);
            of_pod.requests = with(&of_pod.requests, "memory", request.clone());
        }
        if let Some(priority) = priorities.get(&name) {
            changed.priority = Some(*priority);
        }
        if protect.contains(&name) {
            changed.annotations = with(&changed.annotations, EVICT, "false".into());
        }
        if changed == **pod { Arc::clone(pod) } else { Arc::new(changed) }
    }

    /// The sample of the changed world: with the pods where they have to be ranked.
    fn changed(&self, sample: &Arc<Snapshot>) -> Arc<Snapshot> {
        let Some(engine) = &self.what_if else { return Arc::clone(sample) };
        let is_same = self.gone.is_empty() && self.kept.is_empty() && self.changes.without.is_empty();
        if is_same && (!sample.is_empty() || !engine.needs_pods(&sample.node)) {
            return Arc::clone(sample);
        }
        let stats = if sample.is_empty() { &self.usage } else { sample };
        let is_here = |pod: &PodStats<'_>| {
            let uid = pod.uid();
            !self.without.contains(uid)
                && (!self.gone.contains_key(uid) || engine.pods().index_of(uid).is_some())
        };
        let mut node = sample.node;
        let (here, gone): (Vec<_>, Vec<_>) = stats.pods().partition(is_here);
        let kept = self.kept_beside(stats);
        let sum = |pods: &[PodStats<'_>]| pods.iter().copied().map(used).sum();
        shift(&mut node, sum(&gone), sum(&kept));
        let mut builder = SnapshotBuilder::new();
        if !sample.is_empty() || engine.needs_pods(&node) {
            here.into_iter().chain(kept).for_each(|pod| copy(pod, &mut builder));
        }
        builder.node(node);
        Arc::new(builder.finish())
    }

    /// What those used that were evicted in the recording alone and have ended there.
    fn kept_beside(&self, stats: &Snapshot) -> Vec<PodStats<'_>> {
        if self.kept.is_empty() {
            return Vec::new();
        }
        let measured: HashSet<&str> = stats.pods().map(PodStats::uid).collect();
        let kept = self.kept.values().flat_map(|(_, then)| then.pods());
        kept.filter(|pod| !measured.contains(pod.uid())).collect()
    }

    fn note(&mut self, is_recorded: bool, node: &NodeStats) {
        let engine = if is_recorded { self.recorded.engine() } else { self.what_if.as_ref() };
        let Some(policy) = engine.map(Engine::policy) else { return };
        let Some(seen) = observe(node, policy.rules.memory().measure).get(Signal::MemoryAvailable) else {
            return;
        };
        let world = if is_recorded { &mut self.comparison.recorded } else { &mut self.comparison.what_if };
        let least =
            |least: &mut Option<i64>, value: i64| *least = Some(least.map_or(value, |it| it.min(value)));
        least(&mut world.least_available, seen.available);
        let hard = policy.thresholds.iter().find(|it| it.signal == Signal::MemoryAvailable && it.is_hard());
        if let Some(hard) = hard {
            let below = hard.value.quantity(seen.capacity).value();
            least(&mut world.least_headroom, seen.available.saturating_sub(below));
        }
    }
}

/// A map with another value.
fn with<V: Clone>(map: &SortedMap<V>, key: &str, value: V) -> SortedMap<V> {
    let others =
        map.iter().filter(|(other, _)| *other != key).map(|(key, value)| (key.into(), value.clone()));
    others.chain([(key.into(), value)]).collect()
}

/// The pods that a decision evicts, with their grace periods.
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

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn used(pod: PodStats<'_>) -> u64 {
    pod.values().memory_working_set.unwrap_or(0)
}

fn copy(pod: PodStats<'_>, builder: &mut SnapshotBuilder) {
    let mut copy = builder.pod(pod.uid(), pod.values());
    for it in pod.containers() {
        copy.container(it.name(), it.values());
    }
    for it in pod.volumes() {
        copy.volume(it.name(), it.values());
    }
}

/// What one of the pods used.
fn only(uid: &str, usage: &Snapshot) -> Snapshot {
    let mut builder = SnapshotBuilder::new();
    usage.pods().filter(|pod| pod.uid() == uid).for_each(|pod| copy(pod, &mut builder));
    builder.finish()
}

/// Memory that is free in this world, and memory that is not.
fn shift(node: &mut NodeStats, freed: u64, held: u64) {
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

/// The comparison as lines of text, a table aside.
pub fn summary(comparison: &Comparison) -> String {
    let mut text = String::new();
    for (name, world) in [("recorded", &comparison.recorded), ("what if", &comparison.what_if)] {
        let World { evictions, least_available, least_headroom } = world;
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
