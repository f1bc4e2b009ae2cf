//! Maps cgroups to pods: joins the pods of the API with those of the cgroup tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cgroup::names::PodUid;
use crate::cgroup::pods::{Pod as CgroupPod, Pods as CgroupPods};
use eviction_core::pods::{KnownPod, PodSet, mirrored_uid};
use eviction_core::policy::Policy;

/// The pods, their uids in the cgroup tree, and the pods that run here.
///
/// Only a pod with a cgroup is active. A pod without one has nothing to reclaim, and the kubelet's ranking
/// would take it first for lack of statistics.
#[derive(Clone, Debug, Default)]
pub struct PodIndex {
    known: Vec<Arc<KnownPod>>,
    by_cgroup_uid: BTreeMap<PodUid, usize>,
    container_names: BTreeMap<Box<str>, Box<str>>,
    active: Arc<PodSet>,
    active_indices: Vec<Option<u32>>,
    /// The index positions of active pods, in order, with the ids of their cgroups.
    groups: Vec<(u32, u64)>,
    /// Pods that cannot be decoded, and why.
    unreadable: Vec<String>,
    /// Whether the index is reported only if it differs from the one before.
    quiet: bool,
}

impl PodIndex {
    /// Indexes these pods. None is active before [`Self::join`].
    pub fn new(mut known: Vec<Arc<KnownPod>>) -> Self {
        // The list was collected in the allocation of a list of whole pods, which is larger.
        known.shrink_to_fit();
        let mut by_cgroup_uid = BTreeMap::new();
        let mut container_names = BTreeMap::new();
        for (index, known) in known.iter().enumerate() {
            let pod = &known.pod;
            by_cgroup_uid.entry(PodUid::new(&pod.uid)).or_insert(index);
            for (id, name) in &pod.container_ids {
                container_names.insert(id.clone(), name.clone());
            }
        }
        // A pod's own uid takes precedence over the uid that a mirror pod names.
        for (index, known) in known.iter().enumerate() {
            if let Some(uid) = mirrored_uid(&known.pod) {
                by_cgroup_uid.entry(PodUid::new(uid)).or_insert(index);
            }
        }
        Self {
            active_indices: vec![None; known.len()],
            known,
            by_cgroup_uid,
            container_names,
            active: Arc::default(),
            groups: Vec::new(),
            unreadable: Vec::new(),
            quiet: false,
        }
    }

    /// Adds pods that cannot be decoded. They are shown, and no cgroup is attributed to them.
    pub fn with_unreadable(self, unreadable: Vec<String>) -> Self {
        Self { unreadable, ..self }
    }

    /// Marks the index to be reported only if it differs from the one before.
    pub fn reported_on_change(self) -> Self {
        Self { quiet: true, ..self }
    }

    /// Returns whether the index is reported only if it differs from the one before.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Returns the same pods with the values that follow from this policy.
    pub fn with_policy(self, policy: &Policy) -> Self {
        if self.known.iter().all(|known| known.holds_under(policy)) {
            return self;
        }
        let recomputed = |known: &Arc<KnownPod>| Arc::new(KnownPod::new(known.pod.clone(), policy));
        let Self { known, unreadable, quiet, .. } = self;
        Self { unreadable, quiet, ..Self::new(known.iter().map(recomputed).collect()) }
    }

    /// Returns whether a pod has this uid in the cgroup tree.
    pub fn contains(&self, uid: &PodUid) -> bool {
        self.by_cgroup_uid.contains_key(uid)
    }

    /// Determines which pods run here. Returns true if they differ from before.
    pub fn join(&mut self, tree: &CgroupPods) -> bool {
        let mut active_indices: Vec<Option<u32>> = vec![None; self.known.len()];
        for cgroup in &tree.pods {
            if let Some(index) = self.by_cgroup_uid.get(&cgroup.uid) {
                active_indices[*index] = Some(0);
            }
        }
        for (index, active) in (0..).zip(active_indices.iter_mut().flatten()) {
            *active = index;
        }
        let has_changed = active_indices != self.active_indices;
        if has_changed {
            let active = self.known.iter().zip(&active_indices).filter(|(_, index)| index.is_some());
            self.active = Arc::new(PodSet::new(active.map(|(known, _)| Arc::clone(known)).collect()));
            self.active_indices = active_indices;
        }
        let group = |cgroup: &CgroupPod| Some((self.active_index_of(cgroup)?, cgroup.cgroup_id));
        let mut groups: Vec<_> = tree.pods.iter().filter_map(group).collect();
        // The cgroups of one pod stay in the order of the tree.
        groups.sort_by_key(|(index, _)| *index);
        self.groups = groups;
        has_changed
    }

    fn active_index_of(&self, cgroup: &CgroupPod) -> Option<u32> {
        *self.active_indices.get(*self.by_cgroup_uid.get(&cgroup.uid)?)?
    }

    /// Returns the ids of the cgroups of the active pod at an index position, in the tree of the last
    /// [`Self::join`].
    pub fn cgroup_ids_of(&self, index: u32) -> impl Iterator<Item = u64> {
        let from = self.groups.partition_point(|(at, _)| *at < index);
        self.groups[from..].iter().take_while(move |(at, _)| *at == index).map(|(_, id)| *id)
    }

    /// Returns the pods that run here, as the engine gets them.
    pub fn active(&self) -> &Arc<PodSet> {
        &self.active
    }

    /// Returns the pod of a cgroup.
    pub fn pod_of(&self, cgroup: &CgroupPod) -> Option<&Arc<KnownPod>> {
        self.known.get(*self.by_cgroup_uid.get(&cgroup.uid)?)
    }

    /// Returns the cgroups of the active pod at an index position. There is more than one while the kubelet's
    /// cgroup driver is being changed.
    pub fn cgroups_of<'a>(&'a self, index: u32, tree: &'a CgroupPods) -> impl Iterator<Item = &'a CgroupPod> {
        tree.pods.iter().filter(move |cgroup| self.active_index_of(cgroup) == Some(index))
    }

    /// Returns the name of a container, or the short form of its id.
    pub fn container_name<'a>(&'a self, id: &'a str) -> &'a str {
        self.named(id).unwrap_or_else(|| short(id))
    }

    /// Returns the name of a container, if a pod status contains it.
    pub fn named(&self, id: &str) -> Option<&str> {
        self.container_names.get(id).map(|name| &**name)
    }

    /// Returns the pods of the API.
    pub fn known(&self) -> &[Arc<KnownPod>] {
        &self.known
    }

    /// Returns the pods without a cgroup.
    pub fn without_cgroup(&self) -> impl Iterator<Item = &KnownPod> {
        let missing = self.known.iter().zip(&self.active_indices).filter(|(_, index)| index.is_none());
        missing.map(|(known, _)| &**known)
    }

    /// Returns the pods that cannot be decoded, and why.
    pub fn unreadable(&self) -> &[String] {
        &self.unreadable
    }
}

/// Returns the short form of a container id: its first 12 characters.
pub fn short(id: &str) -> &str {
    const SHORT: usize = 12;
    id.get(..SHORT).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::fixture::{pod, policy};
    use eviction_core::pod::Pod;

    const HASH: &str = "kubernetes.io/config.hash";
    const MIRROR: &str = "kubernetes.io/config.mirror";

    fn owner(pods: &[(&str, &[(&str, &str)])], cgroup: &str) -> Option<usize> {
        let policy = policy(Vec::new());
        let known = pods.iter().map(|(uid, annotations)| {
            let annotations = annotations.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            let pod = Pod { annotations: annotations.collect(), ..pod(uid, "10") };
            Arc::new(KnownPod::new(pod, &policy))
        });
        PodIndex::new(known.collect()).by_cgroup_uid.get(&PodUid::new(cgroup)).copied()
    }

    #[test]
    fn uid_of_a_pod_takes_precedence_over_annotations_of_others() {
        let claims: &[(&str, &str)] = &[(HASH, "theirs")];
        assert_eq!(owner(&[("mine", claims), ("theirs", &[])], "theirs"), Some(1));
        assert_eq!(owner(&[("mine", claims), ("theirs", &[])], "mine"), Some(0), "and it keeps its own");
        assert_eq!(owner(&[("mine", claims)], "theirs"), None);
        let forged: &[(&str, &str)] = &[(HASH, "theirs"), (MIRROR, "theirs")];
        assert_eq!(owner(&[("mine", forged), ("theirs", &[])], "theirs"), Some(1));
    }

    #[test]
    fn cgroup_of_a_static_pod_belongs_to_its_mirror_pod() {
        let image: &[(&str, &str)] = &[(HASH, "hash"), (MIRROR, "hash")];
        assert_eq!(owner(&[("other", &[]), ("image", image)], "hash"), Some(1));
        let mismatched: &[(&str, &str)] = &[(HASH, "hash"), (MIRROR, "another")];
        assert_eq!(owner(&[("image", mismatched)], "hash"), None);
    }
}
