//! Which pods are spared, for how long, and which go first or last: what pods ask for by
//! annotation, the operator's table, the cool-down after an OOM kill, limits within a time, and
//! pods that nothing would bring back.
//!
//! What follows from a pod and the policy alone is its [`PodProtection`](crate::pods::PodProtection), worked out once. What
//! depends on what happened is the state of the [`EvictionGuard`], of which the engine asks
//! [`EvictionGuard::refusal`] for each pod whose turn has come. In the kubelet's profile nobody is
//! sheltered and nothing refused.

mod cool_down;
mod counted_eviction;
mod guard;
#[cfg(test)]
mod properties;
mod rate_limit;
mod refusal;
#[cfg(test)]
mod tests;

pub use counted_eviction::{CountedEviction, MOST_COUNTED};
pub use guard::{EvictionGuard, EvictionMotive, EvictionRequest};
pub use refusal::{Refusal, RefusedPod};
