//! The pods of the node, with everything that can be known about one before an evaluation.

mod protection;
mod requests;
mod storage_limits;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

#[cfg(test)]
pub(crate) use protection::PodAnnotations;
pub(crate) use protection::opts_out;
pub use protection::{
    AnnotationError, DESCHEDULER_EVICT, DESCHEDULER_PREFER_NO_EVICTION, EVICT, EvictionOrder,
    IgnoredAnnotation, PRIORITY_HINT, PodEventTime, PodProtection, RateLimitKey, from_api, is_critical,
    is_used_annotation, mirrored_uid,
};
pub use requests::{has_pod_level_resources, is_best_effort, memory_limit, pod_limit, pod_request};
pub use storage_limits::{ContainerLimit, EmptyDirLimit, LocalLimits};

use crate::pod::{Pod, PodName};
use crate::policy::{Gates, Policy};
use crate::signal::Resource;
use crate::units::{Nanos, Quantity};
use crate::work::step;

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
    /// What ranking needs.
    pub rank: RankFacts,
    /// Whether and when it may be evicted at all.
    pub protection: PodProtection,
    /// By which gates this was worked out.
    pub gates: Gates,
}

impl KnownPod {
    /// Works out the facts. They hold for this policy; another one needs them anew.
    pub fn new(pod: Pod, policy: &Policy) -> Self {
        let (gates, rules) = (policy.gates, &policy.rules);
        let protection = PodProtection::of(&pod, rules);
        Self {
            critical: is_critical(&pod),
            best_effort: is_best_effort(&pod, gates),
            limits: LocalLimits::of(&pod),
            rank: RankFacts::of(&pod, policy, &protection),
            protection,
            gates,
            name: Arc::new(PodName::of(&pod)),
            pod,
        }
    }

    /// Whether the facts are those that this policy makes of the pod.
    pub fn holds_under(&self, policy: &Policy) -> bool {
        let rules = &policy.rules;
        self.gates == policy.gates
            && self.rank.enhanced != rules.are_kubelets()
            && self.protection == PodProtection::of(&self.pod, rules)
    }

    /// What it requests of a resource, zero if nothing.
    pub fn request(&self, resource: Resource) -> Quantity {
        pod_request(&self.pod, resource.name(), self.gates, self.rank.enhanced)
    }
}

/// What ranking asks of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFacts {
    /// When its turn is, whatever it uses.
    pub order: EvictionOrder,
    /// `spec.priority`, 0 if absent.
    pub priority: i32,
    /// Nothing would bring it back, so that its like go before.
    pub without_controller: bool,
    /// What its annotation asks for among its like, from -100 to 100: lower goes first.
    pub hint: i8,
    /// Ranked by the enhanced profile: a value that is absent is not known, instead of 0; inodes
    /// are held against requested inodes, instead of requested bytes; a pod goes for a disk only
    /// if that frees something.
    pub enhanced: bool,
    /// Requested bytes of memory.
    pub memory: Nanos,
    /// Requested bytes of local storage.
    pub storage: Nanos,
    /// Requested inodes: a pod may name such a resource, though nobody grants it.
    pub inodes: Nanos,
}

impl RankFacts {
    fn of(pod: &Pod, policy: &Policy, protection: &PodProtection) -> Self {
        let enhanced = !policy.rules.are_kubelets();
        let request = |resource: Resource| {
            Nanos::from_quantity(&pod_request(pod, resource.name(), policy.gates, enhanced))
        };
        Self {
            order: protection.order,
            priority: pod.priority.unwrap_or(0),
            without_controller: protection.without_controller,
            hint: protection.hint,
            enhanced,
            memory: request(Resource::Memory),
            storage: request(Resource::EphemeralStorage),
            inodes: request(Resource::Inodes),
        }
    }
}

#[expect(clippy::disallowed_types, reason = "only ever looked up, and its hasher has no seed")]
type PlacesByUid = std::collections::HashMap<Box<str>, u32, BuildHasherDefault<DefaultHasher>>;

/// The active pods in an order of their own, each at its *index*. Made when pods come or go.
#[derive(Clone, Debug, Default)]
pub struct PodSet {
    pods: Vec<Arc<KnownPod>>,
    uid_order: Vec<u32>,
    limited: Vec<u32>,
    by_uid: PlacesByUid,
    repeated: Vec<(u32, u32)>,
}

impl PodSet {
    /// Takes the pods in the given order. A uid may occur twice; both share its statistics.
    pub fn new(pods: Vec<Arc<KnownPod>>) -> Self {
        let mut set = Self { pods, ..Self::default() };
        for (index, known) in (0..).zip(&set.pods) {
            if !known.limits.is_empty() {
                set.limited.push(index);
            }
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// All of them, by index.
    pub fn pods(&self) -> &[Arc<KnownPod>] {
        &self.pods
    }

    /// The pod at an index.
    pub fn get(&self, index: u32) -> Option<&KnownPod> {
        step();
        self.pods.get(index as usize).map(|known| &**known)
    }

    /// The first index of a uid.
    pub fn index_of(&self, uid: &str) -> Option<u32> {
        step();
        self.by_uid.get(uid).copied()
    }

    /// By index, where the pod stands when all are sorted by uid, then index.
    pub fn uid_order(&self) -> &[u32] {
        &self.uid_order
    }

    /// The indices of the pods with limits of their local storage, in order.
    pub(crate) fn limited(&self) -> &[u32] {
        &self.limited
    }

    /// Indices whose uid occurs earlier, with its first index.
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
