//! The start of the agent, from options to a running loop: everything that can keep it from starting.

use std::path::Path;
use std::sync::Arc;

use eviction_bpf::{BackendInfo, KernelKillCause, LoadOptions, online_cpus};
use eviction_config::ActionSettings;
use eviction_core::engine::Engine;
use eviction_core::policy::Policy;
use eviction_core::policy::eviction_settings::KernelKillMode;
use eviction_core::progress::KillUpdate;
use eviction_core::threshold::ThresholdLevels;
use eviction_cri::ReclaimConfig;
use eviction_kill::{CgroupDirs, CgroupScope, Killer, MreleaseResult, NodeLock};
use eviction_node::backend::BackendSelection;
use eviction_node::cgroup::hierarchy::{Hierarchies, Host};
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::cgroup::sampler::{Sampler, max_descriptors};
use eviction_node::clock::{Clock, mono_ns};
use eviction_node::container_init::ContainerInitTracker;
use eviction_node::file::raise_descriptor_limit;
use eviction_node::fs::{DiskMonitor, FsPaths, NodeFileSystems};
use eviction_node::notify::timer;
use eviction_node::pod_index::PodIndex;
use eviction_node::proc::watermarks::Watermarks;
use eviction_node::sampler::{Capacity, NodeSampler};
use tokio::sync::{mpsc, oneshot, watch};

use super::cluster::{self, Cluster, EvictionSender, NodeStatusSender};
use super::config_reload::{Reload, reclaims};
use super::configuration::{Configuration, ConfigurationFiles, STATE_DIR};
use super::control_loop::{
    Command, ContainerStatusTracker, ControlLoop, Gauges, IterationState, KillOrders, PodStorageWatch,
    ReclaimState, StateSender, TaskTotals,
};
use super::limit_monitor::LimitMonitor;
use super::memory_notifier::MemoryNotifier;
use super::oom_counters::OomCounters;
use super::rate_limit::RateLimit;
use super::realtime;
use super::reclaim::{self, ImageHistoryFile, PodsOfNode, ReclaimExecutor};
use super::state::{self, Document, StateWriter};
use crate::daemon::check::capacity;
use crate::daemon::configuration::Options;
use crate::error::{Failure, chain};
use crate::spsc::Receiver;
use crate::telemetry::health::Health;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::queue::{DecisionIds, TelemetryEvent, TelemetryQueue};
use crate::telemetry::recording::recorder::RecordingQueue;
use crate::telemetry::{event_log, line_writer};

/// The capacity of the channel for steps of evictions. The control loop takes them at once.
const RESULTS: usize = 64;

/// Everything that is needed to start the loop. All user input was checked.
pub(crate) struct Plan {
    /// The policy in force, which may be that of the previous agent.
    pub(crate) policy: Policy,
    /// Receives each policy that comes into force, to be saved.
    policy_in_force: watch::Sender<Arc<Policy>>,
    pub(crate) configuration: Configuration,
    pub(crate) root: NodeRoot,
    pub(crate) host: Host,
    memory_capacity: Option<u64>,
    pid_capacity: Option<u64>,
    disks: FsPaths,
    executor: Killer,
    eviction_results: mpsc::Receiver<KillUpdate>,
    /// Passed to the main thread.
    pub(crate) cluster: Option<Cluster>,
    node: Option<NodeStatusSender>,
    evictions: Option<EvictionSender>,
    /// Passed to the main thread as well.
    pub(crate) state_writer: Option<StateWriter>,
    state_sender: StateSender,
    /// The ids of decisions.
    pub(crate) names: DecisionIds,
    /// The state of the previous agent.
    previous: Option<Document>,
    /// Receives the engine's inputs if they are recorded.
    pub(crate) recorder: Option<RecordingQueue>,
    pub(crate) load: LoadOptions,
    /// How images and containers are removed, if the agent does so.
    reclaim: Option<ReclaimConfig>,
    /// The file for the history of images, if it is persisted.
    image_history: Option<ImageHistoryFile>,
    /// The pods in the form that node reclaim needs, once they are watched.
    pub(crate) node_pods: Option<watch::Receiver<PodsOfNode>>,
    telemetry: TelemetryQueue,
    metrics: Arc<Metrics>,
    pub(crate) health: Arc<Health>,
    pub(crate) watermarks: Watermarks,
}

/// The facts that the loop started with.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) sources: Vec<event_log::Backend>,
    pub(crate) capacity: Capacity,
    /// The thread of the control loop.
    pub(crate) thread: rustix::thread::Pid,
}

/// Checks all user input, and takes the lock of the node. Returns the plan, and the telemetry events of its loop.
/// Needs a runtime.
pub(crate) fn prepare(
    options: &Options,
    metrics: &Arc<Metrics>,
) -> Result<(Plan, Receiver<TelemetryEvent>, Reload), Failure> {
    let (policy_in_force, reload) = Reload::start(options)?;
    let policy = Policy::clone(&policy_in_force.borrow());
    let configuration = reload.configuration();
    let Configuration { policy: configured, agent, .. } = configuration;
    let action = agent.action();
    let state_dir = options.persistent_dir(action);
    let host = Host::default();
    let root = resolve_root(&host, &options.cgroup_root)?;
    let (results, eviction_results) = mpsc::channel(RESULTS);
    // One client for all requests: they share its connection.
    let ConfigurationFiles { kubeconfig, in_cluster, .. } = &options.configuration;
    let connects = action.requests_evictions() || *in_cluster;
    let observer = cluster::observer(Arc::clone(metrics));
    let client = connects.then(|| cluster::connect(kubeconfig.as_deref(), observer)).transpose()?;
    let (mut cluster, mut evictions, mut node) = (client.map(Cluster::new), None, None);
    if let Some(cluster) = &mut cluster {
        if action.requests_evictions() {
            let access = cluster.client.access();
            tracing::info!(server = %access.server(), by = %access.origin(), "API server");
            evictions = Some(cluster.evictions(agent.eviction_requests, action, results.clone())?);
        }
        // Only an agent that is not in a dry run writes to the node's object.
        if *in_cluster && !action.is_dry() {
            node = Some(cluster.node_status()?);
        }
    }
    let executor = killer(&root, action, results, metrics)?;
    // Two descriptors are kept open for each cgroup. With fewer the agent works, but slower.
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let (state_sender, state_writer, names, previous) =
        state::open(options, state_dir.as_deref(), action, metrics)?;
    // Kernel kill and node reclaim are turned on by a restart. The policy of the files counts even if it is still
    // pending. Without kernel kill the programs cannot send a signal at all.
    let kernel_kill =
        action.kills() && [&policy, configured].iter().any(|it| it.kernel_kill != KernelKillMode::Off);
    let reclaim = reclaim_config(&policy, configuration)?;
    let image_history = state_dir.as_deref().zip(state::read_boot_id());
    let image_history = image_history.map(|(dir, boot_id)| ImageHistoryFile::new(dir, boot_id));
    let (telemetry, telemetry_events) = TelemetryQueue::new(metrics)?;
    let plan = Plan {
        policy,
        policy_in_force,
        configuration: configuration.clone(),
        root,
        host,
        memory_capacity: options.memory_capacity,
        pid_capacity: options.pid_capacity,
        disks: options.disks.clone(),
        executor,
        eviction_results,
        cluster,
        node,
        evictions,
        state_writer,
        state_sender,
        names,
        previous,
        recorder: None,
        reclaim,
        image_history,
        node_pods: None,
        telemetry,
        metrics: Arc::clone(metrics),
        health: Arc::new(Health::new()),
        watermarks: Watermarks::default(),
        load: LoadOptions {
            choice: options.choice.clone(),
            debug_log: options.bpf_debug_log,
            kernel_kill,
            ..LoadOptions::default()
        },
    };
    Ok((plan, telemetry_events, reload))
}

/// Returns how images and containers are removed, if the policy of the files or the one in force asks for that.
fn reclaim_config(
    in_force: &Policy,
    configuration: &Configuration,
) -> Result<Option<ReclaimConfig>, Failure> {
    let Configuration { policy: configured, agent, min_image_age, .. } = configuration;
    let config = || reclaim::config(&agent.reclaim, *min_image_age, agent.action().is_dry());
    if reclaims(configured) {
        return config().map(Some);
    }
    // If only the previous agent's policy reclaims, the files may name no socket any more.
    Ok(reclaims(in_force).then(config).transpose().unwrap_or_else(|failure| {
        let cause = failure.into_line();
        tracing::warn!(cause, "the policy in force has nodeReclaim: CRI, but the agent cannot reclaim");
        None
    }))
}

/// Returns the cgroup of the node, which must exist.
pub(crate) fn resolve_root(host: &Host, cgroup_root: &Path) -> Result<NodeRoot, Failure> {
    let hierarchies = Hierarchies::discover(host)
        .map_err(|error| Failure::because("find the cgroup hierarchies", &error))?;
    NodeRoot::resolve(&hierarchies, cgroup_root)
        .map_err(|error| Failure::because("find the node's cgroup", &error).help(error.help()))
}

/// Runs the thread of the control loop: loads the BPF programs, reports the backends in use, and runs the loop.
pub(crate) fn run_control_loop(
    plan: Plan,
    pod_index: PodIndex,
    commands: mpsc::Receiver<Command>,
    ready: oneshot::Sender<Ready>,
) -> Result<(), Failure> {
    let runtime = crate::daemon::start_runtime()?;
    let choice = plan.load.choice.clone();
    let ended = runtime.block_on(async {
        let (control_loop, mut sources) = build(plan, pod_index)?;
        line_writer::never_wait();
        // Last of all: loading programs and reading a large tree take long, and need not be fast.
        sources.extend(realtime::prepare(&choice));
        require_backends(&choice, &sources)?;
        let sources = sources.into_iter().map(event_log::Backend::from).collect();
        // The watchdog checks the loop from here on. The time until now is not an iteration.
        control_loop.health.begin_iteration(mono_ns());
        // The receiver is closed if the main thread is ending already.
        let capacity = control_loop.node_sampler.capacity();
        drop(ready.send(Ready { sources, capacity, thread: rustix::thread::gettid() }));
        control_loop.run(commands).await
    });
    // The end of the process releases everything that a registration in progress holds.
    runtime.shutdown_background();
    ended
}

/// Builds the loop, and returns the backends that it uses. Needs the runtime that the loop will run on.
pub(crate) fn build(mut plan: Plan, pod_index: PodIndex) -> Result<(ControlLoop, Vec<BackendInfo>), Failure> {
    let file_systems = NodeFileSystems::find(&plan.host, &plan.disks, plan.root.whole_machine);
    plan.load.disks = file_systems.hooked_types();
    let (notifier, mut sources) =
        MemoryNotifier::start(&plan.load, &plan.configuration.agent.probes, &plan.root, &plan.metrics)
            .map_err(|error| Failure::because("make a timer", &error))?;
    let mut sampler = open_sampler(plan.root, &pod_index)?;
    sources.extend(sampler.info());
    let capacity = capacity(&mut sampler, &plan.host, plan.memory_capacity, plan.pid_capacity)?;
    let oom_counters = OomCounters::new(&plan.host.proc, sampler.root().version, sampler.tree());
    let whole_machine = sampler.root().whole_machine;
    let reclaim = match plan.reclaim.zip(plan.node_pods) {
        Some((config, pods)) => {
            let file_systems = NodeFileSystems::find(&plan.host, &plan.disks, whole_machine);
            Some(ReclaimExecutor::start(config, plan.image_history, pods, file_systems)?)
        }
        None => None,
    };
    let disks = DiskMonitor::new(file_systems, online_cpus());
    sources.extend(disks.info());
    let node_sampler = NodeSampler::new(sampler, disks, capacity, &plan.host.proc);
    let clock = Clock::start();
    let rate_limit = RateLimit::default();
    let mut control_loop = ControlLoop {
        clock,
        memory_levels: ThresholdLevels::default(),
        limits: LimitMonitor::new(plan.configuration.agent.memory_limits.warn_percent),
        pid_levels: ThresholdLevels::default(),
        state: IterationState::default(),
        engine: Engine::new(plan.policy),
        storage: PodStorageWatch::new(
            plan.host.clone(),
            plan.disks.of_pod_storage(&plan.host, whole_machine),
            plan.configuration.stats_summary.take(),
        ),
        node_sampler,
        pod_index,
        container_inits: ContainerInitTracker::new(&plan.host.proc),
        statuses: ContainerStatusTracker::new(clock.now().wall),
        oom_counters,
        notifier,
        kill_orders: KillOrders::new(KernelKillCause::Memory),
        disk_kill_orders: KillOrders::new(KernelKillCause::Disk),
        watermarks: plan.watermarks,
        executor: plan.executor,
        rate_limit,
        evictions: plan.evictions,
        node: plan.node,
        eviction_results: plan.eviction_results,
        reclaim: ReclaimState::new(reclaim),
        telemetry: plan.telemetry,
        gauges: Gauges::new(&plan.metrics),
        health: plan.health,
        metrics: plan.metrics,
        task_totals: TaskTotals::default(),
        state_sender: plan.state_sender,
        policy_in_force: plan.policy_in_force,
        recorder: plan.recorder,
    };
    if plan.configuration.agent.action().is_dry() {
        control_loop.engine.set_dry_run();
    }
    control_loop.apply_policy();
    control_loop.record_key();
    if let Some(previous) = plan.previous {
        control_loop.restore_state(previous);
    }
    // The slow part of this is done before the first iteration.
    control_loop.watch_containers();
    Ok((control_loop, sources))
}

/// Reads the cgroup tree. Fails if pods are hidden from this cgroup namespace.
fn open_sampler(root: NodeRoot, pod_index: &PodIndex) -> Result<Sampler, Failure> {
    let sampler = Sampler::new(root, Path::new("/proc"), max_descriptors(), |uid| pod_index.contains(uid))
        .map_err(|error| Failure::because("read the cgroup tree", &error))?;
    sampler
        .root()
        .require_visible(sampler.pods())
        .map_err(|error| Failure::because("find pods", &error).help(error.help()))?;
    Ok(sampler)
}

/// Fails if a backend of `--backend` is not in use: the agent does not start then.
pub(crate) fn require_backends(choice: &BackendSelection, sources: &[BackendInfo]) -> Result<(), Failure> {
    let used = |name: &str| name == timer::NAME || sources.iter().any(|info| info.backend == name);
    let Some(missing) = choice.only.iter().find(|name| !used(name)) else { return Ok(()) };
    let begin = format!("{missing}: ");
    let why =
        sources.iter().find_map(|info| info.reason.split("; ").find_map(|one| one.strip_prefix(&begin)));
    Err(Failure::failed(format!("backend {missing}: {}", why.unwrap_or("not available on this node"))))
}

/// Creates the killer. Outside a dry run it takes the lock of this node.
pub(super) fn killer(
    root: &NodeRoot,
    action: ActionSettings,
    updates: mpsc::Sender<KillUpdate>,
    metrics: &Arc<Metrics>,
) -> Result<Killer, Failure> {
    let NodeRoot { memory, pids, freezer, unified, version: _, whole_machine: _, partial: _ } = root.clone();
    let scope = CgroupScope::open(&CgroupDirs { id: None, memory, pids, freezer, unified });
    let scope = scope.map_err(Failure::failed)?;
    // It takes the lock also if only some policies let it act.
    let lock = (!action.is_dry()).then(|| NodeLock::acquire(&root.memory)).transpose().map_err(|error| {
        let failure = Failure::failed(chain(&error));
        match error.help() {
            Some(help) => failure.help(help),
            None => failure,
        }
    })?;
    let releases = metrics.process_mrelease.clone();
    let count = move |result| {
        let result = match result {
            MreleaseResult::Released => "released",
            MreleaseResult::Ended => "ended",
            MreleaseResult::Refused => "failed",
        };
        releases.with([result]).inc();
    };
    Killer::new(scope, lock, Path::new(STATE_DIR), updates, count)
        .map_err(|error| Failure::because("start the thread that finishes kills", &error))
}
