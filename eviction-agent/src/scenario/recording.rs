//! Recordings, decided again by the same engine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use eviction_core::decision::{Action, Decision};
use eviction_core::engine::Engine;
use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::oom::ContainerTerminated;
use eviction_core::pod::{Pod, PodName};
use eviction_core::pods::{KnownPod, PodSet};
use eviction_core::record::{DecisionRecord, PodSample};
use eviction_core::snapshot::Snapshot;
use eviction_core::time::Timestamp;
use serde_json::Value;

use super::expected::JsonDiff;
use super::format::Outcome;
use super::run::Explained;
use crate::telemetry::recording::Key;
use crate::telemetry::recording::reader::{FormatError, Item, Segment, find};

/// An engine that gets the inputs of a recording.
#[derive(Debug, Default)]
pub struct Replay {
    engine: Option<Engine>,
    /// The run and the number of the segment that the engine has read to its end.
    read: Option<(String, u64)>,
    /// The segment that is being read, and whether it goes on from the one before.
    follows: bool,
    /// The pods after a key that are known already.
    skip_pods: bool,
    /// Containers whose termination the last item explains.
    ended: Vec<ContainerTerminated>,
}

impl Replay {
    /// Takes an item of the recording. Returns what the engine decides, if the item is an input.
    pub fn take(&mut self, item: &Item) -> Option<Decision> {
        self.ended.clear();
        match item {
            Item::Header(header) => {
                let follows = |(run, segment): &(String, u64)| {
                    *run == header.run && segment.checked_add(1) == Some(header.segment)
                };
                self.follows = self.read.as_ref().is_some_and(follows);
                self.read = Some((header.run.clone(), header.segment));
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
                let pods = Event::Pods(known(pods, engine));
                self.step(Input { at: *at, event: pods })
            }
            Item::Input(input) => self.step(input.clone()),
            Item::Seed(raised) => {
                self.engine.as_mut()?.seed_conditions(raised.iter().copied());
                None
            }
            Item::Usage(..) | Item::Decision(_) | Item::Clock(_) => None,
        }
    }

    fn step(&mut self, input: Input) -> Option<Decision> {
        let mut decision = self.engine.as_mut()?.step(input);
        // The agent reports them on their own.
        self.ended = std::mem::take(&mut decision.ended);
        Some(decision)
    }

    /// Containers whose termination was explained by the last item.
    pub fn ended(&self) -> &[ContainerTerminated] {
        &self.ended
    }

    /// What follows is not what came next: the engine begins anew with the next key.
    pub fn interrupt(&mut self) {
        self.read = None;
    }

    /// Whether the last key began an engine.
    pub fn has_begun(&self) -> bool {
        !self.skip_pods
    }

    /// The engine, once there was a key.
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }
}

pub(super) fn known(pods: &[Arc<Pod>], engine: &Engine) -> Arc<PodSet> {
    let known = |pod: &Arc<Pod>| Arc::new(KnownPod::new((**pod).clone(), engine.policy()));
    Arc::new(PodSet::new(pods.iter().map(known).collect()))
}

/// An engine that goes on where the recorded one was.
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

/// What pods use, with what else their order for memory depends on. Not indexed.
pub(crate) fn pod_sample(at: Timestamp, snapshot: &Arc<Snapshot>, engine: &Engine) -> PodSample {
    PodSample {
        at,
        snapshot: Arc::clone(snapshot),
        pods: Arc::clone(engine.pods()),
        // The order for memory does not depend on it.
        layout: Default::default(),
        in_flight: engine.in_flight().to_vec(),
        sized: !engine.policy().rules.are_kubelets(),
    }
}

/// A segment that cannot be read to its end.
#[derive(Clone, Debug)]
pub struct Unread {
    /// Which, where and why.
    pub text: String,
    /// It is cut off, as a killed agent leaves it.
    pub is_cut: bool,
}

/// Hands over the items of all segments, and what is wrong with those that cannot be read to their end.
///
/// # Errors
/// If the recording cannot be found, or holds nothing that can be read.
pub fn each(path: &Path, use_one: &mut dyn FnMut(Result<&Item, Unread>)) -> io::Result<()> {
    let segments = find(path)?;
    if segments.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no recording"));
    }
    for segment in segments {
        let mut read = || -> Result<(), FormatError> {
            let mut reader = Segment::open(&segment)?;
            while let Some(item) = reader.next_item()? {
                use_one(Ok(&item));
            }
            Ok(())
        };
        if let Err(error) = read() {
            let is_cut = matches!(error, FormatError::Cut(_));
            use_one(Err(Unread { text: format!("read {}: {error}", segment.display()), is_cut }));
        }
    }
    Ok(())
}

/// The decisions of a recording within a time, as `explain` takes them: those that were recorded, and those
/// that evict. What cannot be read is handed to `error`.
///
/// # Errors
/// If the recording cannot be found.
pub fn explained(
    path: &Path,
    within: (Timestamp, Timestamp),
    error: &mut dyn FnMut(Unread),
) -> io::Result<Explained> {
    let mut recorded = BTreeSet::new();
    each(path, &mut |item| {
        if let Ok(Item::Decision(record)) = item {
            recorded.extend(record["at"].as_str().and_then(|at| at.parse::<Timestamp>().ok()));
        }
    })?;
    let (mut replay, mut reports, mut pods) = (Replay::default(), Vec::new(), BTreeMap::new());
    each(path, &mut |item| match item {
        Ok(item) => {
            if let Item::Pods(_, all) = item {
                pods.extend(all.iter().map(|pod| (pod.uid.clone(), PodName::of(pod))));
            }
            let Some(decision) = replay.take(item) else { return };
            let is_within = within.0 <= decision.at && decision.at <= within.1;
            if is_within && (evicts(&decision) || recorded.contains(&decision.at)) {
                reports.push(DecisionRecord::of(&decision));
            }
        }
        Err(cause) => {
            replay.interrupt();
            error(cause);
        }
    })?;
    let outcome = Outcome { name: path.display().to_string(), ..Outcome::default() };
    Ok(Explained { outcome, pods: pods.into_values().collect(), reports })
}

/// What came of deciding again.
#[derive(Debug, Default)]
pub struct Verified {
    /// Decisions that are as recorded.
    pub same: usize,
    /// Decisions that differ, each in a text.
    pub different: Vec<String>,
    /// Decisions whose inputs the recorder lost, or that a segment lacks that cannot be read.
    pub lost: usize,
    /// What could not be read.
    pub errors: Vec<Unread>,
}

/// Eviction decisions without a record count as different if the recording goes on for so long: a killed
/// agent loses the last tick.
const TICK_SECONDS: i64 = 2;

/// Decides a recording again, and compares each recorded decision.
///
/// # Errors
/// If the recording cannot be found.
pub fn verify(path: &Path) -> io::Result<Verified> {
    let mut verified = Verified::default();
    // A record may come later than what was decided on.
    let mut records: BTreeMap<Timestamp, Vec<Value>> = BTreeMap::new();
    each(path, &mut |item| match item {
        Ok(Item::Decision(record)) => match record["at"].as_str().and_then(|at| at.parse().ok()) {
            Some(at) => records.entry(at).or_default().push(record.clone()),
            None => verified.different.push("a decision without a time".to_owned()),
        },
        Ok(_) => {}
        Err(error) => verified.errors.push(error),
    })?;
    let mut replay = Replay::default();
    let mut found: BTreeMap<Timestamp, Value> = BTreeMap::new();
    let mut unrecorded: Option<Timestamp> = None;
    // Times from the last input before something was lost to the key after it.
    let (mut last, mut gaps) = (Timestamp::MIN, Vec::new());
    each(path, &mut |item| {
        let Ok(item) = item else { return replay.interrupt() };
        if let Item::Header(_) = item {
            unrecorded = None;
        }
        let decision = replay.take(item);
        if let Item::Key(key) = item
            && replay.has_begun()
        {
            gaps.push((last, key.at));
        }
        let Some(decision) = decision else { return };
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
            return;
        };
        let is_evaluated = decision.evaluation().is_some();
        let Some(again) = comparable(&decision) else { return };
        match recorded.iter().position(|record| without_notes(record.clone()) == again) {
            Some(place) => {
                recorded.remove(place);
                verified.same += 1;
            }
            // Other inputs of the same time come to no evaluation.
            None if is_evaluated || !found.contains_key(&at) => drop(found.insert(at, again)),
            None => {}
        }
    })?;
    gaps.push((last, Timestamp::MAX));
    for (at, record) in records.into_iter().flat_map(|(at, all)| all.into_iter().map(move |it| (at, it))) {
        let why = match found.get(&at) {
            Some(again) => {
                let (path, recorded, again) =
                    JsonDiff::first(&without_notes(record), again).unwrap_or_default();
                let text = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
                format!("{path}: recorded {}, decided again {}", text(recorded), text(again))
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

/// Whether a pod is evicted.
pub fn evicts(decision: &Decision) -> bool {
    decision.actions.iter().any(|action| matches!(action, Action::Evict(_)))
}

/// The record of a decision as it would be read from a recording.
fn comparable(decision: &Decision) -> Option<Value> {
    let text = serde_json::to_string(&DecisionRecord::of(decision)).ok()?;
    serde_json::from_str(&text).ok().map(without_notes)
}

/// Without what the agent notes after the engine has decided.
fn without_notes(mut record: Value) -> Value {
    if let Some(evaluation) = record.get_mut("pass").and_then(Value::as_object_mut) {
        evaluation.remove("left_to_kubelet");
    }
    record
}
