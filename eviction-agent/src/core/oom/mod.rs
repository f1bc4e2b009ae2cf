//! The OOM story: whom the kernel killed for want of memory and by whose limit, and why each
//! container ended. Kills are the kernel's, evictions are ours or the kubelet's; neither is
//! ever taken for the other.

mod end;
mod kill;

pub use end::{ContainerEnded, EndSeen, Evictor};
pub use kill::{LimitOwner, OomKill, Victim};
