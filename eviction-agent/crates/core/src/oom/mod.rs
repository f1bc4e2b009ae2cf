//! OOM kills and the ends of containers: which process the kernel killed and by whose limit, and why each container
//! ended. Kills are the kernel's, evictions are the agent's or the kubelet's; neither is ever taken for the other.
//!
//! [`OomKill`] and [`ContainerEnded`] are inputs of the engine, which keeps an [`OomTracker`] and answers each record
//! with an [`OomUpdate`]. The [`TerminationCause`] of an end is decided when everything is known of it, at the latest ten
//! seconds after its first record, and is part of whatever decision is made then ([`ContainerTerminated`]). Records may
//! be late, repeated or implausible: that is counted ([`AnomalyCounts`]) and does no harm.

mod cause;
mod group;
mod kill;
mod pending;
mod pod;
mod status_mismatch;
mod termination;
#[cfg(test)]
mod tests;
mod tracker;

pub use cause::{AttributedCause, Explanation, TerminationCause};
pub use group::{GroupKill, LISTED, Victim};
pub use kill::{LimitScope, OomKill, OomVictimRole};
pub use pod::KillEntry;
pub use status_mismatch::{ContainerStatusMismatch, ExplainedMismatch, MismatchKind};
pub use termination::{ContainerEnded, ContainerRef, ContainerTerminated, EndSeen, Evictor, Evidence};
pub use tracker::{AnomalyCounts, EndHandling, EndUpdate, OomTracker, OomUpdate};
