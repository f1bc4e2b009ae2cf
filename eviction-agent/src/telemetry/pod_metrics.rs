//! Metrics of pods: the activity of their tasks, which the candidates of a decision show as rates, and their memory and
//! rank in the eviction order.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::telemetry::metrics::{Label, Metrics};
use eviction_config::PodMetrics;
use eviction_core::pods::{KnownPod, memory_limit};
use eviction_core::policy::preferences::EvictionOrder;
use eviction_core::record::PodSample;
use eviction_core::signal::{Resource, Signal};
use eviction_node::clock::Instant;

/// The time that the series of a pod stay after its last activity: some scrapes.
const RETENTION_NS: u64 = 5 * 60 * 1_000_000_000;

/// The time after the last read of the counts at which rates end: nothing counts any more.
const MAX_RATE_AGE_NS: u64 = 60 * 1_000_000_000;

/// Returns the labels of a pod's series.
pub(crate) fn pod_labels(namespace: &str, pod: &str) -> [Label; 2] {
    [namespace.to_owned().into(), pod.to_owned().into()]
}

/// The activity of the tasks of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodActivity {
    pub(crate) forks: u64,
    pub(crate) execs: u64,
    pub(crate) exits: u64,
    pub(crate) reclaims: u64,
    pub(crate) stalled_ns: u64,
    pub(crate) reclaimed: u64,
}

impl PodActivity {
    fn zip_with(self, other: Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            forks: op(self.forks, other.forks),
            execs: op(self.execs, other.execs),
            exits: op(self.exits, other.exits),
            reclaims: op(self.reclaims, other.reclaims),
            stalled_ns: op(self.stalled_ns, other.stalled_ns),
            reclaimed: op(self.reclaimed, other.reclaimed),
        }
    }

    /// Returns the increase since `before`. For a counter that was reset, this is its whole value.
    pub(crate) fn since(self, before: Self) -> Self {
        self.zip_with(before, |now, before| if now < before { now } else { now - before })
    }

    pub(crate) fn add(&mut self, more: Self) {
        *self = self.zip_with(more, u64::saturating_add);
    }
}

/// The activity rates of a pod in the last interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    /// Created tasks per second.
    pub(crate) forks_per_second: f64,
    /// The share of the time that the pod's tasks spent in memcg direct reclaim, summed over tasks. It
    /// exceeds 1 if more than one task was in reclaim.
    pub(crate) reclaim_stall: f64,
}

#[derive(Debug)]
struct PodRates {
    updated_ns: u64,
    /// The rates in the last interval, if the pod was in it.
    rates: Option<Rates>,
}

/// The pods whose activity is exported.
#[derive(Debug, Default)]
pub(crate) struct PodRateExporter {
    pods: BTreeMap<[Label; 2], PodRates>,
    last_update_ns: Option<u64>,
}

impl PodRateExporter {
    /// Takes the activity of the tasks of cgroups since the previous read, with their pods. Tasks of no known pod have
    /// none.
    pub(crate) fn take(
        &mut self,
        deltas: Vec<(Option<Arc<KnownPod>>, PodActivity)>,
        at: Instant,
        metrics: &Metrics,
    ) {
        let last_update_ns = self.last_update_ns.replace(at.mono_ns);
        let interval_ns = last_update_ns.and_then(|then| at.mono_ns.checked_sub(then)).filter(|ns| *ns > 0);
        self.pods.values_mut().for_each(|pod| pod.rates = None);
        // A pod has several cgroups, and pods of the same name, one of which replaces the other, have the same series.
        let mut activities: BTreeMap<[Label; 2], PodActivity> = BTreeMap::new();
        for (pod, activity) in deltas {
            let labels = pod.map(|known| pod_labels(&known.pod.namespace, &known.pod.name));
            activities.entry(labels.unwrap_or_default()).or_default().add(activity);
        }
        for (labels, activity) in activities {
            export_activity(&labels, activity, metrics);
            let rates = interval_ns.map(|ns| Rates::of(activity, ns));
            self.pods.insert(labels, PodRates { updated_ns: at.mono_ns, rates });
        }
        self.expire(at.mono_ns, metrics);
    }

    /// Ends rates and series without updates, also if the BPF programs that count have failed.
    pub(crate) fn expire(&mut self, now_ns: u64, metrics: &Metrics) {
        if self.last_update_ns.is_some_and(|then| now_ns.saturating_sub(then) > MAX_RATE_AGE_NS) {
            self.pods.values_mut().for_each(|pod| pod.rates = None);
        }
        self.pods.retain(|labels, pod| {
            let is_recent = now_ns.saturating_sub(pod.updated_ns) < RETENTION_NS;
            if !is_recent {
                metrics.forget_pod(labels);
            }
            is_recent
        });
    }

    /// Returns the share of the time in direct reclaim of each pod that was in reclaim in the last
    /// interval.
    pub(crate) fn stalls(&self) -> BTreeMap<[Label; 2], f64> {
        let stalls =
            self.pods.iter().filter_map(|(labels, pod)| Some((labels.clone(), pod.rates?.reclaim_stall)));
        stalls.filter(|(_, stall)| *stall > 0.0).collect()
    }

    /// Returns the rates of a pod in the last interval.
    pub(crate) fn rates(&self, namespace: &str, pod: &str) -> Option<Rates> {
        self.pods.get(&pod_labels(namespace, pod))?.rates
    }
}

impl Rates {
    #[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
    fn of(activity: PodActivity, interval_ns: u64) -> Self {
        let seconds = interval_ns as f64 / 1e9;
        Self {
            forks_per_second: activity.forks as f64 / seconds,
            reclaim_stall: activity.stalled_ns as f64 / interval_ns as f64,
        }
    }
}

fn export_activity(pod: &[Label; 2], activity: PodActivity, metrics: &Metrics) {
    let PodActivity { forks, execs, exits, reclaims, stalled_ns, reclaimed } = activity;
    metrics.pod_forks.with(pod.clone()).inc_by(forks);
    metrics.pod_execs.with(pod.clone()).inc_by(execs);
    metrics.pod_exits.with(pod.clone()).inc_by(exits);
    #[expect(clippy::cast_precision_loss, reason = "seconds to the microsecond for years")]
    metrics.pod_reclaim_stall.with(pod.clone()).inc_by(stalled_ns as f64 / 1e9);
    metrics.pod_reclaims.with(pod.clone()).inc_by(reclaims);
    metrics.pod_reclaimed.with(pod.clone()).inc_by(reclaimed);
}

/// The number of pods that have a rank.
const RANKED: usize = 10;

/// The maximum number of pods whose memory is exported.
const MAX_PODS: usize = 512;

/// Selects the pods to export. Returns the index of each in the sample, and its rank from 1; pods that are not among
/// the first, or are never evicted, have none. If several pods have the same name, the first one to be evicted counts.
fn select_pods(mode: PodMetrics, sample: &PodSample) -> BTreeMap<[Label; 2], (u32, Option<i64>)> {
    let mut selected = BTreeMap::new();
    let limit = match mode {
        PodMetrics::All => MAX_PODS,
        PodMetrics::Top => RANKED,
        PodMetrics::Off => return selected,
    };
    let mut ranks = (1..).take(RANKED);
    for candidate in sample.ranked(Signal::MemoryAvailable) {
        if selected.len() == limit {
            break;
        }
        let Some(known) = sample.pods.get(candidate.pod) else { continue };
        let is_evictable = !known.critical && candidate.order != EvictionOrder::Never;
        let rank = if is_evictable { ranks.next() } else { None };
        if rank.is_none() && mode == PodMetrics::Top {
            continue;
        }
        let labels = pod_labels(&known.pod.namespace, &known.pod.name);
        selected.entry(labels).or_insert((candidate.pod, rank));
    }
    selected
}

/// Sets the memory and rank series of the selected pods, and removes the series of all others.
pub(crate) fn export_memory(mode: PodMetrics, sample: &PodSample, metrics: &Metrics) {
    let selected = select_pods(mode, sample);
    metrics.pod_eviction_rank.retain(|[_, namespace, pod]| {
        selected.get(&[namespace.clone(), pod.clone()]).is_some_and(|(_, rank)| rank.is_some())
    });
    let Metrics { pod_memory_working_set, pod_memory_request, pod_memory_limit, .. } = metrics;
    for family in [pod_memory_working_set, pod_memory_request, pod_memory_limit] {
        family.retain(|labels| selected.contains_key(labels));
    }
    for (labels, (index, rank)) in selected {
        let Some(known) = sample.pods.get(index) else { continue };
        let stats = sample.snapshot.stats_of(index);
        let working_set = stats.and_then(|stats| stats.values().memory_working_set);
        let request = known.request(Resource::Memory).value();
        let limit = memory_limit(&known.pod, known.gates).map(|limit| limit.value());
        let working_set = working_set.and_then(|bytes| i64::try_from(bytes).ok());
        pod_memory_working_set.with(labels.clone()).set(working_set);
        pod_memory_request.with(labels.clone()).set(Some(request).filter(|bytes| *bytes > 0));
        pod_memory_limit.with(labels.clone()).set(limit);
        if let Some(rank) = rank {
            let [namespace, pod] = labels;
            let signal = Signal::MemoryAvailable.name().into();
            metrics.pod_eviction_rank.with([signal, namespace, pod]).set(rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Form;
    use eviction_core::disk_layout::DiskLayout;
    use eviction_core::fixture::{at, container, limits, list, memory_of, pod, policy, set, snapshot};
    use eviction_core::pod::{Pod, Resources};
    use eviction_core::snapshot::NodeStats;
    use eviction_node::clock::Clock;

    const SECOND: u64 = 1_000_000_000;

    fn delta(name: &str, activity: PodActivity) -> (Option<Arc<KnownPod>>, PodActivity) {
        (Some(Arc::new(KnownPod::new(pod(name, "1Mi"), &policy(Vec::new())))), activity)
    }

    #[test]
    fn series_of_a_pod_are_kept_for_minutes_after_its_last_activity() {
        let metrics = Metrics::new("0", "0");
        let mut deltas = PodRateExporter::default();
        let clock = Clock::start();
        let activity =
            PodActivity { forks: 30, reclaims: 2, stalled_ns: SECOND / 2, ..PodActivity::default() };
        deltas.take(vec![delta("web", activity)], clock.at(SECOND), &metrics);
        deltas.take(vec![delta("web", activity)], clock.at(11 * SECOND), &metrics);
        let text = metrics.encode(Form::OpenMetrics).unwrap();
        let [namespace, pod] = deltas.pods.keys().next().unwrap().clone();
        let series = |name: &str, value: &str| {
            format!("eviction_agent_{name}{{namespace=\"{namespace}\",pod=\"{pod}\"}} {value}\n")
        };
        assert!(text.contains(&series("pod_forks_total", "60")), "{text}");
        assert!(text.contains(&series("pod_reclaim_stall_seconds_total", "1.0")), "{text}");
        let rates = deltas.rates(&namespace, &pod).unwrap();
        assert_eq!(rates, Rates { forks_per_second: 3.0, reclaim_stall: 0.05 });

        deltas.take(Vec::new(), clock.at(12 * SECOND), &metrics);
        assert_eq!(deltas.rates(&namespace, &pod), None, "nothing of the last interval");
        assert!(metrics.encode(Form::OpenMetrics).unwrap().contains("pod=\""));
        deltas.take(Vec::new(), clock.at(11 * SECOND + RETENTION_NS), &metrics);
        assert!(!metrics.encode(Form::OpenMetrics).unwrap().contains("pod=\""));
    }

    #[test]
    fn pods_of_the_same_name_are_counted_together() {
        let (metrics, clock) = (Metrics::new("0", "0"), Clock::start());
        let mut rates = PodRateExporter::default();
        for second in [1, 11] {
            let of = |forks| delta("web", PodActivity { forks, ..PodActivity::default() });
            rates.take(vec![of(30), of(10)], clock.at(second * SECOND), &metrics);
        }
        assert_eq!(rates.rates("default", "pod-web").unwrap().forks_per_second, 4.0);
    }

    #[test]
    fn rates_and_series_end_without_further_counts() {
        let (metrics, clock) = (Metrics::new("0", "0"), Clock::start());
        let mut rates = PodRateExporter::default();
        let activity = PodActivity { forks: 30, stalled_ns: SECOND, ..PodActivity::default() };
        for second in [1, 11] {
            rates.take(vec![delta("web", activity)], clock.at(second * SECOND), &metrics);
        }
        rates.expire(31 * SECOND, &metrics);
        assert_eq!(rates.stalls().len(), 1);
        rates.expire(72 * SECOND, &metrics);
        assert!(rates.stalls().is_empty() && rates.rates("default", "pod-web").is_none());
        assert!(metrics.encode(Form::OpenMetrics).unwrap().contains("pod=\"pod-web\""));
        rates.expire(11 * SECOND + RETENTION_NS, &metrics);
        assert!(!metrics.encode(Form::OpenMetrics).unwrap().contains("pod=\""));
    }

    fn export_pods(mode: PodMetrics, pods: Vec<Pod>, metrics: &Metrics) {
        let uids: Vec<String> = pods.iter().map(|pod| pod.uid.to_string()).collect();
        let usage: Vec<_> = (1..).zip(&uids).map(|(used, uid)| memory_of(uid, used << 20)).collect();
        let pods = set(pods);
        let snapshot = snapshot(NodeStats::default(), &usage).indexed(&pods);
        let (layout, in_flight) = (DiskLayout::default(), Vec::new());
        let sample = PodSample { at: at(0), pods, snapshot, layout, in_flight, sized: false };
        export_memory(mode, &sample, metrics);
    }

    /// Returns the metric lines of pods without their prefix.
    fn series(metrics: &Metrics) -> Vec<String> {
        let text = metrics.encode(Form::OpenMetrics).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("eviction_agent_pod_"));
        lines.map(str::to_owned).collect()
    }

    /// Returns 12 pods, which exceed their request more with a higher number, and then a critical
    /// pod.
    fn twelve_and_a_critical_one() -> Vec<Pod> {
        let mut pods: Vec<Pod> = (1..=12).map(|number| pod(&format!("{number:02}"), "1Mi")).collect();
        pods.push(Pod { priority: Some(2_000_000_000), ..pod("critical", "1Mi") });
        pods
    }

    #[test]
    fn the_mode_selects_the_pods_and_ten_of_them_are_ranked() {
        for (mode, memories, ranks) in
            [(PodMetrics::All, 13, 10), (PodMetrics::Top, 10, 10), (PodMetrics::Off, 0, 0)]
        {
            let metrics = Metrics::new("0", "0");
            export_pods(mode, twelve_and_a_critical_one(), &metrics);
            let series = series(&metrics);
            let count = |name: &str| series.iter().filter(|line| line.starts_with(name)).count();
            assert_eq!(count("memory_working_set_bytes"), memories, "{mode:?}: {series:#?}");
            assert_eq!(count("memory_request_bytes"), memories, "{mode:?}");
            assert_eq!(count("eviction_rank"), ranks, "{mode:?}");
            let of = |name: &str, rank: u8| {
                let labels = format!("namespace=\"default\",pod=\"pod-{name}\"");
                format!("eviction_rank{{eviction_signal=\"memory.available\",{labels}}} {rank}")
            };
            for (name, rank) in [("12", 1), ("11", 2), ("03", 10)] {
                assert_eq!(series.contains(&of(name, rank)), ranks > 0, "{mode:?}: {series:#?}");
            }
            assert!(
                !series.iter().any(|line| line.starts_with("eviction_rank") && line.contains("critical"))
            );
        }
    }

    #[test]
    fn series_of_a_pod_are_removed_with_the_pod() {
        let metrics = Metrics::new("0", "0");
        let limited =
            Pod { containers: vec![container("main", limits(&[("memory", "9Mi")]))], ..pod("a", "1") };
        export_pods(PodMetrics::Top, vec![limited, pod("b", "1Mi")], &metrics);
        let names = |pod: &str| -> Vec<String> {
            let series = series(&metrics).into_iter().filter(|line| line.contains(pod));
            series.filter_map(|line| line.split('{').next().map(str::to_owned)).collect()
        };
        assert_eq!(names("pod-a"), ["eviction_rank", "memory_limit_bytes", "memory_working_set_bytes"]);
        assert_eq!(names("pod-b"), ["eviction_rank", "memory_request_bytes", "memory_working_set_bytes"]);
        export_pods(PodMetrics::Top, vec![pod("b", "1Mi")], &metrics);
        assert!(names("pod-a").is_empty());
        assert_eq!(names("pod-b").len(), 3);
        export_pods(PodMetrics::Top, Vec::new(), &metrics);
        assert!(names("pod-b").is_empty());
    }

    #[test]
    fn a_pod_has_a_limit_if_it_or_each_container_has_one() {
        let gates = policy(Vec::new()).gates;
        let of = |pod: &Pod| memory_limit(pod, gates).map(|limit| limit.to_string());
        let limited = || container("a", limits(&[("memory", "1Gi")]));
        let both = Pod { containers: vec![limited(), limited()], ..Pod::default() };
        assert_eq!(of(&both).as_deref(), Some("2Gi"));
        let one = Pod { containers: vec![limited(), container("b", Resources::default())], ..Pod::default() };
        assert_eq!(of(&one), None);
        let own = Pod {
            resources: Some(limits(&[("memory", "3Gi")])),
            overhead: list(&[("memory", "1Gi")]),
            ..one
        };
        assert_eq!(of(&own).as_deref(), Some("4Gi"));
        assert_eq!(of(&Pod::default()), None);
    }
}
