//! The OOM story: whom the kernel killed for want of memory and by whose limit, and why each
//! container ended. Kills are the kernel's, evictions are ours or the kubelet's; neither is
//! ever taken for the other.
//!
//! [`OomKill`] and [`ContainerEnded`] are inputs of the engine, which keeps a [`OomTracker`] and
//! answers to each record with an [`OomUpdate`]. An end gets its [`TerminationCause`] when everything is
//! known of it, at the latest ten seconds after it was told, in whatever decision is made then
//! ([`EndedContainer`]). Records may be late, repeated or absurd: that is counted
//! ([`AnomalyCounts`]) and does no harm.

mod attribution;
mod cause;
mod container_end;
mod counters;
mod group;
mod kill;
mod pending;
mod pod;
mod termination;
#[cfg(test)]
mod tests;
mod text;
mod tracker;

pub use cause::{AttributedCause, Explanation, TerminationCause};
pub use container_end::{ContainerEnded, EndSeen, Evictor};
pub use counters::{AnomalyCounts, KillCounts, TerminationCounts};
pub use group::GroupKill;
pub use kill::{LimitScope, OomKill, OomVictimRole};
pub use pod::{ContainerHistory, KillEntry, PodOomHistory};
pub use termination::{EndedContainer, Evidence};
pub use tracker::{EndHandling, EndUpdate, KillUpdate, OomTracker, OomUpdate};
