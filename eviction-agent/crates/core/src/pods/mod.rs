//! The pods of the node, with everything that can be known about one before a pass.

mod annotations;
mod criticality;
mod eviction_annotations;
mod limits;
mod pod_event_time;
mod protection;
mod qos;
mod rate_limit_key;
mod requests;
mod set;
mod storage_limits;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use annotations::{is_asked_for, mirrored_uid, of_the_api};
pub use criticality::is_critical;
#[cfg(test)]
pub(crate) use eviction_annotations::PodAnnotations;
pub(crate) use eviction_annotations::opts_out;
pub use eviction_annotations::{AnnotationError, EVICT, IgnoredAnnotation, PRIORITY_HINT};
pub use eviction_annotations::{DESCHEDULER_EVICT, DESCHEDULER_PREFER_NO_EVICTION};
pub use limits::{ContainerLimit, EmptyDirLimit, LocalLimits};
pub use pod_event_time::PodEventTime;
pub use protection::{EvictionOrder, PodProtection};
pub use qos::is_best_effort;
pub use rate_limit_key::RateLimitKey;
pub use requests::{has_pod_level_resources, memory_limit, pod_limit, pod_request};
pub use set::{PodSet, RankFacts};
pub(crate) use storage_limits::LeastLimits;
pub use storage_limits::{LimitedPod, NamedLimit};

use super::pod::{Pod, PodName};
use super::policy::{DiskRanking, Gates, PodLevelRequests, Policy, WithoutStats};
use super::signal::Resource;
use super::units::Quantity;

/// A pod and what follows from its specification alone.
#[derive(Clone, Debug)]
pub struct KnownPod {
    /// The pod.
    pub pod: Pod,
    /// Its names, for those that outlive this.
    pub name: Arc<PodName>,
    /// Must never be evicted.
    pub critical: bool,
    /// Has neither requests nor limits that count.
    pub best_effort: bool,
    /// What it may use of the local disk.
    pub limits: LocalLimits,
    /// What ranking looks at.
    pub rank: RankFacts,
    /// Whether and when it may be evicted at all.
    pub shelter: PodProtection,
    /// By which gates this was worked out.
    pub gates: Gates,
    /// What its own requests did to those of its containers.
    pub pod_level_requests: PodLevelRequests,
    /// What its inodes are held against.
    pub disk_ranking: DiskRanking,
}

impl KnownPod {
    /// Works out the facts. They hold for this policy; another one needs them anew.
    pub fn new(pod: Pod, policy: &Policy) -> Self {
        let (gates, rules) = (policy.gates, &policy.rules);
        let shelter = PodProtection::of(&pod, rules);
        Self {
            critical: is_critical(&pod),
            best_effort: is_best_effort(&pod, gates),
            limits: LocalLimits::of(&pod),
            rank: RankFacts::of(&pod, policy, &shelter),
            shelter,
            gates,
            pod_level_requests: rules.pod_level_requests,
            disk_ranking: rules.disk_ranking,
            name: Arc::new(PodName::of(&pod)),
            pod,
        }
    }

    /// Whether the facts are those that this policy makes of the pod.
    pub fn holds_under(&self, policy: &Policy) -> bool {
        let rules = &policy.rules;
        self.gates == policy.gates
            && self.pod_level_requests == rules.pod_level_requests
            && self.disk_ranking == rules.disk_ranking
            && self.rank.absent_is_unknown == (rules.without_stats == WithoutStats::BehindExceeding)
            && self.shelter == PodProtection::of(&self.pod, rules)
    }

    /// What it requests of a resource, zero if nothing.
    pub fn request(&self, resource: Resource) -> Quantity {
        pod_request(&self.pod, resource.name(), self.gates, self.pod_level_requests)
    }
}
