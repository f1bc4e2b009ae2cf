//! The data of the local API: the last sample of the pods, the last events, and the metrics.
//!
//! The exporter writes the data and the server of the local API reads it, both on the main thread. The control loop
//! does not use it. Rankings and texts are computed for each request.

pub mod state;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use eviction_core::explain::explain_rank;
use eviction_core::record::{CandidateRecord, ThresholdRecord};
use eviction_core::signal::Signal;
use eviction_core::time::Timestamp;
use eviction_node::clock::{Clock, mono_ns};
use hyper::StatusCode;
use serde::Serialize;
use serde_json::Value;
use state::PodHistory;

use crate::telemetry::event_log::Started;
use crate::telemetry::metrics::Metrics;

/// The time in nanoseconds for which a response is cached.
const CACHED_NS: u64 = 250_000_000;

/// The data that the exporter and the server share.
#[derive(Debug)]
pub(crate) struct Live {
    clock: Clock,
    node: Option<String>,
    pub(crate) started: Option<Started>,
    pub(crate) events: EventRing,
    pub(crate) pods: PodHistory,
    /// The thresholds of the last decision, which have the time since which they are met.
    pub(crate) thresholds: Vec<ThresholdRecord>,
    /// The cached response with the state, after the time at which it was made, in nanoseconds of the monotonic
    /// clock.
    cached: Option<(u64, Bytes)>,
}

/// The response of `/v1/explain`.
#[derive(Debug, Serialize)]
pub(crate) struct RankExplanation {
    signal: Signal,
    at: Timestamp,
    /// The rank of the pod among the pods that may be evicted, from 1.
    rank: Option<usize>,
    pods: usize,
    /// The sentences of the explanation, the heading first.
    lines: Vec<String>,
    candidate: CandidateRecord,
}

/// Locks the shared data.
pub(crate) fn lock(live: &Mutex<Live>) -> MutexGuard<'_, Live> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    pub(crate) fn new(node: Option<String>) -> Arc<Mutex<Self>> {
        let clock = Clock::start();
        let agent_start = clock.now().wall.as_millisecond();
        Arc::new(Mutex::new(Self {
            clock,
            node,
            started: None,
            events: EventRing { agent_start, ..EventRing::default() },
            pods: PodHistory::default(),
            thresholds: Vec::new(),
            cached: None,
        }))
    }

    /// Returns the state as JSON.
    pub(crate) fn state(&mut self, metrics: &Metrics) -> Bytes {
        let now = mono_ns();
        if let Some((made, bytes)) = &self.cached
            && now.saturating_sub(*made) < CACHED_NS
        {
            return bytes.clone();
        }
        let bytes = Bytes::from(serde_json::to_vec(&self.node_state(metrics)).unwrap_or_default());
        self.cached = Some((now, bytes.clone()));
        bytes
    }

    /// Returns the event lines after a number or from a time on, as JSON lines with their number in `seq`. If the
    /// number is of another agent by its start, returns all lines. Returns `None` if `since` is neither a number nor
    /// a time.
    pub(crate) fn events(&self, since: &str, agent_start: Option<&str>) -> Option<String> {
        let events = &self.events;
        let is_of_other_agent = agent_start.is_some_and(|it| it.parse::<i64>() != Ok(events.agent_start));
        match (since.parse::<u64>(), since.parse::<Timestamp>()) {
            (Ok(seq), _) => Some(events.after(if is_of_other_agent { 0 } else { seq })),
            (_, Ok(at)) => Some(events.since(at)),
            _ => None,
        }
    }

    /// Explains the rank of a pod, or of the first pod if `pod` is `None`. `pod` is `namespace/name` or a name.
    ///
    /// # Errors
    /// The status and the text of the response if there is no such pod, or no pod was sampled yet.
    pub(crate) fn explain(
        &self,
        pod: Option<&str>,
        signal: Signal,
    ) -> Result<RankExplanation, (StatusCode, String)> {
        let not_sampled = || (StatusCode::SERVICE_UNAVAILABLE, "no pod was sampled yet".to_owned());
        let sample = self.pods.newest().ok_or_else(not_sampled)?;
        let ranking = sample.ranking(signal);
        let index = match pod {
            Some(wanted) => ranking.iter().position(|it| it.pod.matches(wanted)),
            None => {
                (!ranking.is_empty()).then(|| ranking.iter().position(|it| it.rank == Some(1)).unwrap_or(0))
            }
        };
        let Some(index) = index else {
            let names = ranking.iter().map(|it| it.pod.to_string());
            let error = match nearest_name(pod.unwrap_or_default(), names) {
                Some(nearest) => format!("no such pod; the nearest is {nearest}"),
                None => "there is no pod".to_owned(),
            };
            return Err((StatusCode::NOT_FOUND, error));
        };
        Ok(RankExplanation {
            signal,
            at: self.clock.shown(sample.at),
            rank: ranking[index].rank,
            pods: ranking.iter().filter_map(|it| it.rank).count(),
            lines: explain_rank(signal, &ranking, index),
            candidate: ranking[index].clone(),
        })
    }
}

/// Returns the most similar name. Names are `namespace/name`; if `wanted` has no namespace, only the names are
/// compared.
pub(crate) fn nearest_name(wanted: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let wanted = wanted.to_lowercase();
    let similarity = |name: &String| {
        let bare = name.split_once('/').map_or(&**name, |(_, bare)| bare);
        let name = if wanted.contains('/') { name } else { bare };
        strsim::jaro_winkler(&wanted, &name.to_lowercase())
    };
    names.max_by(|one, other| similarity(one).total_cmp(&similarity(other)))
}

/// The maximum number of stored lines, and their maximum total size in bytes.
const EVENTS: usize = 1000;
const EVENT_BYTES: usize = 1 << 20;

/// The last event lines.
#[derive(Debug, Default)]
pub(crate) struct EventRing {
    /// The number, the time and the JSON of each event.
    lines: VecDeque<(u64, Timestamp, Box<str>)>,
    bytes: usize,
    /// The number of the newest event.
    last: u64,
    /// The start of this agent in milliseconds. Its events are numbered from 1, like those of the agent before.
    agent_start: i64,
}

impl EventRing {
    /// Stores an event line, which is a JSON object. Adds its number and the agent's start as the first members.
    pub(crate) fn push(&mut self, at: Timestamp, json: &str) {
        self.last += 1;
        let members = json.strip_prefix('{').unwrap_or("}");
        let json = format!("{{\"seq\":{},\"agent_start\":{},{members}\n", self.last, self.agent_start);
        self.bytes += json.len();
        self.lines.push_back((self.last, at, json.into()));
        while self.lines.len() > EVENTS || self.bytes > EVENT_BYTES {
            let Some((_, _, oldest)) = self.lines.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }

    /// Returns the events with a greater number; all events if the number can only be of an earlier agent.
    fn after(&self, seq: u64) -> String {
        let seq = if seq > self.last { 0 } else { seq };
        self.lines.iter().filter(|(number, ..)| *number > seq).map(|(.., json)| &**json).collect()
    }

    fn since(&self, at: Timestamp) -> String {
        self.lines.iter().filter(|(_, time, _)| *time >= at).map(|(.., json)| &**json).collect()
    }
}

/// The last event line that a client of the local API has received. The default is before the first line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCursor {
    seq: u64,
    agent_start: i64,
}

impl EventCursor {
    /// Returns the target of the request for later event lines.
    pub fn target(self) -> String {
        let Self { seq, agent_start } = self;
        format!("/v1/events?since={seq}&agent_start={agent_start}")
    }

    /// Advances to a received event line. Returns the number of lines that were missed before it.
    pub fn advance(&mut self, event: &Value) -> u64 {
        let Some(seq) = event["seq"].as_u64() else { return 0 };
        let agent_start = event["agent_start"].as_i64().unwrap_or_default();
        let is_first = *self == Self::default();
        let before = if agent_start == self.agent_start { self.seq } else { 0 };
        *self = Self { seq, agent_start };
        if is_first { 0 } else { seq.saturating_sub(before).saturating_sub(1) }
    }
}

#[cfg(test)]
pub(crate) mod tests;
