//! An end whose cause is not decided yet.

use std::collections::BTreeSet;

use crate::time::Timestamp;

use super::container_end::{ContainerEnded, EndSeen, Evictor};
use super::text::clip;

/// How long a cause waits for records that are late: the kubelet writes a status one to three
/// seconds after an end, and kills can be reported after it.
pub(super) const SETTLE_NANOS: i64 = 10_000_000_000;

/// The API keeps whole seconds.
const SECOND_NANOS: i64 = 1_000_000_000;

/// Records without an instance are of the same end if they are no further apart.
const SAME_NANOS: i128 = 2_000_000_000;

/// All that is known of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingEnd {
    pub(super) container: Box<str>,
    pub(super) instance: Option<Box<str>>,
    /// The earliest instant that a record names.
    pub(super) at: Timestamp,
    /// It was over by then.
    pub(super) latest: Timestamp,
    pub(super) seen: BTreeSet<EndSeen>,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) reason: Box<str>,
    pub(super) evicted_by: Option<Evictor>,
    pub(super) evicted_at: Option<Timestamp>,
    /// When the cause is decided, whatever is missing.
    pub(super) due: Timestamp,
}

impl PendingEnd {
    /// An end of which this is the first record, dated `at` and learned `now`.
    pub(super) fn new(end: &ContainerEnded, at: Timestamp, now: Timestamp) -> Self {
        let mut open = Self {
            container: clip(&end.container),
            instance: end.instance.as_deref().map(clip),
            at,
            latest: latest(end, at),
            seen: BTreeSet::new(),
            exit_code: None,
            signal: None,
            reason: Box::default(),
            evicted_by: None,
            evicted_at: None,
            due: later(now, SETTLE_NANOS),
        };
        open.learn(end, at);
        open
    }

    /// Takes in another record of the same end. What was known stays.
    pub(super) fn learn(&mut self, end: &ContainerEnded, at: Timestamp) {
        self.at = self.at.min(at);
        self.latest = self.latest.min(latest(end, at)).max(self.at);
        self.seen.insert(end.seen);
        self.exit_code = self.exit_code.or(end.exit_code);
        self.signal = self.signal.or(end.signal);
        if self.reason.is_empty() {
            self.reason = clip(&end.reason);
        }
        if self.evicted_by.is_none() {
            (self.evicted_by, self.evicted_at) = (end.evicted_by, end.evicted_at);
        }
        if self.instance.is_none() {
            self.instance = end.instance.as_deref().map(clip);
        }
    }

    /// Whether a record dated `at` is of this end.
    pub(super) fn is_same(&self, end: &ContainerEnded, at: Timestamp) -> bool {
        is_same(&self.container, self.instance.as_deref(), self.at, end, at)
    }
}

/// Whether a record is of an end of `container` that was at `then`.
pub(super) fn is_same(
    container: &str,
    instance: Option<&str>,
    then: Timestamp,
    end: &ContainerEnded,
    at: Timestamp,
) -> bool {
    match (instance, end.instance.as_deref()) {
        (Some(known), Some(other)) => known == &*clip(other),
        _ => {
            let distance = (at.as_nanosecond() - then.as_nanosecond()).abs();
            container == &*clip(&end.container) && distance <= SAME_NANOS
        }
    }
}

fn latest(end: &ContainerEnded, at: Timestamp) -> Timestamp {
    match end.seen {
        EndSeen::Status => later(at, SECOND_NANOS),
        EndSeen::Cgroup | EndSeen::Process => at,
    }
}

/// `at` and so much more, up to the end of time.
fn later(at: Timestamp, nanos: i64) -> Timestamp {
    at.checked_add(jiff::SignedDuration::from_nanos(nanos)).unwrap_or(Timestamp::MAX)
}
