//! The state of a node at any time of a recording.

use std::io;
use std::path::{Path, PathBuf};

use eviction_core::decision::Decision;
use eviction_core::explain::explain_rank;
use eviction_core::input::{Event, Input};
use eviction_core::policy::Policy;
use eviction_core::record::{DecisionRecord, ThresholdRecord};
use eviction_core::signal::Signal;
use eviction_core::signal_filter::observe;
use eviction_core::snapshot::NodeStats;
use eviction_core::time::Timestamp;

use super::recording::{Replay, pod_sample};
use crate::telemetry::live::state::{
    MemoryPressure, NodeState, PodHistory, STATE_VERSION, SignalState, ThresholdState,
};
use crate::telemetry::recording::reader::{Item, Items, find};

/// Reads a recording up to a time and returns the state at that time. For an earlier time, the file is
/// read again from its beginning.
#[derive(Default)]
pub struct Playback {
    /// The files, each with the time at which it begins.
    files: Vec<(Timestamp, PathBuf)>,
    at: Timestamp,
    version: String,
    replay: Replay,
    pods: PodHistory,
    node: NodeStats,
    /// The last decision with an evaluation.
    decision: Option<Decision>,
}

impl Playback {
    /// Reads a recording once. Also returns the times of its samples in order.
    ///
    /// # Errors
    /// If the recording cannot be found or read, or has no sample.
    pub fn open(path: &Path) -> io::Result<(Self, Vec<Timestamp>)> {
        let (mut files, mut samples, mut unreadable) = (Vec::new(), Vec::new(), None);
        for file in find(path)? {
            let (before, mut begin) = (samples.len(), None);
            for item in Items::of_files([file.clone()]) {
                let item = match item {
                    Ok(item) => item,
                    Err(error) => {
                        unreadable.get_or_insert(error.text);
                        continue;
                    }
                };
                begin = begin.or(time(&item));
                if let Item::Usage(at, _) | Item::Input(Input { at, event: Event::Sample(_) }) = item {
                    samples.push(at);
                }
            }
            files.extend(begin.filter(|_| samples.len() > before).map(|begin| (begin, file)));
        }
        samples.sort();
        samples.dedup();
        match samples.is_empty() {
            true => {
                let why = unreadable.map_or_else(String::new, |why| format!(": {why}"));
                Err(io::Error::new(io::ErrorKind::NotFound, format!("no sample in the recording{why}")))
            }
            // The first `seek` goes back to its time.
            false => Ok((Self { files, at: Timestamp::MAX, ..Self::default() }, samples)),
        }
    }

    /// Moves to a time.
    pub fn seek(&mut self, at: Timestamp) {
        let file_at = |at: Timestamp| self.files.partition_point(|(begin, _)| *begin <= at).saturating_sub(1);
        let file = file_at(at);
        // The next file is read on from this one, because its engine continues.
        if at < self.at || file > file_at(self.at) + 1 {
            let files = std::mem::take(&mut self.files);
            let rest = Items::of_files(files[file..].iter().map(|(_, file)| file.clone()));
            *self = Self { replay: Replay::of_items(rest), files, ..Self::default() };
        }
        self.at = at;
        let is_due = |item: &Item| time(item).is_none_or(|time| time <= at);
        while let Some((item, decision)) = self.replay.next_if(is_due) {
            self.take(&item, decision);
        }
    }

    fn take(&mut self, item: &Item, decision: Option<Decision>) {
        if let Some(decision) = decision.filter(|decision| decision.evaluation().is_some()) {
            self.decision = Some(decision);
        }
        let (at, snapshot) = match item {
            Item::Header(header) => return self.version.clone_from(&header.agent),
            Item::Usage(at, snapshot) => (at, snapshot),
            Item::Input(Input { at, event: Event::Sample(snapshot) | Event::Reclaimed(Ok(snapshot)) }) => {
                self.node = snapshot.node;
                (at, snapshot)
            }
            _ => return,
        };
        if let Some(engine) = self.replay.engine().filter(|_| !snapshot.is_empty()) {
            let mut sample = pod_sample(*at, snapshot, engine);
            sample.snapshot = snapshot.indexed(&sample.pods);
            self.pods.push(sample);
        }
    }

    /// Returns the state of the node and its pods at the current time.
    pub fn state(&self) -> NodeState {
        let Some(engine) = self.replay.engine() else { return NodeState::default() };
        let policy = engine.policy();
        let record = self.decision.as_ref().map(DecisionRecord::of);
        let evaluation = record.as_ref().and_then(DecisionRecord::evaluation);
        let thresholds = evaluation.map_or(&[][..], |it| &it.thresholds);
        let (detail, (pods, pods_omitted)) = (&self.node.memory_detail, self.pods.states());
        NodeState {
            schema_version: STATE_VERSION,
            at: self.at,
            version: self.version.clone(),
            profile: policy.rules.profile().name().to_lowercase(),
            signals: signals(self.at, &self.node, policy, thresholds),
            conditions: engine.conditions().iter().map(|it| it.condition.name().to_owned()).collect(),
            memory_pressure: MemoryPressure::of(detail.some_avg10, detail.full_avg10),
            pods_at: self.pods.newest().map(|sample| sample.at),
            pods,
            pods_omitted,
            ..NodeState::default()
        }
    }

    /// Explains the rank of a pod at the current time.
    pub fn explain(&self, uid: &str) -> Vec<String> {
        let Some(sample) = self.pods.newest() else { return Vec::new() };
        let signal = Signal::MemoryAvailable;
        let ranking = sample.ranking(signal);
        let index = ranking.iter().position(|it| *it.pod.uid == *uid);
        index.map_or_else(Vec::new, |index| explain_rank(signal, &ranking, index))
    }
}

/// Returns the time of an item, if playback depends on it.
fn time(item: &Item) -> Option<Timestamp> {
    match item {
        Item::Key(key) => Some(key.at),
        Item::Pods(at, _) | Item::Usage(at, _) | Item::Input(Input { at, .. }) => Some(*at),
        Item::Header(_) | Item::Seed(_) | Item::Decision(_) | Item::Clock(_) => None,
    }
}

/// Returns the state of the node's signals in a sample. Which thresholds are met and the times come from `records`.
#[expect(clippy::cast_precision_loss, reason = "shown in seconds")]
pub(crate) fn signals(
    now: Timestamp,
    node: &NodeStats,
    policy: &Policy,
    records: &[ThresholdRecord],
) -> Vec<SignalState> {
    let observations = observe(node, policy.rules.memory().measure);
    let state = |signal| {
        let reading = observations.get(signal)?;
        let of_agent = policy.thresholds.iter().map(|it| ("agent", it));
        let of_kubelet = policy.kubelet_thresholds.iter().map(|it| ("kubelet", it));
        let both = of_agent.chain(of_kubelet).filter(|(_, it)| it.signal == signal);
        let thresholds = both.map(|(source, threshold)| {
            let is_it = |it: &&ThresholdRecord| it.signal == signal && it.is_hard() == threshold.is_hard();
            let record = records.iter().find(is_it).filter(|_| source == "agent");
            let met = record.and_then(|record| record.met);
            let seconds = |nanos: i64| nanos as f64 / 1e9;
            ThresholdState {
                threshold: threshold.kind().to_owned(),
                source: source.to_owned(),
                value: threshold.value.quantity(reading.capacity).value(),
                met: met.is_some(),
                met_seconds: met.map(|met| now.duration_since(met.first_seen).as_secs_f64()),
                grace_seconds: met.and(record).map(|record| seconds(record.grace_period.as_nanos())),
                eta_seconds: record.and_then(|it| it.eta).map(|eta| seconds(eta.expected.as_nanos())),
            }
        });
        Some(SignalState {
            signal: signal.name().to_owned(),
            available: Some(reading.available),
            capacity: Some(reading.capacity),
            thresholds: thresholds.collect(),
        })
    };
    Signal::ALL.into_iter().filter_map(state).collect()
}
