//! The command `check`: runs the steps of a start and reports the result of each, or waits for a DaemonSet.

use std::path::Path;
use std::time::Duration;

use eviction_bpf::preflight::{Fact, probe};
use eviction_bpf::{BackendInfo, LoadOptions};
use eviction_config::Capacities;
use eviction_core::reading::Reading;
use eviction_kube::{DaemonSetName, Observer, wait_ready};
use eviction_node::backend::BackendSelection;
use eviction_node::cgroup::hierarchy::{Hierarchies, Host};
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::cgroup::sampler::Sampler;
use eviction_node::fs::{DiskMonitor, FsPaths, NodeFileSystems};
use eviction_node::proc::meminfo::parse_meminfo;
use eviction_node::proc::process::read_task_capacity;
use eviction_node::sampler::Capacity;
use serde::Serialize;

use crate::daemon::config_reload::reclaims;
use crate::daemon::configuration::{ConfigurationFiles, EffectiveConfig};
use crate::daemon::memory_notifier::MemoryNotifier;
use crate::daemon::{cluster, kubelet_api, realtime, reclaim, startup};
use crate::error::{Failure, chain};
use crate::source::pods::parse_pod_list;
use crate::telemetry::event_log::Backend;

/// The result of `check`.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// The configuration that `run` would use, if it is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<EffectiveConfig>,
    /// Whether `run` would start with the same arguments.
    pub would_start: bool,
    /// The backend that each source would use, and why.
    pub sources: Vec<Backend>,
    /// The probed features of the machine.
    pub facts: Vec<Fact>,
    /// The problems that would keep `run` from starting.
    pub problems: Vec<String>,
}

/// Runs the steps of a start and returns what they find. Everything that is attached for this is detached
/// before it returns.
///
/// # Errors
/// If the runtime that the timer needs cannot be created.
pub fn check(
    files: &ConfigurationFiles,
    pods: Option<&Path>,
    cgroup_root: &Path,
    disks: &FsPaths,
    selection: &BackendSelection,
) -> Result<Findings, Failure> {
    let host = Host::default();
    let mut problems = Vec::new();
    let (mut reclaim, mut summary) = (None, None);
    let configuration = passed(files.load(), &mut problems).map(|configuration| {
        if reclaims(&configuration.policy) {
            let config = reclaim::config(&configuration.agent.reclaim, configuration.min_image_age, true);
            reclaim = passed(config, &mut problems);
        }
        summary = configuration.stats_summary.clone();
        // In a cluster the connection is checked below.
        if !files.in_cluster && configuration.agent.action().requests_evictions() {
            let connected = cluster::connect(files.kubeconfig.as_deref(), Observer::default());
            passed(connected, &mut problems);
        }
        EffectiveConfig::of(configuration)
    });
    problems.extend(pods.and_then(pods_problem));
    let hierarchies = Hierarchies::discover(&host).map_err(|error| problems.push(chain(&error))).ok();
    let root = hierarchies.as_ref().and_then(|hierarchies| {
        NodeRoot::resolve(hierarchies, cgroup_root).map_err(|error| problems.push(chain(&error))).ok()
    });
    let (mut values, hidden) = root.as_ref().map(read_tree).unwrap_or_default();
    problems.extend(hidden);
    let whole_machine = root.as_ref().is_none_or(|root| root.whole_machine);
    let file_systems = NodeFileSystems::find(&host, disks, whole_machine);
    let hooked_types = file_systems.hooked_types();
    let mut disks = DiskMonitor::new(file_systems, 1);
    let runtime = crate::daemon::start_runtime()?;
    let summary = summary.map(|kubelet| {
        let (backend, file_systems) = runtime.block_on(kubelet_api::probe_summary(&kubelet));
        if let Some(file_systems) = file_systems {
            disks.take_summary(file_systems);
        }
        backend
    });
    values.extend(disks.info());
    let mut pods_source = None;
    if files.in_cluster {
        let (source, found) = runtime.block_on(cluster::check(files));
        pods_source = Some(source);
        problems.extend(found);
    }
    let cri = reclaim.map(|config| runtime.block_on(reclaim::probe(&config)));
    let facts = runtime.block_on(async {
        hierarchies.map_or_else(Vec::new, |hierarchies| probe(&host, &hierarchies, root.as_ref()))
    });
    let required = facts.iter().filter(|fact| fact.required && !fact.usable);
    problems.extend(required.map(|fact| format!("{}: {}", fact.name, fact.found)));
    let sources = {
        let _inside = runtime.enter();
        sources(selection, hooked_types, root.as_ref(), values)
    };
    passed(startup::require_backends(selection, &sources), &mut problems);
    Ok(Findings {
        configuration,
        would_start: problems.is_empty(),
        sources: (sources.into_iter().map(Backend::from).chain(pods_source))
            .chain(cri)
            .chain(summary)
            .collect(),
        facts,
        problems,
    })
}

/// Waits until the pods of a DaemonSet are ready, for `within` at most. Returns their number.
///
/// # Errors
/// The pods that are not ready, with their nodes and the reasons; or why the API server cannot be reached.
pub fn await_daemon_set(
    kubeconfig: Option<&Path>,
    daemon_set: &DaemonSetName,
    within: Duration,
) -> Result<u64, Failure> {
    let client = cluster::connect(kubeconfig, Observer::default())?;
    Ok(crate::daemon::run_once(wait_ready(&client, daemon_set, within))??)
}

/// Returns the result of a step. Adds the causes of its failure to the problems.
fn passed<T>(step: Result<T, Failure>, problems: &mut Vec<String>) -> Option<T> {
    step.map_err(|failure| problems.extend(failure.into_causes())).ok()
}

/// Returns the backend of each source. Loads and attaches the backends to find out.
fn sources(
    choice: &BackendSelection,
    disks: Vec<String>,
    root: Option<&NodeRoot>,
    values: Vec<BackendInfo>,
) -> Vec<BackendInfo> {
    let options = LoadOptions { choice: choice.clone(), disks, ..LoadOptions::default() };
    let mut sources = MemoryNotifier::probe(&options, root);
    // On a separate thread, since an unprivileged user cannot undo what `realtime::prepare` sets.
    sources
        .extend(std::thread::spawn(move || realtime::prepare(&options.choice)).join().into_iter().flatten());
    sources.extend(values);
    sources
}

fn pods_problem(path: &Path) -> Option<String> {
    let read = std::fs::read(path).map_err(|error| chain(&error)).and_then(|text| parse_pod_list(&text));
    read.err().map(|cause| format!("read pods {}: {cause}", path.display()))
}

/// Reads the cgroup tree as a start does. Returns the sources of values, and the problem of the tree if there
/// is one.
fn read_tree(root: &NodeRoot) -> (Vec<BackendInfo>, Option<String>) {
    match Sampler::new(root.clone(), Path::new(PROC), 0, |_| false) {
        Err(error) => (Vec::new(), Some(chain(&error))),
        Ok(sampler) => {
            let hidden = sampler.root().require_visible(sampler.pods()).err();
            (sampler.info().to_vec(), hidden.map(|error| chain(&error)))
        }
    }
}

const PROC: &str = "/proc";

/// Returns the given capacities, else those of the machine. `memory` is in bytes.
pub fn find_capacities(memory: Option<u64>, pids: Option<u64>) -> Capacities {
    let memory = memory.or_else(read_mem_total);
    let pids = pids.or_else(|| read_task_capacity(Path::new(PROC)).known());
    let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    Capacities { memory: memory.map(signed), pids: pids.map(signed) }
}

fn read_mem_total() -> Option<u64> {
    let text = std::fs::read(Path::new(PROC).join("meminfo")).ok()?;
    parse_meminfo(&text).capacity.known()
}

/// Returns the capacity of the node: as given, else as its cgroup or the machine reports it.
pub(crate) fn capacity(
    sampler: &mut Sampler,
    host: &Host,
    memory: Option<u64>,
    pids: Option<u64>,
) -> Result<Capacity, Failure> {
    let memory = match memory {
        Some(memory) => memory,
        None => sampler.sample_node(&[]).capacity.known().ok_or_else(|| {
            Failure::failed("find the node's memory capacity: MemTotal cannot be read")
                .help("give --memory-capacity")
        })?,
    };
    let machine = read_task_capacity(&host.proc);
    let group = if sampler.root().whole_machine { machine } else { sampler.read_task_limit() };
    let pids = match (pids, group, machine) {
        (Some(pids), _, _) => pids,
        (None, Reading::Known(pids), _) | (None, _, Reading::Known(pids)) => pids,
        (None, Reading::Unknown(_), Reading::Unknown(_)) => {
            return Err(Failure::failed("find how many process ids the node has").help("give --pid-capacity"));
        }
    };
    Ok(Capacity { memory, pids })
}
