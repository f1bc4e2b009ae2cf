//! Which pod a cgroup belongs to: the pods as the API has them, joined with those of the tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cgroup::names::PodUid;
use crate::cgroup::pods::{Pod as CgroupPod, Pods as CgroupPods};
use eviction_core::pods::{KnownPod, PodSet, mirrored_uid};
use eviction_core::policy::Policy;

/// The pods, by which uid the cgroup tree knows each, and those that run here.
///
/// Only a pod with a cgroup is active: one without has nothing to give back, and the kubelet's
/// ranking would take it first for want of statistics.
#[derive(Clone, Debug, Default)]
pub struct PodIndex {
    known: Vec<Arc<KnownPod>>,
    by_cgroup_uid: BTreeMap<PodUid, usize>,
    container_names: BTreeMap<Box<str>, Box<str>>,
    active: Arc<PodSet>,
    places: Vec<Option<u32>>,
    /// The places of active pods, in order, with the ids of their cgroups.
    groups: Vec<(u32, u64)>,
    /// Pods that are not understood, and why.
    unreadable: Vec<String>,
    /// It is told of only if it is another than before.
    quiet: bool,
}

impl PodIndex {
    /// Indexes these pods; none has a cgroup before [`Self::join`].
    pub fn new(mut known: Vec<Arc<KnownPod>>) -> Self {
        // Collected in the memory of a list of whole pods, which it keeps.
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
        // Whose uid it is goes before who says that it is his.
        for (index, known) in known.iter().enumerate() {
            if let Some(uid) = mirrored_uid(&known.pod) {
                by_cgroup_uid.entry(PodUid::new(uid)).or_insert(index);
            }
        }
        Self {
            places: vec![None; known.len()],
            known,
            by_cgroup_uid,
            container_names,
            active: Arc::default(),
            groups: Vec::new(),
            unreadable: Vec::new(),
            quiet: false,
        }
    }

    /// The same, with pods that are not understood: they are shown, and no cgroup is theirs.
    pub fn with_unreadable(self, unreadable: Vec<String>) -> Self {
        Self { unreadable, ..self }
    }

    /// The same, to be told of only if it is another than the one before.
    pub fn quietly(self) -> Self {
        Self { quiet: true, ..self }
    }

    /// Whether it is told of only if it is another than before.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The same pods, with what follows from them under this policy.
    pub fn under(self, policy: &Policy) -> Self {
        if self.known.iter().all(|known| known.holds_under(policy)) {
            return self;
        }
        let anew = |known: &Arc<KnownPod>| Arc::new(KnownPod::new(known.pod.clone(), policy));
        let Self { known, unreadable, quiet, .. } = self;
        Self { unreadable, quiet, ..Self::new(known.iter().map(anew).collect()) }
    }

    /// Whether a pod has this uid in the cgroup tree.
    pub fn knows(&self, uid: &PodUid) -> bool {
        self.by_cgroup_uid.contains_key(uid)
    }

    /// Finds out which pods run here. True if they are others than before.
    pub fn join(&mut self, tree: &CgroupPods) -> bool {
        let mut found = vec![false; self.known.len()];
        for cgroup in &tree.pods {
            if let Some(index) = self.by_cgroup_uid.get(&cgroup.uid) {
                found[*index] = true;
            }
        }
        let are_others = !self.places.iter().map(Option::is_some).eq(found.iter().copied());
        if are_others {
            self.activate(&found);
        }
        self.note_groups(tree);
        are_others
    }

    fn activate(&mut self, found: &[bool]) {
        let mut next = 0;
        self.places = found
            .iter()
            .map(|found| {
                found.then(|| {
                    next += 1;
                    next - 1
                })
            })
            .collect();
        let active = self.known.iter().zip(found).filter(|(_, found)| **found);
        self.active = Arc::new(PodSet::new(active.map(|(known, _)| Arc::clone(known)).collect()));
    }

    fn note_groups(&mut self, tree: &CgroupPods) {
        let group = |cgroup: &CgroupPod| Some((self.place_of(cgroup)?, cgroup.cgroup_id));
        let mut groups: Vec<_> = tree.pods.iter().filter_map(group).collect();
        // Those of one pod stay in the order of the tree.
        groups.sort_by_key(|(place, _)| *place);
        self.groups = groups;
    }

    fn place_of(&self, cgroup: &CgroupPod) -> Option<u32> {
        *self.places.get(*self.by_cgroup_uid.get(&cgroup.uid)?)?
    }

    /// The ids of the cgroups of the active pod at a place, in the tree that it was joined with last.
    pub fn cgroup_ids_of(&self, place: u32) -> impl Iterator<Item = u64> {
        let from = self.groups.partition_point(|(at, _)| *at < place);
        self.groups[from..].iter().take_while(move |(at, _)| *at == place).map(|(_, id)| *id)
    }

    /// The pods that run here, as the engine is told of them.
    pub fn active(&self) -> &Arc<PodSet> {
        &self.active
    }

    /// The pod whose cgroup this is.
    pub fn pod_of(&self, cgroup: &CgroupPod) -> Option<&Arc<KnownPod>> {
        self.known.get(*self.by_cgroup_uid.get(&cgroup.uid)?)
    }

    /// The cgroups of the active pod at a place: more than one while the kubelet's cgroup driver
    /// is being changed.
    pub fn cgroups_of<'a>(&'a self, place: u32, tree: &'a CgroupPods) -> impl Iterator<Item = &'a CgroupPod> {
        tree.pods.iter().filter(move |cgroup| self.place_of(cgroup) == Some(place))
    }

    /// The name of a container, or its id as far as people read it.
    pub fn container_name<'a>(&'a self, id: &'a str) -> &'a str {
        self.named(id).unwrap_or_else(|| short(id))
    }

    /// The name of a container, if a status tells it.
    pub fn named(&self, id: &str) -> Option<&str> {
        self.container_names.get(id).map(|name| &**name)
    }

    /// The pods as the API has them.
    pub fn known(&self) -> &[Arc<KnownPod>] {
        &self.known
    }

    /// The pods without a cgroup.
    pub fn without_cgroup(&self) -> impl Iterator<Item = &KnownPod> {
        let missing = self.known.iter().zip(&self.places).filter(|(_, place)| place.is_none());
        missing.map(|(known, _)| &**known)
    }

    /// Pods that are not understood, and why.
    pub fn unreadable(&self) -> &[String] {
        &self.unreadable
    }
}

/// The start of a container's id, as far as people read it.
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
    fn a_cgroup_is_that_of_the_pod_with_its_uid_whatever_others_say() {
        let claims: &[(&str, &str)] = &[(HASH, "theirs")];
        assert_eq!(owner(&[("mine", claims), ("theirs", &[])], "theirs"), Some(1));
        assert_eq!(owner(&[("mine", claims), ("theirs", &[])], "mine"), Some(0), "and it keeps its own");
        assert_eq!(owner(&[("mine", claims)], "theirs"), None);
        let forged: &[(&str, &str)] = &[(HASH, "theirs"), (MIRROR, "theirs")];
        assert_eq!(owner(&[("mine", forged), ("theirs", &[])], "theirs"), Some(1));
    }

    #[test]
    fn the_cgroup_of_a_static_pod_is_that_of_its_image() {
        let image: &[(&str, &str)] = &[(HASH, "hash"), (MIRROR, "hash")];
        assert_eq!(owner(&[("other", &[]), ("image", image)], "hash"), Some(1));
        let torn: &[(&str, &str)] = &[(HASH, "hash"), (MIRROR, "another")];
        assert_eq!(owner(&[("image", torn)], "hash"), None);
    }
}
