//! Replay and verification of recordings.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use eviction_core::decision::{Action, Decision, DecisionKind};
use eviction_core::engine::Engine;
use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::pod::{Pod, PodName};
use eviction_core::pods::{KnownPod, PodSet};
use eviction_core::record::{DecisionRecord, PodSample};
use eviction_core::snapshot::Snapshot;
use eviction_core::time::Timestamp;
use serde_json::Value;

use super::expected::{Difference, diff};
use super::format::Outcome;
use super::run::ExplainedScenario;
use crate::telemetry::recording::Key;
use crate::telemetry::recording::reader::{Item, Items, SegmentError};

/// Reads the items of a recording, and passes the inputs among them to an engine.
#[derive(Default)]
pub struct Replay {
    items: Items,
    /// An item that was read, but was not due.
    pending: Option<Item>,
    /// The segments that could not be read to their end so far.
    pub errors: Vec<SegmentError>,
    engine: Option<Engine>,
    /// The run and the number of the last segment. `None` after an error.
    last_segment: Option<(String, u64)>,
    /// Whether the current segment continues the previous one.
    follows: bool,
    /// Whether to skip the pods after the key, because the engine has them already.
    skip_pods: bool,
}

impl Replay {
    /// Replays all segments of a recording.
    ///
    /// # Errors
    /// If the recording cannot be found, or has no segment.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::of_items(Items::of(path)?))
    }

    /// Replays these items.
    pub fn of_items(items: Items) -> Self {
        Self { items, ..Self::default() }
    }

    /// Returns the next item if it is due, and the decision of the engine if it is an input. After a segment that
    /// cannot be read to its end, the engine starts anew with the next key.
    pub fn next_if(&mut self, is_due: impl FnOnce(&Item) -> bool) -> Option<(Item, Option<Decision>)> {
        let item = loop {
            match self.pending.take().map(Ok).or_else(|| self.items.next())? {
                Ok(item) => break item,
                Err(error) => {
                    self.last_segment = None;
                    self.errors.push(error);
                }
            }
        };
        if !is_due(&item) {
            self.pending = Some(item);
            return None;
        }
        let decision = self.take(&item);
        Some((item, decision))
    }

    /// Processes an item. Returns the decision of the engine if the item is an input.
    fn take(&mut self, item: &Item) -> Option<Decision> {
        match item {
            Item::Header(header) => {
                let follows = |(run, segment): &(String, u64)| {
                    *run == header.run && segment.checked_add(1) == Some(header.segment)
                };
                self.follows = self.last_segment.as_ref().is_some_and(follows);
                self.last_segment = Some((header.run.clone(), header.segment));
                None
            }
            Item::Key(key) => {
                self.skip_pods = self.follows && key.lost == 0 && self.engine.is_some();
                if !self.skip_pods {
                    self.engine = Some(engine(key));
                }
                None
            }
            Item::Pods(at, pods) => {
                let engine = self.engine.as_mut()?;
                let is_known = engine.pods().is_empty() && pods.is_empty();
                if std::mem::take(&mut self.skip_pods) || is_known {
                    return None;
                }
                let pods = Event::Pods(known_pods(pods, engine));
                Some(engine.step(Input { at: *at, event: pods }))
            }
            Item::Input(input) => Some(self.engine.as_mut()?.step(input.clone())),
            Item::Seed(raised) => {
                self.engine.as_mut()?.seed_conditions(raised.iter().copied());
                None
            }
            Item::Usage(..) | Item::Decision(_) | Item::Clock(_) => None,
        }
    }

    /// Returns whether the last key started a new engine.
    pub fn has_started_engine(&self) -> bool {
        !self.skip_pods
    }

    /// Returns the engine, after the first key.
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }
}

impl Iterator for Replay {
    type Item = (Item, Option<Decision>);

    fn next(&mut self) -> Option<Self::Item> {
        self.next_if(|_| true)
    }
}

pub(super) fn known_pods(pods: &[Arc<Pod>], engine: &Engine) -> Arc<PodSet> {
    let known = |pod: &Arc<Pod>| Arc::new(KnownPod::new((**pod).clone(), engine.policy()));
    Arc::new(PodSet::new(pods.iter().map(known).collect()))
}

/// Returns an engine that continues from the key of a recording.
pub(crate) fn engine(key: &Key) -> Engine {
    let Key { at, policy, dry_run, state, layout, terminating, api, lost: _, pods: _ } = key.clone();
    let mut engine = Engine::new(policy);
    if dry_run {
        engine.set_dry_run();
    }
    let mut step = |event| drop(engine.step(Input { at, event }));
    step(Event::Restore(Box::new(state)));
    if !terminating.is_empty() {
        step(Event::Terminating(terminating));
    }
    if let Some(layout) = layout {
        step(Event::DiskLayout(Ok(layout)));
    }
    if api == ApiReachability::Unreachable {
        step(Event::ApiServer(api));
    }
    engine
}

/// Returns the usage of pods, with the other data on which their eviction order for memory depends. The
/// snapshot is not indexed.
pub(crate) fn pod_sample(at: Timestamp, snapshot: &Arc<Snapshot>, engine: &Engine) -> PodSample {
    PodSample {
        at,
        snapshot: Arc::clone(snapshot),
        pods: Arc::clone(engine.pods()),
        // The eviction order for memory does not depend on the layout.
        layout: Default::default(),
        in_flight: engine.in_flight().to_vec(),
        sized: !engine.policy().rules.are_kubelets(),
    }
}

/// Returns the time of a recorded decision.
pub(crate) fn decision_time(record: &Value) -> Option<Timestamp> {
    record["at"].as_str()?.parse().ok()
}

/// Returns the decisions of a recording within a time, for `explain`: those that were recorded, and those that evict
/// or report an OOM kill or a terminated container. Also returns the segments that cannot be read to their end.
///
/// # Errors
/// If the recording cannot be found.
pub fn explained(
    path: &Path,
    within: (Timestamp, Timestamp),
) -> io::Result<(ExplainedScenario, Vec<SegmentError>)> {
    let mut recorded = BTreeSet::new();
    for item in Items::of(path)?.flatten() {
        if let Item::Decision(record) = item {
            recorded.extend(decision_time(&record));
        }
    }
    let (mut replay, mut reports, mut pods) = (Replay::of(path)?, Vec::new(), BTreeMap::new());
    for (item, decision) in &mut replay {
        if let Item::Pods(_, all) = &item {
            pods.extend(all.iter().map(|pod| (pod.uid.clone(), PodName::of(pod))));
        }
        let Some(decision) = decision else { continue };
        let is_within = within.0 <= decision.at && decision.at <= within.1;
        let is_of_oom = matches!(decision.kind, DecisionKind::Oom(_)) || !decision.ended.is_empty();
        if is_within && (is_of_oom || evicts(&decision) || recorded.contains(&decision.at)) {
            reports.push(DecisionRecord::of(&decision));
        }
    }
    let outcome = Outcome { name: path.display().to_string(), ..Outcome::default() };
    let explained = ExplainedScenario { outcome, pods: pods.into_values().collect(), reports };
    Ok((explained, replay.errors))
}

/// The result of a verification.
#[derive(Debug, Default)]
pub struct Verification {
    /// The number of decisions that are equal to the recorded ones.
    pub same: usize,
    /// The decisions that differ, each as a text.
    pub different: Vec<String>,
    /// The number of decisions whose inputs are missing, because the recorder lost them or a segment cannot
    /// be read.
    pub lost: usize,
    /// The segments that could not be read.
    pub errors: Vec<SegmentError>,
}

/// An eviction decision without a record counts as different if the recording continues for more than this
/// time in seconds: a killed agent loses the last tick.
const TICK_SECONDS: i64 = 2;

/// Replays a recording and compares each recorded decision.
///
/// # Errors
/// If the recording cannot be found.
pub fn verify(path: &Path) -> io::Result<Verification> {
    let mut verified = Verification::default();
    // A record may come later than the inputs of its decision.
    let mut records: BTreeMap<Timestamp, Vec<Value>> = BTreeMap::new();
    for item in Items::of(path)?.flatten() {
        let Item::Decision(record) = item else { continue };
        match decision_time(&record) {
            Some(at) => records.entry(at).or_default().push(record),
            None => verified.different.push("a decision without a time".to_owned()),
        }
    }
    let mut replay = Replay::of(path)?;
    let mut found: BTreeMap<Timestamp, Value> = BTreeMap::new();
    let mut unrecorded: Option<Timestamp> = None;
    // The gaps in the inputs: from the last input before a loss to the next key.
    let (mut last, mut gaps) = (Timestamp::MIN, Vec::new());
    while let Some((item, decision)) = replay.next() {
        if let Item::Header(_) = &item {
            unrecorded = None;
        }
        if let Item::Key(key) = &item
            && replay.has_started_engine()
        {
            gaps.push((last, key.at));
        }
        let Some(decision) = decision else { continue };
        let at = decision.at;
        last = at;
        if let Some(evicted) =
            unrecorded.filter(|evicted| at.as_second() - evicted.as_second() > TICK_SECONDS)
        {
            verified.different.push(format!("{evicted}: decided again, but not recorded"));
            unrecorded = None;
        }
        let Some(recorded) = records.get_mut(&at) else {
            if evicts(&decision) {
                unrecorded = Some(at);
            }
            continue;
        };
        let is_evaluated = decision.evaluation().is_some();
        let Some(replayed) = comparable(&decision) else { continue };
        match recorded.iter().position(|record| without_agent_fields(record.clone()) == replayed) {
            Some(index) => {
                recorded.remove(index);
                verified.same += 1;
            }
            // Other inputs at the same time lead to no evaluation.
            None if is_evaluated || !found.contains_key(&at) => drop(found.insert(at, replayed)),
            None => {}
        }
    }
    gaps.push((last, Timestamp::MAX));
    verified.errors = replay.errors;
    for (at, record) in records.into_iter().flat_map(|(at, all)| all.into_iter().map(move |it| (at, it))) {
        let why = match found.get(&at) {
            Some(replayed) => {
                let (_, difference) = diff(&without_agent_fields(record), replayed);
                let Difference { path, expected, found, .. } = difference.unwrap_or_default();
                let text = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
                let [recorded, replayed] = [expected, found].map(text);
                format!("{path}: recorded {recorded}, decided again {replayed}")
            }
            None if gaps.iter().any(|(from, to)| (*from..=*to).contains(&at)) => {
                verified.lost += 1;
                continue;
            }
            None => "recorded, but not decided again".to_owned(),
        };
        verified.different.push(format!("{at}: {why}"));
    }
    Ok(verified)
}

/// Returns whether a decision evicts a pod.
pub fn evicts(decision: &Decision) -> bool {
    decision.actions.iter().any(|action| matches!(action, Action::Evict(_)))
}

/// Returns the record of a decision as the agent records it: terminated containers are reported separately.
pub(crate) fn record_without_ended(decision: &Decision) -> DecisionRecord {
    DecisionRecord { terminations: Vec::new(), ..DecisionRecord::of(decision) }
}

/// Returns the record of a decision in the form in which it is read from a recording.
fn comparable(decision: &Decision) -> Option<Value> {
    let text = serde_json::to_string(&record_without_ended(decision)).ok()?;
    serde_json::from_str(&text).ok().map(without_agent_fields)
}

/// Removes the fields that the agent adds after the engine has decided.
fn without_agent_fields(mut record: Value) -> Value {
    if let Some(evaluation) = record.get_mut("evaluation").and_then(Value::as_object_mut) {
        evaluation.remove("left_to_kubelet");
    }
    record
}
