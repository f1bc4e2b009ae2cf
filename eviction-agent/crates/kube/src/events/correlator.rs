//! What is written when: occurrences become series, and series become few requests.

use std::collections::BTreeMap;
use std::fmt;

use eviction_core::progress::{ApiOperation, ApiResult};
use eviction_core::time::nanos;
use jiff::Timestamp;

use super::object::{EventResult, Occurrence, Reason, Reporter, name, raise};
use crate::metrics::{MetricEvent, Observer};
use crate::request::Request;

const SECOND_NS: u64 = 1_000_000_000;

/// Series that are kept: written ones whose count may yet be raised, and those that wait to be written.
pub(super) const SERIES: usize = 512;

/// A series ends when nothing was added for so long, as with client-go's `finishTime`.
const ENDS_NS: u64 = 6 * 60 * SECOND_NS;

/// What could not be written for so long is of no use: the API server itself keeps events for an hour.
const EXPIRES_NS: u64 = 60 * 60 * SECOND_NS;

/// How long nothing is written after a refusal that is the same for everything.
const FORBIDDEN_NS: u64 = 60 * SECOND_NS;

/// How long a count waits before it is raised at the server: it doubles each time.
const GAPS_NS: (u64, u64) = (10 * SECOND_NS, 300 * SECOND_NS);

/// What is the same series: the reason, the object, and the part of it.
type Key = (Reason, Box<str>, Box<str>);

/// Occurrences of the same.
#[derive(Debug)]
struct Series {
    /// The first one.
    first: Occurrence,
    /// Of the event.
    name: String,
    /// The server has that event.
    exists: bool,
    count: u64,
    /// How many of them were written or given up.
    settled: u64,
    last: Timestamp,
    last_ns: u64,
    /// Since when something waits to be written.
    waits_since_ns: u64,
    due_ns: u64,
    gap_ns: u64,
    /// Requests that failed since something was written.
    tries: u32,
    in_flight: bool,
}

impl Series {
    fn waiting(&self) -> u64 {
        self.count - self.settled
    }

    fn is_urgent(&self) -> bool {
        self.first.reason == Reason::Evicted
    }

    /// The first goes first: what failed less often, then evictions, then what is not written at all.
    fn order(&self) -> (u32, u8, u64) {
        let rank = match (self.is_urgent(), self.exists) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        (self.tries, rank, self.due_ns)
    }

    /// The lowest is dropped for want of room: what does not wait, then others before evictions, the
    /// oldest first.
    fn priority(&self) -> (bool, bool, u64) {
        (self.waiting() > 0, self.is_urgent(), self.last_ns)
    }

    fn settle(&mut self, observer: &Observer, result: EventResult) {
        observer.observe(MetricEvent::Event(self.first.reason.name(), result.name(), self.waiting()));
        self.settled = self.count;
        self.tries = 0;
    }
}

/// A request that is to be sent.
#[derive(Debug)]
pub(super) struct EventRequest {
    key: Key,
    /// Whether it makes an event, and does not raise a count.
    pub(super) makes: bool,
    /// The count that it writes.
    count: u64,
    pub(super) request: Request,
}

impl EventRequest {
    /// What it is about, for the log.
    pub(super) fn reason(&self) -> Reason {
        self.key.0
    }

    pub(super) fn operation(&self) -> ApiOperation {
        if self.makes { ApiOperation::CreateEvent } else { ApiOperation::PatchEvent }
    }
}

/// Whether the server has what was requested. What it has already was made by a request that had no response.
pub(super) fn is_done(makes: bool, result: &ApiResult) -> bool {
    *result == ApiResult::Accepted || (makes && matches!(result, ApiResult::Rejected { status: 409, .. }))
}

/// Whether a request was not accepted or that is unknown. It may be repeated: an event is made under the same
/// name, and a count is set and not added to.
pub(super) fn is_to_be_repeated(makes: bool, result: &ApiResult) -> bool {
    match result {
        ApiResult::Throttled { .. }
        | ApiResult::Unauthorized { .. }
        | ApiResult::Unknown { .. }
        | ApiResult::NotSent { .. } => true,
        ApiResult::Rejected { status, .. } => matches!(status, 408 | 409) && !is_done(makes, result),
        _ => false,
    }
}

/// What there is to do.
#[derive(Debug)]
pub(super) enum Next {
    /// Send this.
    Write(Box<EventRequest>),
    /// Nothing before then, nanoseconds of CLOCK_MONOTONIC.
    Wait(u64),
    /// Nothing until something is noted.
    Idle,
}

/// Makes series of occurrences, and requests of series.
pub(super) struct Correlator {
    reporter: Reporter,
    series: BTreeMap<Key, Series>,
    pace: TokenBucket,
    /// Nothing is sent until then.
    held_until_ns: u64,
    serial: u64,
    observer: Observer,
}

impl fmt::Debug for Correlator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Correlator").field("series", &self.series).finish_non_exhaustive()
    }
}

impl Correlator {
    pub(super) fn new(node: &str, now_ns: u64, observer: Observer) -> Self {
        Self {
            reporter: Reporter::new(node),
            series: BTreeMap::new(),
            pace: TokenBucket::new(now_ns),
            held_until_ns: 0,
            serial: 0,
            observer,
        }
    }

    /// Takes note of an occurrence.
    pub(super) fn note(&mut self, occurrence: Occurrence, now_ns: u64) {
        let times = occurrence.times.max(1);
        self.count(occurrence.reason, EventResult::Noted, times);
        self.sweep(now_ns);
        let key = (occurrence.reason, occurrence.regarding.id().into(), occurrence.part.clone());
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
        let name = self.name(&occurrence);
        let series = Series {
            name,
            exists: false,
            count: times,
            settled: 0,
            last: occurrence.at,
            last_ns: now_ns,
            waits_since_ns: now_ns,
            due_ns: now_ns,
            gap_ns: GAPS_NS.0,
            tries: 0,
            in_flight: false,
            first: occurrence,
        };
        self.series.insert(key, series);
    }

    /// What is to be done now. A request is followed by [`responded`](Self::responded) before the next of the
    /// same series.
    pub(super) fn next(&mut self, now_ns: u64) -> Next {
        self.sweep(now_ns);
        let waiting = self.series.iter_mut().filter(|(_, it)| it.waiting() > 0 && !it.in_flight);
        let (due, later): (Vec<_>, Vec<_>) = waiting.partition(|(_, it)| it.due_ns <= now_ns);
        let Some((key, series)) = due.into_iter().min_by_key(|(_, it)| it.order()) else {
            let soonest = later.into_iter().map(|(_, it)| it.due_ns).min();
            return soonest.map_or(Next::Idle, |due_ns| Next::Wait(due_ns.max(self.held_until_ns)));
        };
        if now_ns < self.held_until_ns {
            return Next::Wait(self.held_until_ns);
        }
        if let Err(until_ns) = self.pace.take(series.is_urgent(), now_ns) {
            return Next::Wait(until_ns);
        }
        series.in_flight = true;
        let Series { first, name, exists, count, last, .. } = series;
        let request = match exists {
            true => raise(name, first, *count, *last),
            false => self.reporter.create(name, first, *count, *last),
        };
        Next::Write(Box::new(EventRequest { key: key.clone(), makes: !*exists, count: *count, request }))
    }

    /// Takes the result of a request. `pause_ns` is how long nothing is sent if it is to be repeated and the server
    /// did not ask for a pause itself.
    pub(super) fn responded(
        &mut self,
        request: &EventRequest,
        result: &ApiResult,
        pause_ns: u64,
        now_ns: u64,
    ) {
        let Some(series) = self.series.get_mut(&request.key) else { return };
        series.in_flight = false;
        if is_to_be_repeated(request.makes, result) {
            series.tries = series.tries.saturating_add(1);
            let pause_ns = if let ApiResult::Throttled { pause } = result { nanos(*pause) } else { pause_ns };
            self.held_until_ns = now_ns.saturating_add(pause_ns);
            return;
        }
        if *result == ApiResult::Terminated && !request.makes {
            // It is older than the server keeps events: what came since is another one.
            series.count -= series.settled;
            series.settled = 0;
            series.exists = false;
            series.due_ns = now_ns;
            self.serial += 1;
            series.name = name(&series.first, self.serial);
            return;
        }
        let settled = request.count.saturating_sub(series.settled);
        let is_done = is_done(request.makes, result);
        series.exists |= is_done;
        series.settled = request.count;
        series.tries = 0;
        series.waits_since_ns = now_ns;
        series.due_ns = now_ns.saturating_add(series.gap_ns);
        series.gap_ns = (series.gap_ns * 2).min(GAPS_NS.1);
        if is_done {
            let made = u64::from(request.makes).min(settled);
            self.count(request.reason(), EventResult::Created, made);
            self.count(request.reason(), EventResult::Counted, settled - made);
        } else {
            self.count(request.reason(), EventResult::Refused, settled);
        }
        if let ApiResult::Forbidden { .. } = result {
            self.held_until_ns = now_ns.saturating_add(FORBIDDEN_NS);
        }
    }

    /// Ends series to which nothing is added any more, and gives up what is too old to be written.
    fn sweep(&mut self, now_ns: u64) {
        let observer = &self.observer;
        self.series.retain(|_, series| {
            if series.in_flight {
                return true;
            }
            if series.waiting() > 0 {
                let is_old = now_ns.saturating_sub(series.waits_since_ns) >= EXPIRES_NS;
                if is_old {
                    series.settle(observer, EventResult::Dropped);
                }
                return !is_old;
            }
            now_ns.saturating_sub(series.last_ns) < ENDS_NS
        });
    }

    /// Drops the series with the lowest priority.
    fn make_room(&mut self) -> bool {
        let idle = self.series.iter().filter(|(_, series)| !series.in_flight);
        let Some(key) = idle.min_by_key(|(_, series)| series.priority()).map(|(key, _)| key.clone()) else {
            return false;
        };
        if let Some(mut series) = self.series.remove(&key) {
            series.settle(&self.observer, EventResult::Dropped);
        }
        true
    }

    fn count(&self, reason: Reason, result: EventResult, times: u64) {
        self.observer.observe(MetricEvent::Event(reason.name(), result.name(), times));
    }

    fn name(&mut self, of: &Occurrence) -> String {
        self.serial += 1;
        name(of, self.serial)
    }
}

/// Requests that may go out at once.
pub(super) const BURST: u64 = 20;

/// One more may go out each so often: with the burst no more than 44 within a minute.
pub(super) const INTERVAL_NS: u64 = 2_500_000_000;

/// What is left over for what must not wait behind a storm.
const RESERVE: u64 = 5;

/// The bucket, in nanoseconds of [`INTERVAL_NS`] saved up.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    saved_ns: u64,
    looked_ns: u64,
}

impl TokenBucket {
    /// A full one.
    pub(super) fn new(now_ns: u64) -> Self {
        Self { saved_ns: BURST * INTERVAL_NS, looked_ns: now_ns }
    }

    /// Takes a token for a request, or returns when there will be one. The reserve is for what is urgent.
    pub(super) fn take(&mut self, urgent: bool, now_ns: u64) -> Result<(), u64> {
        let passed = now_ns.saturating_sub(self.looked_ns);
        self.saved_ns = self.saved_ns.saturating_add(passed).min(BURST * INTERVAL_NS);
        self.looked_ns = self.looked_ns.max(now_ns);
        let left_over = if urgent { 0 } else { RESERVE };
        match self.saved_ns.checked_sub((1 + left_over) * INTERVAL_NS) {
            Some(_) => {
                self.saved_ns -= INTERVAL_NS;
                Ok(())
            }
            None => Err(now_ns + ((1 + left_over) * INTERVAL_NS - self.saved_ns)),
        }
    }
}

#[cfg(test)]
mod tests;
