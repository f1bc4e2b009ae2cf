//! Counters that go on where those of the former agent ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::record::Counted;
use crate::core::apart::Difference;
use crate::core::decision::LABELS;
use crate::core::oom::{LimitOwner, Verdict};
use crate::core::signal::Signal;
use crate::metrics::{
    DifferenceLabels, EndedLabels, EvictionLabels, Metrics, OomLabels, SignalLabels, UnattributedLabels,
};

/// The kernel's own counts of kills.
const SEEN_BY: [&str; 3] = ["memory.oom_control", "memory.events", "vmstat"];

/// Of more series no counts are kept: namespaces come and go.
const MOST: usize = 4096;

/// One series of one counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Series {
    OomKills(OomLabels),
    OomKillsUnattributed(UnattributedLabels),
    ContainersEnded(EndedLabels),
    StatusDifferences(DifferenceLabels),
    Decisions(SignalLabels),
    Evictions(EvictionLabels),
}

/// How much there is of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    series: Series,
    value: u64,
}

/// Counters of the metrics that outlive the agent. Not for the reaction thread: there is a lock.
#[derive(Debug)]
pub(crate) struct Counts {
    metrics: Arc<Metrics>,
    values: Mutex<HashMap<Series, u64>>,
    version: AtomicU64,
    changed: Notify,
}

impl Counts {
    /// They go on from there.
    pub(crate) fn new(metrics: Arc<Metrics>, before: Vec<Count>) -> Self {
        let (values, version, changed) = (Mutex::default(), AtomicU64::new(0), Notify::new());
        // A series that begins with its first kill has not increased, for those who ask how much it did.
        for seen_by in SEEN_BY {
            let labels = UnattributedLabels { seen_by, namespace: String::new() };
            drop(metrics.oom_kills_unattributed.get_or_create(&labels));
        }
        let counts = Self { metrics, values, version, changed };
        for Count { series, value } in before {
            counts.count(series, value);
        }
        counts
    }

    /// So many more.
    pub(crate) fn count(&self, series: Series, more: u64) {
        let metrics = &self.metrics;
        match &series {
            Series::OomKills(labels) => metrics.oom_kills.get_or_create(labels).inc_by(more),
            Series::OomKillsUnattributed(labels) => {
                metrics.oom_kills_unattributed.get_or_create(labels).inc_by(more)
            }
            Series::ContainersEnded(labels) => metrics.containers_ended.get_or_create(labels).inc_by(more),
            Series::StatusDifferences(labels) => {
                metrics.status_differences.get_or_create(labels).inc_by(more)
            }
            Series::Decisions(labels) => metrics.decisions.get_or_create(labels).inc_by(more),
            Series::Evictions(labels) => metrics.evictions.get_or_create(labels).inc_by(more),
        };
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = values.get_mut(&series) {
            *value = value.saturating_add(more);
        } else if values.len() < MOST {
            values.insert(series, more);
        }
        self.version.fetch_add(1, Ordering::Release);
        self.changed.notify_one();
    }

    /// The namespaces that are counted by name.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = String> {
        self.all().into_iter().filter_map(|Count { series, value: _ }| match series {
            Series::OomKills(OomLabels { namespace, .. })
            | Series::OomKillsUnattributed(UnattributedLabels { namespace, .. })
            | Series::ContainersEnded(EndedLabels { namespace, .. })
            | Series::StatusDifferences(DifferenceLabels { namespace, .. })
            | Series::Evictions(EvictionLabels { namespace, .. }) => Some(namespace),
            Series::Decisions(_) => None,
        })
    }

    /// Grows with each count.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn all(&self) -> Vec<Count> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.iter().map(|(series, value)| Count { series: series.clone(), value: *value }).collect()
    }

    /// Waits for the next count.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Count {
    pub(super) fn write(&self) -> Counted {
        let (counter, labels): (_, Vec<&str>) = match &self.series {
            Series::OomKills(OomLabels { limit_owner, namespace }) => {
                ("oom_kills", vec![limit_owner, namespace])
            }
            Series::OomKillsUnattributed(UnattributedLabels { seen_by, namespace }) => {
                ("oom_kills_unattributed", vec![seen_by, namespace])
            }
            Series::ContainersEnded(EndedLabels { verdict, also, limit_owner, namespace }) => {
                ("containers_ended", vec![verdict, also, limit_owner, namespace])
            }
            Series::StatusDifferences(DifferenceLabels { difference, namespace }) => {
                ("container_status_differences", vec![difference, namespace])
            }
            Series::Decisions(SignalLabels { eviction_signal }) => ("decisions", vec![eviction_signal]),
            Series::Evictions(EvictionLabels { eviction_signal, namespace }) => {
                ("evictions", vec![eviction_signal, namespace])
            }
        };
        let labels = labels.into_iter().map(Into::into).collect();
        Counted { counter: counter.into(), labels, value: self.value }
    }

    /// Nothing for a label that nobody gives: no series is made of it.
    pub(super) fn read(counted: &Counted) -> Option<Self> {
        let Counted { counter, labels, value } = counted;
        let labels: Vec<&str> = labels.iter().map(|label| &**label).collect();
        let namespace = |text: &str| text.to_owned();
        let series = match (&**counter, labels.as_slice()) {
            ("oom_kills", [owner, pod]) => {
                Series::OomKills(OomLabels { limit_owner: limit_owner(owner)?, namespace: namespace(pod) })
            }
            ("oom_kills_unattributed", [seen_by, pod]) => {
                let seen_by = SEEN_BY.into_iter().find(|known| known == seen_by)?;
                Series::OomKillsUnattributed(UnattributedLabels { seen_by, namespace: namespace(pod) })
            }
            ("containers_ended", [verdict_text, also, owner, pod]) => Series::ContainersEnded(EndedLabels {
                verdict: verdict(verdict_text)?,
                also: or_none(also, verdict)?,
                limit_owner: or_none(owner, limit_owner)?,
                namespace: namespace(pod),
            }),
            ("container_status_differences", [name, pod]) => {
                let difference =
                    Difference::ALL.map(Difference::name).into_iter().find(|known| known == name)?;
                Series::StatusDifferences(DifferenceLabels { difference, namespace: namespace(pod) })
            }
            ("decisions", [signal]) => {
                Series::Decisions(SignalLabels { eviction_signal: Signal::from_name(signal)?.name() })
            }
            ("evictions", [signal, pod]) => Series::Evictions(EvictionLabels {
                eviction_signal: or_none(signal, label)?,
                namespace: namespace(pod),
            }),
            _ => return None,
        };
        Some(Self { series, value: *value })
    }
}

fn or_none(text: &str, known: impl Fn(&str) -> Option<&'static str>) -> Option<&'static str> {
    if text.is_empty() { Some("") } else { known(text) }
}

fn label(text: &str) -> Option<&'static str> {
    Signal::ALL.map(Signal::name).into_iter().chain(LABELS).find(|known| *known == text)
}

fn limit_owner(text: &str) -> Option<&'static str> {
    LimitOwner::ALL.map(LimitOwner::name).into_iter().find(|known| *known == text)
}

fn verdict(text: &str) -> Option<&'static str> {
    Verdict::ALL.map(Verdict::name).into_iter().find(|known| *known == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Vec<Series> {
        let namespace = || "shop".to_owned();
        vec![
            Series::OomKills(OomLabels { limit_owner: "container", namespace: namespace() }),
            Series::OomKillsUnattributed(UnattributedLabels { seen_by: "vmstat", namespace: String::new() }),
            Series::ContainersEnded(EndedLabels {
                verdict: "oom_killed",
                also: "",
                limit_owner: "pod",
                namespace: namespace(),
            }),
            Series::StatusDifferences(DifferenceLabels {
                difference: "no_kill_seen",
                namespace: namespace(),
            }),
            Series::Decisions(SignalLabels { eviction_signal: "memory.available" }),
            Series::Evictions(EvictionLabels { eviction_signal: "pid.available", namespace: namespace() }),
        ]
    }

    #[test]
    fn each_goes_on_where_it_was() {
        let first = Counts::new(Arc::new(Metrics::new("0", "0")), Vec::new());
        for (more, series) in (1..).zip(some()) {
            first.count(series.clone(), more);
            first.count(series, 1);
        }
        let kept: Vec<_> = first.all().iter().map(Count::write).collect();
        let metrics = Arc::new(Metrics::new("0", "0"));
        let second = Counts::new(Arc::clone(&metrics), kept.iter().filter_map(Count::read).collect());
        let OomLabels { limit_owner, namespace } =
            OomLabels { limit_owner: "container", namespace: "shop".to_owned() };
        assert_eq!(metrics.oom_kills.get_or_create(&OomLabels { limit_owner, namespace }).get(), 2);
        let mut values: Vec<u64> = second.all().iter().map(|count| count.value).collect();
        values.sort_unstable();
        assert_eq!(values, [2, 3, 4, 5, 6, 7]);
        assert!(second.version() > 0);
    }

    #[test]
    fn what_nobody_counts_makes_no_series() {
        let of = |counter: &str, labels: &[&str]| {
            let labels = labels.iter().map(|label| (*label).into()).collect();
            Count::read(&Counted { counter: counter.into(), labels, value: 1 })
        };
        assert_eq!(of("oom_kills", &["nobody", "shop"]), None);
        assert_eq!(of("oom_kills", &["pod"]), None);
        assert_eq!(of("looks", &["timer"]), None);
        assert_eq!(of("decisions", &["memory"]), None);
        assert!(of("decisions", &["memory.available"]).is_some());
    }

    #[test]
    fn their_number_is_bounded() {
        let counts = Counts::new(Arc::new(Metrics::new("0", "0")), Vec::new());
        for number in 0..=MOST {
            let namespace = number.to_string();
            counts.count(Series::OomKills(OomLabels { limit_owner: "pod", namespace }), 1);
        }
        assert_eq!(counts.all().len(), MOST);
    }
}
