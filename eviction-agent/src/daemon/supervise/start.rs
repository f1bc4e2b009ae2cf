//! Starts the parts of the daemon.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use eviction_config::{ActionSettings, RecorderSettings, Server};
use eviction_core::units::Quantity;
use eviction_kube::{Client, KubeSession};
use eviction_node::clock::{Clock, mono_ns};
use eviction_node::notify::timer::Timer;
use eviction_node::pod_index::PodIndex;
use rustix::thread::Pid;
use tokio::signal::unix::SignalKind;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::{Daemon, begin_namespaces, node_pods};
use crate::daemon::config_reload::Reload;
use crate::daemon::configuration::{ConfigurationFiles, Options};
use crate::daemon::pod_source::PodSource;
use crate::daemon::service_manager::ServiceManager;
use crate::daemon::startup::{Plan, Ready};
use crate::daemon::state::{StateWriter, read_boot_id};
use crate::daemon::supervise::ControlLoopThread;
use crate::daemon::watchdog;
use crate::daemon::{VERSION, cluster, watch_signal};
use crate::error::Failure;
use crate::spsc::Receiver;
use crate::telemetry::event_log::{self, Event};
use crate::telemetry::exporter::{TelemetryExporter, signal_files};
use crate::telemetry::health::Health;
use crate::telemetry::http;
use crate::telemetry::http::local::LocalSocket;
use crate::telemetry::line_writer::LineWriter;
use crate::telemetry::live::Live;
use crate::telemetry::metrics::{MetricGroup, Metrics};
use crate::telemetry::queue::TelemetryEvent;
use crate::telemetry::recording::SegmentHeader;
use crate::telemetry::recording::recorder::{self, RecordingQueue, ReportQueue};
use crate::telemetry::recording::writer::Limits;

/// Name of the socket in the state directory.
pub(crate) const SOCKET: &str = "agent.sock";

/// The capacity of the channel for events of the main thread. The exporter takes them at once.
const OWN_EVENTS: usize = 64;

impl Daemon {
    /// Starts all parts. The control loop runs when this returns.
    pub(super) async fn start(
        options: Options,
        mut plan: Plan,
        loop_events: Receiver<TelemetryEvent>,
        reload: Reload,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Failure> {
        let cluster = plan.cluster.take();
        let client = cluster.as_ref().map(|cluster| cluster.client.clone());
        let reachability = cluster.as_ref().and_then(|cluster| cluster.reachability());
        let state_writer = plan.state_writer.take();
        let durable = state_writer.as_ref().map(StateWriter::durable_revision);
        let accept = watch_signal(SignalKind::user_defined1())?;
        let overrun = watch_signal(SignalKind::from_raw(libc::SIGXCPU))?;
        let Server { listen_address: listen } = plan.configuration.agent.server;
        let listener = tokio::net::TcpListener::bind(listen)
            .await
            .map_err(|error| Failure::because(format!("listen on {listen}"), &error))?;
        let listen = listener.local_addr().ok().map(|address| address.to_string());
        let timer = Timer::new().map_err(|error| Failure::because("make the watchdog's timer", &error))?;

        let (mut session, pods, index) = open_pods(&options, client.as_ref(), &plan, &metrics).await?;
        let (node_pods, receiver) = watch::channel(node_pods(&pods, &index));
        plan.node_pods = Some(receiver);
        let socket = local_socket(&options, &plan)?;
        let live = socket.as_ref().map(|_| Live::new(session.as_ref().map(|it| it.name().to_string())));
        let mut exporter = exporter(&options, &plan, session.as_mut(), &metrics)?;
        exporter.live = live.clone();
        (plan.recorder, exporter.recording) = recording(&plan, &metrics)?.unzip();
        let (events, receiver) = mpsc::channel(OWN_EVENTS);
        let health = Arc::clone(&plan.health);
        // Kernel kill needs the watermarks of the machine.
        if plan.load.kernel_kill && plan.root.whole_machine {
            tokio::spawn(plan.watermarks.clone().refresh(plan.host.proc.clone()));
        }
        let (action, profile) = (plan.configuration.agent.action(), plan.policy.rules.profile().name());
        let pods_known = index.known().len();
        let (control_loop, ready) = ControlLoopThread::start(plan, index).await?;
        let mut started = started(&options, action, profile, ready, pods_known, listen);
        begin_kube_metrics(client.as_ref(), session.as_ref(), &metrics);
        let watched = client.as_ref().zip(session.as_ref());
        started.sources.extend(watched.map(|(client, session)| cluster::backend(client, session.name())));

        health.pods_known.store(pods.are_known(), Ordering::Relaxed);
        started.sources.iter().for_each(|source| exporter.backend(source));
        let clock = Clock::start();
        exporter.publish(clock.now().wall, Event::Started(started));
        let mut tasks = JoinSet::new();
        let manager = start_watchdog(&mut tasks, Arc::clone(&health), control_loop.id, &metrics, timer);
        let state_writer = state_writer.map(|writer| tokio::spawn(write_state(writer)));
        let exporter = tokio::spawn(exporter.run(loop_events, receiver));
        if let Some((socket, live)) = socket.zip(live) {
            tasks.spawn(socket.serve(live, Arc::clone(&metrics)));
        }
        tasks.spawn(http::serve(listener, Arc::clone(&metrics), Arc::clone(&health)));
        if let Some(session) = &session {
            tokio::spawn(cluster::send_images(session.node(), control_loop.commands.downgrade()));
        }
        if let Some(cluster) = cluster {
            cluster.start(session.as_ref(), control_loop.commands.downgrade(), durable, &metrics);
        }
        Ok(Self {
            apply_config_now: options.apply_config_now,
            clock,
            metrics,
            accept,
            overrun,
            pods,
            node_pods,
            session,
            reachability,
            reload,
            health,
            control_loop,
            events,
            exporter,
            state_writer,
            tasks,
            manager,
        })
    }
}

/// Notifies systemd that the control loop runs, and starts the watchdog for it.
fn start_watchdog(
    tasks: &mut JoinSet<()>,
    health: Arc<Health>,
    thread: Pid,
    metrics: &Arc<Metrics>,
    timer: Timer,
) -> Arc<ServiceManager> {
    let manager = Arc::new(ServiceManager::from_env());
    manager.notify("READY=1");
    tasks.spawn(watchdog::watch(health, thread, Arc::clone(metrics), Arc::clone(&manager), timer));
    manager
}

/// Returns the source of the pods, and the first pods.
async fn open_pods(
    options: &Options,
    client: Option<&Client>,
    plan: &Plan,
    metrics: &Metrics,
) -> Result<(Option<KubeSession>, PodSource, PodIndex), Failure> {
    let ConfigurationFiles { in_cluster, node_name, .. } = &options.configuration;
    let (session, (pods, index)) = match client.filter(|_| *in_cluster) {
        Some(client) => {
            let name = node_name.as_deref();
            let session = KubeSession::join(client.clone(), name, read_boot_id(), &plan.policy).await?;
            let pods = PodSource::watched(session.pods());
            (Some(session), pods)
        }
        None => (None, PodSource::open(options.pods_file.as_deref(), &plan.policy)?),
    };
    begin_namespaces(metrics, &index);
    Ok((session, pods, index))
}

/// Binds the socket of the local API. If the default path cannot be bound, the agent runs without a local API.
fn local_socket(options: &Options, plan: &Plan) -> Result<Option<LocalSocket>, Failure> {
    let default = || options.state_dir(plan.configuration.agent.action()).map(|dir| dir.join(SOCKET));
    let Some(path) = options.socket.clone().or_else(default) else { return Ok(None) };
    match LocalSocket::bind(&path) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if options.socket.is_some() => {
            Err(Failure::because(format!("listen on {}", path.display()), &error))
        }
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "no local API: top, watch and explain cannot connect");
            Ok(None)
        }
    }
}

fn exporter(
    options: &Options,
    plan: &Plan,
    session: Option<&mut KubeSession>,
    metrics: &Arc<Metrics>,
) -> Result<TelemetryExporter, Failure> {
    let node = session.as_ref().map(|session| session.name().to_string());
    // An agent in a dry run writes no Events.
    let events = session
        .filter(|_| !plan.configuration.agent.action().is_dry())
        .map(|session| cluster::events(session, metrics));
    let dropped = metrics.telemetry_dropped.with(["output"]);
    let printer = LineWriter::start("stdout", std::io::stdout(), dropped)
        .map_err(|error| Failure::because("start the thread that prints", &error))?;
    let metrics = Arc::clone(metrics);
    let mut exporter = TelemetryExporter::new(options.json_lines, printer, metrics, plan.names, events);
    (exporter.node, exporter.files) = (node, signal_files(&plan.root, &plan.host.proc));
    exporter.pod_metrics = plan.configuration.agent.metrics.pods;
    Ok(exporter)
}

/// Starts the recorder if one is configured.
fn recording(plan: &Plan, metrics: &Arc<Metrics>) -> Result<Option<(RecordingQueue, ReportQueue)>, Failure> {
    let agent = &plan.configuration.agent;
    let RecorderSettings { directory, max_size, max_age, min_free_disk } = agent.recorder.clone();
    let Some(directory) = directory else { return Ok(None) };
    let bytes = |quantity: Quantity| quantity.value().max(0).unsigned_abs();
    let limits = Limits {
        directory,
        max_size: bytes(max_size),
        max_age: Duration::from_nanos(max_age.as_nanos().unsigned_abs()),
        min_free: bytes(min_free_disk),
    };
    let boot_id = read_boot_id().unwrap_or_default();
    let run = format!("{boot_id}/{}/{}", std::process::id(), mono_ns());
    let header = SegmentHeader { agent: VERSION.to_owned(), boot_id, run, segment: 0 };
    recorder::start(limits, header, Clock::start(), agent.action().is_dry(), metrics).map(Some)
}

/// Creates the metrics of the connection to the API server and of the watches.
fn begin_kube_metrics(client: Option<&Client>, session: Option<&KubeSession>, metrics: &Metrics) {
    if client.is_some() {
        metrics.with(MetricGroup::Api);
        metrics.kube_api_up.set(1);
    }
    if session.is_some() {
        metrics.with(MetricGroup::Watch);
        cluster::begin_watches(metrics);
    }
}

async fn write_state(writer: StateWriter) {
    if let Err(failure) = writer.run().await {
        tracing::error!(why = failure.into_line(), "the state is not kept any more");
    }
}

fn started(
    options: &Options,
    action: ActionSettings,
    profile: &'static str,
    ready: Ready,
    pods_known: usize,
    listen_address: Option<String>,
) -> event_log::Started {
    let Ready { sources, capacity, thread: _ } = ready;
    event_log::Started {
        version: VERSION,
        action: action.action.name(),
        dry_run: action.dry_run.name(),
        profile,
        cgroup_root: options.cgroup_root.display().to_string(),
        memory_capacity: capacity.memory,
        pid_capacity: capacity.pids,
        sources,
        pods_known,
        listen_address,
    }
}
