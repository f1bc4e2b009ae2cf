//! Reports: the state of a node and its pods and the actions of the agent over some minutes, on one
//! page.

pub mod live;
mod markdown;
pub mod recording;
pub(crate) mod server;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};

use eviction_core::signal::{Resource, Signal};
use eviction_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::telemetry::live::state::{PodState, SignalState};

/// The version of the JSON format. It is increased when a field is renamed or removed, or changes
/// its meaning.
const SCHEMA_VERSION: u32 = 1;

/// The maximum number of points of a series: the report of many hours has the size of one of ten
/// minutes.
const SIGNAL_POINTS: u32 = 300;
const POD_POINTS: u32 = 150;
/// The maximum number of items of lists. Omitted items are counted.
const PODS: usize = 12;
const RANKS: usize = 20;
const CANDIDATES: usize = 8;
const EVENTS: usize = 200;
const DECISIONS: usize = 30;

/// The parts of the page.
const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const UPLOT: &str = include_str!("uplot/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("uplot/uPlot.min.css");

/// The content of a page. Times of series are milliseconds since 1970 (UTC), memory is in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    schema_version: u32,
    /// The version of the program that made the report.
    version: &'static str,
    /// The recording, or the node.
    source: String,
    /// The first and the last time of the report.
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    signals: Vec<SignalReport>,
    /// The pods that were evicted and the pods that used most memory, sorted by their greatest
    /// usage.
    pods: Vec<PodReport>,
    pods_omitted: usize,
    /// The eviction order at the end.
    ranking: Vec<RankReport>,
    ranking_omitted: usize,
    events: Vec<EventReport>,
    events_omitted: usize,
    decisions: Vec<DecisionReport>,
    decisions_omitted: usize,
    /// Warnings about missing or inconsistent data.
    pub(crate) warnings: Vec<String>,
    /// The maximum number of events.
    #[serde(skip)]
    max_events: usize,
    /// Whether the page requests new data.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    live: bool,
}

/// An eviction signal over time: the least available amount of each interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct SignalReport {
    signal: &'static str,
    /// `bytes`, `inodes` or `pids`.
    unit: &'static str,
    capacity: i64,
    /// The least available amount over the whole time.
    least: i64,
    #[serde(flatten)]
    available: Series,
    thresholds: Vec<ThresholdReport>,
}

/// A threshold: its values, each with the time from which it holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ThresholdReport {
    threshold: String,
    /// `agent` or `kubelet`.
    source: String,
    #[serde(flatten)]
    values: Series,
}

/// The memory usage of a pod: the greatest of each interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct PodReport {
    namespace: String,
    pod: String,
    pod_uid: String,
    qos: String,
    priority: i32,
    request: i64,
    /// The time at which its eviction was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted: Option<Timestamp>,
    /// The greatest and the last usage.
    peak: i64,
    last: i64,
    #[serde(flatten)]
    usage: Series,
}

/// A pod in the eviction order.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct RankReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<usize>,
    namespace: String,
    pod: String,
    priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<i64>,
    request: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    over_request: Option<i64>,
    forecast: String,
}

/// An event, as the agent prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct EventReport {
    at: Timestamp,
    severity: String,
    event: String,
    message: String,
}

impl EventReport {
    fn new(at: Timestamp, severity: &str, event: &str, message: String) -> Self {
        Self { at, severity: severity.to_owned(), event: event.to_owned(), message }
    }
}

/// A decision with its reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct DecisionReport {
    at: Timestamp,
    title: String,
    /// Pods that are evicted: namespace and name.
    evicted: Vec<String>,
    /// The candidates in the eviction order.
    candidates: Vec<CandidateReport>,
    candidates_omitted: usize,
    /// The text of `explain`.
    explanation: String,
}

/// A candidate of a decision, with the amounts of the starved resource.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct CandidateReport {
    namespace: String,
    pod: String,
    priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    /// `goes`, or the reason why the pod was skipped.
    result: String,
}

impl Report {
    /// Returns an empty report.
    fn new(source: String, from: Timestamp, to: Timestamp) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            version: crate::daemon::VERSION,
            source,
            from,
            to,
            max_events: EVENTS,
            ..Self::default()
        }
    }

    /// Returns the report as a JSON document.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the report as an HTML page. Only scripts and styles with its nonce, which cannot be guessed, take
    /// effect.
    ///
    /// # Errors
    /// If the kernel has no random numbers.
    pub(crate) fn html(&self) -> io::Result<String> {
        // Without `<`, no text can close the element or open another one.
        let data = self.json().replace('<', "\\u003c");
        let page = PAGE
            .replace("{{NONCE}}", &random_hex()?)
            .replace("{{CONNECT}}", if self.live { "'self'" } else { "'none'" })
            .replace("{{UPLOT_CSS}}", UPLOT_CSS)
            .replace("{{UPLOT_JS}}", UPLOT)
            .replace("{{SCRIPT}}", SCRIPT);
        // The data is inserted last, so that its content is not replaced.
        Ok(page.replacen("{{DATA}}", &data, 1))
    }

    fn event(&mut self, event: EventReport) {
        self.events.push(event);
        if self.events.len() > 2 * self.max_events {
            self.bound_events();
        }
    }

    /// Keeps the last events.
    fn bound_events(&mut self) {
        let more = self.events.len().saturating_sub(self.max_events);
        self.events.drain(..more);
        self.events_omitted += more;
    }

    /// Limits the decisions. Decisions that evict are preferred, then late ones.
    fn bound_decisions(&mut self) {
        let more = self.decisions.len().saturating_sub(DECISIONS);
        self.decisions.sort_by_key(|it| std::cmp::Reverse((!it.evicted.is_empty(), it.at)));
        self.decisions.truncate(DECISIONS);
        self.decisions.sort_by_key(|it| it.at);
        self.decisions_omitted += more;
    }

    /// Sets the eviction order. `omitted`: the number of pods after these.
    fn set_ranking(&mut self, pods: &[PodState], omitted: usize) {
        let ranked = pods.iter().take(RANKS).map(|it| RankReport {
            rank: it.rank,
            namespace: it.namespace.clone(),
            pod: it.pod.clone(),
            priority: it.priority,
            usage: it.usage,
            request: it.request,
            over_request: it.over_request,
            forecast: it.forecast.clone(),
        });
        self.ranking = ranked.collect();
        self.ranking_omitted = pods.len().saturating_sub(RANKS) + omitted;
    }

    /// Sets the pods, sorted and limited.
    fn set_pods(&mut self, pods: impl IntoIterator<Item = PodReport>) {
        let by_peak =
            |a: &PodReport, b: &PodReport| b.peak.cmp(&a.peak).then_with(|| a.pod_uid.cmp(&b.pod_uid));
        let mut pods: Vec<_> = pods.into_iter().filter(|pod| !pod.usage.is_empty()).collect();
        pods.sort_by(|a, b| a.evicted.is_none().cmp(&b.evicted.is_none()).then_with(|| by_peak(a, b)));
        self.pods_omitted = pods.len().saturating_sub(PODS);
        pods.truncate(PODS);
        pods.sort_by(by_peak);
        self.pods = pods;
    }
}

impl SignalReport {
    /// Returns a report without points.
    fn new(signal: Signal) -> Self {
        let unit = match signal.resource() {
            Resource::Memory | Resource::EphemeralStorage => "bytes",
            Resource::Inodes => "inodes",
            Resource::Pids => "pids",
        };
        Self { signal: signal.name(), unit, ..Self::default() }
    }

    /// Returns the values of a threshold, which is added if it does not exist.
    fn threshold(&mut self, threshold: &str, source: &str) -> &mut Series {
        let is_it = |it: &ThresholdReport| it.threshold == threshold && it.source == source;
        let index = self.thresholds.iter().position(is_it).unwrap_or_else(|| {
            let (threshold, source) = (threshold.to_owned(), source.to_owned());
            self.thresholds.push(ThresholdReport { threshold, source, values: Series::default() });
            self.thresholds.len() - 1
        });
        &mut self.thresholds[index].values
    }
}

/// Values with their times in milliseconds since 1970, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Series {
    times_ms: Vec<i64>,
    values: Vec<i64>,
}

impl Series {
    /// Adds a value. Of the values in the same interval of `interval_ms`, the one that `select` returns is kept, the
    /// least or the greatest, with its time. A value with a time before the last one is ignored.
    fn push(&mut self, at: Timestamp, value: i64, interval_ms: i64, select: fn(i64, i64) -> i64) {
        let at = at.as_millisecond();
        let interval = |time: i64| time.div_euclid(interval_ms.max(1));
        if let (Some(time), Some(kept)) = (self.times_ms.last_mut(), self.values.last_mut()) {
            if at < *time {
                return;
            }
            if interval(at) == interval(*time) {
                if select(*kept, value) != *kept {
                    (*time, *kept) = (at, value);
                }
                return;
            }
        }
        self.times_ms.push(at);
        self.values.push(value);
    }

    /// Adds a value that holds from this time on. A value equal to the last one is ignored.
    fn step(&mut self, at: Timestamp, value: i64) {
        if self.values.last() != Some(&value) {
            self.push(at, value, 1, i64::max);
        }
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.values.len()
    }

    fn last(&self) -> Option<i64> {
        self.values.last().copied()
    }

    fn least(&self) -> Option<i64> {
        self.values.iter().copied().min()
    }

    fn most(&self) -> Option<i64> {
        self.values.iter().copied().max()
    }

    /// Removes points before this time.
    fn remove_before(&mut self, at: Timestamp) {
        let old = self.times_ms.partition_point(|time| *time < at.as_millisecond());
        self.times_ms.drain(..old);
        self.values.drain(..old);
    }
}

/// The reports of signals by the position of the signal.
type Signals = BTreeMap<usize, SignalReport>;

/// Adds the state of signals at a time to their reports. Of the available amounts in each interval of
/// `interval_ms`, the least is kept. Points before `begin` are removed.
fn add_signals(
    reports: &mut Signals,
    at: Timestamp,
    states: &[SignalState],
    interval_ms: i64,
    begin: Timestamp,
) {
    for state in states {
        let (Some(signal), Some(available)) = (Signal::from_name(&state.signal), state.available) else {
            continue;
        };
        let report = reports.entry(signal as usize).or_insert_with(|| SignalReport::new(signal));
        report.capacity = state.capacity.unwrap_or(0);
        report.available.push(at, available, interval_ms, i64::min);
        report.available.remove_before(begin);
        report.least = report.available.least().unwrap_or(available);
        for threshold in &state.thresholds {
            report.threshold(&threshold.threshold, &threshold.source).step(at, threshold.value);
        }
    }
}

/// Returns 128 random bits in hexadecimal digits.
///
/// # Errors
/// If the kernel has no random numbers.
pub(crate) fn random_hex() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
