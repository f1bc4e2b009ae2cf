//! Wakes the control loop when memory comes near a threshold, as the kubelet's `ThresholdNotifier` does.
//!
//! After each sample the control loop sets the kernel thresholds ([`MemoryNotifier::set_node_thresholds`]) and the
//! timer, and waits for what comes first ([`MemoryNotifier::next`]). The backends, best first: BPF programs on
//! memory charges ([`bpf`]); the usage threshold of cgroup v1, or a PSI trigger and `memory.events` of v2
//! ([`kernel`]); and the timer, which fires before a threshold can be reached at the greatest rate at which
//! memory fills. A backend that fails is logged once, counted and replaced by the next one.

mod bpf;
mod events;
mod failover;
mod kernel;
mod plan;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::telemetry::metrics::{Metrics, backend_labels};
use eviction_bpf::{BackendInfo, EventClass, LoadOptions, load::load, online_cpus};
use eviction_config::Probes;
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::cgroup::tree::Tree;
use eviction_node::clock::mono_ns;
use eviction_node::notify::sample_interval::{self, FillRate, SampleSchedule};
use eviction_node::notify::timer::Timer;
use eviction_node::sampler::MemoryUsage;
use kernel::KernelBackends;

pub(crate) use bpf::{BpfBackend, root_id};
pub(crate) use events::EventBatch;
pub(crate) use plan::{
    CrossingRate, GrowthSource, conservative_level, min_rearm_of_limit, pids_due, plan as plan_thresholds,
};

/// Every backend of [`MemoryNotifier`].
pub(crate) struct MemoryNotifier {
    /// Public for what no other backend can do: limits, disks, tasks, OOM kills, kill orders and losses. What
    /// depends on several backends is a method of the notifier.
    pub(crate) bpf: BpfBackend,
    kernel: KernelBackends,
    timer: Timer,
    rate: FillRate,
    whole_machine: bool,
    /// The number of online CPUs of the machine.
    cpus: usize,
    /// The limit of threshold crossings: beyond it the minimum re-arm distance is wide. One sync takes 0.15 ms,
    /// so they take a thirtieth of a CPU.
    crossings: CrossingRate,
    /// Whether the end of pressure on the cgroup of all pods is to be reported.
    pods_below: bool,
}

/// Logs and counts a backend that failed while it was in use. Its reason is why it failed.
fn log_failure(metrics: &Metrics, failed: &BackendInfo) {
    let BackendInfo { source, backend, reason: why, .. } = failed;
    tracing::warn!(
        source,
        backend,
        why,
        "a backend failed: the next one takes its place, and the timer goes on"
    );
    metrics.backend_failures.with(backend_labels(source, backend)).inc();
}

impl MemoryNotifier {
    /// Starts every backend that this machine has, and returns what is used for each source. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the timer cannot be created.
    pub(crate) fn start(
        options: &LoadOptions,
        probes: &Probes,
        root: &NodeRoot,
        metrics: &Arc<Metrics>,
    ) -> io::Result<(Self, Vec<BackendInfo>)> {
        let (bpf, mut sources) = BpfBackend::start(options, probes, metrics);
        let (kernel, infos) = KernelBackends::open(root, &options.choice);
        sources.extend(infos);
        sources.push(Timer::info());
        let cpus = online_cpus();
        let this = Self {
            bpf,
            kernel,
            timer: Timer::new()?,
            rate: FillRate::new(cpus),
            whole_machine: root.whole_machine,
            cpus,
            crossings: CrossingRate::default(),
            pods_below: false,
        };
        Ok((this, sources))
    }

    /// Returns the backends that [`Self::start`] would use, and detaches them again.
    pub(crate) fn probe(options: &LoadOptions, root: Option<&NodeRoot>) -> Vec<BackendInfo> {
        let mut sources = match load(options) {
            Ok(loaded) => loaded.sources(),
            Err(error) => error.missing,
        };
        sources.extend(root.into_iter().flat_map(|root| KernelBackends::open(root, &options.choice).1));
        sources.push(Timer::info());
        sources
    }

    /// Sets the cgroups with eviction thresholds: the node's and, if it has any, that of all pods.
    pub(crate) fn set_eviction_cgroups(&mut self, node: u64, pods: Option<u64>) {
        self.bpf.set_eviction_cgroups(node, pods);
        self.pods_below &= pods.is_some();
    }

    /// Sets the kernel threshold of the cgroup of all pods after a sample of it. `levels` are the working sets at
    /// which its thresholds are met, in bytes.
    pub(crate) fn set_pods_threshold(
        &mut self,
        id: u64,
        usage: MemoryUsage,
        levels: impl IntoIterator<Item = u64>,
        now_ns: u64,
    ) {
        let plan = plan::plan(self.growth(), self.min_rearm(now_ns), usage, levels);
        self.bpf.set_threshold(id, plan.threshold);
        self.pods_below = plan.threshold.usage_below.is_some();
    }

    /// Sets the kernel thresholds of the node's cgroup after a sample of it, and attaches the on-demand probes, which
    /// serve the cgroup of all pods as well: its threshold is set before. `levels` are the working sets at which the
    /// node's thresholds are met; `pods_headroom` is that of all pods. Returns the headroom to the nearest eviction
    /// threshold. All in bytes.
    pub(crate) fn set_node_thresholds(
        &mut self,
        id: u64,
        usage: MemoryUsage,
        levels: impl IntoIterator<Item = u64>,
        pods_headroom: Option<u64>,
        memory_capacity: u64,
        now_ns: u64,
    ) -> Option<u64> {
        let growth = self.growth();
        let (of_node, counted) = match self.whole_machine {
            true => (
                growth.of_machine(self.cpus, self.bpf.charge_caches()),
                self.bpf.root_counter_usage(usage.usage, now_ns),
            ),
            false => (growth, usage.usage),
        };
        let of_counter = MemoryUsage { usage: counted, ..usage };
        let plan = plan::plan(of_node, self.min_rearm(now_ns), of_counter, levels);
        self.bpf.set_threshold(id, plan.threshold);
        let headroom = [plan.headroom, pods_headroom].into_iter().flatten().min();
        let below = plan.threshold.usage_below.is_some() || self.pods_below;
        self.bpf.attach_on_demand(headroom, memory_capacity, below, now_ns);
        let set = self.kernel.set(usage.usage, plan.headroom, growth.sees_every_charge, now_ns);
        if let Err(failure) = set {
            self.report(failure);
        }
        headroom
    }

    /// Returns the minimum re-arm distance of eviction thresholds, bytes.
    fn min_rearm(&self, now_ns: u64) -> u64 {
        if self.crossings.has_token(now_ns) { plan::MIN_REARM } else { plan::wide_min_rearm(self.cpus) }
    }

    /// Sets the timer in place of its present setting. It never fires sooner than after
    /// [`sample_interval::FLOOR`].
    pub(crate) fn set_timer(&self, due: Duration) {
        if let Err(error) = self.timer.set_once(due.max(sample_interval::FLOOR)) {
            tracing::error!(%error, "cannot set the timer");
        }
    }

    /// Waits for the next notification, and returns what the BPF programs reported with it. Cancel-safe.
    ///
    /// # Errors
    /// If the timer cannot be waited for: without it a crossing may be missed.
    pub(crate) async fn next(&mut self) -> io::Result<(Trigger, EventBatch)> {
        let fired = tokio::select! {
            biased;
            events = self.bpf.next() => {
                if events.crossed_ns.is_some() {
                    self.crossings.take(mono_ns());
                }
                return Ok((Trigger::Charge, events));
            }
            fired = self.kernel.next() => fired,
            expired = self.timer.expired() => {
                expired?;
                Ok(Trigger::Timer)
            }
        };
        let trigger = fired.unwrap_or_else(|failure| {
            self.report(failure);
            // It is not known what the backend did not report.
            Trigger::Timer
        });
        Ok((trigger, EventBatch::default()))
    }

    /// Takes the events that the BPF programs have reported so far, without waiting, and fills `charged` with
    /// the cgroups that were charged since. Runs before values are read. Switches to BPF programs that were
    /// loaded to replace others.
    pub(crate) fn drain(&mut self, charged: &mut Vec<u64>) -> EventBatch {
        let mut events = EventBatch::default();
        self.bpf.switch_to_loaded(&mut events);
        self.bpf.drain(&mut events, charged);
        events
    }

    /// Part of a full sample: checks which backends do not report any more, given the usage of each pod by the
    /// id of its cgroup, and loads others.
    pub(crate) fn check_backends(
        &mut self,
        pods: impl Iterator<Item = (u64, u64)>,
        tree: &Tree,
        now_ns: u64,
    ) {
        self.bpf.check(pods, now_ns);
        let sees_every_charge = self.growth().sees_every_charge;
        let reports_kills = self.bpf.reports(EventClass::Oom);
        if let Err(failure) = self.kernel.watch_events(tree, sees_every_charge, reports_kills) {
            self.report(failure);
        }
    }

    /// Takes the sources whose backend has changed.
    pub(crate) fn take_changed(&mut self) -> Vec<BackendInfo> {
        std::mem::take(&mut self.bpf.changed)
    }

    /// Reports a kernel backend that failed.
    fn report(&mut self, failed: BackendInfo) {
        log_failure(&self.bpf.metrics, &failed);
        self.bpf.changed.push(BackendInfo { backend: "", ..failed });
    }

    /// Returns how growth is detected at present.
    pub(crate) fn growth(&self) -> GrowthSource {
        self.bpf.growth().unwrap_or_default()
    }

    /// Records a working set, bytes, for the rate at which memory fills.
    pub(crate) fn observe(&mut self, at_ns: u64, working_set: u64) {
        self.rate.observe(at_ns, working_set);
    }

    /// Returns when the next samples are due. `headroom` is in bytes; `calm` means that no threshold is met.
    pub(crate) fn schedule(&self, headroom: Option<u64>, calm: bool) -> SampleSchedule {
        sample_interval::due(headroom, &self.rate, calm, self.growth().sees_every_charge)
    }
}

eviction_core::named_enum! {
    /// What caused a sync.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Trigger {
        Start = "start",
        Charge = "charge",
        MemcgV1Threshold = "memcg_v1_threshold",
        Psi = "psi_trigger",
        Timer = "timer",
        EvictionResult = "eviction_result",
        Configuration = "configuration",
        Pods = "pods",
        TaskAlarm = "task_alarm",
        MemoryEvents = "memcg_oom_event",
        /// Process ids alone were due.
        Pids = "pids",
        KubeApi = "kube_api",
        /// What pods use of the disks was read.
        PodStorage = "pod_storage",
        /// A threshold on a file system was crossed.
        DiskThreshold = "disk_threshold",
        /// An attempt of node reclaim has ended.
        NodeReclaim = "node_reclaim",
    }
}
