//! Task activity of pods, as metrics and as rates of the candidates of a decision.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::telemetry::metrics::{Label, Metrics};

use eviction_core::pods::KnownPod;
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

/// The activity of the tasks of a cgroup between two reads, and its pod. Without a pod: of tasks that belong to no
/// known pod.
#[derive(Clone, Debug)]
pub(crate) struct PodTaskDelta {
    pub(crate) pod: Option<Arc<KnownPod>>,
    pub(crate) activity: PodActivity,
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
    pub(crate) fn take(&mut self, deltas: Vec<PodTaskDelta>, at: Instant, metrics: &Metrics) {
        let last_update_ns = self.last_update_ns.replace(at.mono_ns);
        let interval_ns = last_update_ns.and_then(|then| at.mono_ns.checked_sub(then)).filter(|ns| *ns > 0);
        self.pods.values_mut().for_each(|pod| pod.rates = None);
        // A pod has several cgroups, and pods of the same name, one of which replaces the other, have the same series.
        let mut activities: BTreeMap<[Label; 2], PodActivity> = BTreeMap::new();
        for PodTaskDelta { pod, activity } in deltas {
            let labels = pod.map(|known| pod_labels(&known.pod.namespace, &known.pod.name));
            activities.entry(labels.unwrap_or_default()).or_default().add(activity);
        }
        for (labels, activity) in activities {
            export(&labels, activity, metrics);
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
        self.pods.retain(|labels, rates| {
            let is_recent = now_ns.saturating_sub(rates.updated_ns) < RETENTION_NS;
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

fn export(pod: &[Label; 2], activity: PodActivity, metrics: &Metrics) {
    let PodActivity { forks, execs, exits, reclaims, stalled_ns, reclaimed } = activity;
    metrics.pod_forks.with(pod.clone()).inc_by(forks);
    metrics.pod_execs.with(pod.clone()).inc_by(execs);
    metrics.pod_exits.with(pod.clone()).inc_by(exits);
    #[expect(clippy::cast_precision_loss, reason = "seconds to the microsecond for years")]
    metrics.pod_reclaim_stall.with(pod.clone()).inc_by(stalled_ns as f64 / 1e9);
    metrics.pod_reclaims.with(pod.clone()).inc_by(reclaims);
    metrics.pod_reclaimed.with(pod.clone()).inc_by(reclaimed);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::telemetry::metrics::Form;
    use eviction_core::fixture::{pod, policy};
    use eviction_core::pods::KnownPod;
    use eviction_node::clock::Clock;

    const SECOND: u64 = 1_000_000_000;

    fn delta(name: &str, activity: PodActivity) -> PodTaskDelta {
        PodTaskDelta { pod: Some(Arc::new(KnownPod::new(pod(name, "1Mi"), &policy(Vec::new())))), activity }
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
}
