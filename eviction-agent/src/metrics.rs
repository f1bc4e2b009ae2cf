//! The metrics: one struct of handles, made once, shared by reference.
//!
//! Counters and gauges are atomics, so the reaction path may touch them; histograms and
//! families take a lock and are only touched on the slow side.

mod labels;
mod register;

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use labels::*;

/// A gauge of whole numbers.
pub type IntGauge = Gauge<i64, AtomicI64>;
/// A gauge of seconds.
pub type SecondsGauge = Gauge<f64, AtomicU64>;
/// A counter of seconds.
pub type SecondsCounter = Counter<f64, AtomicU64>;

/// All metrics of the agent.
pub struct Metrics {
    registry: Registry,
    /// Rung in use per source.
    pub source: Family<SourceLabels, IntGauge>,
    /// Rungs lost while running.
    pub source_lost: Family<SourceLabels, Counter>,
    /// Records read from the ring buffer.
    pub records: Counter,
    /// Records that the kernel side could not place.
    pub records_lost: Family<RecordLabels, Counter>,
    /// Figures that found no room in a map of the kernel side.
    pub map_full: Family<MapLabels, Counter>,
    /// Times that a program of the kernel side was not run, since it was at work on that CPU.
    pub runs_missed: Family<FamilyLabels, Counter>,
    /// Charges that were not followed up to the root.
    pub walks_cut: Counter,
    /// Records that were not of this program's form.
    pub records_invalid: Counter,
    /// Cgroups that were not looked at: they cannot be read, or are too many.
    pub cgroups_skipped: IntGauge,
    /// Glances at the figures of all cgroups, by what came of them.
    pub glances: Family<OutcomeLabels, Counter>,
    /// For how many of those that came the kernel's tree was walked.
    pub glance_walks: Counter,
    /// Looks at the node.
    pub looks: Family<TriggerLabels, Counter>,
    /// Readings that were not known.
    pub unknown: Family<SignalLabels, Counter>,
    /// Signals that have been unknown for so long that nobody watches them.
    pub blind: Family<SignalLabels, IntGauge>,
    /// Readings that were not believed.
    pub refused: Family<RefusedLabels, Counter>,
    /// Times that a changed configuration could not be used.
    pub configuration_errors: Counter,
    /// Whether a changed configuration waits to take effect.
    pub configuration_pending: IntGauge,
    /// What is available of each signal.
    pub available: Family<SignalLabels, IntGauge>,
    /// The capacity that it is held against.
    pub capacity: Family<SignalLabels, IntGauge>,
    /// Thresholds met.
    pub threshold_met: Family<ThresholdLabels, IntGauge>,
    /// Node conditions.
    pub condition: Family<ConditionLabels, IntGauge>,
    /// Decisions to evict.
    pub decisions: Family<SignalLabels, Counter>,
    /// Evictions carried out.
    pub evictions: Family<EvictionLabels, Counter>,
    /// What came of each.
    pub outcomes: Family<OutcomeLabels, Counter>,
    /// Whether the API server cannot be asked.
    pub api_unreachable: IntGauge,
    /// Writes of what outlives the agent, by what came of them.
    pub state_writes: Family<OutcomeLabels, Counter>,
    /// Processes that were killed, by what came of giving back their memory at once.
    pub memory_releases: Family<OutcomeLabels, Counter>,
    /// OOM kills by limit owner.
    pub oom_kills: Family<OomLabels, Counter>,
    /// Those of them that no program saw.
    pub oom_kills_unattributed: Family<UnattributedLabels, Counter>,
    /// Cgroups that forked too fast or came near their limit of tasks.
    pub task_alarms: Family<AlarmLabels, Counter>,
    /// Groups with a memory limit: how many are watched, how many are armed in the kernel, how many are
    /// near it.
    pub limits: Family<LimitLabels, IntGauge>,
    /// Times that a group came near its memory limit, or was so no more.
    pub limit_crossings: Family<LimitLabels, Counter>,
    /// Tasks that a pod made.
    pub pod_forks: Family<PodLabels, Counter>,
    /// Programs that it started.
    pub pod_execs: Family<PodLabels, Counter>,
    /// Tasks of it that ended.
    pub pod_exits: Family<PodLabels, Counter>,
    /// Time that its tasks spent in memcg direct reclaim.
    pub pod_reclaim_stall: Family<PodLabels, SecondsCounter>,
    /// How often they did.
    pub pod_reclaims: Family<PodLabels, Counter>,
    /// What they reclaimed.
    pub pod_reclaimed: Family<PodLabels, Counter>,
    /// Containers that ended, by why.
    pub containers_ended: Family<EndedLabels, Counter>,
    /// Containers whose status differs from the verdict on their end, by how.
    pub status_differences: Family<DifferenceLabels, Counter>,
    /// Records of kills and ends that made no sense or came too late.
    pub odd_records: Family<OutcomeLabels, IntGauge>,
    /// From the kernel's stamp of the crossing to the decision.
    pub crossing_to_decision: Histogram,
    /// Pods known.
    pub pods: IntGauge,
    /// Pods without a cgroup, and cgroups without a pod.
    pub unmatched: Family<OutcomeLabels, IntGauge>,
    /// What was to be told as events of the API, by what became of it.
    pub api_events: Family<EventLabels, Counter>,
    /// Times that the pods file could not be used.
    pub pods_file_errors: Counter,
    /// Connections to the API server that were begun.
    pub api_connections: Counter,
    /// Requests to the API server, by what came of them.
    pub api_requests: Family<OutcomeLabels, Counter>,
    /// Since the API server answered last.
    pub api_answer_age: SecondsGauge,
    /// Events of watches, and what became of the watches themselves.
    pub watch_events: Family<WatchLabels, Counter>,
    /// Since the server was heard of in a matter.
    pub watch_age: Family<ResourceLabels, SecondsGauge>,
    /// Objects that are known.
    pub watched_objects: Family<ResourceLabels, IntGauge>,
    /// Writes of conditions and taints into the node's own object, by what came of them.
    pub node_writes: Family<MarkWriteLabels, Counter>,
    /// Whether the node's own object says something else than it should.
    pub node_marks_due: Family<MarkLabels, IntGauge>,
    /// Notes that the slow side could not take.
    pub notes_dropped: Counter,
    /// Whether a verdict stands that the kernel side may carry out.
    pub reflex_stands: IntGauge,
    /// Processes that it killed.
    pub reflex_kills: Counter,
    /// Times that it began to be so that no verdict may stand.
    pub reflex_idle: Family<ReasonLabels, Counter>,
    /// Verdicts that were not carried out at a crossing.
    pub reflex_withheld: Family<ReasonLabels, Counter>,
    /// Lines of the output that its reader did not take in time.
    pub lines_dropped: Counter,
    /// Lines of the log that its reader did not take in time.
    pub log_lines_dropped: Counter,
    /// When the loop turned last, seconds since the Unix epoch.
    pub last_turn: SecondsGauge,
    /// Whether the loop stands still.
    pub loop_stalled: IntGauge,
    /// Times that it did.
    pub loop_stalls: Counter,
}

impl Metrics {
    /// Registers everything under `eviction_agent_`.
    pub fn new(version: &str, commit: &str) -> Self {
        let mut registry = Registry::with_prefix("eviction_agent");
        registry.register(
            "build",
            "Version of the agent",
            Info::new(vec![
                ("version".to_owned(), version.to_owned()),
                ("commit".to_owned(), commit.to_owned()),
            ]),
        );
        let mut metrics = Self {
            source: Family::default(),
            source_lost: Family::default(),
            records: Counter::default(),
            records_lost: Family::default(),
            map_full: Family::default(),
            runs_missed: Family::default(),
            walks_cut: Counter::default(),
            records_invalid: Counter::default(),
            cgroups_skipped: IntGauge::default(),
            glances: Family::default(),
            glance_walks: Counter::default(),
            looks: Family::default(),
            unknown: Family::default(),
            blind: Family::default(),
            refused: Family::default(),
            configuration_errors: Counter::default(),
            configuration_pending: Gauge::default(),
            available: Family::default(),
            capacity: Family::default(),
            threshold_met: Family::default(),
            condition: Family::default(),
            decisions: Family::default(),
            evictions: Family::default(),
            outcomes: Family::default(),
            api_unreachable: Gauge::default(),
            state_writes: Family::default(),
            memory_releases: Family::default(),
            oom_kills: Family::default(),
            oom_kills_unattributed: Family::default(),
            task_alarms: Family::default(),
            limits: Family::default(),
            limit_crossings: Family::default(),
            pod_forks: Family::default(),
            pod_execs: Family::default(),
            pod_exits: Family::default(),
            pod_reclaim_stall: Family::default(),
            pod_reclaims: Family::default(),
            pod_reclaimed: Family::default(),
            containers_ended: Family::default(),
            status_differences: Family::default(),
            odd_records: Family::default(),
            // 20 µs to 10 s: the goal is under 0.5 ms, a poll is 10 s late.
            crossing_to_decision: Histogram::new([
                20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 0.25, 1.0, 10.0,
            ]),
            pods: Gauge::default(),
            unmatched: Family::default(),
            api_events: Family::default(),
            pods_file_errors: Counter::default(),
            api_connections: Counter::default(),
            api_requests: Family::default(),
            api_answer_age: Gauge::default(),
            watch_events: Family::default(),
            watch_age: Family::default(),
            watched_objects: Family::default(),
            node_writes: Family::default(),
            node_marks_due: Family::default(),
            notes_dropped: Counter::default(),
            reflex_stands: Gauge::default(),
            reflex_kills: Counter::default(),
            reflex_idle: Family::default(),
            reflex_withheld: Family::default(),
            lines_dropped: Counter::default(),
            log_lines_dropped: Counter::default(),
            last_turn: Gauge::default(),
            loop_stalled: Gauge::default(),
            loop_stalls: Counter::default(),
            registry,
        };
        metrics.register();
        metrics
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

    /// The registry in the OpenMetrics text form.
    ///
    /// # Errors
    /// Only if a metric cannot write itself.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(16 * 1024);
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
