//! The response of `/v1/state`: the node, its signals and thresholds, and the pods in the eviction order.
#![expect(missing_docs, reason = "docs/reference/local-api.md is the one place that describes the fields")]

use std::collections::BTreeMap;
use std::sync::Arc;

use eviction_core::explain::forecast;
use eviction_core::pods::{KnownPod, memory_limit};
use eviction_core::policy::preferences::PsiKind;
use eviction_core::reading::Reading;
use eviction_core::record::{CandidateRecord, PodSample, ThresholdRecord};
use eviction_core::signal::{Resource, Signal};
use eviction_core::snapshot::PodStats;
use eviction_core::time::Timestamp;
use eviction_node::psi::parse_pressure;
use serde::{Deserialize, Serialize};

use super::Live;
use crate::telemetry::metrics::{Family, Label, Metrics, OptionalGauge};
use crate::telemetry::pod_metrics::pod_labels;

/// The version of the response. It is increased when a field is renamed or removed, or changes its
/// meaning.
pub const STATE_VERSION: u32 = 1;

/// The maximum number of listed pods. The first to be evicted is listed first.
const LISTED: usize = 1000;

/// The node and its pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    pub schema_version: u32,
    pub at: Timestamp,
    pub version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub action: String,
    pub dry_run: String,
    pub profile: String,
    pub signals: Vec<SignalState>,
    /// The agent's node conditions that are true.
    pub conditions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_pressure: Option<MemoryPressure>,
    /// The time at which the pods were sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods_at: Option<Timestamp>,
    pub pods: Vec<PodState>,
    pub pods_omitted: usize,
    /// The number of the newest event line.
    pub last_event: u64,
}

/// A signal of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SignalState {
    pub signal: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
    pub thresholds: Vec<ThresholdState>,
}

/// A threshold of the agent, or of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThresholdState {
    pub threshold: String,
    pub source: String,
    pub value: i64,
    pub met: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<f64>,
    /// Absent while the signal does not fall.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<f64>,
}

/// The share of the last ten seconds, in percent, in which tasks waited for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryPressure {
    pub some_avg10: f64,
    pub full_avg10: f64,
}

/// A pod. Amounts are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodState {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    pub qos: String,
    pub priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<i64>,
    pub request: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_request: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_stall_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_eta_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_usage: Option<u64>,
    pub forecast: String,
    pub containers: Vec<ContainerState>,
}

/// A container. Amounts are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerState {
    pub container: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_usage: Option<u64>,
}

impl Live {
    pub(super) fn node_state(&self, metrics: &Metrics) -> NodeState {
        let (pods, pods_omitted) = self.pods.states();
        let started = self.started.as_ref();
        let text = |of: Option<&str>| of.unwrap_or_default().to_owned();
        let conditions = metrics.node_condition.series().into_iter();
        NodeState {
            schema_version: STATE_VERSION,
            at: self.clock.shown(self.clock.now().wall),
            version: text(started.map(|started| started.version)),
            node: self.node.clone(),
            action: text(started.map(|started| started.action)),
            dry_run: text(started.map(|started| started.dry_run)),
            profile: text(started.map(|started| started.profile)),
            signals: Signal::ALL
                .into_iter()
                .filter_map(|signal| self.signal_state(signal, metrics))
                .collect(),
            conditions: conditions
                .filter(|(_, holds)| holds.get() == 1)
                .map(|([condition], _)| condition.into_owned())
                .collect(),
            memory_pressure: memory_pressure(),
            pods_at: self.pods.newest().map(|sample| self.clock.shown(sample.at)),
            pods,
            pods_omitted,
            last_event: self.events.last,
        }
    }

    /// Returns the state of a signal, or `None` if the signal was never known and has no threshold.
    fn signal_state(&self, signal: Signal, metrics: &Metrics) -> Option<SignalState> {
        let now = self.clock.now().wall;
        let state = |([of, kind, source], value): ([Label; 3], OptionalGauge)| {
            let value = value.get().filter(|_| of == signal.name())?;
            let is_of_agent = source == "agent";
            let find = |family: &Family<2, OptionalGauge>| family.find([&of, &kind].map(Label::clone));
            let met = is_of_agent && find(&metrics.threshold_met).and_then(|it| it.get()) == Some(1);
            let is_this = |it: &&ThresholdRecord| it.signal == signal && it.is_hard() == (kind == "hard");
            let record = self.thresholds.iter().find(is_this).filter(|_| met);
            let since = record.and_then(|it| it.met.as_ref()).map(|met| met.first_seen);
            let eta = find(&metrics.threshold_eta).filter(|_| is_of_agent).and_then(|eta| eta.get_f64());
            #[expect(clippy::cast_precision_loss, reason = "shown in seconds")]
            Some(ThresholdState {
                threshold: kind.into_owned(),
                source: source.into_owned(),
                value,
                met,
                met_seconds: since.map(|since| now.duration_since(since).as_secs_f64()),
                grace_seconds: since.and(record).map(|it| it.grace_period.as_nanos() as f64 / 1e9),
                eta_seconds: eta.filter(|eta| eta.is_finite()),
            })
        };
        let known = |family: &Family<1, OptionalGauge>| family.find([signal.name()])?.get();
        let state = SignalState {
            signal: signal.name().to_owned(),
            available: known(metrics.signal_available(signal)),
            capacity: known(metrics.signal_capacity(signal)),
            thresholds: metrics.threshold_values(signal).series().into_iter().filter_map(state).collect(),
        };
        (state.available.is_some() || !state.thresholds.is_empty()).then_some(state)
    }
}

/// A growth rate is measured over up to twice this time, in nanoseconds.
const RATE_OVER_NS: i128 = 5_000_000_000;

/// The newest sample of the pods, and two older ones for growth rates.
#[derive(Debug, Default)]
pub(crate) struct PodHistory {
    samples: [Option<Arc<PodSample>>; 3],
    /// The share of the time that the tasks of a pod were in direct reclaim.
    pub(crate) stalls: BTreeMap<[Label; 2], f64>,
}

impl PodHistory {
    pub(crate) fn newest(&self) -> Option<&Arc<PodSample>> {
        self.samples[0].as_ref()
    }

    pub(crate) fn push(&mut self, sample: PodSample) {
        let [now, middle, _] = &mut self.samples;
        let age = |than: &Arc<PodSample>| sample.at.as_nanosecond() - than.at.as_nanosecond();
        let is_due = middle.as_ref().is_none_or(|middle| !(0..RATE_OVER_NS).contains(&age(middle)));
        let before = now.replace(Arc::new(sample));
        if is_due {
            self.samples[2] = self.samples[1].take();
            self.samples[1] = before;
        }
    }

    /// Returns the pods in the eviction order, and the number of omitted pods.
    pub(crate) fn states(&self) -> (Vec<PodState>, usize) {
        let Some(sample) = self.newest() else { return Default::default() };
        let ranking = sample.ranking(Signal::MemoryAvailable);
        let states = ranking.iter().take(LISTED).filter_map(|candidate| {
            let known = sample.pods.find(&candidate.pod.uid)?;
            let state = self.pod_state(sample, candidate, known);
            let forecast = forecast(Resource::Memory, candidate);
            Some(PodState { rank: candidate.rank, forecast, ..state })
        });
        (states.collect(), ranking.len().saturating_sub(LISTED))
    }

    fn pod_state(&self, sample: &PodSample, candidate: &CandidateRecord, known: &KnownPod) -> PodState {
        let (pod, stats) = (&known.pod, stats_of(sample, &known.pod.uid));
        let limit = memory_limit(pod, known.gates).map(|limit| limit.value());
        let usage = candidate.usage;
        let per_second = self.growth(sample, &pod.uid, usage);
        let left = limit.zip(usage).map(|(limit, usage)| limit.saturating_sub(usage).max(0));
        let eta = left.zip(per_second.filter(|rate| *rate > 0.0));
        let labels = pod_labels(&pod.namespace, &pod.name);
        let containers =
            stats.into_iter().flat_map(PodStats::containers).map(|(name, values)| ContainerState {
                container: name.to_owned(),
                usage: values.memory_working_set,
                disk_usage: sum([values.rootfs_used, values.logs_used]),
            });
        let containers: Vec<_> = containers.collect();
        let volumes = stats.into_iter().flat_map(PodStats::volumes).map(|(_, volume)| volume.used);
        PodState {
            owner: pod.owner.as_ref().map(|owner| format!("{}/{}", owner.kind, owner.name)),
            qos: if pod.qos_class.is_empty() && known.best_effort { "BestEffort" } else { &pod.qos_class }
                .to_owned(),
            priority: candidate.priority,
            usage,
            request: known.request(Resource::Memory).value(),
            limit,
            over_request: candidate.excess,
            usage_per_second: per_second,
            reclaim_stall_ratio: self.stalls.get(&labels).copied(),
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            limit_eta_seconds: eta.map(|(left, rate)| left as f64 / rate),
            disk_usage: sum(containers.iter().map(|it| it.disk_usage).chain(volumes)),
            containers,
            namespace: pod.namespace.to_string(),
            pod: pod.name.to_string(),
            pod_uid: pod.uid.to_string(),
            ..PodState::default()
        }
    }

    /// Returns the growth rate of a pod's memory in bytes per second.
    fn growth(&self, sample: &PodSample, uid: &str, usage: Option<i64>) -> Option<f64> {
        let older = self.samples[2].as_ref().or(self.samples[1].as_ref())?;
        let before = stats_of(older, uid)?.values().memory_working_set?;
        let seconds = sample.at.duration_since(older.at).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let grown = (i128::from(usage?) - i128::from(before)) as f64;
        (seconds > 0.0).then_some(grown / seconds)
    }
}

fn stats_of<'a>(sample: &'a PodSample, uid: &str) -> Option<PodStats<'a>> {
    sample.snapshot.stats_of(sample.pods.index_of(uid)?)
}

/// Returns the sum of the known values, or `None` if no value is known.
fn sum(values: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    values.into_iter().flatten().reduce(u64::saturating_add)
}

fn memory_pressure() -> Option<MemoryPressure> {
    let text = std::fs::read("/proc/pressure/memory").ok()?;
    let share = |kind| parse_pressure(&text, kind).avg10;
    MemoryPressure::of(share(PsiKind::Some), share(PsiKind::Full))
}

impl MemoryPressure {
    /// Converts shares in hundredths of a percent.
    pub(crate) fn of(some: Reading<u64>, full: Reading<u64>) -> Option<Self> {
        #[expect(clippy::cast_precision_loss, reason = "hundredths of a percent are small")]
        let percent = |share: Reading<u64>| share.known().map(|share| share as f64 / 100.0);
        Some(Self { some_avg10: percent(some)?, full_avg10: percent(full).unwrap_or_default() })
    }
}
