//! A termination, and the kills that can have caused it. They are matched by
//! container, instance and time.

use std::collections::BTreeSet;

use super::cause::Explanation;
use super::kill::{OomVictimRole, clip, clipped};
use super::pod::KillEntry;
use super::termination::{ContainerEnded, EndSeen, Evictor};
use crate::time::{Timestamp, later};
use crate::units::GoDuration;

/// How long a cause waits for late records: the kubelet writes a status one to three seconds after a
/// termination, and kills can be reported after that.
const DECISION_DELAY: GoDuration = GoDuration::from_secs(10);

/// Times in the API have whole seconds.
const API_RESOLUTION: GoDuration = GoDuration::from_secs(1);

/// Records without an instance belong to the same termination if they are at most this far apart.
const SAME_NANOS: i128 = 2_000_000_000;

/// All that is known about one termination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingEnd {
    pub(super) container: Box<str>,
    pub(super) container_id: Option<Box<str>>,
    /// The earliest time that a record names.
    pub(super) at: Timestamp,
    /// The time by which the termination was over.
    pub(super) latest: Timestamp,
    pub(super) seen: BTreeSet<EndSeen>,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) reason: Box<str>,
    pub(super) evicted_by: Option<Evictor>,
    pub(super) evicted_at: Option<Timestamp>,
    /// When the cause is decided, even if records are missing.
    pub(super) due: Timestamp,
}

impl PendingEnd {
    /// Creates a termination from its first record, which is dated `at` and was received at `now`.
    pub(super) fn new(end: &ContainerEnded, at: Timestamp, now: Timestamp) -> Self {
        let mut open = Self {
            container: clip(&end.container),
            at,
            latest: latest(end, at),
            due: later(now, DECISION_DELAY),
            ..Self::default()
        };
        open.add_record(end, at);
        open
    }

    /// Adds another record of the same termination. Known values stay.
    pub(super) fn add_record(&mut self, end: &ContainerEnded, at: Timestamp) {
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
        if self.container_id.is_none() {
            self.container_id = end.container_id.as_deref().map(clip);
        }
    }

    /// Returns whether a record dated `at` belongs to this termination.
    pub(super) fn is_same(&self, end: &ContainerEnded, at: Timestamp) -> bool {
        match (self.container_id.as_deref(), end.container_id.as_deref()) {
            (Some(known), Some(other)) => known == clipped(other),
            _ => {
                let distance = (at.as_nanosecond() - self.at.as_nanosecond()).abs();
                *self.container == *clipped(&end.container) && distance <= SAME_NANOS
            }
        }
    }
}

fn latest(end: &ContainerEnded, at: Timestamp) -> Timestamp {
    match end.seen {
        EndSeen::Status => later(at, API_RESOLUTION),
        EndSeen::Cgroup | EndSeen::Process => at,
    }
}

/// How long before a termination a kill may have been its cause, if no record names the container's instance
/// or the victim's role.
const NEAR_NANOS: i128 = 10_000_000_000;

/// As [`NEAR_NANOS`], for an init process: with much memory to free, it takes long to exit.
const INIT_NEAR_NANOS: i128 = 30_000_000_000;

/// The tolerance for a change of the clock between a kill and the termination that it caused.
const SKEW_NANOS: i128 = 1_000_000_000;

/// The exit code of a process that SIGKILL ended: 128 + 9.
const EXIT_BY_KILL: i32 = 137;
const SIGKILL: i32 = 9;

/// Returns whether a process with this exit code or signal ended by SIGKILL, as far as that is known.
pub(super) fn is_sigkill(exit_code: Option<i32>, signal: Option<i32>) -> bool {
    signal.map_or(exit_code == Some(EXIT_BY_KILL), |signal| signal == SIGKILL)
}

impl PendingEnd {
    /// Returns how a kill can have ended the container, if it can.
    pub(super) fn explanation_by(&self, kill: &KillEntry) -> Option<Explanation> {
        if self.is_kill_of_init_process(kill) {
            return Some(Explanation::InitProcessKilled);
        }
        if kill.consumed || !self.is_near(kill, NEAR_NANOS) {
            return None;
        }
        let is_inside = self.contains_victim_of(kill);
        match kill.victim {
            _ if is_inside && kill.oom_group.is_some() => Some(Explanation::GroupKilled),
            OomVictimRole::Unknown if self.may_contain_victim_of(kill) => Some(Explanation::ProcessKilled),
            OomVictimRole::Child if is_inside => Some(Explanation::ChildKilled),
            _ => None,
        }
    }

    /// Returns whether the kill is that of the init process that ended.
    pub(super) fn is_kill_of_init_process(&self, kill: &KillEntry) -> bool {
        let named = self.container_id.is_some() && self.container_id == kill.container_id;
        kill.victim == OomVictimRole::Init
            && !kill.consumed
            && self.contains_victim_of(kill)
            && (named && self.is_not_before_kill(kill) || self.is_near(kill, INIT_NEAR_NANOS))
    }

    /// Returns whether the victim was in this container, and in this instance of it as far as that is known.
    pub(super) fn contains_victim_of(&self, kill: &KillEntry) -> bool {
        match (&self.container_id, &kill.container_id) {
            (Some(own), Some(victims)) => own == victims,
            _ => kill.container.as_deref() == Some(&*self.container),
        }
    }

    /// Returns whether the victim of a kill that is reported after the termination was in this container.
    pub(super) fn contained_victim_of(&self, kill: &KillEntry) -> bool {
        let are_instances_known = self.container_id.is_some() && kill.container_id.is_some();
        self.contains_victim_of(kill) && (are_instances_known || kill.at <= self.at)
    }

    pub(super) fn contains_any_victim_of(&self, kills: &[KillEntry]) -> bool {
        kills.iter().any(|kill| !kill.consumed && self.contains_victim_of(kill))
    }

    /// As [`Self::contains_victim_of`]. In addition, a victim whose container is unknown may have been in this
    /// one if the container ended by SIGKILL.
    pub(super) fn may_contain_victim_of(&self, kill: &KillEntry) -> bool {
        let is_unlocated = kill.container.is_none() && kill.container_id.is_none();
        self.contains_victim_of(kill) || (is_unlocated && self.ended_by_sigkill())
    }

    /// Returns whether the init process ended by SIGKILL, as far as that is known.
    pub(super) fn ended_by_sigkill(&self) -> bool {
        is_sigkill(self.exit_code, self.signal)
    }

    fn is_not_before_kill(&self, kill: &KillEntry) -> bool {
        kill.at.as_nanosecond() <= self.latest.as_nanosecond() + SKEW_NANOS
    }

    fn is_near(&self, kill: &KillEntry, nanos: i128) -> bool {
        self.is_not_before_kill(kill) && self.at.as_nanosecond() - kill.at.as_nanosecond() <= nanos
    }
}
