//! OOM kills and terminations of containers: which process the kernel killed and for which limit, and why
//! each container terminated. Kills are made by the kernel, evictions by the agent or the kubelet; a kill is
//! never reported as an eviction, or an eviction as a kill.
//!
//! [`OomKill`] and [`ContainerEnded`] are inputs of the engine. The engine has an [`OomTracker`] and returns
//! an [`OomUpdate`] for each record. The [`TerminationCause`] of a termination is decided when all of its
//! records have arrived, at the latest ten seconds after the first one. It is part of the decision that is
//! made at that time ([`ContainerTerminated`]). Records may be late, repeated or implausible: they are
//! counted ([`AnomalyCounts`]) and do no harm.

mod cause;
mod kill;
mod pod;
mod termination;
#[cfg(test)]
mod tests;
mod tracker;

pub use cause::{Explanation, TerminationCause};
pub use kill::{GroupKill, LISTED, LimitScope, OomKill, OomVictimRole, Victim};
pub use pod::KillEntry;
pub use termination::{
    ContainerEnded, ContainerRef, ContainerStatusMismatch, ContainerTerminated, Evictor, Evidence,
    MismatchKind, TerminationSource,
};
pub use tracker::{AnomalyCounts, EndHandling, OomTracker, OomUpdate};
