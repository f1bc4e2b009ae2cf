//! The metrics: one struct of handles, created once and shared by reference.
//!
//! Counters and gauges are atomics, so the control loop may use them. Histograms and families take a lock. The
//! telemetry threads use them. The control loop takes most of its series from families at the start, and later looks
//! up only a few for rare events: it waits only while another thread adds a series to the same family.

mod exposition;
mod family;
mod labels;
mod refresh;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use eviction_bpf::{EventClass, LossCounters, Suppressed};
use eviction_core::signal::{NodeCondition, Resource, Signal};
use eviction_core::signal_filter::Implausible;

use crate::telemetry::event_log::{FREEZE_STATES, RECLAIM_RESULTS};
use crate::telemetry::exporter::{ENDS, RESULTS};

pub use exposition::Form;
pub use family::{Family, Label, OptionalGauge, unix_now};
pub use labels::backend_labels;

/// A gauge of whole numbers.
pub type IntGauge = Gauge<i64, AtomicI64>;
/// A gauge of seconds.
pub type SecondsGauge = Gauge<f64, AtomicU64>;
/// A counter of seconds.
pub type SecondsCounter = Counter<f64, AtomicU64>;

const PREFIX: &str = "eviction_agent";

/// A group of metrics. The agent exports only the groups of components that run, because a healthy value of a
/// component that does not run is misleading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricGroup {
    /// Metrics of every agent.
    Node,
    /// Metrics of every process. Their names have no prefix.
    Process,
    /// Metrics of an agent that records.
    Recorder,
    /// Metrics of an agent that sends requests to an API server.
    Api,
    /// Metrics of an agent that watches its pods and its node.
    Watch,
}

/// The type of a field: a metric, or a family if the metric has labels.
macro_rules! type_of {
    ($type:ty) => { $type };
    ($type:ty, $($label:literal),+) => { Family<{ [$($label),+].len() }, $type> };
}

/// A new metric or family. Without a constructor, a metric is 0.
macro_rules! make {
    (;) => { Default::default() };
    ($new:path;) => { $new() };
    (; $($label:literal),+) => { Family::new([$($label),+], Default::default) };
    ($new:path; $($label:literal),+) => { Family::new([$($label),+], $new) };
}

/// Declares the fields: group, name of the field, type, labels, name, constructor, and the values of the label whose
/// series exist from the start, because `increase()` does not see a series that starts at 1. The comment is the help
/// text.
macro_rules! metrics {
    ($(
        $(#[doc = $doc:literal])+
        $group:ident $field:ident: $type:ident $([$($label:literal),+])? = $name:literal
            $(, new $new:path)? $(, from $values:expr)?;
    )+) => {
        /// All metrics of the agent.
        pub struct Metrics {
            registry: Mutex<Registry>,
            started: f64,
            /// The namespaces that have a label of their own.
            namespaces: Mutex<BTreeSet<Box<str>>>,
            $($(#[doc = $doc])+ pub $field: type_of!($type $(, $($label),+)?),)+
        }

        impl Metrics {
            fn unregistered() -> Self {
                let metrics = Self {
                    registry: Mutex::default(),
                    started: unix_now(),
                    namespaces: Mutex::default(),
                    $($field: make!($($new)?; $($($label),+)?),)+
                };
                $($($values.into_iter().for_each(|value| drop(metrics.$field.with([value])));)?)+
                metrics
            }

            /// Registers those of a group.
            pub fn with(&self, group: MetricGroup) {
                let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
                let registry = match group {
                    MetricGroup::Process => &mut *registry,
                    _ => registry.sub_registry_with_prefix(PREFIX),
                };
                $(if group == MetricGroup::$group {
                    register(registry, $name, concat!($($doc),+), self.$field.clone());
                })+
            }
        }
    };
}

fn register(registry: &mut Registry, name: &str, help: &str, metric: impl Metric) {
    // The library adds the full stop to the help text, and the unit to the name.
    let help = help.trim().trim_end_matches('.');
    for (suffix, unit) in [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)] {
        if let Some(name) = name.strip_suffix(suffix) {
            return registry.register_with_unit(name, help, unit, metric);
        }
    }
    registry.register(name, help, metric);
}

/// Buckets from 20 µs to 10 s: the goal is less than 0.5 ms, and a poll is 10 s late.
fn reaction_latency() -> Histogram {
    Histogram::new([20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 0.25, 1.0, 10.0])
}

/// Buckets from 10 ms to 10 minutes: a kill takes milliseconds, a grace period seconds to minutes.
fn eviction_duration() -> Histogram {
    Histogram::new([0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0])
}

/// Buckets from 1 MiB to 1 GiB.
fn overshoot() -> Histogram {
    Histogram::new([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0].map(|mebibytes| mebibytes * 1024.0 * 1024.0))
}

metrics! {
    /// 1 for the backend that each source uses.
    Node backend: IntGauge["source", "backend"] = "backend_info";
    /// 1 while a source does not use its best backend, or none at all.
    Node backend_degraded: IntGauge["source"] = "backend_degraded";
    /// Backends that failed while they were in use.
    Node backend_failures: Counter["source", "backend"] = "backend_failures";
    /// Events read from the ring buffer of the BPF programs.
    Node bpf_events: Counter = "bpf_events";
    /// Events of the BPF programs of an unknown version, type or length.
    Node bpf_events_invalid: Counter = "bpf_events_invalid";
    /// Events that did not fit into the ring buffer of the BPF programs.
    Node bpf_events_lost: Counter["type"] = "bpf_events_lost", from LossCounters::default().by_record().map(|(it, _)| it);
    /// Entries that did not fit into a BPF map.
    Node bpf_map_full: Counter["map"] = "bpf_map_full", from LossCounters::default().by_map().map(|(it, _)| it);
    /// Times that the kernel skipped a BPF program because it was running on that CPU already.
    Node bpf_program_runs_missed: Counter["source"] = "bpf_program_runs_missed", from EventClass::ALL.map(EventClass::name);
    /// Memory charges that were not followed to the root because their cgroup is too deep.
    Node bpf_paths_truncated: Counter = "bpf_paths_truncated";
    /// Cgroups that cannot be read or are too many, as of the last scan of the tree.
    Node cgroups_unreadable: IntGauge = "cgroups_unreadable";
    /// Times that the control loop read the node's signals and decided, by what triggered it.
    Node syncs: Counter["trigger"] = "syncs";
    /// Reads of a signal that failed.
    Node signal_read_errors: Counter["eviction_signal"] = "signal_read_errors";
    /// 1 while a signal with a threshold has been unknown for so long that it is given up.
    Node signal_unavailable: IntGauge["eviction_signal"] = "signal_unavailable", from Signal::ALL.map(Signal::name);
    /// Times that readings of a signal began to be rejected as implausible.
    Node implausible_readings: Counter["eviction_signal", "reason"] = "implausible_readings";
    /// Times that a changed configuration could not be used.
    Node config_reload_errors: Counter = "config_reload_errors";
    /// 1 while a changed configuration waits to be applied.
    Node config_pending: IntGauge = "config_pending";
    /// 1 if the last reload of the configuration succeeded.
    Node config_last_reload_successful: IntGauge = "config_last_reload_successful";
    /// Available amount of a signal.
    Node signal_available_bytes: OptionalGauge["eviction_signal"] = "signal_available_bytes";
    /// Available inodes of a signal.
    Node signal_available_inodes: OptionalGauge["eviction_signal"] = "signal_available_inodes";
    /// Available process ids.
    Node signal_available_pids: OptionalGauge["eviction_signal"] = "signal_available_pids";
    /// Capacity that a signal is compared with.
    Node signal_capacity_bytes: OptionalGauge["eviction_signal"] = "signal_capacity_bytes";
    /// Inodes that a signal is compared with.
    Node signal_capacity_inodes: OptionalGauge["eviction_signal"] = "signal_capacity_inodes";
    /// Process ids that a signal is compared with.
    Node signal_capacity_pids: OptionalGauge["eviction_signal"] = "signal_capacity_pids";
    /// Available memory of the node by each measure.
    Node memory_available: OptionalGauge["measure"] = "memory_available_bytes";
    /// 1 while the agent's own node condition is true.
    Node node_condition: IntGauge["condition"] = "node_condition", from NodeCondition::ALL.map(NodeCondition::name);
    /// Value of an eviction threshold of the agent or of the kubelet.
    Node threshold_bytes: OptionalGauge["eviction_signal", "threshold", "source"] = "threshold_bytes";
    /// Value of an eviction threshold in inodes.
    Node threshold_inodes: OptionalGauge["eviction_signal", "threshold", "source"] = "threshold_inodes";
    /// Value of an eviction threshold in process ids.
    Node threshold_pids: OptionalGauge["eviction_signal", "threshold", "source"] = "threshold_pids";
    /// Time until a threshold is met if the signal goes on falling as it did, infinite while it does not fall.
    Node threshold_eta: OptionalGauge["eviction_signal", "threshold"] = "threshold_eta_seconds";
    /// 1 while an eviction threshold is met.
    Node threshold_met: OptionalGauge["eviction_signal", "threshold"] = "threshold_met";
    /// Decisions to evict a pod.
    Node eviction_decisions: Counter["eviction_signal"] = "eviction_decisions", from Signal::ALL.map(Signal::name);
    /// Pods that were evicted.
    Node evictions: Counter["eviction_signal", "namespace"] = "evictions";
    /// Steps of evictions by their result.
    Node eviction_results: Counter["result"] = "eviction_results", from RESULTS;
    /// Writes of the state file by their result.
    Node state_writes: Counter["result"] = "state_writes", from ["written", "failed", "late"];
    /// Calls of process_mrelease for killed processes by their result.
    Node process_mrelease: Counter["result"] = "process_mrelease", from ["released", "ended", "failed"];
    /// Attempts to remove images and containers before pods are evicted for a disk, by their result.
    Node node_reclaims: Counter["result"] = "node_reclaims", from RECLAIM_RESULTS;
    /// Pods frozen while the API server is unavailable, and thawed again.
    Node pod_freezes: Counter["result"] = "pod_freezes", from FREEZE_STATES;
    /// Images and containers that were removed before pods were evicted.
    Node node_reclaim_removed: Counter["kind"] = "node_reclaim_removed", from ["images", "containers"];
    /// What the file system gained by these removals.
    Node node_reclaim_freed: Counter = "node_reclaim_freed_bytes";
    /// OOM kills by the kernel, by whose limit was hit.
    Node oom_kills: Counter["limit_scope", "namespace"] = "oom_kills";
    /// OOM kills that only the kernel's counters show, where no BPF program reports OOM kills.
    Node oom_kills_unattributed: Counter["detected_by", "namespace"] = "oom_kills_unattributed";
    /// OOM kills on the machine since boot, as the kernel counts them (oom_kill of /proc/vmstat).
    Node vmstat_oom_kills: OptionalGauge = "vmstat_oom_kills";
    /// Cgroups that forked too fast or came near their limit of tasks.
    Node task_alarms: Counter["alarm"] = "task_alarms", from ["fork_storm", "pids_limit"];
    /// Cgroups with a memory limit by state.
    Node memory_limits: IntGauge["level", "state"] = "memory_limits";
    /// Times that the usage of a cgroup came near its memory limit or left it again.
    Node memory_limit_transitions: Counter["level", "state"] = "memory_limit_transitions";
    /// Tasks, threads included, that a pod created.
    Node pod_forks: Counter["namespace", "pod"] = "pod_forks";
    /// Programs that a pod started.
    Node pod_execs: Counter["namespace", "pod"] = "pod_execs";
    /// Tasks of a pod that ended.
    Node pod_exits: Counter["namespace", "pod"] = "pod_exits";
    /// Time that the tasks of a pod spent in memcg direct reclaim, summed over tasks.
    Node pod_reclaim_stall: SecondsCounter["namespace", "pod"] = "pod_reclaim_stall_seconds";
    /// Times that a task of a pod entered memcg direct reclaim.
    Node pod_reclaims: Counter["namespace", "pod"] = "pod_reclaims";
    /// Memory that the tasks of a pod reclaimed in memcg direct reclaim.
    Node pod_reclaimed: Counter["namespace", "pod"] = "pod_reclaimed_bytes";
    /// Working set of a pod, as it is compared with the pod's request.
    Node pod_memory_working_set: OptionalGauge["namespace", "pod"] = "pod_memory_working_set_bytes";
    /// Memory that a pod requests, no series if it requests none.
    Node pod_memory_request: OptionalGauge["namespace", "pod"] = "pod_memory_request_bytes";
    /// Memory limit of a pod, no series if it or one of its containers has none.
    Node pod_memory_limit: OptionalGauge["namespace", "pod"] = "pod_memory_limit_bytes";
    /// Place of a pod in the order of eviction, the next one to be evicted is 1.
    Node pod_eviction_rank: IntGauge["eviction_signal", "namespace", "pod"] = "pod_eviction_rank";
    /// Containers that terminated, by cause.
    Node container_terminations: Counter["cause", "contributing", "limit_scope", "namespace"] = "container_terminations";
    /// Containers whose status disagrees with the agent's cause of their termination.
    Node container_status_mismatches: Counter["difference", "namespace"] = "container_status_mismatches";
    /// Events of OOM kills and container terminations that were repeated, late or implausible.
    Node oom_record_anomalies: Counter["reason"] = "oom_record_anomalies";
    /// Time from the kernel's stamp of a threshold crossing to the eviction decision.
    Node reaction_latency: Histogram = "reaction_latency_seconds", new reaction_latency;
    /// Time from the decision to evict a pod to the end of the eviction.
    Node eviction_duration: Histogram["result"] = "eviction_duration_seconds", new eviction_duration, from ENDS;
    /// Bytes by which memory.available was beyond its hard threshold at the eviction decision.
    Node overshoot: Histogram = "overshoot_bytes", new overshoot;
    /// Pods that the agent knows.
    Node pods_known: IntGauge = "pods_known";
    /// Pods without a cgroup, cgroups without a pod, and pods that cannot be decoded.
    Node pods_unmatched: IntGauge["reason"] = "pods_unmatched";
    /// Times that the pods file could not be used.
    Node pods_file_errors: Counter = "pods_file_errors";
    /// Events, output lines and log lines that were dropped because their reader was too slow.
    Node telemetry_dropped: Counter["queue"] = "telemetry_dropped", from ["events", "output"];
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
    Node kernel_kill_not_armed: Counter["reason"] = "kernel_kill_not_armed";
    /// Armed kill orders that the BPF programs did not carry out at a crossing.
    Node kernel_kill_suppressed: Counter["reason"] = "kernel_kill_suppressed", from Suppressed::ALL.map(Suppressed::name);
    /// Time of the last iteration of the control loop, since the Unix epoch.
    Node last_iteration: SecondsGauge = "control_loop_last_iteration_timestamp_seconds";
    /// 1 while the control loop is stalled.
    Node loop_stalled: IntGauge = "control_loop_stalled";
    /// Times that the control loop stalled.
    Node loop_stalls: Counter = "control_loop_stalls";
    /// 1 while the agent regards the API server as available for evictions.
    Api kube_api_up: IntGauge = "kube_api_up";
    /// Requests to the API server by operation and by status code or error.
    Api kube_api_requests: Counter["operation", "code"] = "kube_api_requests";
    /// Time of the last response of the API server, since the Unix epoch.
    Api kube_api_last_response: OptionalGauge = "kube_api_last_response_timestamp_seconds";
    /// Kubernetes Events by what became of them.
    Watch kube_events: Counter["reason", "result"] = "kube_events";
    /// What happened to the watches of the API server.
    Watch kube_watch_events: Counter["resource", "event"] = "kube_watch_events";
    /// Time of the last list, event or bookmark of a watch, since the Unix epoch.
    Watch kube_watch_last_event: SecondsGauge["resource"] = "kube_watch_last_event_timestamp_seconds";
    /// Objects known from the API server.
    Watch kube_watch_objects: IntGauge["resource"] = "kube_watch_objects";
    /// Patches of the node's conditions and taints by their result.
    Watch node_status_patches: Counter["kind", "result"] = "node_status_patches";
    /// 1 while the node object differs from what the agent wants it to say.
    Watch node_status_out_of_sync: IntGauge["kind"] = "node_status_out_of_sync";
    /// Time in which some task waited for the resource, since boot.
    Node pressure_waiting: SecondsCounter["resource"] = "pressure_waiting_seconds";
    /// Time in which all tasks waited for the resource, since boot.
    Node pressure_stalled: SecondsCounter["resource"] = "pressure_stalled_seconds";
    /// User and system CPU time of the agent.
    Process process_cpu: SecondsCounter = "process_cpu_seconds";
    /// Resident memory of the agent.
    Process process_resident_memory: OptionalGauge = "process_resident_memory_bytes";
    /// Start time of the agent since the Unix epoch.
    Process process_start_time: OptionalGauge = "process_start_time_seconds";
    /// File descriptors that the agent has open.
    Process process_open_fds: OptionalGauge = "process_open_fds";
}

/// Returns the family whose unit is that of the signal.
fn of_unit<F>(signal: Signal, [bytes, inodes, pids]: [&F; 3]) -> &F {
    match signal.resource() {
        Resource::Memory | Resource::EphemeralStorage => bytes,
        Resource::Inodes => inodes,
        Resource::Pids => pids,
    }
}

impl Metrics {
    /// Registers the metrics of every agent.
    pub fn new(version: &str, commit: &str) -> Self {
        let metrics = Self::unregistered();
        {
            let mut root = metrics.registry.lock().unwrap_or_else(PoisonError::into_inner);
            let labels = [("version", version), ("commit", commit)];
            let build = Info::new(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec());
            let registry = root.sub_registry_with_prefix(PREFIX);
            registry.register("build", "Version and commit of the agent", build);
        }
        metrics.with(MetricGroup::Node);
        metrics.with(MetricGroup::Process);
        metrics.config_last_reload_successful.set(1);
        metrics.backend_failures.with(backend_labels("ring", ""));
        for signal in Signal::ALL.map(Signal::name) {
            for reason in Implausible::NAMES {
                metrics.implausible_readings.with([signal, reason]);
            }
        }
        metrics.begin(&"".into());
        metrics
    }

    /// Returns the family `signal_available_…` of a signal.
    pub fn signal_available(&self, signal: Signal) -> &Family<1, OptionalGauge> {
        let Self { signal_available_bytes, signal_available_inodes, signal_available_pids, .. } = self;
        of_unit(signal, [signal_available_bytes, signal_available_inodes, signal_available_pids])
    }

    /// Returns the family `signal_capacity_…` of a signal.
    pub fn signal_capacity(&self, signal: Signal) -> &Family<1, OptionalGauge> {
        let Self { signal_capacity_bytes, signal_capacity_inodes, signal_capacity_pids, .. } = self;
        of_unit(signal, [signal_capacity_bytes, signal_capacity_inodes, signal_capacity_pids])
    }

    /// Returns the family `threshold_…` of a signal.
    pub fn threshold_values(&self, signal: Signal) -> &Family<3, OptionalGauge> {
        of_unit(signal, [&self.threshold_bytes, &self.threshold_inodes, &self.threshold_pids])
    }

    /// Removes the series of a pod.
    pub fn forget_pod(&self, pod: &[Label; 2]) {
        let Self { pod_forks, pod_execs, pod_exits, pod_reclaims, pod_reclaimed, .. } = self;
        for family in [pod_forks, pod_execs, pod_exits, pod_reclaims, pod_reclaimed] {
            family.retain(|it| it != pod);
        }
        self.pod_reclaim_stall.retain(|it| it != pod);
    }

    /// Returns the text of all metrics, after it has refreshed the metrics that are read at each scrape.
    ///
    /// # Errors
    /// Only if a metric cannot be encoded.
    pub fn scrape(&self, form: Form) -> Result<String, fmt::Error> {
        self.read_process();
        self.read_pressure(Path::new("/proc/pressure"));
        self.encode(form)
    }

    /// Returns the text of all metrics, sorted, with their current values.
    ///
    /// # Errors
    /// Only if a metric cannot be encoded.
    pub fn encode(&self, form: Form) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(32 * 1024);
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(form.rewrite(&text, self.started))
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
