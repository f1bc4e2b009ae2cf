//! The memory of pods and their rank in the eviction order, as metrics.

use std::collections::BTreeMap;

use crate::telemetry::metrics::{Label, Metrics};
use crate::telemetry::pod_rates::pod_labels;
use eviction_config::PodMetrics;
use eviction_core::pods::{EvictionOrder, memory_limit};
use eviction_core::record::PodSample;
use eviction_core::signal::{Resource, Signal};

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

/// Sets the series of the selected pods and removes the series of all others.
pub(crate) fn export(mode: PodMetrics, sample: &PodSample, metrics: &Metrics) {
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

    fn export_pods(mode: PodMetrics, pods: Vec<Pod>, metrics: &Metrics) {
        let uids: Vec<String> = pods.iter().map(|pod| pod.uid.to_string()).collect();
        let usage: Vec<_> = (1..).zip(&uids).map(|(used, uid)| memory_of(uid, used << 20)).collect();
        let pods = set(pods);
        let snapshot = snapshot(NodeStats::default(), &usage).indexed(&pods);
        let (layout, in_flight) = (DiskLayout::default(), Vec::new());
        let sample = PodSample { at: at(0), pods, snapshot, layout, in_flight, sized: false };
        export(mode, &sample, metrics);
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
