//! Decides which events are written and when: groups occurrences into series, and limits the requests for
//! them.

use std::collections::BTreeMap;

use eviction_core::progress::{ApiOperation, ApiResult};
use eviction_core::time::{TokenBucket, nanos};
use jiff::Timestamp;

use super::object::{EventResult, Occurrence, Reason, create, name, update_count};
use crate::metrics::{MetricEvent, Observer};
use crate::request::Request;

const SECOND_NS: u64 = 1_000_000_000;

/// The maximum number of series, written or waiting.
pub(super) const SERIES: usize = 512;

/// A series ends when no occurrence was added for this time, as with client-go's `finishTime`.
const ENDS_NS: u64 = 6 * 60 * SECOND_NS;

/// An event that could not be written for this time is dropped: the API server itself keeps events for an
/// hour.
const EXPIRES_NS: u64 = 60 * 60 * SECOND_NS;

/// The pause of all writes after a 403 response.
const FORBIDDEN_NS: u64 = 60 * SECOND_NS;

/// The pause before a count is updated on the server, first and longest. It doubles each time.
const GAPS_NS: (u64, u64) = (10 * SECOND_NS, 300 * SECOND_NS);

/// The maximum number of requests in a burst.
pub(super) const BURST: u64 = 20;

/// The interval at which one more request is allowed. With the burst, there are at most 44 requests in a
/// minute.
pub(super) const INTERVAL_NS: u64 = 2_500_000_000;

/// The tokens that are reserved for urgent events, so that they do not wait behind a storm.
const RESERVE: u64 = 5;

/// The identity of a series: the reason, the uid of the object, and the part of the object.
type Key = (Reason, Option<String>, Box<str>);

/// Occurrences with the same key.
#[derive(Debug)]
struct Series {
    /// The first occurrence.
    first: Occurrence,
    /// The name of the event.
    name: String,
    /// Whether the event exists on the server.
    exists: bool,
    count: u64,
    /// The number of occurrences that were written or dropped.
    completed: u64,
    last: Timestamp,
    last_ns: u64,
    /// Since when an occurrence waits to be written.
    waits_since_ns: u64,
    due_ns: u64,
    gap_ns: u64,
    /// The number of failed requests since the last success.
    failures: u32,
}

impl Series {
    fn waiting(&self) -> u64 {
        self.count - self.completed
    }

    fn is_urgent(&self) -> bool {
        self.first.reason == Reason::Evicted
    }

    /// The order of requests, lowest first: series with fewer failures, then evictions, then new events.
    fn order(&self) -> (u32, u8, u64) {
        let rank = match (self.is_urgent(), self.exists) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        (self.failures, rank, self.due_ns)
    }

    /// The series with the lowest value is dropped when there are too many: first those with nothing to
    /// write, then others before evictions, the oldest first.
    fn priority(&self) -> (bool, bool, u64) {
        (self.waiting() > 0, self.is_urgent(), self.last_ns)
    }

    fn complete(&mut self, observer: &Observer, result: EventResult) {
        observer.observe(MetricEvent::Event(self.first.reason.name(), result.name(), self.waiting()));
        self.completed = self.count;
        self.failures = 0;
    }
}

/// What follows from the result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    /// The server has the requested state.
    Done,
    /// The request is repeated, because it was not accepted or its result is unknown. A repetition is safe: an
    /// event has the same name again, and a count is set, not incremented.
    Retry,
    /// The event has expired on the server.
    Expired,
    /// The server rejected the request.
    Refused,
}

impl WriteOutcome {
    /// Returns what follows for a request that creates an event, or updates one.
    pub(super) fn of(creates: bool, result: &ApiResult) -> Self {
        match result {
            ApiResult::Accepted => Self::Done,
            // The event was created by a request whose response was lost.
            ApiResult::Rejected { status: 409, .. } if creates => Self::Done,
            ApiResult::Rejected { status: 408 | 409, .. }
            | ApiResult::Throttled { .. }
            | ApiResult::Unauthorized { .. }
            | ApiResult::Unknown { .. }
            | ApiResult::NotSent { .. } => Self::Retry,
            ApiResult::Terminated if !creates => Self::Expired,
            _ => Self::Refused,
        }
    }
}

/// Groups occurrences into series and creates the requests for them.
#[derive(Debug)]
pub(super) struct Correlator {
    node: Box<str>,
    series: BTreeMap<Key, Series>,
    /// The series whose request has no response yet, and the count that the request writes.
    in_flight: Option<(Key, u64)>,
    bucket: TokenBucket<INTERVAL_NS, BURST>,
    /// No request is sent before this time.
    paused_until_ns: u64,
    serial: u64,
    observer: Observer,
}

impl Correlator {
    pub(super) fn new(node: &str, observer: Observer) -> Self {
        Self {
            node: node.into(),
            series: BTreeMap::new(),
            in_flight: None,
            bucket: TokenBucket::default(),
            paused_until_ns: 0,
            serial: 0,
            observer,
        }
    }

    /// Adds an occurrence.
    pub(super) fn add(&mut self, occurrence: Occurrence, now_ns: u64) {
        let times = occurrence.times.max(1);
        self.count(occurrence.reason, EventResult::Noted, times);
        self.remove_expired(now_ns);
        let key = (occurrence.reason, occurrence.regarding.uid.clone(), occurrence.part.clone());
        if let Some(series) = self.series.get_mut(&key) {
            if series.waiting() == 0 {
                series.waits_since_ns = now_ns;
            }
            series.count = series.count.saturating_add(times);
            series.last = series.last.max(occurrence.at);
            series.last_ns = now_ns;
            return;
        }
        if self.series.len() >= SERIES && !self.make_room() {
            self.count(occurrence.reason, EventResult::Dropped, times);
            return;
        }
        self.serial += 1;
        let series = Series {
            name: name(&occurrence, self.serial),
            exists: false,
            count: times,
            completed: 0,
            last: occurrence.at,
            last_ns: now_ns,
            waits_since_ns: now_ns,
            due_ns: now_ns,
            gap_ns: GAPS_NS.0,
            failures: 0,
            first: occurrence,
        };
        self.series.insert(key, series);
    }

    /// Returns the next request, which is to be sent now. Call [`responded`](Self::responded) before the next one.
    ///
    /// # Errors
    /// If no request may be sent yet: the time, CLOCK_MONOTONIC in nanoseconds, until which to wait unless an
    /// occurrence is added. `u64::MAX` if nothing waits.
    pub(super) fn next(&mut self, now_ns: u64) -> Result<(ApiOperation, Request), u64> {
        self.remove_expired(now_ns);
        let waiting = self.series.iter_mut().filter(|(_, it)| it.waiting() > 0);
        let (mut due, later): (Vec<_>, Vec<_>) = waiting.partition(|(_, it)| it.due_ns <= now_ns);
        if due.is_empty() {
            let soonest = later.into_iter().map(|(_, it)| it.due_ns).min();
            return Err(soonest.map_or(u64::MAX, |due_ns| due_ns.max(self.paused_until_ns)));
        }
        if now_ns < self.paused_until_ns {
            return Err(self.paused_until_ns);
        }
        due.sort_by_key(|(_, it)| it.order());
        let mut until_ns = u64::MAX;
        for (key, series) in due {
            // If others have to wait for a token, an urgent series behind them takes a reserved one.
            let reserve = if series.is_urgent() { 0 } else { RESERVE };
            if let Err(next_ns) = self.bucket.take_unreserved(reserve, now_ns) {
                until_ns = until_ns.min(next_ns);
                continue;
            }
            let Series { first, name, exists, count, last, .. } = series;
            self.in_flight = Some((key.clone(), *count));
            return Ok(match exists {
                true => (ApiOperation::PatchEvent, update_count(name, first, *count, *last)),
                false => (ApiOperation::CreateEvent, create(&self.node, name, first, *count, *last)),
            });
        }
        Err(until_ns)
    }

    /// Handles the result of the request, and returns whether the request is to be repeated. Then, if the server did
    /// not specify a pause, no request is sent for `pause_ns`.
    pub(super) fn responded(&mut self, result: &ApiResult, pause_ns: u64, now_ns: u64) -> bool {
        let Some((key, count)) = self.in_flight.take() else { return false };
        let Some(series) = self.series.get_mut(&key) else { return false };
        let (creates, reason) = (!series.exists, series.first.reason);
        let outcome = WriteOutcome::of(creates, result);
        match outcome {
            WriteOutcome::Retry => {
                series.failures = series.failures.saturating_add(1);
                let pause_ns =
                    if let ApiResult::Throttled { pause } = result { nanos(*pause) } else { pause_ns };
                self.paused_until_ns = now_ns.saturating_add(pause_ns);
                return true;
            }
            WriteOutcome::Expired => {
                // Occurrences since then become a new event.
                series.count -= series.completed;
                series.completed = 0;
                series.exists = false;
                series.due_ns = now_ns;
                self.serial += 1;
                series.name = name(&series.first, self.serial);
                return false;
            }
            WriteOutcome::Done => series.exists = true,
            WriteOutcome::Refused => {}
        }
        let completed = count.saturating_sub(series.completed);
        series.completed = count;
        series.failures = 0;
        series.waits_since_ns = now_ns;
        series.due_ns = now_ns.saturating_add(series.gap_ns);
        series.gap_ns = (series.gap_ns * 2).min(GAPS_NS.1);
        if outcome == WriteOutcome::Done {
            let created = u64::from(creates).min(completed);
            self.count(reason, EventResult::Created, created);
            self.count(reason, EventResult::Counted, completed - created);
        } else {
            self.count(reason, EventResult::Refused, completed);
        }
        match result {
            ApiResult::Forbidden { .. } => self.paused_until_ns = now_ns.saturating_add(FORBIDDEN_NS),
            ApiResult::Rejected { why, .. } if outcome == WriteOutcome::Refused => {
                tracing::warn!(reason = reason.name(), %why, "the API server rejects a Kubernetes Event");
            }
            _ => {}
        }
        false
    }

    /// Ends series without new occurrences, and drops occurrences that are too old.
    fn remove_expired(&mut self, now_ns: u64) {
        let (observer, in_flight) = (&self.observer, &self.in_flight);
        self.series.retain(|key, series| {
            if in_flight.as_ref().is_some_and(|(it, _)| it == key) {
                return true;
            }
            if series.waiting() > 0 {
                let is_old = now_ns.saturating_sub(series.waits_since_ns) >= EXPIRES_NS;
                if is_old {
                    series.complete(observer, EventResult::Dropped);
                }
                return !is_old;
            }
            now_ns.saturating_sub(series.last_ns) < ENDS_NS
        });
    }

    /// Drops the series with the lowest priority. Returns false if there is none to drop.
    fn make_room(&mut self) -> bool {
        let is_idle = |key: &Key| self.in_flight.as_ref().is_none_or(|(it, _)| it != key);
        let idle = self.series.iter().filter(|(key, _)| is_idle(key));
        let Some(key) = idle.min_by_key(|(_, series)| series.priority()).map(|(key, _)| key.clone()) else {
            return false;
        };
        if let Some(mut series) = self.series.remove(&key) {
            series.complete(&self.observer, EventResult::Dropped);
        }
        true
    }

    fn count(&self, reason: Reason, result: EventResult, times: u64) {
        self.observer.observe(MetricEvent::Event(reason.name(), result.name(), times));
    }
}

#[cfg(test)]
mod tests;
