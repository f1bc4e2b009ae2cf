//! Which kills can have caused an end: by the container, its instance, and the time.

use super::cause::Explanation;
use super::kill::OomVictimRole;
use super::pending::PendingEnd;
use super::pod::KillEntry;

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
