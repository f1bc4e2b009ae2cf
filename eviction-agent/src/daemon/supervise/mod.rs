//! The main thread of the daemon: starts the parts of the daemon, runs until the agent must end, and stops
//! them.

mod start;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use eviction_core::input::ApiReachability;
use eviction_core::policy::Policy;
use eviction_kube::KubeSession;
use eviction_node::clock::Clock;
use eviction_node::pod_index::PodIndex;
use rustix::thread::Pid;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::daemon::config_reload::Reload;
use crate::daemon::configuration::Options;
use crate::daemon::control_loop::Command;
use crate::daemon::pod_source::PodSource;
use crate::daemon::reclaim::{PodsOfNode, pods_of};
use crate::daemon::service_manager::ServiceManager;
use crate::daemon::startup::{Plan, Ready};
use crate::daemon::{StopSignals, realtime, startup};
use crate::error::Failure;
use crate::telemetry::event_log::{ConfigChange, Event};
use crate::telemetry::exporter::TelemetryExporter;
use crate::telemetry::health::Health;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::queue::TelemetryEvent;
pub(crate) use start::SOCKET;

/// How long a stop waits for the control loop. SIGTERM ends the agent within a second; the loop gets most of
/// it.
const STOP_TIMEOUT: Duration = Duration::from_millis(800);
/// How long a stop waits for the last lines of the output, and for the last state and configuration.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs the agent until it is stopped.
///
/// # Errors
/// If the agent cannot start, or the failure that ended it.
pub fn run(options: Options) -> Result<(), Failure> {
    let metrics = Arc::new(Metrics::new(env!("CARGO_PKG_VERSION"), env!("EVICTION_AGENT_COMMIT")));
    let runtime = crate::daemon::start_runtime()?;
    let (plan, loop_events, reload) = {
        let _within = runtime.enter();
        startup::prepare(&options, &metrics)?
    };
    let result = runtime.block_on(async {
        let mut stop_signals = StopSignals::watch()?;
        let mut daemon = Daemon::start(options, plan, loop_events, reload, metrics).await?;
        // A signal counts also while a command waits for a control loop that has stopped.
        let end = tokio::select! {
            signal = stop_signals.next() => Ok(signal),
            end = daemon.run() => end,
        };
        daemon.stop(end, stop_signals).await
    });
    // Does not wait for anything that may hang: a pods file on a server that does not respond, or a thread that
    // does not end.
    runtime.shutdown_background();
    result
}

/// The running parts of the agent, and the sources of their changes.
struct Daemon {
    apply_config_now: bool,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// SIGUSR1: a pending configuration takes effect.
    accept: Signal,
    /// SIGXCPU: the control loop ran too long with real-time priority.
    overrun: Signal,
    pods: PodSource,
    /// The pods in the form that node reclaim needs.
    node_pods: watch::Sender<PodsOfNode>,
    session: Option<KubeSession>,
    reachability: Option<watch::Receiver<ApiReachability>>,
    reload: Reload,
    health: Arc<Health>,
    control_loop: ControlLoopThread,
    /// Events of the main thread.
    events: mpsc::Sender<TelemetryEvent>,
    exporter: JoinHandle<Result<TelemetryExporter, Failure>>,
    state_writer: Option<JoinHandle<()>>,
    /// The watchdog, the HTTP server and the local API.
    tasks: JoinSet<()>,
    manager: Arc<ServiceManager>,
}

/// The reason with which the agent ends after a failure of [`KubeSession`].
const MISPLACED: &str = "the node of that name is another machine";

impl Daemon {
    /// Forwards changes until the end of a part ends the agent. Returns the reason.
    async fn run(&mut self) -> Result<&'static str, Failure> {
        loop {
            tokio::select! {
                change = self.pods.changed(&self.metrics) => self.update_pods(change).await,
                change = self.reload.changed() => self.update_policy(change).await,
                reachability = reachability_change(&mut self.reachability) => {
                    self.update_reachability(reachability).await;
                }
                _ = self.accept.recv() => self.command(Command::Accept).await,
                _ = self.overrun.recv() => self.drop_real_time_priority(),
                end = part_ended(&self.control_loop, &self.events, &mut self.session) => return end,
            }
        }
    }

    /// Sends a command to the control loop. The queue is full only while the loop is busy. If the loop has
    /// ended, the next iteration of [`Self::run`] finds that out.
    async fn command(&self, command: Command) {
        drop(self.control_loop.commands.send(command).await);
    }

    fn publish(&self, event: TelemetryEvent) {
        if self.events.try_send(event).is_err() {
            self.metrics.telemetry_dropped.with(["events"]).inc();
        }
    }

    fn publish_event(&self, event: Event) {
        self.publish(TelemetryEvent::Event(Box::new(event), self.clock.now().wall));
    }

    async fn update_pods(&mut self, change: Result<PodIndex, String>) {
        match change {
            Ok(pods) => {
                begin_namespaces(&self.metrics, &pods);
                self.health.pods_known.store(self.pods.are_known(), Ordering::Relaxed);
                if self.node_pods.receiver_count() > 0 {
                    drop(self.node_pods.send_replace(node_pods(&self.pods, &pods)));
                }
                self.command(Command::Pods(pods)).await;
            }
            Err(error) => self.publish(TelemetryEvent::PodsInvalid(error, self.clock.now().wall)),
        }
    }

    async fn update_policy(&mut self, change: Result<Policy, Vec<String>>) {
        match change {
            Ok(policy) => {
                self.metrics.config_last_reload_successful.set(1);
                self.command(Command::Propose(Box::new(policy))).await;
                if self.apply_config_now {
                    self.command(Command::Accept).await;
                }
            }
            Err(errors) => {
                self.metrics.config_reload_errors.inc();
                self.metrics.config_last_reload_successful.set(0);
                for error in &errors {
                    tracing::error!(
                        error,
                        "the changed configuration cannot be used; the last good one stays"
                    );
                }
                self.publish_event(Event::ConfigChange(ConfigChange::invalid(errors)));
            }
        }
    }

    async fn update_reachability(&mut self, reachability: ApiReachability) {
        self.metrics.kube_api_up.set(i64::from(reachability == ApiReachability::Reachable));
        self.publish_event(Event::kube_api(reachability));
        self.command(Command::ApiServer(reachability)).await;
    }

    /// Takes real-time priority from a control loop that ran too long.
    fn drop_real_time_priority(&self) {
        let info = realtime::drop_real_time_priority(self.control_loop.id);
        tracing::error!(
            backend = info.backend,
            reason = info.reason,
            "the control loop loses real-time priority"
        );
        self.publish_event(Event::Backend(info.into()));
    }

    /// Stops all parts, starting with those that others wait for.
    async fn stop(
        self,
        end: Result<&'static str, Failure>,
        mut stop_signals: StopSignals,
    ) -> Result<(), Failure> {
        let Self { control_loop, exporter, state_writer, reload, mut tasks, manager, .. } = self;
        manager.notify("STOPPING=1");
        // A second signal ends the agent at once: the kernel detaches everything at the end of the process.
        tokio::spawn(async move {
            stop_signals.next().await;
            std::process::exit(1);
        });
        tasks.abort_all();
        let ended = control_loop.stop().await;
        let written = async {
            if let Some(state_writer) = state_writer {
                drop(state_writer.await);
            }
            reload.saved().await;
        };
        // The last state and configuration are written as well, unless the disk hangs.
        drop(tokio::time::timeout(FLUSH_TIMEOUT, written).await);
        match tokio::time::timeout(STOP_TIMEOUT, exporter).await {
            Ok(Ok(Ok(exporter))) => {
                // If the reader of the output has stopped, the lines that it did not take are lost.
                let reason = *end.as_ref().unwrap_or(&MISPLACED);
                let last = tokio::task::spawn_blocking(move || exporter.finish(reason));
                drop(tokio::time::timeout(FLUSH_TIMEOUT, last).await);
            }
            Ok(Ok(Err(failure))) => return Err(failure),
            Ok(Err(_)) => return Err(Failure::failed("run: the telemetry exporter panicked")),
            Err(_) => {}
        }
        end.and(ended)
    }
}

/// Waits until a part has ended that the agent cannot work without.
async fn part_ended(
    control_loop: &ControlLoopThread,
    events: &mpsc::Sender<TelemetryEvent>,
    session: &mut Option<KubeSession>,
) -> Result<&'static str, Failure> {
    let misplaced = async {
        match session {
            Some(session) => session.failed().await.into(),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = control_loop.commands.closed() => Ok("the control loop ended"),
        // The telemetry exporter takes events until the control loop has ended.
        () = events.closed() => Ok("the control loop ended"),
        failure = misplaced => Err(failure),
    }
}

/// Waits until the API server becomes available or unavailable; forever without one.
async fn reachability_change(receiver: &mut Option<watch::Receiver<ApiReachability>>) -> ApiReachability {
    if let Some(receiver) = receiver
        && receiver.changed().await.is_ok()
    {
        return *receiver.borrow_and_update();
    }
    std::future::pending().await
}

/// Creates the counters of evictions by namespace. They exist from the first pod of the namespace on.
fn begin_namespaces(metrics: &Metrics, pods: &PodIndex) {
    pods.known().iter().for_each(|known| metrics.begin_namespace(&known.pod.namespace));
}

/// Returns the pods in the form that node reclaim needs.
fn node_pods(source: &PodSource, pods: &PodIndex) -> PodsOfNode {
    if source.are_known() { pods_of(pods) } else { Err("they have not been listed yet".to_owned()) }
}

/// The capacity of the queue of commands for the loop.
const COMMANDS: usize = 4;

/// The running thread of the control loop.
struct ControlLoopThread {
    thread: thread::JoinHandle<Result<(), Failure>>,
    id: Pid,
    commands: mpsc::Sender<Command>,
}

impl ControlLoopThread {
    /// Starts the thread and waits until its loop runs.
    ///
    /// # Errors
    /// Why the loop could not start.
    async fn start(plan: Plan, pods: PodIndex) -> Result<(Self, Ready), Failure> {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let (ready_sender, ready) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("control-loop".to_owned())
            .spawn(move || startup::run_control_loop(plan, pods, receiver, ready_sender))
            .map_err(|error| Failure::because("start the control loop", &error))?;
        match ready.await {
            Ok(ready) => Ok((Self { thread, id: ready.thread, commands }, ready)),
            Err(_) => {
                join_thread(thread)?;
                Err(Failure::failed("start: the control loop ended at once"))
            }
        }
    }

    /// Ends the loop and waits for the thread.
    async fn stop(self) -> Result<(), Failure> {
        let Self { thread, id: _, commands } = self;
        // The loop ends when it has handled the commands in the queue.
        drop(commands);
        let join = tokio::task::spawn_blocking(move || join_thread(thread));
        match tokio::time::timeout(STOP_TIMEOUT, join).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(Failure::failed("stop: the control loop did not end in time")),
        }
    }
}

fn join_thread(thread: thread::JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    thread.join().unwrap_or_else(|_| Err(Failure::failed("run: the control loop panicked")))
}
