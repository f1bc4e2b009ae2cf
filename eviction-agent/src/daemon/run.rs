//! Start, supervision and end of the daemon.

mod health;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::VERSION;
use super::error::Failure;
use crate::telemetry::http::{self, Health};
use crate::telemetry::metrics::{Group, Metrics, Queue};
use eviction_config::{ActionSettings, Server};
use eviction_core::input::ApiReachability;
use eviction_core::policy::preferences::Profile;
use eviction_node::backend_selection::BackendSelection;
use eviction_node::timer::Timer;

use super::clock::Clock;
use super::cluster::{Cluster, ClusterOptions, Exports, Membership};
use super::config_reload::{ConfigChange, Reload};
use super::configuration::ConfigurationFiles;
use super::control_loop::Command;
use super::pod_source::PodSource;
use super::realtime;
use super::saved_config::SavedConfigFile;
use super::startup::{self, Ready, TelemetryOutputs};
use super::watchdog::{self, Heartbeat};
use super::watermarks::Watermarks;
use crate::telemetry::decision_log::writer::Recorder;
use crate::telemetry::event_log::{self, Event};
use crate::telemetry::exporter::TelemetryExporter;
use crate::telemetry::queue::{TelemetryEvent, TelemetryQueue};
use crate::telemetry::stdout::Printer;
use health::State;

/// A SIGTERM ends the agent within a second; the reaction thread gets most of it.
const LAST_TURN: Duration = Duration::from_millis(800);
/// Notes of the main thread itself, which takes them at once.
const OWN_NOTES: usize = 64;
/// What the reader of the output gets to take the last lines.
const LAST_LINES: Duration = Duration::from_millis(100);

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// For people.
    Text,
    /// JSON lines.
    Json,
}

/// What `run` was asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to decide.
    pub configuration: ConfigurationFiles,
    /// Directory for state kept across restarts: the state of this boot and the configuration in force.
    pub state_dir: Option<PathBuf>,
    /// Changes of the configuration take effect at once.
    pub apply_config_now: bool,
    /// PodList file.
    pub pods_file: Option<PathBuf>,
    /// The cluster that the pods are asked of, where there is no such file.
    pub cluster: Option<ClusterOptions>,
    /// The group that stands for the node.
    pub cgroup_root: PathBuf,
    /// Memory that the node has, a quantity.
    pub memory_capacity: Option<String>,
    /// Process ids that the node has.
    pub pid_capacity: Option<u64>,
    /// How the API server is reached; without it by the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Where decisions are recorded, if they are.
    pub record: Option<PathBuf>,
    /// How events are written.
    pub output: Output,
    /// Backends that are asked for or disabled.
    pub choice: BackendSelection,
    /// Log the debug messages of the BPF programs.
    pub bpf_debug_log: bool,
}

/// The state directory of an agent in a pod, unless it is given another one. It should be in memory:
/// eviction requests wait until the state is written.
const STATE_DIR: &str = "/run/eviction-agent";

impl Options {
    /// The state directory of an agent with this action; none where no state is kept.
    pub(super) fn state_dir(&self, action: ActionSettings) -> Option<PathBuf> {
        let in_pod = self.kubeconfig.is_none() && (self.cluster.is_some() || action.asks_server());
        self.state_dir.clone().or_else(|| (in_pod && !action.is_dry()).then(|| STATE_DIR.into()))
    }

    /// Where an earlier agent may have left the configuration that the kubelet reported. The action is
    /// part of the configuration, and so not known yet.
    fn kubelet_said(&self) -> Option<PathBuf> {
        let in_pod = self.kubeconfig.is_none() && self.cluster.is_some();
        let dir = self.state_dir.clone().or_else(|| in_pod.then(|| STATE_DIR.into()));
        dir.map(|dir| SavedConfigFile::within(&dir).said())
    }
}

/// Runs the agent until it is told to end.
///
/// # Errors
/// What kept it from starting, or what ended it.
pub fn run(mut options: Options) -> Result<(), Failure> {
    options.configuration.last_said = options.kubelet_said();
    let metrics = Arc::new(Metrics::new(env!("CARGO_PKG_VERSION"), env!("EVICTION_AGENT_COMMIT")));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because("start the runtime", &error))?;
    let (plan, change) = {
        let _within = runtime.enter();
        startup::prepare(&options, &metrics)?
    };
    let ended = runtime.block_on(supervise(options, plan, change, metrics));
    // Does not wait for what may hang: a file of pods on a dead server, a thread that does not end.
    runtime.shutdown_background();
    ended
}

async fn supervise(
    options: Options,
    mut plan: startup::Plan,
    change: ConfigChange,
    metrics: Arc<Metrics>,
) -> Result<(), Failure> {
    let (client, cluster, news) = (plan.client.take(), plan.cluster.take(), plan.news.take());
    let mut reachable = cluster.as_ref().map(Cluster::reachable);
    let kept = plan.kept.take();
    let (names, files) = (plan.names(), plan.signal_files());
    let mut terminate = watch_signal(SignalKind::terminate())?;
    let mut interrupt = watch_signal(SignalKind::interrupt())?;
    let hangup = watch_signal(SignalKind::hangup())?;
    let mut accept = watch_signal(SignalKind::user_defined1())?;
    let mut overrun = watch_signal(SignalKind::from_raw(libc::SIGXCPU))?;
    let Server { listen_address: listen } = plan.service.server;
    let listener =
        http::bind(listen).await.map_err(|error| Failure::because(format!("listen on {listen}"), &error))?;
    let listen = listener.local_addr().ok().map(|address| address.to_string());

    let (thread_notes, receiver) = TelemetryQueue::new(&metrics)?;
    // What this thread itself has to tell, at the pace of files and signals.
    let (notes, own_notes) = mpsc::channel(OWN_NOTES);
    let timer = Timer::new().map_err(|error| Failure::because("make the watchdog's timer", &error))?;
    let pulse = Heartbeat::new();
    let (commands, command_receiver) = mpsc::channel(4);
    let (ready_sender, ready) = oneshot::channel();
    let mut membership = None;
    let (mut pods, roster) = match (&options.cluster, &client) {
        (None, _) | (_, None) => PodSource::open(options.pods_file.as_deref(), &plan.policy)?,
        (Some(given), Some(client)) => {
            let name = given.node_name.as_deref();
            let (joined, watched) = Membership::join(client.clone(), name, &plan.policy).await?;
            membership = Some(joined);
            PodSource::watched(watched)
        }
    };
    let pod_count = roster.len();
    roster.known().iter().for_each(|known| metrics.begin_namespace(&known.pod.namespace));
    let (service, profile) = (plan.service, plan.profile);
    let kept_free = Watermarks::default();
    if let Some(proc) = plan.kept_free_at() {
        let timer =
            Timer::new().map_err(|error| Failure::because("make the timer of free memory", &error))?;
        tokio::spawn(kept_free.clone().follow(proc, timer));
    }
    let outlets = TelemetryOutputs {
        notes: thread_notes,
        metrics: Arc::clone(&metrics),
        pulse: pulse.clone(),
        kept_free,
    };
    let reaction = std::thread::Builder::new()
        .name("control-loop".to_owned())
        .spawn(move || startup::react(plan, roster, outlets, command_receiver, ready_sender))
        .map_err(|error| Failure::because("start the reaction thread", &error))?;
    let took_effect = Arc::new(Notify::new());
    let printer = Printer::start(std::io::stdout(), Arc::clone(&metrics))?;
    let recorder =
        options.record.as_deref().map(|path| Recorder::open(path, Arc::clone(&metrics))).transpose()?;
    // Who does nothing writes nothing either.
    let tap = match &mut membership {
        Some(membership) if !service.action.is_dry() => Some(membership.tap(Arc::clone(&metrics))),
        _ => None,
    };
    let mut slow = TelemetryExporter::new(
        options.output,
        printer,
        Arc::clone(&metrics),
        names,
        Arc::clone(&took_effect),
        tap,
    )
    .recording(recorder)
    .reading(files)
    .on_node(membership.as_ref().map(|it| it.name().to_string()));
    // The thread ends early only if it could not start; then its result says why.
    let Ok(ready) = ready.await else { return joined(reaction.join()) };
    let exports = client.clone().map(|client| {
        metrics.with(Group::Api);
        metrics.kube_api_up.set(1);
        if membership.is_some() {
            metrics.with(Group::Watch);
        }
        Exports::new(Arc::clone(&metrics), client, membership.as_ref().map(Membership::watches))
    });
    let (keeper, written) = kept.unzip();
    let keeper = keeper.map(|keeper| {
        let metrics = Arc::clone(&metrics);
        tokio::spawn(async move {
            if let Err(failure) = keeper.run(metrics).await {
                tracing::error!(why = failure.into_causes().join("; "), "the state is not kept any more");
            }
        })
    });
    let pods_known = AtomicBool::new(pods.are_known());
    let state = Arc::new(State { pulse: pulse.clone(), pods_known, exports });
    let reaction_thread = ready.thread;
    let mut started = started(service.action, profile, &ready, pod_count, listen);
    started.sources.extend(membership.as_ref().map(Membership::info));
    for source in &started.sources {
        slow.backend(source);
    }
    slow.publish(Clock::start().now().wall, Event::Started(started));
    let mut writer = tokio::spawn(slow.run(receiver, own_notes));
    let watchdog = tokio::spawn(watchdog::watch(pulse, reaction_thread, Arc::clone(&metrics), timer));
    let server =
        tokio::spawn(http::serve(listener, Arc::clone(&metrics), Arc::clone(&state) as Arc<dyn Health>));

    let marks = match (news, &membership) {
        (Some(news), Some(it)) => {
            Some(it.keep(news, commands.downgrade(), written.clone(), Arc::clone(&metrics)))
        }
        (None, Some(it)) => {
            it.leave_marks();
            None
        }
        (_, None) => None,
    };
    if let Some(cluster) = cluster {
        cluster.start(marks, written, membership.as_ref().map(Membership::name));
    }
    if let Some(client) = client {
        tokio::spawn(async move { client.keep_warm().await });
    }

    let mut reload = Reload::new(options.configuration.clone(), service, hangup, change);
    let clock = Clock::start();
    let dropped = metrics.dropped(Queue::Events);
    let tell = |note| {
        if notes.try_send(note).is_err() {
            dropped.inc();
        }
    };
    let (mut told, mut failed) = (None, None);
    let why = 'turns: loop {
        tokio::select! {
            _ = terminate.recv() => break "SIGTERM",
            _ = interrupt.recv() => break "SIGINT",
            changed = pods.changed(&metrics) => match changed {
                Ok(roster) => {
                    roster.known().iter().for_each(|known| metrics.begin_namespace(&known.pod.namespace));
                    state.pods_known.store(pods.are_known(), Ordering::Relaxed);
                    // Full only while the reaction thread is busy; the next change brings all.
                    if commands.send(Command::Pods(roster)).await.is_err() {
                        break "the reaction thread ended";
                    }
                }
                Err(error) => tell(TelemetryEvent::PodsInvalid(error, clock.now())),
            },
            changed = reload.changed() => match changed {
                Ok(policy) => {
                    metrics.config_last_reload_successful.set(1);
                    let accepted = options.apply_config_now.then_some(Command::Accept);
                    for command in [Command::Propose(Box::new(policy))].into_iter().chain(accepted) {
                        if commands.send(command).await.is_err() {
                            break 'turns "the reaction thread ended";
                        }
                    }
                }
                Err(errors) => {
                    metrics.config_reload_errors.inc();
                    metrics.config_last_reload_successful.set(0);
                    for error in &errors {
                        tracing::error!(error, "the changed configuration cannot be used; the last good one stays");
                    }
                    tell(TelemetryEvent::ConfigurationInvalid(errors, clock.now()));
                }
            },
            reach = reach_changed(&mut reachable) => {
                metrics.kube_api_up.set(i64::from(reach == ApiReachability::Reachable));
                tell(TelemetryEvent::ApiServer(reach, clock.now()));
                if commands.send(Command::ApiServer(reach)).await.is_err() {
                    break "the reaction thread ended";
                }
            }
            failure = misplaced(&mut membership) => {
                failed = Some(failure);
                break "the agent is not where it was told to be";
            }
            () = took_effect.notified() => reload.remember(),
            _ = accept.recv() => {
                if commands.send(Command::Accept).await.is_err() {
                    break "the reaction thread ended";
                }
            }
            _ = overrun.recv() => {
                let info = realtime::step_down(reaction_thread);
                tracing::error!(rung = info.rung, reason = info.reason, "the reaction thread is stepped down");
                tell(TelemetryEvent::Backend(startup::source_event(info), clock.now()));
            }
            () = commands.closed() => break "the reaction thread ended",
            ended = &mut writer => {
                told = Some(ended);
                break "the reaction thread ended";
            }
        }
    };
    // A second signal ends the agent at once: everything attached goes with the process.
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        std::process::exit(1);
    });
    stop_watching(&server, &watchdog);
    let ended = end(commands, reaction).await;
    if let Some(keeper) = keeper {
        // What was said last is written as well, unless the disk hangs.
        drop(tokio::time::timeout(LAST_LINES, keeper).await);
    }
    let told = match told {
        Some(told) => Ok(told),
        None => tokio::time::timeout(LAST_TURN, writer).await,
    };
    match told {
        Ok(Ok(Ok(slow))) => {
            // The reader may have stopped: then what it did not take is left.
            let last = tokio::task::spawn_blocking(move || slow.finish(why));
            drop(tokio::time::timeout(LAST_LINES, last).await);
        }
        Ok(Ok(Err(failure))) => return Err(failure),
        Ok(Err(_)) => return Err(Failure::failed("run: what tells of events panicked")),
        Err(_) => {}
    }
    failed.map_or(ended, Err)
}

/// Waits until the API server can be asked, or cannot any more. For ever without one.
async fn reach_changed(reachable: &mut Option<watch::Receiver<bool>>) -> ApiReachability {
    let Some(reachable) = reachable else { return std::future::pending().await };
    if reachable.changed().await.is_err() {
        return std::future::pending().await;
    }
    if *reachable.borrow_and_update() { ApiReachability::Reachable } else { ApiReachability::Unreachable }
}

/// What is wrong with the node's name or rights, found out late. For ever without a cluster.
async fn misplaced(membership: &mut Option<Membership>) -> Failure {
    match membership {
        None => std::future::pending().await,
        Some(membership) => membership.failed().await,
    }
}

fn stop_watching(server: &JoinHandle<()>, watchdog: &JoinHandle<()>) {
    server.abort();
    watchdog.abort();
}

type ControlLoopThread = std::thread::JoinHandle<Result<(), Failure>>;

async fn end(commands: mpsc::Sender<Command>, reaction: ControlLoopThread) -> Result<(), Failure> {
    // A full queue means the thread is busy; dropping the sender ends it as well.
    drop(commands.try_send(Command::Stop));
    drop(commands);
    let join = tokio::task::spawn_blocking(move || joined(reaction.join()));
    match tokio::time::timeout(LAST_TURN, join).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) | Err(_) => Err(Failure::failed("stop: the reaction thread did not end in time")),
    }
}

fn joined(result: std::thread::Result<Result<(), Failure>>) -> Result<(), Failure> {
    result.unwrap_or_else(|_| Err(Failure::failed("run: the reaction thread panicked")))
}

fn watch_signal(kind: SignalKind) -> Result<tokio::signal::unix::Signal, Failure> {
    signal(kind).map_err(|error| Failure::because("watch for signals", &error))
}

fn started(
    action: ActionSettings,
    profile: Profile,
    ready: &Ready,
    pods: usize,
    listen: Option<String>,
) -> event_log::Started {
    let Ready { sources, capacity, root, thread: _ } = ready;
    event_log::Started {
        version: VERSION,
        action: action.action.lower_name(),
        dry_run: action.dry_run.lower_name(),
        profile: profile.name(),
        cgroup_root: root.clone(),
        memory_capacity: capacity.memory,
        pid_capacity: capacity.pids,
        sources: sources.clone(),
        pods_known: pods,
        listen_address: listen,
    }
}
