//! A report from a recording, whose inputs are replayed by the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use eviction_core::decision::{Decision, DecisionKind};
use eviction_core::engine::Engine;
use eviction_core::explain::Explainer;
use eviction_core::input::{Event, Input};
use eviction_core::oom::{OomKill, OomUpdate};
use eviction_core::progress::NotEvicted;
use eviction_core::record::{DecisionRecord, EvaluationRecord, EvictionRecord, PodSample};
use eviction_core::signal::Resource;
use eviction_core::snapshot::{NodeStats, Snapshot};
use eviction_core::time::Timestamp;

use super::{
    CANDIDATES, CandidateReport, DecisionReport, EVENTS, EventReport, POD_POINTS, PodReport, Report,
    SIGNAL_POINTS, SignalReport, Signals, add_signals,
};
use crate::scenario::playback;
use crate::scenario::recording::{Replay, decision_time, evicts, pod_sample, record_without_ended};
use crate::telemetry::event_log::{Event as LogEvent, Line, ReportedStatus};
use crate::telemetry::live::state::PodHistory;
use crate::telemetry::recording::reader::{Item, Items};

/// The first and the last time of the selected part of a recording. Both are included.
pub type Window = (Timestamp, Timestamp);

/// Reads a recording and returns its report. `window` gets the first and the last time of the
/// recording and returns the part to report.
///
/// # Errors
/// If the recording cannot be found or read, or has no sample in that time.
pub fn read(path: &Path, window: impl FnOnce(Window) -> Window) -> Result<Report, String> {
    read_with(path, window, EVENTS)
}

/// Event lines with their times.
pub type EventLines = Vec<(Timestamp, String)>;

/// Returns the events of a whole recording as lines, and the warnings about missing data.
///
/// # Errors
/// In the same cases as [`read`].
pub fn events(path: &Path) -> Result<(EventLines, Vec<String>), String> {
    let Report { events, warnings, .. } = read_with(path, |all| all, 100 * EVENTS)?;
    let line = |it: EventReport| (it.at, format!("{:.3} {}", it.at, it.message));
    Ok((events.into_iter().map(line).collect(), warnings))
}

fn read_with(
    path: &Path,
    window: impl FnOnce(Window) -> Window,
    max_events: usize,
) -> Result<Report, String> {
    let failed = |error: io::Error| format!("read {}: {error}", path.display());
    let (mut recorded, mut all, mut unreadable) = (BTreeSet::new(), None, Vec::new());
    for item in Items::of(path).map_err(failed)? {
        match item {
            Ok(Item::Decision(record)) => recorded.extend(decision_time(&record)),
            Ok(Item::Input(Input { at, .. }) | Item::Usage(at, _)) => {
                let (from, to) = all.unwrap_or((at, at));
                all = Some((from.min(at), to.max(at)));
            }
            Ok(_) => {}
            Err(error) => unreadable.push(error.text),
        }
    }
    let Some(all) = all else {
        let no_input = || format!("read {}: no input in the recording", path.display());
        return Err(unreadable.into_iter().next().unwrap_or_else(no_input));
    };
    let (from, to) = window(all);
    let (from, to) = (from.max(all.0), to.min(all.1));
    if from > to {
        return Err(format!("nothing was recorded then: the recording goes from {} to {}", all.0, all.1));
    }
    let report = Report::new(path.display().to_string(), from, to);
    let report = Report { max_events, warnings: unreadable, ..report };
    let mut report = RecordingReport::new(report, recorded);
    let mut replay = Replay::of(path).map_err(failed)?;
    while let Some((item, decision)) = replay.next() {
        report.take(&item, decision, replay.engine());
    }
    Ok(report.finish())
}

/// The report of a recording so far.
#[derive(Default)]
struct RecordingReport {
    report: Report,
    /// The times of recorded decisions.
    recorded: BTreeSet<Timestamp>,
    signals: Signals,
    pods: BTreeMap<Box<str>, PodReport>,
    status: ReportedStatus,
    /// The first victim of the last OOM group, with the victims so far.
    oom_group: Option<OomKill>,
    /// The last sample of the pods.
    sample: Option<PodSample>,
    /// The offset from the times in the recording to the system clock, in nanoseconds.
    clock_offset_ns: i64,
    signal_ms: i64,
    pod_ms: i64,
}

impl RecordingReport {
    fn new(report: Report, recorded: BTreeSet<Timestamp>) -> Self {
        let length = report.to.as_millisecond().saturating_sub(report.from.as_millisecond());
        let interval = |points: u32| length / i64::from(points) + 1;
        let (signal_ms, pod_ms) = (interval(SIGNAL_POINTS), interval(POD_POINTS));
        Self { report, recorded, signal_ms, pod_ms, ..Self::default() }
    }

    fn is_within(&self, at: Timestamp) -> bool {
        self.report.from <= at && at <= self.report.to
    }

    fn take(&mut self, item: &Item, decision: Option<Decision>, engine: Option<&Engine>) {
        if let Item::Clock(offset_ns) = item {
            self.clock(*offset_ns);
        }
        let Some(engine) = engine else { return };
        match item {
            Item::Key(key) if key.lost > 0 && self.is_within(key.at) => {
                let lost = key.lost;
                self.report.warnings.push(format!("{lost} inputs before {} were not recorded", key.at));
            }
            Item::Pods(..) => self.add_pods(engine),
            Item::Usage(at, snapshot) if self.is_within(*at) => self.usage(*at, snapshot, engine),
            Item::Input(input) => self.input(input, engine),
            _ => {}
        }
        let Some(decision) = decision.filter(|it| it.at <= self.report.to) else { return };
        if let DecisionKind::Oom(OomUpdate::Kill(kill)) = &decision.kind {
            self.oom_kill(decision.at, kill);
        }
        for ended in &decision.ended {
            self.log(decision.at, LogEvent::ContainerTerminated(Box::new(ended.clone())));
        }
        if evicts(&decision) || self.recorded.contains(&decision.at) {
            self.decision(&record_without_ended(&decision));
        }
    }

    /// Warns if the system clock was set. Each segment repeats the offset, so only a change of it counts.
    fn clock(&mut self, offset_ns: i64) {
        let before_ns = std::mem::replace(&mut self.clock_offset_ns, offset_ns);
        if offset_ns.unsigned_abs() > 1_000_000_000 && offset_ns.abs_diff(before_ns) > 1_000_000_000 {
            let set = jiff::SignedDuration::from_nanos(offset_ns);
            self.report.warnings.push(format!(
                "the system's clock was set while the agent ran: it then showed {set:#} more than the times of this report"
            ));
        }
    }

    /// Adds new pods, with the requests that the engine uses.
    fn add_pods(&mut self, engine: &Engine) {
        for known in engine.pods().pods() {
            let pod = &known.pod;
            self.pods.entry(pod.uid.clone()).or_insert_with(|| PodReport {
                namespace: pod.namespace.to_string(),
                pod: pod.name.to_string(),
                pod_uid: pod.uid.to_string(),
                qos: pod.qos_class.to_string(),
                priority: pod.priority.unwrap_or(0),
                request: known.request(Resource::Memory).value(),
                ..PodReport::default()
            });
        }
    }

    fn input(&mut self, Input { at, event }: &Input, engine: &Engine) {
        if !self.is_within(*at) {
            return;
        }
        match event {
            Event::Sample(snapshot) => {
                self.signals(*at, &snapshot.node, engine);
                if !snapshot.is_empty() {
                    self.usage(*at, snapshot, engine);
                }
            }
            Event::Reclaimed(Ok(snapshot)) => self.signals(*at, &snapshot.node, engine),
            Event::ApiServer(reach) => self.log(*at, LogEvent::kube_api(*reach)),
            Event::Evicted { uid, result } => {
                let name = self
                    .pods
                    .get(uid)
                    .map_or_else(|| uid.to_string(), |it| format!("{}/{}", it.namespace, it.pod));
                let (severity, text) = match result {
                    Ok(()) => ("info", "terminated".to_owned()),
                    Err(NotEvicted::Failed(why)) => ("warning", format!("failed: {why}")),
                    Err(NotEvicted::PdbDenied) => ("warning", "denied by a PodDisruptionBudget".to_owned()),
                    Err(NotEvicted::NotAsked) => ("warning", "was not requested".to_owned()),
                };
                let message = format!("eviction of {name}: {text}");
                self.add_event(EventReport::new(*at, severity, "eviction_progress", message));
            }
            _ => {}
        }
    }

    fn signals(&mut self, at: Timestamp, node: &NodeStats, engine: &Engine) {
        let states = playback::signals(at, node, engine.policy(), &[]);
        add_signals(&mut self.signals, at, &states, self.signal_ms, self.report.from);
    }

    fn usage(&mut self, at: Timestamp, snapshot: &Arc<Snapshot>, engine: &Engine) {
        for stats in snapshot.pods() {
            let Some(used) = stats.values().memory_working_set else { continue };
            let Some(pod) = self.pods.get_mut(stats.uid()) else { continue };
            let used = i64::try_from(used).unwrap_or(i64::MAX);
            (pod.peak, pod.last) = (pod.peak.max(used), used);
            pod.usage.push(at, used, self.pod_ms, i64::max);
        }
        self.sample = Some(pod_sample(at, snapshot, engine));
    }

    /// Adds an OOM kill. The kills of an OOM group are one event, as in the event lines of the agent.
    fn oom_kill(&mut self, at: Timestamp, kill: &OomKill) {
        if kill.repeated {
            return;
        }
        let is_continued = kill.group.as_ref().is_some_and(|group| group.kills > 1);
        match self.oom_group.as_mut().filter(|first| is_continued && first.oom_group == kill.oom_group) {
            Some(first) => {
                let before = first.to_string();
                first.group.clone_from(&kill.group);
                if let Some(event) = self.report.events.iter_mut().rfind(|it| it.message == before) {
                    event.message = first.to_string();
                }
            }
            None => {
                self.log(kill.at.unwrap_or(at), LogEvent::OomKill(Box::new(kill.clone())));
                if kill.group.is_some() {
                    self.oom_group = Some(kill.clone());
                }
            }
        }
    }

    fn decision(&mut self, record: &DecisionRecord) {
        for change in self.status.update(record, "a recorded sample", |at| at) {
            self.log(record.at, change);
        }
        let Some(evaluation) = record.evaluation().filter(|_| self.is_within(record.at)) else { return };
        for eviction in &evaluation.evictions {
            self.eviction(record.at, eviction);
        }
        if evaluation.starved.is_some() || !evaluation.evictions.is_empty() || !evaluation.reclaim.is_empty()
        {
            self.report.decisions.push(decision_report(record, evaluation));
        }
        if self.report.decisions.len() > 1000 {
            self.report.bound_decisions();
        }
    }

    fn eviction(&mut self, at: Timestamp, eviction: &EvictionRecord) {
        let EvictionRecord { pod, grace_period_seconds, message, .. } = eviction;
        if let Some(pod) = self.pods.get_mut(&pod.uid) {
            pod.evicted = Some(at);
        }
        let message = format!(
            "evict {} with a grace period of {grace_period_seconds} s: {}",
            eviction.pod,
            message.trim_end()
        );
        self.add_event(EventReport::new(at, "warning", "eviction_decision", message));
    }

    /// Adds an event with the text of its event line.
    fn log(&mut self, at: Timestamp, event: LogEvent) {
        let line = serde_json::to_value(Line::new(at, None, event));
        // Each event line has the fields of an event of the report.
        if let Ok(event) = line.and_then(serde_json::from_value) {
            self.add_event(event);
        }
    }

    fn add_event(&mut self, event: EventReport) {
        if self.is_within(event.at) {
            self.report.event(event);
        }
    }

    fn finish(self) -> Report {
        let Self { mut report, signals, pods, sample, .. } = self;
        let has_threshold = |it: &SignalReport| !it.thresholds.is_empty();
        report.signals = signals.into_values().filter(has_threshold).collect();
        report.bound_events();
        report.bound_decisions();
        if let Some(sample) = sample {
            let snapshot = sample.snapshot.indexed(&sample.pods);
            let mut history = PodHistory::default();
            history.push(PodSample { snapshot, ..sample });
            let (states, omitted) = history.states();
            report.set_ranking(&states, omitted);
        }
        report.set_pods(pods.into_values());
        report
    }
}

fn decision_report(record: &DecisionRecord, evaluation: &EvaluationRecord) -> DecisionReport {
    let mut explainer = Explainer::default();
    let explanation = explainer.explain(record) + &explainer.finish();
    let first = explanation.lines().next().unwrap_or_default();
    let title = first.split_once("  ").map_or(first, |(_, title)| title).to_owned();
    let candidates = evaluation.candidates.iter().take(CANDIDATES).map(|it| CandidateReport {
        namespace: it.pod.namespace.to_string(),
        pod: it.pod.name.to_string(),
        priority: it.priority,
        usage: it.usage,
        request: it.request.as_ref().map(ToString::to_string),
        result: it.result.name().replace('_', " "),
    });
    DecisionReport {
        at: record.at,
        title,
        evicted: evaluation.evictions.iter().map(|it| it.pod.to_string()).collect(),
        candidates: candidates.collect(),
        candidates_omitted: evaluation.candidates.len().saturating_sub(CANDIDATES),
        explanation,
    }
}
