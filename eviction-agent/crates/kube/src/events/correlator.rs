//! What is told when: occurrences become series, and series become few requests.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use eviction_core::time::nanos;

use super::object::{Reporter, name, raise};
use super::occurrence::{Fate, Occurrence, Reason};
use super::response::Told;
use super::token_bucket::TokenBucket;
use crate::request::Request;

const SECOND_NS: u64 = 1_000_000_000;

/// Series that are kept: told ones whose count may yet be raised, and those that wait to be told.
pub(super) const SERIES: usize = 512;

/// A series ends when nothing was added for so long, as with client-go's `finishTime`.
const ENDS_NS: u64 = 6 * 60 * SECOND_NS;

/// What could not be told for so long is of no use: the API server itself keeps events for an hour.
const EXPIRES_NS: u64 = 60 * 60 * SECOND_NS;

/// How long a count waits before it is raised at the server: it doubles each time.
const GAPS_NS: (u64, u64) = (10 * SECOND_NS, 300 * SECOND_NS);

/// Told of every occurrence what becomes of it, with how many there were.
pub(super) type Tally = Box<dyn Fn(Reason, Fate, u64) + Send>;

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
    /// How many of them were told or given up.
    settled: u64,
    last: Timestamp,
    heard_ns: u64,
    /// Since when something waits to be told.
    waits_since_ns: u64,
    due_ns: u64,
    gap_ns: u64,
    /// Requests that came to nothing since something was told.
    tries: u32,
    is_under_way: bool,
}

impl Series {
    fn waiting(&self) -> u64 {
        self.count - self.settled
    }

    fn is_urgent(&self) -> bool {
        self.first.reason == Reason::Evicted
    }

    /// Who goes first: whoever failed less often, then evictions, then what nobody has heard of at all.
    fn turn(&self) -> (u32, u8, u64) {
        let rank = match (self.is_urgent(), self.exists) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        (self.tries, rank, self.due_ns)
    }

    /// Whom to drop for want of room: what has nothing to tell, then others before evictions, the
    /// oldest first.
    fn worth(&self) -> (bool, bool, u64) {
        (self.waiting() > 0, self.is_urgent(), self.heard_ns)
    }

    fn settle(&mut self, tally: &Tally, fate: Fate) {
        tally(self.first.reason, fate, self.waiting());
        self.settled = self.count;
        self.tries = 0;
    }
}

/// A request that is to be sent.
#[derive(Debug)]
pub(super) struct Writing {
    key: Key,
    /// Whether it makes an event, and does not raise a count.
    pub(super) makes: bool,
    /// The count that it tells.
    count: u64,
    pub(super) request: Request,
}

impl Writing {
    /// What it is about, for the log.
    pub(super) fn reason(&self) -> Reason {
        self.key.0
    }
}

/// What there is to do.
#[derive(Debug)]
pub(super) enum Next {
    /// Send this.
    Write(Box<Writing>),
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
    /// The server is left alone until then.
    held_until_ns: u64,
    serial: u64,
    tally: Tally,
}

impl fmt::Debug for Correlator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Correlator").field("series", &self.series).finish_non_exhaustive()
    }
}

impl Correlator {
    pub(super) fn new(node: &str, now_ns: u64, tally: Tally) -> Self {
        Self {
            reporter: Reporter::new(node),
            series: BTreeMap::new(),
            pace: TokenBucket::new(now_ns),
            held_until_ns: 0,
            serial: 0,
            tally,
        }
    }

    /// Takes note of an occurrence.
    pub(super) fn note(&mut self, occurrence: Occurrence, now_ns: u64) {
        let times = occurrence.times.max(1);
        (self.tally)(occurrence.reason, Fate::Noted, times);
        self.sweep(now_ns);
        let key = (occurrence.reason, occurrence.regarding.id().into(), occurrence.part.clone());
        if let Some(series) = self.series.get_mut(&key) {
            if series.waiting() == 0 {
                series.waits_since_ns = now_ns;
            }
            series.count = series.count.saturating_add(times);
            series.last = series.last.max(occurrence.at);
            series.heard_ns = now_ns;
            return;
        }
        if self.series.len() >= SERIES && !self.make_room() {
            (self.tally)(occurrence.reason, Fate::Dropped, times);
            return;
        }
        let name = self.name(&occurrence);
        let series = Series {
            name,
            exists: false,
            count: times,
            settled: 0,
            last: occurrence.at,
            heard_ns: now_ns,
            waits_since_ns: now_ns,
            due_ns: now_ns,
            gap_ns: GAPS_NS.0,
            tries: 0,
            is_under_way: false,
            first: occurrence,
        };
        self.series.insert(key, series);
    }

    /// What is to be done now. What it hands out is answered by [`told`](Self::told) before anything
    /// else of the same series is.
    pub(super) fn next(&mut self, now_ns: u64) -> Next {
        self.sweep(now_ns);
        let waiting = self.series.iter_mut().filter(|(_, it)| it.waiting() > 0 && !it.is_under_way);
        let (due, later): (Vec<_>, Vec<_>) = waiting.partition(|(_, it)| it.due_ns <= now_ns);
        let Some((key, series)) = due.into_iter().min_by_key(|(_, it)| it.turn()) else {
            let soonest = later.into_iter().map(|(_, it)| it.due_ns).min();
            return soonest.map_or(Next::Idle, |due_ns| Next::Wait(due_ns.max(self.held_until_ns)));
        };
        if now_ns < self.held_until_ns {
            return Next::Wait(self.held_until_ns);
        }
        if let Err(until_ns) = self.pace.take(series.is_urgent(), now_ns) {
            return Next::Wait(until_ns);
        }
        series.is_under_way = true;
        let Series { first, name, exists, count, last, .. } = series;
        let request = match exists {
            true => raise(name, first, *count, *last),
            false => self.reporter.create(name, first, *count, *last),
        };
        Next::Write(Box::new(Writing { key: key.clone(), makes: !*exists, count: *count, request }))
    }

    /// Takes in what became of a request. `pause_ns` is how long the server is left alone if it did
    /// not say so itself.
    pub(super) fn told(&mut self, writing: &Writing, told: &Told, pause_ns: u64, now_ns: u64) {
        let Some(series) = self.series.get_mut(&writing.key) else { return };
        series.is_under_way = false;
        let settled = writing.count.saturating_sub(series.settled);
        let hold = match told {
            Told::Done => {
                let made = u64::from(writing.makes).min(settled);
                for (fate, times) in [(Fate::Created, made), (Fate::Counted, settled - made)] {
                    (self.tally)(series.first.reason, fate, times);
                }
                series.exists = true;
                None
            }
            Told::Missing => {
                // It is older than the server keeps events: what came since is another one.
                series.count -= series.settled;
                series.settled = 0;
                series.exists = false;
                series.due_ns = now_ns;
                self.serial += 1;
                series.name = name(&series.first, self.serial);
                return;
            }
            Told::Refused { .. } => {
                (self.tally)(series.first.reason, Fate::Refused, settled);
                None
            }
            Told::Forbidden { pause, .. } => {
                (self.tally)(series.first.reason, Fate::Refused, settled);
                Some(nanos(*pause))
            }
            Told::Later { pause } => {
                series.tries = series.tries.saturating_add(1);
                self.held_until_ns = now_ns.saturating_add(pause.map_or(pause_ns, nanos));
                return;
            }
        };
        series.settled = writing.count;
        series.tries = 0;
        series.waits_since_ns = now_ns;
        series.due_ns = now_ns.saturating_add(series.gap_ns);
        series.gap_ns = (series.gap_ns * 2).min(GAPS_NS.1);
        if let Some(pause) = hold {
            self.held_until_ns = now_ns.saturating_add(pause);
        }
    }

    /// Ends series to which nothing is added any more, and gives up what is too old to be told.
    fn sweep(&mut self, now_ns: u64) {
        let tally = &self.tally;
        self.series.retain(|_, series| {
            if series.is_under_way {
                return true;
            }
            if series.waiting() > 0 {
                let is_old = now_ns.saturating_sub(series.waits_since_ns) >= EXPIRES_NS;
                if is_old {
                    series.settle(tally, Fate::Dropped);
                }
                return !is_old;
            }
            now_ns.saturating_sub(series.heard_ns) < ENDS_NS
        });
    }

    /// Drops the series that is worth least.
    fn make_room(&mut self) -> bool {
        let idle = self.series.iter().filter(|(_, series)| !series.is_under_way);
        let Some(key) = idle.min_by_key(|(_, series)| series.worth()).map(|(key, _)| key.clone()) else {
            return false;
        };
        if let Some(mut series) = self.series.remove(&key) {
            series.settle(&self.tally, Fate::Dropped);
        }
        true
    }

    fn name(&mut self, of: &Occurrence) -> String {
        self.serial += 1;
        name(of, self.serial)
    }

    /// How many occurrences wait to be told.
    pub(super) fn waiting(&self) -> u64 {
        self.series.values().map(Series::waiting).sum()
    }
}

#[cfg(test)]
mod tests;
