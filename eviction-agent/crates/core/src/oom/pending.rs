//! An end whose cause is not decided yet, and which kills can have caused it: by the container, its instance, and the time.

use std::collections::BTreeSet;

use super::cause::Explanation;
use super::kill::OomVictimRole;
use super::kill::clip;
use super::pod::KillEntry;
use super::termination::{ContainerEnded, EndSeen, Evictor};
use crate::time::Timestamp;

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

/// So long before an end a kill may have been its cause, where nothing names the container's
/// instance or the victim's part in it.
const NEAR_NANOS: i128 = 10_000_000_000;

/// As [`NEAR_NANOS`] for an init process: with much memory to give back it takes its time to die.
const MAIN_NEAR_NANOS: i128 = 30_000_000_000;

/// The clock may be set between a kill and the end that it caused.
const SKEW_NANOS: i128 = 1_000_000_000;

/// Exit code of a process that died by SIGKILL: 128 + 9.
pub(super) const EXIT_BY_KILL: i32 = 137;
pub(super) const SIGKILL: i32 = 9;

impl PendingEnd {
    /// Whether this kill, by this explanation, can have been the cause.
    pub(super) fn is_by(&self, kill: &KillEntry, explanation: Explanation) -> bool {
        if kill.spent {
            return false;
        }
        match explanation {
            Explanation::MainProcessKilled => self.main_killed(kill),
            Explanation::GroupKilled => {
                kill.group.is_some() && self.is_of_it(kill) && self.near(kill, NEAR_NANOS)
            }
            Explanation::ProcessKilled => {
                kill.victim == OomVictimRole::Unknown
                    && self.may_be_of_it(kill)
                    && self.near(kill, NEAR_NANOS)
            }
            Explanation::ChildKilled => {
                kill.victim == OomVictimRole::Child && self.is_of_it(kill) && self.near(kill, NEAR_NANOS)
            }
            _ => false,
        }
    }

    /// Whether this is the kill of the main process that ended.
    pub(super) fn main_killed(&self, kill: &KillEntry) -> bool {
        let named = self.instance.is_some() && self.instance == kill.instance;
        kill.victim == OomVictimRole::Main
            && !kill.spent
            && self.is_of_it(kill)
            && (named && self.not_before(kill) || self.near(kill, MAIN_NEAR_NANOS))
    }

    /// Whether the victim was in this container, in this instance of it as far as that is known.
    pub(super) fn is_of_it(&self, kill: &KillEntry) -> bool {
        match (&self.instance, &kill.instance) {
            (Some(own), Some(victims)) => own == victims,
            _ => kill.container.as_deref() == Some(&*self.container),
        }
    }

    pub(super) fn any_of_it(&self, kills: &[KillEntry]) -> bool {
        kills.iter().any(|kill| !kill.spent && self.is_of_it(kill))
    }

    /// As [`Self::is_of_it`], and a victim whose container is not known may have been in this one
    /// if it died by SIGKILL.
    pub(super) fn may_be_of_it(&self, kill: &KillEntry) -> bool {
        let nowhere = kill.container.is_none() && kill.instance.is_none();
        self.is_of_it(kill) || (nowhere && self.died_by_kill())
    }

    /// Whether the main process died by SIGKILL, as far as that is known.
    pub(super) fn died_by_kill(&self) -> bool {
        match self.signal {
            Some(signal) => signal == SIGKILL,
            None => self.exit_code == Some(EXIT_BY_KILL),
        }
    }

    fn not_before(&self, kill: &KillEntry) -> bool {
        kill.at.as_nanosecond() <= self.latest.as_nanosecond() + SKEW_NANOS
    }

    fn near(&self, kill: &KillEntry, nanos: i128) -> bool {
        self.not_before(kill) && self.at.as_nanosecond() - kill.at.as_nanosecond() <= nanos
    }
}
