//! The slow side of the queue: notes become lines on standard output and metrics.
//!
//! Everything that people see is made here from the same decision.

mod ends;
mod namespaces;
mod outcome;

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};

use crate::core::apart::Apart;
use crate::core::decision::{Action, Decision, Pass, ProposalState};
use crate::core::message;
use crate::core::report::CandidateReport;
use crate::core::signal::{NodeCondition, Signal};
use crate::core::units::Quantity;
use crate::metrics::{
    AlarmLabels, ConditionLabels, MapLabels, Metrics, OutcomeLabels, RecordLabels, SignalLabels,
    SourceLabels, ThresholdLabels,
};

use crate::source::bpf::Lost;
use crate::source::file::InWords;
use crate::source::wait::{register, take_count};

use super::clock::{Clock, Instant};
use super::cluster::EventTap;
use super::event::{self, Event, Line};
use super::failure::Failure;
use super::hook::Losses;
use super::lane::{Next, Receiver};
use super::names::Names;
use super::notes::{Note, PassNote};
use super::printer::Printer;
use super::recorder::Recorder;
use super::run::Output;
use super::state::{Counts, Series};
use super::tallies::Tallies;
use super::watch::Watch;
use namespaces::Namespaces;

/// How many of the ranked pods a line shows.
const SHOWN: usize = 8;

const CONDITIONS: [NodeCondition; 3] =
    [NodeCondition::DiskPressure, NodeCondition::MemoryPressure, NodeCondition::PidPressure];

/// Writes lines and keeps the metrics that need more than an atomic.
pub(crate) struct Slow {
    output: Output,
    printer: Printer,
    recorder: Option<Recorder>,
    metrics: Arc<Metrics>,
    counts: Arc<Counts>,
    names: Names,
    clock: Clock,
    sources: Vec<SourceLabels>,
    met: Vec<u8>,
    conditions: Vec<NodeCondition>,
    unknown_conditions: Vec<NodeCondition>,
    watch: Watch,
    /// Told when another configuration came into force.
    took_effect: Arc<Notify>,
    pods: event::Pods,
    losses: Losses,
    tallies: Tallies,
    apart: Apart,
    namespaces: Namespaces,
    /// Tells the cluster of what is said.
    tap: Option<EventTap>,
}

impl Slow {
    pub(crate) fn new(
        output: Output,
        printer: Printer,
        metrics: Arc<Metrics>,
        counts: Arc<Counts>,
        names: Names,
        took_effect: Arc<Notify>,
        tap: Option<EventTap>,
    ) -> Self {
        for condition in CONDITIONS {
            metrics.condition.get_or_create(&ConditionLabels { condition: condition.name() }).set(0);
        }
        Self {
            output,
            printer,
            recorder: None,
            metrics,
            namespaces: Namespaces::of(counts.namespaces()),
            counts,
            names,
            clock: Clock::start(),
            sources: Vec::new(),
            met: Vec::new(),
            conditions: Vec::new(),
            unknown_conditions: Vec::new(),
            watch: Watch::default(),
            took_effect,
            pods: event::Pods::default(),
            losses: Losses::default(),
            tallies: Tallies::default(),
            apart: Apart::default(),
            tap,
        }
    }

    /// Records decisions there as well.
    pub(crate) fn recording(self, recorder: Option<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    /// Takes the notes of the reaction until it is gone, and those of the main thread beside.
    ///
    /// # Errors
    /// If the reaction's queue cannot be watched.
    pub(crate) async fn run(
        mut self,
        mut notes: Receiver<Note>,
        mut own: mpsc::Receiver<Note>,
    ) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::because("watch the queue of notes", &error);
        let bell = notes.bell().and_then(register).map_err(failed)?;
        loop {
            match notes.next() {
                Next::Value(note) => {
                    self.take(note);
                    // Whatever the storm, others on this thread have their turn.
                    tokio::task::coop::consume_budget().await;
                    continue;
                }
                Next::Ended => return Ok(self),
                Next::Empty => {}
            }
            tokio::select! {
                rung = take_count(&bell) => drop(rung.map_err(failed)?),
                Some(note) = own.recv() => self.take(note),
            }
        }
    }

    /// Has a line printed; `at` is steady time.
    pub(crate) fn say(&self, at: jiff::Timestamp, event: Event) {
        let line = Line { at: self.clock.shown(at), event };
        if let Some(tap) = &self.tap {
            tap.hear(&line);
        }
        let text = match self.output {
            Output::Text => line.to_string(),
            Output::Json => match serde_json::to_string(&line) {
                Ok(text) => text,
                Err(error) => {
                    tracing::error!(%error, "an event cannot be written as JSON");
                    return;
                }
            },
        };
        self.printer.print(text);
    }

    /// Says the last line and waits until all are written, as long as the reader takes.
    pub(crate) fn finish(self, why: &str) {
        let stopped = event::Stopped { why: why.to_owned() };
        self.say(self.clock.now().wall, Event::Stopped(stopped));
        self.printer.finish();
        if let Some(recorder) = self.recorder {
            recorder.finish();
        }
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Pass(pass) => self.pass(&pass),
            Note::Outcome(outcome) => self.outcome(outcome),
            Note::OomKill(kill, at) => {
                self.count_kills(&kill);
                self.say(at.wall, Event::OomKill(kill));
            }
            Note::Reflex(reflex, at) => self.say(at.wall, Event::Reflex(reflex)),
            Note::Ended(ended, at) => self.ended(*ended, at),
            Note::LateStatus(end, at) => self.late_status(&end, at),
            Note::Unknown(signal, Some(why), at) => {
                let why = InWords(why).to_string();
                self.say(at.wall, Event::Unknown(event::Unknown { signal: signal.name(), why }));
            }
            Note::Unknown(_, None, _) => {}
            Note::Pods { pods, reread, at } => {
                // A list that was good again ends the error; what only the tree tells does not.
                let error = self.pods.error.take().filter(|_| !reread);
                self.pods(event::Pods { error, ..pods }, reread, at);
            }
            Note::PodsInvalid(error, at) => {
                self.pods.error = Some(error);
                self.say(at.wall, Event::Pods(self.pods.clone()));
            }
            Note::ConfigurationInvalid(errors, at) => {
                let state = "invalid";
                let event = event::Configuration { state, until: None, would_evict: Vec::new(), errors };
                self.say(at.wall, Event::Configuration(event));
            }
            Note::Lost(losses, at) => self.lost(*losses, at),
            Note::Tasks(tasks, at) => {
                self.metrics.task_alarms.get_or_create(&AlarmLabels { alarm: tasks.alarm }).inc();
                self.say(at.wall, Event::Tasks(tasks));
            }
            Note::Limit(limit, at) => self.say(at.wall, Event::Limit(limit)),
            Note::Tally(tallies, at) => self.tallies.take(tallies, at, &self.metrics),
            Note::ApiServer(reach, at) => {
                self.say(at.wall, Event::ApiServer(event::ApiServer::from(reach)));
            }
            Note::Source(source, at) => {
                self.source(&source);
                self.say(at.wall, Event::Source(source));
            }
        }
    }

    /// Exports the rung that a source uses, in place of the one that it used before.
    pub(crate) fn source(&mut self, source: &event::Source) {
        let event::Source { source, rung, reason: _ } = source.clone();
        let now = SourceLabels { source, rung };
        self.sources.retain(|before| {
            let replaced = before.source == now.source;
            if replaced {
                self.metrics.source.remove(before);
            }
            !replaced
        });
        self.metrics.source.get_or_create(&now).set(1);
        self.sources.push(now);
    }

    /// The note has totals: one that was dropped takes nothing away.
    fn lost(&mut self, losses: Losses, at: Instant) {
        let Losses { lost, invalid, programs } = losses;
        if programs != self.losses.programs {
            self.losses.lost = Lost::default();
        }
        for ((record, now), (_, before)) in lost.by_record().into_iter().zip(self.losses.lost.by_record()) {
            let new = now.saturating_sub(before);
            self.metrics.records_lost.get_or_create(&RecordLabels { record }).inc_by(new);
        }
        for ((map, now), (_, before)) in lost.by_map().into_iter().zip(self.losses.lost.by_map()) {
            let new = now.saturating_sub(before);
            self.metrics.map_full.get_or_create(&MapLabels { map }).inc_by(new);
        }
        self.losses = losses;
        let no_room = lost.by_map().iter().map(|(_, count)| count).sum();
        let event = event::Lost { records: lost.records_lost(), invalid, no_room };
        self.say(at.wall, Event::Lost(event));
    }

    fn pods(&mut self, pods: event::Pods, reread: bool, at: Instant) {
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.metrics.pods.set(gauge(pods.pods));
        for (outcome, list) in [
            ("without_cgroup", &pods.without_cgroup),
            ("strange_cgroup", &pods.strange_cgroups),
            ("unreadable", &pods.unreadable),
        ] {
            self.metrics.unmatched.get_or_create(&OutcomeLabels { outcome }).set(gauge(list.len()));
        }
        let changed = reread || self.pods != pods;
        self.pods = pods;
        if changed {
            self.say(at.wall, Event::Pods(self.pods.clone()));
        }
    }

    fn pass(&mut self, note: &PassNote) {
        let PassNote {
            decision,
            first_id,
            seen,
            seen_by,
            crossed_mono_ns,
            looked,
            decided_mono_ns,
            before,
            copied: _,
        } = note;
        let (first_id, seen, seen_by, looked) = (*first_id, *seen, *seen_by, *looked);
        let (crossed_mono_ns, decided_mono_ns) = (*crossed_mono_ns, *decided_mono_ns);
        if let Some(pass) = decision.pass() {
            self.thresholds(pass, seen_by, looked);
        }
        if let Some(ProposalState::TookEffect) = decision.proposal {
            self.took_effect.notify_one();
        }
        for event in self.watch.take(decision, &self.metrics, &self.clock) {
            self.say(looked.wall, event);
        }
        let hold = decision.conditions.iter().map(|raised| raised.condition).collect();
        self.conditions(hold, decision.unknown_conditions().collect(), looked);
        if let (Some(recorder), Some(before)) = (&self.recorder, before) {
            recorder.take(&self.names.of(first_id), before, decision);
        }
        let Some(pass) = decision.pass() else { return };
        let late = crossed_mono_ns.map(|crossed| decided_mono_ns.saturating_sub(crossed));
        let evictions = decision.actions.iter().filter_map(|action| match action {
            Action::Evict(eviction) | Action::Hasten(eviction) => Some(eviction),
            Action::Announce(_) | Action::Reclaim(_) => None,
        });
        for (id, eviction) in (first_id..).zip(evictions) {
            let Some(known) = pass.pods.get(eviction.place) else { continue };
            let text = message::eviction(pass, eviction);
            let line = pass.line_of(eviction.cause);
            let signal = line.map(|line| line.threshold.signal);
            if let Some(late) = late {
                #[expect(clippy::cast_precision_loss, reason = "a histogram's value")]
                self.metrics.crossing_to_decision.observe(late as f64 / 1e9);
            }
            if let Some(signal) = signal {
                self.counts.count(Series::Decisions(SignalLabels { eviction_signal: signal.name() }), 1);
            }
            let observed = signal.and_then(|signal| pass.seen.get(signal));
            let capacity = observed.map_or(0, |seen| seen.capacity);
            self.say(
                decision.at,
                Event::Decision(Box::new(event::Decision {
                    id,
                    decision: self.names.of(id),
                    signal: signal.map_or("", Signal::name),
                    kind: line.map_or("", |line| kind(line.threshold.is_hard())),
                    pod: format!("{}/{}", known.pod.namespace, known.pod.name),
                    uid: known.pod.uid.to_string(),
                    grace_seconds: eviction.grace_period_seconds,
                    message: text.message,
                    annotations: text
                        .annotations
                        .map(|all| all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
                    value: line
                        .map_or_else(String::new, |line| line.threshold.value.quantity(capacity).to_string()),
                    available: observed.map(|seen| seen.available),
                    usage: seen.map(|seen| seen.usage),
                    working_set: seen.map(|seen| seen.working_set),
                    seen_by: seen_by.to_owned(),
                    age_us: Some(micros(decided_mono_ns.saturating_sub(looked.mono_ns))),
                    candidates: self.candidates(decision),
                    crossed_mono_ns,
                    seen_mono_ns: looked.mono_ns,
                    decided_mono_ns,
                    crossed_to_decided_us: late.map(micros),
                })),
            );
        }
    }

    fn thresholds(&mut self, pass: &Pass, seen_by: &'static str, looked: Instant) {
        let now: Vec<u8> = pass.met.iter().map(|met| met.line).collect();
        for (place, line) in (0..).zip(pass.lines.iter()) {
            let (is, was) = (now.contains(&place), self.met.contains(&place));
            let threshold = &line.threshold;
            let labels =
                ThresholdLabels { eviction_signal: threshold.signal.name(), kind: kind(threshold.is_hard()) };
            self.metrics.threshold_met.get_or_create(&labels).set(i64::from(is));
            if is == was {
                continue;
            }
            let seen = pass.seen.get(threshold.signal);
            let event = event::Threshold {
                signal: threshold.signal.name(),
                kind: kind(threshold.is_hard()),
                state: if is { "met" } else { "cleared" },
                value: threshold.value.quantity(seen.map_or(0, |seen| seen.capacity)).to_string(),
                available: seen.map(|seen| seen.available),
                capacity: seen.map(|seen| seen.capacity),
                seen_by: seen_by.to_owned(),
            };
            self.say(looked.wall, Event::Threshold(event));
        }
        self.met = now;
    }

    fn conditions(&mut self, now: Vec<NodeCondition>, unknown: Vec<NodeCondition>, looked: Instant) {
        let status = |holds: bool, unknown: bool| match (holds, unknown) {
            (true, _) => "True",
            (false, true) => "Unknown",
            (false, false) => "False",
        };
        for condition in CONDITIONS {
            let holds = now.contains(&condition);
            self.metrics
                .condition
                .get_or_create(&ConditionLabels { condition: condition.name() })
                .set(i64::from(holds));
            let before =
                status(self.conditions.contains(&condition), self.unknown_conditions.contains(&condition));
            let status = status(holds, unknown.contains(&condition));
            if status != before {
                self.say(
                    looked.wall,
                    Event::Condition(event::Condition { condition: condition.name(), status }),
                );
            }
        }
        self.conditions = now;
        self.unknown_conditions = unknown;
    }

    fn candidates(&self, decision: &Decision) -> Vec<event::Candidate> {
        let shown = CandidateReport::first(decision, SHOWN).into_iter().map(|candidate| {
            let rates = self.tallies.rates(&candidate.pod.namespace, &candidate.pod.name);
            let above_zero = |rate: &f64| *rate > 0.0;
            event::Candidate {
                pod: format!("{}/{}", candidate.pod.namespace, candidate.pod.name),
                usage: candidate.usage,
                request: candidate.request.and_then(|text| Some(Quantity::parse(&text).ok()?.value())),
                priority: candidate.priority,
                passed_over: candidate.passed_over,
                forks_per_second: rates.map(|rates| rates.forks_per_second).filter(above_zero),
                reclaim_stall: rates.map(|rates| rates.reclaim_stall).filter(above_zero),
            }
        });
        shown.collect()
    }
}

fn kind(hard: bool) -> &'static str {
    if hard { "hard" } else { "soft" }
}

fn micros(ns: u64) -> u64 {
    ns / 1_000
}
