//! Which pods are spared, for how long, and which go first or last: what pods ask for by
//! annotation, the operator's table, the cool-down after an OOM kill, limits within a time, and
//! pods that nothing would bring back.
//!
//! What follows from a pod and the policy alone is its [`Shelter`], worked out once. What
//! depends on what happened is the state of the [`Guard`], of which the engine asks
//! [`Guard::refusal`] for each pod whose turn has come. In the kubelet's profile nobody is
//! sheltered and nothing refused.

mod annotations;
mod cool_down;
mod guard;
mod ledger;
#[cfg(test)]
mod properties;
mod refusal;
mod shelter;
#[cfg(test)]
mod tests;

pub(crate) use annotations::opts_out;
pub use annotations::{DESCHEDULER_EVICT, DESCHEDULER_PREFER_NO_EVICTION};
pub use annotations::{EVICT, IgnoredAnnotation, Mistake, PRIORITY_HINT};
pub use guard::{Ask, Guard, Motive};
pub use ledger::Account;
pub use refusal::{Refusal, RefusedPod};
pub use shelter::{Shelter, Turn};
