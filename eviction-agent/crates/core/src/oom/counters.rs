//! What is counted. Every kill and every end is counted once, in one place of each table.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::cause::TerminationCause;
use super::kill::{LimitScope, OomKill, OomVictimRole};

/// Processes that the kernel killed, by whose limit it was and by what they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KillCounts {
    by: [[u64; OomVictimRole::ALL.len()]; LimitScope::ALL.len()],
    groups: u64,
}

impl KillCounts {
    pub(super) fn count(&mut self, kill: &OomKill, first_of_group: bool) {
        let count = &mut self.by[kill.limit_scope as usize][kill.victim as usize];
        *count = count.saturating_add(1);
        self.groups = self.groups.saturating_add(first_of_group.into());
    }

    /// How many there were by a limit of this scope, of this role.
    pub fn of(&self, scope: LimitScope, victim: OomVictimRole) -> u64 {
        self.by[scope as usize][victim as usize]
    }

    /// How many processes in all.
    pub fn total(&self) -> u64 {
        self.by.iter().flatten().sum()
    }

    /// How many times all processes of a group were killed together; each of them is among the
    /// others as well.
    pub fn groups(&self) -> u64 {
        self.groups
    }
}

/// Counts that are not zero, as `{"container": {"init": 1}}`.
impl Serialize for KillCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Roles<'a>(&'a [u64]);
        impl Serialize for Roles<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let kinds = OomVictimRole::ALL.iter().zip(self.0).filter(|(_, count)| **count > 0);
                serializer.collect_map(kinds.map(|(victim, count)| (victim.name(), count)))
            }
        }
        let mut map = serializer.serialize_map(None)?;
        for (scope, kinds) in LimitScope::ALL.iter().zip(&self.by) {
            if kinds.iter().any(|count| *count > 0) {
                map.serialize_entry(scope.name(), &Roles(kinds))?;
            }
        }
        if self.groups > 0 {
            map.serialize_entry("groups", &self.groups)?;
        }
        map.end()
    }
}

/// Containers that ended, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TerminationCounts([u64; TerminationCause::ALL.len()]);

impl TerminationCounts {
    pub(super) fn count(&mut self, cause: TerminationCause) {
        let count = &mut self.0[cause as usize];
        *count = count.saturating_add(1);
    }

    /// How many ended for this.
    pub fn of(&self, cause: TerminationCause) -> u64 {
        self.0[cause as usize]
    }

    /// How many ended.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Counts that are not zero, by cause.
impl Serialize for TerminationCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let causes = TerminationCause::ALL.iter().zip(&self.0).filter(|(_, count)| **count > 0);
        serializer.collect_map(causes.map(|(cause, count)| (cause.name(), count)))
    }
}

/// Records that made no sense, or came too late to change anything. None does any harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AnomalyCounts {
    /// Kills that were reported before.
    pub repeated_kills: u64,
    /// Kills that came after the cause of the end that they may have caused was decided.
    pub late_kills: u64,
    /// Records of ends whose cause was decided before.
    pub late_ends: u64,
    /// Kills and ends in pods that the engine does not know.
    pub unknown_pods: u64,
    /// Records that were dated later than they were learned.
    pub from_the_future: u64,
    /// Ends without a pod or a container: nothing can be said about them.
    pub nameless_ends: u64,
    /// Pods and containers that were dropped to make room for another.
    pub forgotten: u64,
}
