//! Finds pods and containers in a tree of cgroups.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use serde::Serialize;

use super::names::{ContainerKind, GroupName, PodUid, QosClass, parse_container_name, parse_group_name};
use super::tree::Tree;

/// A container's cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// The uid in the cgroup's name: for a static pod the hash in `kubernetes.io/config.hash`.
    pub uid: PodUid,
    /// The QoS class that follows from the position in the tree.
    pub qos: Option<QosClass>,
    /// Its cgroup id.
    pub cgroup_id: u64,
    /// Its path from the root of the tree, which is the same in every hierarchy.
    pub path: PathBuf,
    /// The cgroups directly below it, and containers of it that a runtime misplaced.
    pub containers: Vec<Container>,
    /// The cgroups of this pod that have no cgroups below them.
    pub leaves: Vec<u64>,
}

/// The pod or container that a cgroup belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupOwner {
    /// Index of the pod.
    pub pod: usize,
    /// Index of the container in the pod; `None` for the pod's own cgroup.
    pub container: Option<usize>,
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
    pub qos: Vec<(QosClass, u64)>,
    owners: Vec<(u64, CgroupOwner)>,
}

/// The kind of a cgroup's parent.
#[derive(Clone, Copy)]
enum ParentKind {
    /// The root of the tree; it may have any name.
    Root,
    PodsRoot,
    /// A QoS class, and whether it is below a `kubepods`.
    Qos(QosClass, bool),
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
                (GroupName::Qos(class), Some(ParentKind::PodsRoot)) => {
                    found.qos.push((class, group.id));
                    (ParentKind::Qos(class, true), None)
                }
                (GroupName::Qos(class), Some(ParentKind::Root)) => (ParentKind::Qos(class, false), None),
                (GroupName::Pod { uid, certain }, Some(kind)) => {
                    let credible = |uid: &PodUid| certain || is_known(uid);
                    let pod = match kind {
                        ParentKind::PodsRoot => Some((uid, Some(QosClass::Guaranteed))),
                        ParentKind::Qos(class, true) => Some((uid, Some(class))),
                        ParentKind::Qos(class, false) if credible(&uid) => Some((uid, Some(class))),
                        ParentKind::Root if credible(&uid) => Some((uid, None)),
                        ParentKind::Root | ParentKind::Qos(..) | ParentKind::Other => None,
                    };
                    (ParentKind::Other, pod)
                }
                (GroupName::Misplaced { uid, container }, Some(_)) => {
                    misplaced.push((uid, container.into(), index));
                    (ParentKind::Other, None)
                }
                (GroupName::Qos(_) | GroupName::Other, Some(_)) => (ParentKind::Other, None),
            };
            kinds[index] = kind;
            index = match pod {
                Some((uid, qos)) => {
                    let above = roots.iter_mut().rev().find(|root| index < groups[root.index].end);
                    if let Some(root) = above {
                        root.has_pods = true;
                        root.has_known_pods |= is_known(&uid);
                    }
                    found.add(tree, index, uid, qos);
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
        found.owners.sort_unstable_by_key(|(id, _)| *id);
        found
    }

    /// Returns the owner of the cgroup with this id, at any depth inside a pod.
    pub fn owner(&self, cgroup_id: u64) -> Option<CgroupOwner> {
        let at = self.owners.binary_search_by_key(&cgroup_id, |(id, _)| *id).ok()?;
        Some(self.owners[at].1)
    }

    /// Returns the pods with this uid.
    pub fn by_uid(&self, uid: &PodUid) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(move |pod| pod.uid == *uid)
    }

    fn add(&mut self, tree: &Tree, index: usize, uid: PodUid, qos: Option<QosClass>) {
        let pod = self.pods.len();
        self.pods.push(Pod {
            uid,
            qos,
            cgroup_id: tree.groups()[index].id,
            path: tree.relative_path(index),
            containers: Vec::new(),
            leaves: Vec::new(),
        });
        self.owners.push((tree.groups()[index].id, CgroupOwner { pod, container: None }));
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
            self.owners.push((id, CgroupOwner { pod, container }));
            if tree.is_leaf(below) {
                self.pods[pod].leaves.push(id);
            }
        }
    }
}
