//! The pods of the node, with everything that can be known about one before a pass.

mod criticality;
mod limited;
mod limits;
mod qos;
mod requests;
mod set;
#[cfg(test)]
mod tests;

pub use criticality::is_critical;
pub(crate) use limited::LeastLimits;
pub use limited::{LimitedPod, NamedLimit};
pub use limits::{ContainerLimit, EmptyDirLimit, LocalLimits};
pub use qos::is_best_effort;
pub use requests::{has_pod_level_resources, pod_limit, pod_request};
pub use set::{PodSet, RankFacts};

use super::pod::Pod;
use super::policy::Gates;

/// A pod and what follows from its specification alone.
#[derive(Clone, Debug)]
pub struct KnownPod {
    /// The pod.
    pub pod: Pod,
    /// Must never be evicted.
    pub critical: bool,
    /// Has neither requests nor limits that count.
    pub best_effort: bool,
    /// What it may use of the local disk.
    pub limits: LocalLimits,
    /// What ranking looks at.
    pub rank: RankFacts,
    /// By which gates this was worked out.
    pub gates: Gates,
}

impl KnownPod {
    /// Works out the facts.
    pub fn new(pod: Pod, gates: Gates) -> Self {
        Self {
            critical: is_critical(&pod),
            best_effort: is_best_effort(&pod, gates),
            limits: LocalLimits::of(&pod),
            rank: RankFacts::of(&pod, gates),
            gates,
            pod,
        }
    }
}
