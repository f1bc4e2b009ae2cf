//! From options to a running loop: everything that can keep the agent from starting.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use eviction_bpf::load::ProgramLog;
use eviction_bpf::{BackendInfo, LoadOptions, online_cpus};
use eviction_core::engine::Engine;
use eviction_core::policy::Policy;
use eviction_core::policy::eviction_settings::KernelKillMode::HardMemory;
use eviction_core::policy::eviction_settings::NodeReclaim;
use eviction_core::policy::preferences::Profile;
use eviction_core::progress::KillUpdate;
use eviction_core::signal::Signal;
use eviction_core::threshold::ThresholdLevels;
use eviction_kill::Killer;
use eviction_node::backend::BackendSelection;
use eviction_node::cgroup::hierarchy::{Hierarchies, Host};
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::cgroup::sampler::{Sampler, SamplerOptions};
use eviction_node::clock::{Clock, mono_ns};
use eviction_node::container_init::ContainerInitTracker;
use eviction_node::file::raise_descriptor_limit;
use eviction_node::fs::{DiskMonitor, FsPaths, NodeFileSystems};
use eviction_node::notify::timer;
use eviction_node::pod_index::PodIndex;
use eviction_node::proc::watermarks::Watermarks;
use eviction_node::sampler::{Capacity, NodeSampler};
use tokio::sync::{mpsc, oneshot};

use super::cluster::{self, Cluster, EvictionSender, NodeStatusSender};
use super::config_reload::ConfigChange;
use super::configuration::{Configuration, Service};
use super::container_status::ContainerStatusTracker;
use super::control_loop::{Command, ControlLoop, Gauges, PodStorageWatch, ReclaimState, State, StateSender};
use super::executors::{killer, rate_limits};
use super::kernel_kill::KillOrders;
use super::limit_monitor::Limits;
use super::memory_notifier::MemoryNotifier;
use super::oom_counters::OomCounters;
use super::pod_activity::TaskTotals;
use super::realtime;
use super::reclaim::{self, ReclaimParts};
use super::state::{self, ImageHistoryFile, PersistedState, RestoredState};
use super::watchdog::Heartbeat;
use crate::daemon::check::{capacity, memory_quantity};
use crate::daemon::configuration::Options;
use crate::error::Failure;
use crate::telemetry::decision_id::DecisionIds;
use crate::telemetry::exporter::SignalFiles;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::queue::TelemetryQueue;
use crate::telemetry::{event_log, log_writer};
use eviction_node::file_watch::FileWatch;

/// Steps of evictions that wait for the loop; it takes them at once.
const OUTCOMES: usize = 64;

type ResultChannels = mpsc::Receiver<KillUpdate>;

/// What is needed to start the loop. All that users can get wrong was checked.
pub(crate) struct Plan {
    pub(crate) policy: Policy,
    pub(crate) profile: Profile,
    pub(crate) service: Service,
    root: NodeRoot,
    root_name: String,
    host: Host,
    memory_capacity: Option<u64>,
    pid_capacity: Option<u64>,
    disks: FsPaths,
    executor: Killer,
    outcomes: ResultChannels,
    /// For the main thread.
    pub(crate) cluster: Option<Cluster>,
    node: Option<NodeStatusSender>,
    evictions: Option<EvictionSender>,
    /// For the slow side, as well.
    pub(crate) kept: PersistedState,
    keep: StateSender,
    recalled: RestoredState,
    records: bool,
    load: LoadOptions,
    dry_run: bool,
    pub(crate) reclaim: ReclaimParts,
}

impl Plan {
    /// What decisions are called.
    pub(crate) fn names(&self) -> DecisionIds {
        self.recalled.names
    }

    /// What the node's signals are read from.
    pub(crate) fn signal_files(&self) -> SignalFiles {
        SignalFiles::of(&self.root, &self.host.proc)
    }

    /// Where to read what the machine keeps free, if somebody wants to know: `/proc` of the host.
    pub(crate) fn kept_free_at(&self) -> Option<PathBuf> {
        (self.load.kernel_kill && self.root.whole_machine).then(|| self.host.proc.clone())
    }
}

/// What the loop started with.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) sources: Vec<event_log::Backend>,
    pub(crate) capacity: Capacity,
    pub(crate) root: String,
    /// The reaction thread.
    pub(crate) thread: rustix::thread::Pid,
}

/// Checks everything that users give, and takes the right to act. Needs a runtime.
pub(crate) fn prepare(options: &Options, metrics: &Arc<Metrics>) -> Result<(Plan, ConfigChange), Failure> {
    let watch = FileWatch::of(options.configuration.agent.as_deref());
    let configuration = options.configuration.load()?;
    // What is remembered is what was decided by; how to serve is what the files say now.
    let service = configuration.service.clone();
    let (action, eviction_requests) = (service.action, service.eviction_requests);
    let state_dir = options.state_dir(action);
    let (in_force, change) =
        ConfigChange::since(state_dir.clone(), configuration, watch, options.apply_config_now);
    in_force.log();
    let Configuration { policy, profile, service: _, kubelet: _, settings: _, notes: _ } = in_force;
    let host = Host::default();
    let root = resolve_root(&host, &options.cgroup_root)?;
    let memory_capacity = options.memory_capacity.as_deref().map(memory_quantity).transpose()?;
    let rate_limits = rate_limits(&policy.rules);
    let (told, outcomes) = mpsc::channel(OUTCOMES);
    // One client for all requests: what it keeps warm serves each of them.
    let connects = action.asks_server() || options.cluster.is_some();
    let client = connects.then(|| cluster::connect(options.kubeconfig.as_deref())).transpose()?;
    let (mut cluster, mut evictions, mut node) = (client.map(Cluster::new), None, None);
    if let Some(cluster) = &mut cluster {
        if action.asks_server() {
            let access = cluster.client.access();
            tracing::info!(server = %access.server(), by = %access.origin(), "API server");
            evictions =
                Some(cluster.evictions(eviction_requests, action, rate_limits.clone(), told.clone())?);
        }
        // Only an agent that acts writes to the node's object.
        if options.cluster.is_some() && !action.is_dry() {
            node = Some(cluster.node_status()?);
        }
    }
    let executor = killer(&root, action, rate_limits, told, metrics)?;
    // Two descriptors a cgroup are kept open; with fewer the agent works, but slower.
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!(%error, "raising the limit of open files");
    }
    let log = if options.bpf_debug_log { ProgramLog::Debug } else { ProgramLog::Off };
    let (keep, kept, recalled) = state::open(options, state_dir.as_deref(), action, metrics)?;
    // Without it the programs cannot send a signal at all.
    let kernel_kill = policy.kernel_kill == HardMemory && action.kills();
    let reclaims = policy.eviction.node_reclaim == NodeReclaim::Cri;
    let reclaim = reclaims.then(|| reclaim::config(&service.reclaim, action.is_dry())).transpose()?;
    let history = state_dir.as_deref().zip(state::read_boot_id());
    let history = history.map(|(dir, boot_id)| ImageHistoryFile::new(dir, boot_id));
    let reclaim = ReclaimParts { config: reclaim, history, pods: None };
    let plan = Plan {
        policy,
        profile,
        service,
        root,
        root_name: options.cgroup_root.display().to_string(),
        host,
        memory_capacity,
        pid_capacity: options.pid_capacity,
        disks: options.disks.clone(),
        executor,
        outcomes,
        cluster,
        node,
        evictions,
        kept,
        keep,
        recalled,
        records: options.record.is_some(),
        dry_run: action.is_dry(),
        reclaim,
        load: LoadOptions { choice: options.choice.clone(), log, kernel_kill, ..LoadOptions::default() },
    };
    Ok((plan, change))
}

/// The group that stands for the node, which must be there.
pub(crate) fn resolve_root(host: &Host, cgroup_root: &Path) -> Result<NodeRoot, Failure> {
    let hierarchies = Hierarchies::discover(host)
        .map_err(|error| Failure::because("find the cgroup hierarchies", &error))?;
    NodeRoot::resolve(&hierarchies, cgroup_root)
        .map_err(|error| Failure::because("find the node's cgroup", &error).help(error.help()))
}

/// Where the loop tells what it does.
pub(crate) struct TelemetryOutputs {
    pub(crate) notes: TelemetryQueue,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pulse: Heartbeat,
    pub(crate) kept_free: Watermarks,
}

/// A loop that can start, and what it works with.
pub(crate) struct BuiltLoop {
    pub(crate) reaction: ControlLoop,
    sources: Vec<BackendInfo>,
    capacity: Capacity,
    root_name: String,
}

/// The reaction thread: loads the kernel side, says what is used, runs the loop.
pub(crate) fn react(
    plan: Plan,
    roster: PodIndex,
    outlets: TelemetryOutputs,
    commands: mpsc::Receiver<Command>,
    ready: oneshot::Sender<Ready>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because("start the reaction runtime", &error))?;
    let choice = plan.load.choice.clone();
    let ended = runtime.block_on(async {
        let BuiltLoop { reaction, mut sources, capacity, root_name } = build(plan, roster, outlets)?;
        log_writer::hurry();
        // Last of all: loading programs and reading a great tree take long, and need not be quick.
        sources.extend(realtime::prepare(&choice));
        missing_backend(&choice, &sources)?;
        let sources = sources.into_iter().map(source_event).collect();
        // From here on it is looked after; all that was loaded until now is no turn.
        reaction.pulse.turn(mono_ns());
        // Nobody waits any more when the main thread is ending already.
        drop(ready.send(Ready { sources, capacity, root: root_name, thread: realtime::this() }));
        reaction.run(commands).await
    });
    // A registration under way holds nothing that the end of the process does not give back.
    runtime.shutdown_background();
    ended
}

/// Puts the loop together. Needs the runtime that it is to run on.
pub(crate) fn build(plan: Plan, roster: PodIndex, outlets: TelemetryOutputs) -> Result<BuiltLoop, Failure> {
    let Plan {
        policy,
        profile: _,
        service,
        root,
        root_name,
        host,
        memory_capacity,
        pid_capacity,
        disks,
        executor,
        outcomes,
        cluster: _,
        node,
        evictions,
        kept: _,
        keep,
        recalled,
        records,
        load: mut options,
        dry_run,
        reclaim,
    } = plan;
    let TelemetryOutputs { notes, metrics, pulse, kept_free } = outlets;
    let file_systems = NodeFileSystems::find(&host, &disks, root.whole_machine);
    options.disks = file_systems.hooked_types();
    let (notifier, mut sources) = MemoryNotifier::start(&options, &service.probes, &root, &metrics)
        .map_err(|error| Failure::because("make a timer", &error))?;
    let sampler = open_sampler(root, &roster)?;
    sources.extend(sampler.info());
    let (sampler, capacity) = capacity(sampler, &host, memory_capacity, pid_capacity)?;
    let oom_counters = OomCounters::new(&host.proc, sampler.root().version, sampler.tree());
    let whole_machine = sampler.root().whole_machine;
    let reclaim = reclaim.open(|| NodeFileSystems::find(&host, &disks, whole_machine))?;
    let eyes = node_sampler(sampler, capacity, &host, &policy, file_systems);
    sources.extend(eyes.disks.info());
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let clock = Clock::start();
    let mut gauges = Gauges::new(&metrics);
    gauges.follow(&policy, &metrics);
    let mut reaction = ControlLoop {
        clock,
        memory_lines: ThresholdLevels::of(&policy, Signal::MemoryAvailable, signed(capacity.memory)),
        limits: Limits::new(service.memory_limits.warn_percent),
        pid_lines: ThresholdLevels::of(&policy, Signal::PidAvailable, signed(capacity.pids)),
        state: State::default(),
        engine: engine(policy, dry_run),
        storage: pod_storage(&disks, &host, &eyes),
        eyes,
        roster,
        mains: ContainerInitTracker::new(&host.proc),
        statuses: ContainerStatusTracker::new(clock.now().wall),
        oom_counters,
        notifier,
        kill_orders: KillOrders::default(),
        kept_free,
        executor,
        evictions,
        node,
        outcomes,
        reclaim: ReclaimState::new(reclaim),
        notes,
        gauges,
        pulse,
        metrics,
        tally: TaskTotals::default(),
        keep,
        records,
    };
    reaction.recall(recalled);
    // What of it takes long is done before the first turn.
    reaction.watch_containers();
    Ok(BuiltLoop { reaction, sources, capacity, root_name })
}

/// The cgroup tree as it is now; an error if pods are hidden from this cgroup namespace.
fn open_sampler(root: NodeRoot, roster: &PodIndex) -> Result<Sampler, Failure> {
    let sampler = Sampler::new(root, &SamplerOptions::default(), |uid| roster.knows(uid))
        .map_err(|error| Failure::because("read the cgroup tree", &error))?;
    sampler
        .root()
        .require_visible(sampler.pods())
        .map_err(|error| Failure::because("find pods", &error).help(error.help()))?;
    Ok(sampler)
}

fn node_sampler(
    sampler: Sampler,
    capacity: Capacity,
    host: &Host,
    policy: &Policy,
    file_systems: NodeFileSystems,
) -> NodeSampler {
    let whole_machine = sampler.root().whole_machine;
    let mut eyes = NodeSampler::new(sampler, capacity, &host.proc, whole_machine);
    eyes.follow(&policy.rules);
    eyes.allocatable.follow(policy);
    eyes.disks = DiskMonitor::new(file_systems, online_cpus());
    eyes.disks.follow(policy);
    eyes
}

fn pod_storage(disks: &FsPaths, host: &Host, sampler: &NodeSampler) -> PodStorageWatch {
    PodStorageWatch::new(disks.storage(host, sampler.sampler.root().whole_machine))
}

fn engine(policy: Policy, dry_run: bool) -> Engine {
    let mut engine = Engine::new(policy);
    if dry_run {
        engine.set_dry_run();
    }
    engine
}

/// An error if a backend of `--backend` is not in use: the agent does not start.
pub(crate) fn missing_backend(choice: &BackendSelection, sources: &[BackendInfo]) -> Result<(), Failure> {
    let used = |name: &str| name == timer::NAME || sources.iter().any(|info| info.backend == name);
    let Some(missing) = choice.only.iter().find(|name| !used(name)) else { return Ok(()) };
    let begin = format!("{missing}: ");
    let why =
        sources.iter().find_map(|info| info.reason.split("; ").find_map(|one| one.strip_prefix(&begin)));
    Err(Failure::failed(format!("backend {missing}: {}", why.unwrap_or("not available on this node"))))
}

pub(crate) fn source_event(info: BackendInfo) -> event_log::Backend {
    let BackendInfo { source, backend, reason, sees_every_charge: _, granularity_bytes: _ } = info;
    let backend = if backend.is_empty() { event_log::NO_BACKEND } else { backend };
    event_log::Backend { source: source.to_owned(), backend: backend.to_owned(), reason }
}
