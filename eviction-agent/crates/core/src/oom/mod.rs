//! The OOM story: whom the kernel killed for want of memory and by whose limit, and why each
//! container ended. Kills are the kernel's, evictions are ours or the kubelet's; neither is
//! ever taken for the other.
//!
//! [`OomKill`] and [`ContainerEnded`] are inputs of the engine, which keeps a [`Story`] and
//! answers to each record with a [`StoryNote`]. An end gets its [`Verdict`] when everything is
//! known of it, at the latest ten seconds after it was told, in whatever decision is made then
//! ([`EndedContainer`]). Records may be late, repeated or absurd: that is counted
//! ([`Oddities`]) and does no harm.

mod end;
mod ended;
mod group;
mod kill;
mod open;
mod pod;
mod story;
mod suspects;
mod tally;
#[cfg(test)]
mod tests;
mod text;
mod verdict;

pub use end::{ContainerEnded, EndSeen, Evictor};
pub use ended::{EndedContainer, Evidence};
pub use group::GroupKill;
pub use kill::{LimitOwner, OomKill, Victim};
pub use pod::{ContainerStory, Killed, PodStory};
pub use story::{EndNote, KillNote, Story, StoryNote, Taken};
pub use tally::{Ends, Kills, Oddities};
pub use verdict::{Cause, Ground, Verdict};
