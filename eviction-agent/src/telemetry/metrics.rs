//! The metrics: one struct of handles, made once, shared by reference.
//!
//! Counters and gauges are atomics, so the control loop may touch them; histograms and families
//! take a lock and are only touched by the telemetry side.

mod exposition;
mod family;
mod labels;
mod namespaces;
mod pressure;
mod process;

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

pub use family::{
    EvictionDuration, Family, Member, OptionalGauge, OptionalSeconds, Overshoot, ReactionLatency,
};
pub use labels::*;

/// A gauge of whole numbers.
pub type IntGauge = Gauge<i64, AtomicI64>;
/// A gauge of seconds.
pub type SecondsGauge = Gauge<f64, AtomicU64>;
/// A counter of seconds.
pub type SecondsCounter = Counter<f64, AtomicU64>;

const PREFIX: &str = "eviction_agent";

/// Which metrics there are: only what runs is exported, since a healthy value of something that
/// does not run misleads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Those of every agent.
    Node,
    /// Those of an agent that records.
    Recorder,
    /// Those of an agent that sends requests to an API server.
    Api,
    /// Those of an agent that watches its pods and its node there.
    Watch,
}

/// Declares the fields, and registers each under its name; the comment is its help text.
macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $group:ident $field:ident: $type:ty = $name:literal;)+) => {
        /// All metrics of the agent.
        pub struct Metrics {
            registry: Mutex<Registry>,
            started: f64,
            namespaces: Mutex<namespaces::Namespaces>,
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl Metrics {
            fn unregistered() -> Self {
                Self {
                    registry: Mutex::default(),
                    started: family::now(),
                    namespaces: Mutex::default(),
                    $($field: Default::default(),)+
                }
            }

            fn register_group(&self, registry: &mut Registry, group: Group) {
                $(if group == Group::$group {
                    register(registry, $name, concat!($($doc),+), self.$field.clone());
                })+
            }
        }
    };
}

fn register(registry: &mut Registry, name: &str, help: &str, metric: impl Metric) {
    // The library adds the full stop, and the unit to the name.
    let help = help.trim().trim_end_matches('.');
    for (suffix, unit) in [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)] {
        if let Some(name) = name.strip_suffix(suffix) {
            return registry.register_with_unit(name, help, unit, metric);
        }
    }
    registry.register(name, help, metric);
}

metrics! {
    /// 1 for the backend that each source uses.
    Node backend: Family<BackendLabels, IntGauge> = "backend_info";
    /// 1 while a source does not use its best backend, or none at all.
    Node backend_degraded: Family<SourceLabels, IntGauge> = "backend_degraded";
    /// Backends that failed while they were in use.
    Node backend_failures: Family<BackendLabels, Counter> = "backend_failures";
    /// Events read from the ring buffer of the BPF programs.
    Node bpf_events: Counter = "bpf_events";
    /// Events of the BPF programs of an unknown version, type or length.
    Node bpf_events_invalid: Counter = "bpf_events_invalid";
    /// Events that did not fit into the ring buffer of the BPF programs.
    Node bpf_events_lost: Family<TypeLabels, Counter> = "bpf_events_lost";
    /// Entries that did not fit into a BPF map.
    Node bpf_map_full: Family<MapLabels, Counter> = "bpf_map_full";
    /// Times that the kernel skipped a BPF program because it was running on that CPU already.
    Node bpf_program_runs_missed: Family<ProgramLabels, Counter> = "bpf_program_runs_missed";
    /// Memory charges that were not followed to the root because their cgroup is too deep.
    Node bpf_paths_truncated: Counter = "bpf_paths_truncated";
    /// Cgroups that cannot be read or are too many, as of the last scan of the tree.
    Node cgroups_unreadable: IntGauge = "cgroups_unreadable";
    /// Times that the control loop read the node's signals and decided, by what triggered it.
    Node syncs: Family<TriggerLabels, Counter> = "syncs";
    /// Reads of a signal that failed.
    Node signal_read_errors: Family<SignalLabels, Counter> = "signal_read_errors";
    /// 1 while a signal with a threshold has been unknown for so long that it is given up.
    Node signal_unavailable: Family<SignalLabels, IntGauge> = "signal_unavailable";
    /// Times that readings of a signal began to be rejected as implausible.
    Node implausible_readings: Family<ImplausibleLabels, Counter> = "implausible_readings";
    /// Times that a changed configuration could not be used.
    Node config_reload_errors: Counter = "config_reload_errors";
    /// 1 while a changed configuration waits to be applied.
    Node config_pending: IntGauge = "config_pending";
    /// 1 if the last reload of the configuration succeeded.
    Node config_last_reload_successful: IntGauge = "config_last_reload_successful";
    /// Available amount of a signal.
    Node signal_available_bytes: Family<SignalLabels, OptionalGauge> = "signal_available_bytes";
    /// Available inodes of a signal.
    Node signal_available_inodes: Family<SignalLabels, OptionalGauge> = "signal_available_inodes";
    /// Available process ids.
    Node signal_available_pids: Family<SignalLabels, OptionalGauge> = "signal_available_pids";
    /// Capacity that a signal is compared with.
    Node signal_capacity_bytes: Family<SignalLabels, OptionalGauge> = "signal_capacity_bytes";
    /// Inodes that a signal is compared with.
    Node signal_capacity_inodes: Family<SignalLabels, OptionalGauge> = "signal_capacity_inodes";
    /// Process ids that a signal is compared with.
    Node signal_capacity_pids: Family<SignalLabels, OptionalGauge> = "signal_capacity_pids";
    /// Available memory of the node by each measure.
    Node memory_available: Family<MeasureLabels, OptionalGauge> = "memory_available_bytes";
    /// 1 while the agent's own node condition is true.
    Node node_condition: Family<ConditionLabels, IntGauge> = "node_condition";
    /// Value of an eviction threshold of the agent or of the kubelet.
    Node threshold_bytes: Family<ThresholdValueLabels, OptionalGauge> = "threshold_bytes";
    /// Value of an eviction threshold in inodes.
    Node threshold_inodes: Family<ThresholdValueLabels, OptionalGauge> = "threshold_inodes";
    /// Value of an eviction threshold in process ids.
    Node threshold_pids: Family<ThresholdValueLabels, OptionalGauge> = "threshold_pids";
    /// Time until a threshold is met if the signal goes on falling as it did, infinite while it does not fall.
    Node threshold_eta: Family<ThresholdLabels, OptionalSeconds> = "threshold_eta_seconds";
    /// 1 while an eviction threshold is met.
    Node threshold_met: Family<ThresholdLabels, OptionalGauge> = "threshold_met";
    /// Decisions to evict a pod.
    Node eviction_decisions: Family<SignalLabels, Counter> = "eviction_decisions";
    /// Pods that were evicted.
    Node evictions: Family<EvictionLabels, Counter> = "evictions";
    /// Steps of evictions by their result.
    Node eviction_results: Family<ResultLabels, Counter> = "eviction_results";
    /// Writes of the state file by their result.
    Node state_writes: Family<ResultLabels, Counter> = "state_writes";
    /// Calls of process_mrelease for killed processes by their result.
    Node process_mrelease: Family<ResultLabels, Counter> = "process_mrelease";
    /// Attempts to remove images and containers before pods are evicted for a disk, by their result.
    Node node_reclaims: Family<ResultLabels, Counter> = "node_reclaims";
    /// Pods frozen while the API server is unavailable, and thawed again.
    Node pod_freezes: Family<ResultLabels, Counter> = "pod_freezes";
    /// Images and containers that were removed before pods were evicted.
    Node node_reclaim_removed: Family<KindLabels, Counter> = "node_reclaim_removed";
    /// What the file system gained by these removals.
    Node node_reclaim_freed: Counter = "node_reclaim_freed_bytes";
    /// OOM kills by the kernel, by whose limit was hit.
    Node oom_kills: Family<OomLabels, Counter> = "oom_kills";
    /// OOM kills that only the kernel's counters show, where no BPF program reports OOM kills.
    Node oom_kills_unattributed: Family<UnattributedLabels, Counter> = "oom_kills_unattributed";
    /// OOM kills on the machine since boot, as the kernel counts them (oom_kill of /proc/vmstat).
    Node vmstat_oom_kills: OptionalGauge = "vmstat_oom_kills";
    /// Cgroups that forked too fast or came near their limit of tasks.
    Node task_alarms: Family<AlarmLabels, Counter> = "task_alarms";
    /// Cgroups with a memory limit by state.
    Node memory_limits: Family<LimitLabels, IntGauge> = "memory_limits";
    /// Times that the usage of a cgroup came near its memory limit or left it again.
    Node memory_limit_transitions: Family<LimitLabels, Counter> = "memory_limit_transitions";
    /// Tasks, threads included, that a pod created.
    Node pod_forks: Family<PodLabels, Counter> = "pod_forks";
    /// Programs that a pod started.
    Node pod_execs: Family<PodLabels, Counter> = "pod_execs";
    /// Tasks of a pod that ended.
    Node pod_exits: Family<PodLabels, Counter> = "pod_exits";
    /// Time that the tasks of a pod spent in memcg direct reclaim, summed over tasks.
    Node pod_reclaim_stall: Family<PodLabels, SecondsCounter> = "pod_reclaim_stall_seconds";
    /// Times that a task of a pod entered memcg direct reclaim.
    Node pod_reclaims: Family<PodLabels, Counter> = "pod_reclaims";
    /// Memory that the tasks of a pod reclaimed in memcg direct reclaim.
    Node pod_reclaimed: Family<PodLabels, Counter> = "pod_reclaimed_bytes";
    /// Working set of a pod, as it is compared with the pod's request.
    Node pod_memory_working_set: Family<PodLabels, OptionalGauge> = "pod_memory_working_set_bytes";
    /// Memory that a pod requests, no series if it requests none.
    Node pod_memory_request: Family<PodLabels, OptionalGauge> = "pod_memory_request_bytes";
    /// Memory limit of a pod, no series if it or one of its containers has none.
    Node pod_memory_limit: Family<PodLabels, OptionalGauge> = "pod_memory_limit_bytes";
    /// Place of a pod in the order of eviction, the next one to be evicted is 1.
    Node pod_eviction_rank: Family<RankLabels, IntGauge> = "pod_eviction_rank";
    /// Containers that terminated, by cause.
    Node container_terminations: Family<TerminationLabels, Counter> = "container_terminations";
    /// Containers whose status disagrees with the agent's cause of their termination.
    Node container_status_mismatches: Family<MismatchLabels, Counter> = "container_status_mismatches";
    /// Events of OOM kills and container terminations that were repeated, late or implausible.
    Node oom_record_anomalies: Family<ReasonLabels, Counter> = "oom_record_anomalies";
    /// Time from the kernel's stamp of a threshold crossing to the eviction decision.
    Node reaction_latency: ReactionLatency = "reaction_latency_seconds";
    /// Time from the decision to evict a pod to the end of the eviction.
    Node eviction_duration: Family<ResultLabels, EvictionDuration> = "eviction_duration_seconds";
    /// Bytes by which memory.available was beyond its hard threshold at the eviction decision.
    Node overshoot: Overshoot = "overshoot_bytes";
    /// Pods that the agent knows.
    Node pods_known: IntGauge = "pods_known";
    /// Pods without a cgroup, cgroups without a pod, and pods that cannot be decoded.
    Node pods_unmatched: Family<ReasonLabels, IntGauge> = "pods_unmatched";
    /// Times that the pods file could not be used.
    Node pods_file_errors: Counter = "pods_file_errors";
    /// Events, output lines and log lines that were dropped because their reader was too slow.
    Node telemetry_dropped: Family<QueueLabels, Counter> = "telemetry_dropped";
    /// Bytes of the recordings on disk.
    Recorder recorder_size: IntGauge = "recorder_size_bytes";
    /// Times that the recorder could not write.
    Recorder recorder_write_errors: Counter = "recorder_write_errors";
    /// 1 while the agent records.
    Recorder recorder_up: IntGauge = "recorder_up";
    /// 1 while the BPF programs may kill the chosen pod themselves.
    Node kernel_kill_armed: IntGauge = "kernel_kill_armed";
    /// Processes that the BPF programs killed.
    Node kernel_kills: Counter = "kernel_kills";
    /// Times that a reason came up not to set a kill order near a threshold.
    Node kernel_kill_not_armed: Family<ReasonLabels, Counter> = "kernel_kill_not_armed";
    /// Armed kill orders that the BPF programs did not carry out at a crossing.
    Node kernel_kill_suppressed: Family<ReasonLabels, Counter> = "kernel_kill_suppressed";
    /// Time of the last iteration of the control loop, since the Unix epoch.
    Node last_iteration: SecondsGauge = "control_loop_last_iteration_timestamp_seconds";
    /// 1 while the control loop is stalled.
    Node loop_stalled: IntGauge = "control_loop_stalled";
    /// Times that the control loop stalled.
    Node loop_stalls: Counter = "control_loop_stalls";
    /// 1 while the agent regards the API server as available for evictions.
    Api kube_api_up: IntGauge = "kube_api_up";
    /// Requests to the API server by operation and by status code or error.
    Api kube_api_requests: Family<RequestLabels, Counter> = "kube_api_requests";
    /// Time of the last response of the API server, since the Unix epoch.
    Api kube_api_last_response: Family<NoLabels, SecondsGauge> = "kube_api_last_response_timestamp_seconds";
    /// Kubernetes Events by what became of them.
    Watch kube_events: Family<EventLabels, Counter> = "kube_events";
    /// What happened to the watches of the API server.
    Watch kube_watch_events: Family<WatchLabels, Counter> = "kube_watch_events";
    /// Time of the last list, event or bookmark of a watch, since the Unix epoch.
    Watch kube_watch_last_event: Family<ResourceLabels, SecondsGauge> = "kube_watch_last_event_timestamp_seconds";
    /// Objects known from the API server.
    Watch kube_watch_objects: Family<ResourceLabels, IntGauge> = "kube_watch_objects";
    /// Patches of the node's conditions and taints by their result.
    Watch node_status_patches: Family<PatchLabels, Counter> = "node_status_patches";
    /// 1 while the node object differs from what the agent wants it to say.
    Watch node_status_out_of_sync: Family<KindLabels, IntGauge> = "node_status_out_of_sync";
}

/// The present, in seconds since the Unix epoch.
pub fn unix_now() -> f64 {
    family::now()
}

impl Metrics {
    /// Registers the metrics of every agent.
    pub fn new(version: &str, commit: &str) -> Self {
        let metrics = Self::unregistered();
        {
            let mut root = metrics.registry.lock().unwrap_or_else(PoisonError::into_inner);
            root.register_collector(Box::new(process::Process));
            let registry = root.sub_registry_with_prefix(PREFIX);
            let labels = [("version", version), ("commit", commit)];
            let build = Info::new(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec());
            registry.register("build", "Version and commit of the agent", build);
            metrics.register_group(registry, Group::Node);
            registry.register_collector(Box::new(pressure::Pressure::of("/proc/pressure".into())));
        }
        metrics.config_last_reload_successful.set(1);
        metrics.begin("");
        metrics
    }

    /// Registers those of another group as well.
    pub fn with(&self, group: Group) {
        let mut root = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        self.register_group(root.sub_registry_with_prefix(PREFIX), group);
    }

    /// Lines, events or log lines of this queue that were dropped.
    pub fn dropped(&self, queue: Queue) -> Counter {
        self.telemetry_dropped.get_or_create(&QueueLabels { queue: queue.name() })
    }

    /// Takes out the series of a pod.
    pub fn forget_pod(&self, labels: &PodLabels) {
        let Self { pod_forks, pod_execs, pod_exits, pod_reclaims, pod_reclaimed, pod_reclaim_stall, .. } =
            self;
        for family in [pod_forks, pod_execs, pod_exits, pod_reclaims, pod_reclaimed] {
            family.remove(labels);
        }
        pod_reclaim_stall.remove(labels);
    }

    /// The registry in the OpenMetrics text form, sorted.
    ///
    /// # Errors
    /// Only if a metric cannot write itself.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(32 * 1024);
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(exposition::arrange(&text, self.started))
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
