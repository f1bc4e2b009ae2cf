//! Turns the events of the telemetry queue into event lines, metrics and Kubernetes Events.

mod decision;
mod progress;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::telemetry::metrics::{Label, Metrics, backend_labels};
use eviction_core::oom::{ContainerTerminated, LimitScope, MismatchKind, OomKill};
use eviction_core::pod::PodRef;
use eviction_core::reading::UnknownReason;
use eviction_core::signal::{Signal, SignalSet};

use eviction_bpf::EventClass;
use eviction_config::PodMetrics;
use eviction_kube::events::EventSink;

use super::line_writer::{LOG_DROPPED, LineWriter};
use super::pod_metrics::{self, PodRateExporter};
use crate::error::Failure;
use crate::spsc::Receiver;
use crate::telemetry::event_log::{self, Event, Line};
use crate::telemetry::live::{Live, lock};
use crate::telemetry::queue::{DecisionIds, TelemetryEvent};
use crate::telemetry::recording::recorder::ReportQueue;
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::clock::Clock;
use eviction_node::file::{read_once, reason_text};
pub(crate) use progress::{ENDS, RESULTS};

/// Sources without BPF programs whose backend may fail at run time.
const WITHOUT_PROGRAMS: [&str; 3] = ["usage", "pressure", "limits"];

/// Writes event lines and maintains the metrics that are more than an atomic.
pub(crate) struct TelemetryExporter {
    /// Whether lines are JSON instead of text.
    is_json: bool,
    printer: LineWriter,
    /// The queue for decisions and usage samples of the recording.
    pub(crate) recording: Option<ReportQueue>,
    metrics: Arc<Metrics>,
    decision_ids: DecisionIds,
    clock: Clock,
    /// Signals that have been known at any time.
    known: SignalSet,
    status: event_log::ReportedStatus,
    pods: event_log::PodsEvent,
    pod_rates: PodRateExporter,
    /// The sink of Kubernetes Events, if the agent writes them.
    events: Option<EventSink>,
    /// The files from which signals are read, see [`signal_files`].
    pub(crate) files: BTreeMap<Signal, Vec<PathBuf>>,
    /// The name of the node object, if it is known.
    pub(crate) node: Option<String>,
    /// The pods whose memory is exported.
    pub(crate) pod_metrics: PodMetrics,
    /// The data of the local API.
    pub(crate) live: Option<Arc<Mutex<Live>>>,
    /// The time of the last line on the steady clock.
    last_at: Cell<Timestamp>,
}

impl TelemetryExporter {
    pub(crate) fn new(
        is_json: bool,
        printer: LineWriter,
        metrics: Arc<Metrics>,
        decision_ids: DecisionIds,
        events: Option<EventSink>,
    ) -> Self {
        metrics.telemetry_dropped.add(["log"], LOG_DROPPED.clone());
        Self {
            is_json,
            printer,
            recording: None,
            metrics,
            decision_ids,
            clock: Clock::start(),
            known: SignalSet::EMPTY,
            status: event_log::ReportedStatus::default(),
            pods: event_log::PodsEvent::default(),
            pod_rates: PodRateExporter::default(),
            events,
            files: BTreeMap::new(),
            node: None,
            pod_metrics: PodMetrics::Off,
            live: None,
            last_at: Cell::new(Timestamp::MIN),
        }
    }

    /// Processes the events of the control loop until it ends, and those of the main thread.
    ///
    /// # Errors
    /// If the control loop's queue cannot be watched.
    pub(crate) async fn run(
        mut self,
        mut queue: Receiver<TelemetryEvent>,
        mut main_events: mpsc::Receiver<TelemetryEvent>,
    ) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::because("watch the telemetry queue", &error);
        let wakeups = queue.wakeups().map_err(failed)?;
        loop {
            tokio::select! {
                biased;
                event = queue.recv(&wakeups) => match event.map_err(failed)? {
                    Some(event) => self.take(event),
                    None => return Ok(self),
                },
                Some(event) = main_events.recv() => self.take(event),
            }
            // Other tasks on this thread must run, even if there are many events.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Prints an event line; `at` is steady time. An event that becomes known late, such as an OOM kill whose
    /// group was still being killed, gets the time of the previous line, so that lines are in the order of
    /// their times.
    pub(crate) fn publish(&self, at: Timestamp, event: Event) {
        let at = in_order(&self.last_at, at);
        let line = Line::new(self.clock.shown(at), self.node.clone(), event);
        let is_json = self.is_json;
        let json = (is_json || self.live.is_some()).then(|| serde_json::to_string(&line)).transpose();
        let log_error = |error: &serde_json::Error| tracing::error!(%error, "an event cannot be serialised");
        let Ok(json) = json.inspect_err(log_error) else { return };
        if let (Some(live), Some(json)) = (&self.live, &json) {
            let mut live = lock(live);
            live.events.push(line.at, json);
            if let Event::Started(started) = &line.event {
                live.started = Some(started.clone());
            }
        }
        self.printer.print(json.filter(|_| is_json).unwrap_or_else(|| line.to_string()));
    }

    /// Prints the last line and waits until all lines are written, however long the reader takes.
    pub(crate) fn finish(self, reason: &str) {
        self.publish(self.clock.now().wall, Event::Stopped { reason: reason.to_owned() });
        self.printer.finish();
        if let Some(recording) = self.recording {
            recording.finish();
        }
    }

    fn take(&mut self, event: TelemetryEvent) {
        match event {
            TelemetryEvent::Decision(decision, _permit) => self.decision(&decision),
            TelemetryEvent::Progress(update) => self.progress(update),
            TelemetryEvent::Event(event, at) => self.event(*event, at),
            TelemetryEvent::Unknown(signal, why, at) => {
                let error = self.read_error(signal, why);
                self.publish(at, Event::SignalReadError { signal: signal.name(), error });
            }
            TelemetryEvent::Pods { pods, reread, pods_root, at } => {
                // Without a folder the previous files stay, because errors are about those.
                if let Some(folder) = pods_root {
                    self.files.insert(Signal::AllocatableMemoryAvailable, existing(memory_files(&folder)));
                }
                // Only a list that was read again clears the error.
                let error = self.pods.error.clone().filter(|_| !reread);
                self.pods(event_log::PodsEvent { error, ..pods }, reread, at);
            }
            TelemetryEvent::PodsInvalid(error, at) => {
                self.pods.error = Some(error);
                self.publish(at, Event::Pods(self.pods.clone()));
            }
            TelemetryEvent::PodActivity(deltas, at) => {
                self.pod_rates.take(deltas, at, &self.metrics);
                if let Some(live) = &self.live {
                    lock(live).pods.stalls = self.pod_rates.stalls();
                }
            }
            TelemetryEvent::PodSample(sample, _permit) => {
                if let Some(recording) = &mut self.recording {
                    recording.usage(&sample);
                }
                pod_metrics::export_memory(self.pod_metrics, &sample, &self.metrics);
                self.pod_rates.expire(self.clock.now().mono_ns, &self.metrics);
                if let Some(live) = &self.live {
                    let mut live = lock(live);
                    live.pods.stalls = self.pod_rates.stalls();
                    live.pods.push(*sample);
                }
            }
        }
    }

    /// Returns the reason why a signal cannot be read: the operation, the file and the error.
    fn read_error(&self, signal: Signal, why: UnknownReason) -> String {
        if !matches!(why, UnknownReason::Unreadable(_) | UnknownReason::Failed) {
            return error_text(why);
        }
        let files = self.files.get(&signal).map_or(&[][..], Vec::as_slice);
        let failing = files.iter().find_map(|file| Some((file, read_once(file, MAX_FILE_BYTES).err()?)));
        match failing.or_else(|| Some((files.first()?, why))) {
            Some((file, why)) => format!("read {}: {}", file.display(), error_text(why)),
            None => error_text(why),
        }
    }

    /// Counts and publishes an event that needs only its own fields.
    fn event(&mut self, mut event: Event, at: Timestamp) {
        match &mut event {
            Event::OomKill(kill) => {
                self.count_kills(kill);
                if let Some(events) = &self.events {
                    events.oom_kill(kill, self.clock.shown(at));
                }
            }
            Event::KernelKill(kill) => kill.decision_id = kill.id.map(|id| self.decision_ids.of(id)),
            Event::TaskAlarm(alarm) => {
                self.metrics.task_alarms.with([alarm.alarm]).inc();
            }
            Event::NodeReclaim(reclaim) => self.count_reclaimed(reclaim),
            Event::PodFreeze { state, .. } => {
                self.metrics.pod_freezes.with([*state]).inc();
            }
            Event::Backend(backend) => self.backend(backend),
            Event::ContainerTerminated(terminated) => {
                self.count_terminated(terminated);
                terminated.finished_at = self.clock.shown(terminated.finished_at);
            }
            Event::ContainerStatusMismatch(mismatch) => {
                self.count_mismatch(mismatch.mismatch, self.namespace_of(mismatch.container.pod.as_ref()));
            }
            _ => {}
        }
        self.publish(at, event);
    }

    /// Exports the backend of a source in place of its previous one.
    pub(crate) fn backend(&self, backend: &event_log::Backend) {
        let preferred = backend.preferred();
        let event_log::Backend { source, backend, reason: _ } = backend;
        let now = backend_labels(source, backend);
        self.metrics.backend.retain(|[before, _]| *before != now[0]);
        self.metrics.backend.with(now.clone()).set(1);
        let is_degraded = backend == event_log::NO_BACKEND || preferred.is_some();
        self.metrics.backend_degraded.with([source.clone()]).set(i64::from(is_degraded));
        let may_be_lost = EventClass::ALL.map(EventClass::name).contains(&&**source)
            || WITHOUT_PROGRAMS.contains(&&**source);
        if may_be_lost && backend != event_log::NO_BACKEND {
            self.metrics.backend_failures.with(now);
        }
    }

    /// Counts the objects that node reclaim removed. A dry run only lists them.
    fn count_reclaimed(&self, reclaim: &event_log::NodeReclaimEvent) {
        self.metrics.node_reclaims.with([reclaim.result]).inc();
        if reclaim.result == "listed" {
            return;
        }
        self.metrics.node_reclaim_removed.with(["images"]).inc_by(reclaim.image_count());
        self.metrics.node_reclaim_removed.with(["containers"]).inc_by(reclaim.containers.into());
        self.metrics.node_reclaim_freed.inc_by(reclaim.freed_bytes);
    }

    fn pods(&mut self, pods: event_log::PodsEvent, reread: bool, at: Timestamp) {
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.metrics.pods_known.set(gauge(pods.pods_known));
        for (reason, count) in [
            ("without_cgroup", pods.without_cgroup.len() + pods.without_cgroup_omitted),
            ("unknown_cgroup", pods.unknown_cgroups.len() + pods.unknown_cgroups_omitted),
            ("undecodable", pods.undecodable.len() + pods.undecodable_omitted),
        ] {
            self.metrics.pods_unmatched.with([reason]).set(gauge(count));
        }
        let changed = reread || self.pods != pods;
        self.pods = pods;
        if changed {
            self.publish(at, Event::Pods(self.pods.clone()));
        }
    }
}

/// Methods for OOM kills and terminated containers.
impl TelemetryExporter {
    /// Counts OOM kills. The victims of a group kill may be in several pods; victims that are not listed count
    /// for the pod of the first one.
    fn count_kills(&mut self, kill: &OomKill) {
        let limit_scope = kill.limit_scope.name();
        let count = |pod: Option<&PodRef>, kills: u64| {
            self.metrics.oom_kills.with([limit_scope.into(), self.namespace_of(pod)]).inc_by(kills);
        };
        let victims = kill.group.as_ref().map_or(&[][..], |group| &group.victims);
        victims.iter().for_each(|victim| count(victim.pod.as_ref(), 1));
        count(kill.pod.as_ref(), kill.kills().saturating_sub(victims.len() as u64));
        if let Some(kills) = kill.unattributed {
            let namespace = self.namespace_of(kill.pod.as_ref());
            self.metrics.oom_kills_unattributed.with([kill.detected_by.into(), namespace]).inc_by(kills);
        }
    }

    fn count_terminated(&self, terminated: &ContainerTerminated) {
        let namespace = self.namespace_of(terminated.container.pod.as_ref());
        let contributing = terminated.contributing.first().map_or("", |cause| cause.name());
        let limit_scope = terminated.limit_scope.map_or("", LimitScope::name);
        let labels =
            [terminated.cause.name().into(), contributing.into(), limit_scope.into(), namespace.clone()];
        self.metrics.container_terminations.with(labels).inc();
        if let Some(mismatch) = terminated.mismatch {
            self.count_mismatch(mismatch, namespace);
        }
    }

    fn namespace_of(&self, pod: Option<&PodRef>) -> Label {
        self.metrics.namespace(pod.map_or("", |pod| &pod.namespace))
    }

    fn count_mismatch(&self, mismatch: MismatchKind, namespace: Label) {
        self.metrics.container_status_mismatches.with([mismatch.name().into(), namespace]).inc();
    }
}

/// Returns the time to print: the time of the event, or the time of the previous line if that is later.
fn in_order(last: &Cell<Timestamp>, at: Timestamp) -> Timestamp {
    let at = at.max(last.get());
    last.set(at);
    at
}

/// Files of a cgroup from which memory signals are read, of cgroup v1 and v2.
const MEMORY_FILES: [&str; 6] = [
    "memory.usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.current",
    "memory.max",
    "memory.stat",
    "cgroup.procs",
];

/// The maximum size that is read of a file. None of these files is larger.
const MAX_FILE_BYTES: usize = 4 << 20;

/// Returns the files from which the node's signals are read, for the errors of signals that cannot be read. Files that
/// do not exist are left out. Signals of disks are not read from files.
pub(crate) fn signal_files(root: &NodeRoot, proc: &Path) -> BTreeMap<Signal, Vec<PathBuf>> {
    let memory = memory_files(&root.memory).chain([proc.join("meminfo")]);
    let pids = root.pids.iter().map(|folder| folder.join("pids.current"));
    [(Signal::MemoryAvailable, existing(memory)), (Signal::PidAvailable, existing(pids))].into()
}

fn memory_files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    MEMORY_FILES.iter().map(|name| folder.join(name))
}

fn existing(files: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    files.filter(|file| file.exists()).collect()
}

/// Returns the reason as text, without the number that the standard library appends to an OS error.
fn error_text(why: UnknownReason) -> String {
    let text = reason_text(why);
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn an_error_names_the_file_and_the_cause() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["memory.usage_in_bytes", "memory.limit_in_bytes"] {
            std::fs::write(folder.path().join(name), "1\n").unwrap();
        }
        let printer = LineWriter::start("test", std::io::sink(), Counter::default()).unwrap();
        let (metrics, ids) = (Arc::new(Metrics::new("0", "0")), DecisionIds::of_this_start());
        let mut exporter = TelemetryExporter::new(false, printer, metrics, ids, None);
        let limit = folder.path().join("memory.limit_in_bytes");
        for pods_root in [Some(folder.path().to_owned()), None] {
            let (pods, at) = (event_log::PodsEvent::default(), Timestamp::UNIX_EPOCH);
            exporter.take(TelemetryEvent::Pods { pods, reread: false, pods_root, at });
            let _removed = std::fs::remove_file(&limit);
        }
        let error = |signal, why| exporter.read_error(signal, why);
        let not_found = format!("read {}: No such file or directory", limit.display());
        assert_eq!(error(Signal::AllocatableMemoryAvailable, UnknownReason::Failed), not_found);
        assert_eq!(error(Signal::PidAvailable, UnknownReason::Unreadable(13)), "Permission denied");
        assert_eq!(error(Signal::AllocatableMemoryAvailable, UnknownReason::Stale), "too old");
        exporter.files.insert(Signal::MemoryAvailable, vec![folder.path().join("memory.usage_in_bytes")]);
        let error = exporter.read_error(Signal::NodeFsAvailable, UnknownReason::Unreadable(5));
        assert_eq!(error, "Input/output error", "no file of memory is named for a disk");
    }

    #[test]
    fn line_times_never_decrease() {
        let last = Cell::new(Timestamp::MIN);
        let second = |second| Timestamp::from_second(second).unwrap();
        let printed = [5, 3, 5, 9, 8].map(|at| in_order(&last, second(at)));
        assert_eq!(printed, [5, 5, 5, 9, 9].map(second));
    }
}
