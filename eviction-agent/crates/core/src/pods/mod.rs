//! The pods of the node, with everything that is known about each before an evaluation.

mod protection;
mod resources;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

pub(crate) use protection::opts_out;
pub use protection::{
    DESCHEDULER_EVICT, DESCHEDULER_PREFER_NO_EVICTION, EVICT, IgnoredAnnotation, PRIORITY_HINT,
    PodProtection, RateLimitKey, from_api, is_critical, is_used_annotation, mirrored_uid,
};
pub use resources::{
    LocalLimits, NamedLimit, has_pod_level_resources, is_best_effort, memory_limit, pod_limit, pod_request,
};

use crate::pod::{Pod, PodName};
use crate::policy::{Gates, Policy};
use crate::signal::Resource;
use crate::units::{Nanos, Quantity};
use crate::work::step;

/// A pod and the values that are derived from it and the policy.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownPod {
    /// The pod.
    pub pod: Pod,
    /// The names of the pod, shared with values that outlive this one.
    pub name: Arc<PodName>,
    /// Whether the pod must never be evicted.
    pub critical: bool,
    /// Whether the pod has neither requests nor limits that count.
    pub best_effort: bool,
    /// The limits of the pod's local storage.
    pub limits: LocalLimits,
    /// The values that ranking needs.
    pub rank: RankFacts,
    /// Whether and when the pod may be evicted at all.
    pub protection: PodProtection,
    /// The feature gates that the values are based on.
    pub gates: Gates,
}

impl KnownPod {
    /// Derives the values of a pod under this policy. Under another policy they must be derived again.
    pub fn new(pod: Pod, policy: &Policy) -> Self {
        let (gates, rules) = (policy.gates, &policy.rules);
        Self {
            critical: is_critical(&pod),
            best_effort: is_best_effort(&pod, gates),
            limits: LocalLimits::of(&pod),
            rank: RankFacts::of(&pod, policy),
            protection: PodProtection::of(&pod, rules),
            gates,
            name: Arc::new(PodName::of(&pod)),
            pod,
        }
    }

    /// Returns whether the values are those that this policy derives from the pod.
    pub fn holds_under(&self, policy: &Policy) -> bool {
        let rules = &policy.rules;
        self.gates == policy.gates
            && self.rank.enhanced != rules.are_kubelets()
            && self.protection == PodProtection::of(&self.pod, rules)
    }

    /// Returns the pod's request of a resource, zero if there is none.
    pub fn request(&self, resource: Resource) -> Quantity {
        pod_request(&self.pod, resource.name(), self.gates, self.rank.enhanced)
    }
}

/// The values of a pod that ranking needs, in addition to its [`PodProtection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFacts {
    /// `spec.priority`, 0 if absent.
    pub priority: i32,
    /// Whether the enhanced profile ranks the pod: an absent value is unknown instead of 0; inodes are
    /// compared with requested inodes instead of requested bytes; a pod is evicted for a disk only if that
    /// frees something.
    pub enhanced: bool,
    /// The requested memory, in bytes.
    pub memory: Nanos,
    /// The requested local storage, in bytes.
    pub storage: Nanos,
    /// The requested inodes. A pod may request such a resource, although no node provides it.
    pub inodes: Nanos,
}

impl RankFacts {
    fn of(pod: &Pod, policy: &Policy) -> Self {
        let enhanced = !policy.rules.are_kubelets();
        let request = |resource: Resource| pod_request(pod, resource.name(), policy.gates, enhanced).nanos();
        Self {
            priority: pod.priority.unwrap_or(0),
            enhanced,
            memory: request(Resource::Memory),
            storage: request(Resource::EphemeralStorage),
            inodes: request(Resource::Inodes),
        }
    }
}

#[expect(clippy::disallowed_types, reason = "only ever looked up, and its hasher has no seed")]
type IndexByUid = std::collections::HashMap<Box<str>, u32, BuildHasherDefault<DefaultHasher>>;

/// The active pods in a fixed order, each with an *index*. Created again when pods are added or removed.
#[derive(Clone, Debug, Default)]
pub struct PodSet {
    pods: Vec<Arc<KnownPod>>,
    uid_order: Vec<u32>,
    limited: Vec<(u32, i128)>,
    by_uid: IndexByUid,
    repeated: Vec<(u32, u32)>,
}

impl PodSet {
    /// Creates a set with the pods in the given order. A uid may occur twice; both pods share its statistics.
    pub fn new(pods: Vec<Arc<KnownPod>>) -> Self {
        let mut set = Self { pods, ..Self::default() };
        for (index, known) in (0..).zip(&set.pods) {
            set.limited.extend(known.limits.lowest().map(|limit| (index, limit)));
            match set.by_uid.get(&known.pod.uid) {
                Some(&first) => set.repeated.push((index, first)),
                None => {
                    set.by_uid.insert(known.pod.uid.clone(), index);
                }
            }
        }
        set.uid_order = set.order_by_uid();
        set
    }

    /// Returns the number of pods.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Returns all pods, by index.
    pub fn pods(&self) -> &[Arc<KnownPod>] {
        &self.pods
    }

    /// Returns the pod at an index.
    pub fn get(&self, index: u32) -> Option<&KnownPod> {
        step();
        self.pods.get(index as usize).map(|known| &**known)
    }

    /// Returns the first index of a uid.
    pub fn index_of(&self, uid: &str) -> Option<u32> {
        step();
        self.by_uid.get(uid).copied()
    }

    /// Returns the first pod with a uid.
    pub fn find(&self, uid: &str) -> Option<&Arc<KnownPod>> {
        self.pods.get(self.index_of(uid)? as usize)
    }

    /// Returns for each index the position of the pod when all pods are sorted by uid, then index.
    pub fn uid_order(&self) -> &[u32] {
        &self.uid_order
    }

    /// Returns the indices of the pods with limits of their local storage, in order, each with the lowest of its
    /// limits in bytes.
    pub(crate) fn limited(&self) -> &[(u32, i128)] {
        &self.limited
    }

    /// Returns the indices of pods whose uid occurs earlier, each with the first index of that uid.
    pub(crate) fn repeated(&self) -> &[(u32, u32)] {
        &self.repeated
    }

    fn order_by_uid(&self) -> Vec<u32> {
        let uid = |&index: &usize| (&*self.pods[index].pod.uid, index);
        let mut indices: Vec<usize> = (0..self.pods.len()).collect();
        indices.sort_unstable_by(|a, b| uid(a).cmp(&uid(b)));
        let mut order = vec![0; indices.len()];
        for (rank, index) in (0..).zip(indices) {
            order[index] = rank;
        }
        order
    }
}
