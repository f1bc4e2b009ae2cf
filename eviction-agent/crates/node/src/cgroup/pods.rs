//! Finds pods and containers in a tree of cgroups.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::names::{ContainerKind, GroupName, PodUid, parse_container_name, parse_group_name};
use super::tree::Tree;

/// A container's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its id as in the pod's status, without the runtime's prefix.
    pub id: Box<str>,
    /// Its kind, as far as the name shows it.
    pub kind: ContainerKind,
    /// Its cgroup id.
    pub cgroup_id: u64,
    /// Its path from the root of the tree.
    pub path: PathBuf,
}

/// A pod's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The uid in the cgroup's name: for a static pod the hash in `kubernetes.io/config.hash`.
    pub uid: PodUid,
    /// Its cgroup id.
    pub cgroup_id: u64,
    /// Its path from the root of the tree, which is the same in every hierarchy.
    pub path: PathBuf,
    /// The cgroups directly below it, and containers of it that a runtime misplaced.
    pub containers: Vec<Container>,
    /// The cgroups of this pod that have no cgroups below them.
    pub leaves: Vec<u64>,
}

/// All pods of a tree.
#[derive(Clone, Debug, Default)]
pub struct Pods {
    /// The pods in order of the tree. While the kubelet's cgroup driver is being changed a uid may occur twice.
    pub pods: Vec<Pod>,
    /// The cgroup id of the cgroup of all pods, `kubepods`, if there is one. There may be several: another
    /// kubelet may run in a container, and an earlier driver leaves its own. Then the order of preference is:
    /// one with known pods, the one nearest to the root, one with pods.
    pub pods_root: Option<u64>,
    /// Whether a known pod is in that cgroup. Without one it may be another kubelet's: it is shown, but its
    /// limit is not used for decisions.
    pub pods_root_has_known_pods: bool,
    /// The cgroup ids of the QoS classes.
    pub qos: Vec<u64>,
    /// The cgroups of pods by id: the index of the pod, and that of the container in it; `None` for the pod's own
    /// cgroup.
    owners: BTreeMap<u64, (usize, Option<usize>)>,
}

/// The kind of a cgroup's parent.
#[derive(Clone, Copy)]
enum ParentKind {
    /// The root of the tree; it may have any name.
    Root,
    PodsRoot,
    /// A QoS class.
    Qos {
        in_pods_root: bool,
    },
    Other,
}

/// A cgroup with the name of the kubelet's cgroup of all pods.
struct PodsRoot {
    index: usize,
    has_pods: bool,
    has_known_pods: bool,
}

impl Pods {
    /// Finds the pods of a tree by the kubelet's names.
    ///
    /// Pods are found below a cgroup named like the kubelet's `kubepods`, at any depth outside of pods. They
    /// are also found directly below the root of the tree, which may be such a cgroup under another name. There
    /// a name must be a UUID, a static pod's hash, or `is_known`, since any program may have created it.
    pub fn find(tree: &Tree, is_known: impl Fn(&PodUid) -> bool) -> Self {
        let mut found = Self::default();
        let mut misplaced = Vec::new();
        let groups = tree.groups();
        let mut kinds = vec![ParentKind::Other; groups.len()];
        let mut roots = Vec::new();
        let mut index = 0;
        while let Some(group) = groups.get(index) {
            let name = match group.parent {
                None => tree.root().file_name().unwrap_or_default(),
                Some(_) => &group.name,
            };
            let parent = group.parent.map(|parent| kinds[parent]);
            let name = name.to_str().map_or(GroupName::Other, parse_group_name);
            let (kind, pod) = match (name, parent) {
                (GroupName::PodsRoot, _) => {
                    roots.push(PodsRoot { index, has_pods: false, has_known_pods: false });
                    (ParentKind::PodsRoot, None)
                }
                (_, None) => (ParentKind::Root, None),
                (GroupName::Qos, Some(ParentKind::PodsRoot)) => {
                    found.qos.push(group.id);
                    (ParentKind::Qos { in_pods_root: true }, None)
                }
                (GroupName::Qos, Some(ParentKind::Root)) => (ParentKind::Qos { in_pods_root: false }, None),
                (GroupName::Pod { uid, certain }, Some(kind)) => {
                    let is_pod = match kind {
                        ParentKind::PodsRoot | ParentKind::Qos { in_pods_root: true } => true,
                        ParentKind::Root | ParentKind::Qos { in_pods_root: false } => {
                            certain || is_known(&uid)
                        }
                        ParentKind::Other => false,
                    };
                    (ParentKind::Other, is_pod.then_some(uid))
                }
                (GroupName::Misplaced { uid, container }, Some(_)) => {
                    misplaced.push((uid, container.into(), index));
                    (ParentKind::Other, None)
                }
                (GroupName::Qos | GroupName::Other, Some(_)) => (ParentKind::Other, None),
            };
            kinds[index] = kind;
            index = match pod {
                Some(uid) => {
                    let above = roots.iter_mut().rev().find(|root| index < groups[root.index].end);
                    if let Some(root) = above {
                        root.has_pods = true;
                        root.has_known_pods |= is_known(&uid);
                    }
                    found.add(tree, index, uid);
                    group.end
                }
                None => index + 1,
            };
        }
        let first =
            roots.iter().min_by_key(|root| (!root.has_known_pods, groups[root.index].depth, !root.has_pods));
        found.pods_root = first.map(|root| groups[root.index].id);
        found.pods_root_has_known_pods = first.is_some_and(|root| root.has_known_pods);
        for (uid, id, index) in misplaced {
            if let Some(pod) = found.pods.iter().position(|pod| pod.uid == uid) {
                found.add_container(tree, index, pod, ContainerKind::Container, id);
            }
        }
        found
    }

    /// Returns the pod and the container of the cgroup with this id, at any depth inside a pod. The container is `None`
    /// for the pod's own cgroup.
    pub fn owner(&self, cgroup_id: u64) -> Option<(&Pod, Option<&Container>)> {
        let (pod, container) = *self.owners.get(&cgroup_id)?;
        let pod = self.pods.get(pod)?;
        Some((pod, container.and_then(|container| pod.containers.get(container))))
    }

    /// Returns the pods with this uid.
    pub fn by_uid(&self, uid: &PodUid) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(move |pod| pod.uid == *uid)
    }

    fn add(&mut self, tree: &Tree, index: usize, uid: PodUid) {
        let pod = self.pods.len();
        self.pods.push(Pod {
            uid,
            cgroup_id: tree.groups()[index].id,
            path: tree.relative_path(index),
            containers: Vec::new(),
            leaves: Vec::new(),
        });
        self.owners.insert(tree.groups()[index].id, (pod, None));
        if tree.is_leaf(index) {
            self.pods[pod].leaves.push(tree.groups()[index].id);
        }
        for child in tree.children(index) {
            let name = tree.groups()[child].name.to_string_lossy();
            let (kind, id) = parse_container_name(&name);
            self.add_container(tree, child, pod, kind, id.into());
        }
    }

    fn add_container(&mut self, tree: &Tree, index: usize, pod: usize, kind: ContainerKind, id: Box<str>) {
        let container = Some(self.pods[pod].containers.len());
        let group = &tree.groups()[index];
        self.pods[pod].containers.push(Container {
            id,
            kind,
            cgroup_id: group.id,
            path: tree.relative_path(index),
        });
        for below in index..group.end {
            let id = tree.groups()[below].id;
            self.owners.insert(id, (pod, container));
            if tree.is_leaf(below) {
                self.pods[pod].leaves.push(id);
            }
        }
    }
}
