use std::path::{Path, PathBuf};

use eviction_node::cgroup::names::{ContainerKind, PodUid};
use eviction_node::cgroup::node_root::find_group;
use eviction_node::cgroup::pods::Pods;
use eviction_node::cgroup::tree::Tree;

use crate::recorded::{Node, V1, V2};

const GUARANTEED: &str = "3c1f6a52-9e0b-4d7c-8a61-5b2e7f90c314";
const BURSTABLE: &str = "a7d0c9e4-12f8-4b36-9c5d-e81f02a64b97";
const BEST_EFFORT: &str = "6e94b1d8-70c3-4f2a-b5e6-0d9a8c7f1e23";
const STATIC: &str = "9d3f0a1b2c3d4e5f60718293a4b5c6d7";
const DOCKER: &str = "0b5c2e77-4a19-4c83-9f6e-1d2a3b4c5d6e";

fn find(node: &Node, cgroup_root: &str) -> (Tree, Pods) {
    let tree = Tree::scan(&node.root(cgroup_root).memory).unwrap();
    let pods = Pods::find(&tree, |_| false);
    (tree, pods)
}

fn uids(pods: &Pods) -> Vec<&str> {
    let mut uids: Vec<_> = pods.pods.iter().map(|pod| pod.uid.as_str()).collect();
    uids.sort_unstable();
    uids
}

#[test]
fn pods_of_the_cgroupfs_driver_are_found() {
    let node = Node::unpack(V1);
    let (tree, pods) = find(&node, "/");
    let expected = [GUARANTEED, BEST_EFFORT, STATIC, BURSTABLE];
    assert_eq!(uids(&pods), expected);
    assert_eq!(pods.qos.len(), 2);
    let kubepods = tree.groups().iter().find(|group| &*group.name == "kubepods").unwrap();
    assert_eq!(pods.pods_root, Some(kubepods.id));

    let pod = pods.by_uid(&PodUid::new(BURSTABLE)).next().unwrap();
    assert_eq!(pod.path.to_str().unwrap(), format!("kubepods/burstable/pod{BURSTABLE}"));
    assert_eq!(pod.containers.len(), 3);
    assert!(pod.containers.iter().all(|container| container.kind == ContainerKind::Container));
    assert!(pod.containers.iter().all(|container| container.id.len() == 64));
    // One container has groups of its own, two levels deep on one side: init and workers/a.
    assert_eq!(pod.leaves.len(), 4);
    let nested = pod.containers.iter().find(|container| container.id.starts_with("45f2709597e1"));
    let deepest = tree.groups().iter().find(|group| &*group.name == "a").unwrap();
    assert_eq!(pods.owner(deepest.id), Some((pod, nested)));
    assert_eq!(pods.owner(pod.cgroup_id), Some((pod, None)));
    assert_eq!(pods.owner(kubepods.id), None);
}

#[test]
fn pods_of_the_systemd_driver_are_found_with_each_runtime() {
    let node = Node::unpack(V2);
    let (_, pods) = find(&node, "/");
    let expected = [DOCKER, GUARANTEED, BEST_EFFORT, STATIC, BURSTABLE];
    assert_eq!(uids(&pods), expected);

    let kinds = |uid: &str| {
        let pod = pods.by_uid(&PodUid::new(uid)).next().unwrap();
        let mut kinds: Vec<_> = pod.containers.iter().map(|c| (c.kind, &c.id[..4])).collect();
        kinds.sort_unstable();
        (kinds, pod.leaves.len())
    };
    use ContainerKind::{Container, Monitor};
    assert_eq!(kinds(GUARANTEED), (vec![(Container, "49c9"), (Container, "e643")], 2));
    // CRI-O: the container's processes are one level down, and its monitor is a group of its own.
    assert_eq!(kinds(BEST_EFFORT), (vec![(Container, "908b"), (Container, "c38a"), (Monitor, "c38a")], 3));
    // One container is where the runtime should have put it, one where a runtime with the other
    // driver did.
    assert_eq!(kinds(DOCKER), (vec![(Container, "99af"), (Container, "bfc1")], 2));
}

#[test]
fn pods_are_found_under_a_custom_cgroup_root() {
    let node = Node::unpack(V1);
    let (_, all) = find(&node, "/");
    // The kubelet's --cgroup-root puts kubepods deeper.
    std::fs::create_dir_all(node.path("sys/fs/cgroup/memory/some/where")).unwrap();
    std::fs::rename(
        node.path("sys/fs/cgroup/memory/kubepods"),
        node.path("sys/fs/cgroup/memory/some/where/kubepods"),
    )
    .unwrap();
    let (_, deeper) = find(&node, "/");
    assert_eq!(uids(&deeper), uids(&all));
    // The root given to the agent is the pods' root itself.
    let (tree, given) = find(&node, "/some/where/kubepods");
    assert_eq!(uids(&given), uids(&all));
    assert_eq!(given.pods_root, Some(tree.groups()[0].id));
    assert_eq!(given.pods[0].path.to_str().unwrap().matches("kubepods").count(), 0);
    // Under another name only the form of the names below tells.
    std::fs::rename(
        node.path("sys/fs/cgroup/memory/some/where/kubepods"),
        node.path("sys/fs/cgroup/memory/mine"),
    )
    .unwrap();
    let (_, unnamed) = find(&node, "/mine");
    assert_eq!(uids(&unnamed), uids(&all));
    assert_eq!(unnamed.pods_root, None);
    // And from further above nothing does.
    assert!(find(&node, "/").1.pods.is_empty());
}

#[test]
fn cgroups_with_pod_names_are_pods_only_in_certain_places() {
    let node = Node::unpack(V1);
    let at = |path: &str| node.write(&format!("sys/fs/cgroup/memory/{path}/cgroup.procs"), "");
    at("podman");
    at("system.slice/pod11111111-1111-4111-8111-111111111111");
    at("pod22222222-2222-4222-8222-222222222222");
    // A node inside a container of a pod has pods of its own; they are that container's.
    let inner = format!("kubepods/burstable/pod{BURSTABLE}/{}/kubelet/kubepods", "ab".repeat(32));
    at(&format!("{inner}/pod33333333-3333-4333-8333-333333333333"));
    // The kubelet lets a static pod's manifest choose the uid.
    at("kubepods/burstable/podby-hand");
    let (_, pods) = find(&node, "/");
    let found = uids(&pods);
    assert_eq!(found.len(), 6, "{found:?}");
    assert!(found.contains(&"22222222-2222-4222-8222-222222222222"));
    assert!(found.contains(&"by-hand"));
    let tree = Tree::scan(&node.root("/").memory).unwrap();
    let known = Pods::find(&tree, |uid| uid.as_str() == "man");
    assert_eq!(known.pods.len(), 7, "a name that is known to be a pod's is one");
}

#[test]
fn pod_paths_are_resolved_in_every_hierarchy() {
    let node = Node::unpack(V1);
    let root = node.root("/");
    let (_, pods) = find(&node, "/");
    let find = |hierarchy: &Option<PathBuf>| find_group(hierarchy.as_ref(), &pods.pods[0].path);
    assert!(root.memory.join(&pods.pods[0].path).is_dir());
    assert!(find(&root.pids).unwrap().join("pids.current").is_file());
    assert!(find(&root.freezer).unwrap().join("freezer.state").is_file());
    assert_eq!(find(&root.unified), None);
    assert_eq!(find_group(root.pids.as_ref(), Path::new("no/such")), None);
}

#[test]
fn refresh_finds_added_and_removed_cgroups() {
    let node = Node::unpack(V1);
    let mut sampler = node.sampler("/");
    let ids = |tree: &Tree| tree.groups().iter().map(|group| group.id).collect::<Vec<_>>();
    let missing = |ids: &[u64], other: &[u64]| ids.iter().filter(|id| !other.contains(id)).count();
    let before = ids(sampler.tree());
    sampler.refresh(|_| false).unwrap();
    assert_eq!(ids(sampler.tree()), before);

    let folder = node.path(&format!("sys/fs/cgroup/memory/kubepods/burstable/pod{BURSTABLE}"));
    std::fs::create_dir(folder.join("ab".repeat(32))).unwrap();
    let deepest = walk(&folder).into_iter().find(|path| path.ends_with("workers/a")).unwrap();
    std::fs::create_dir(deepest.join("deeper")).unwrap();
    std::fs::remove_dir_all(node.path(&format!("sys/fs/cgroup/memory/kubepods/pod{GUARANTEED}"))).unwrap();
    sampler.refresh(|_| false).unwrap();
    let after = ids(sampler.tree());
    assert_eq!((missing(&after, &before), missing(&before, &after), sampler.tree().skipped()), (2, 3, 0));
    assert_eq!(sampler.pods().pods.len(), 3);

    // As many in as out: the number of folders does not tell, but they do.
    std::fs::remove_dir(folder.join("ab".repeat(32))).unwrap();
    std::fs::create_dir(folder.join("cd".repeat(32))).unwrap();
    sampler.refresh(|_| false).unwrap();
    let pod = sampler.pods().by_uid(&PodUid::new(BURSTABLE)).next().unwrap();
    assert!(pod.containers.iter().any(|container| *container.id == *"cd".repeat(32)));
    assert!(!pod.containers.iter().any(|container| *container.id == *"ab".repeat(32)));
    let rescanned = Tree::scan(sampler.tree().root()).unwrap();
    assert_eq!(ids(sampler.tree()), ids(&rescanned));
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = vec![folder.to_owned()];
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk(&entry.path()));
        }
    }
    found
}

#[test]
fn one_of_several_kubepods_cgroups_is_that_of_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let place = |path: &str| std::fs::create_dir_all(folder.path().join(path)).unwrap();
    let root = |is_known: bool| {
        let tree = Tree::scan(folder.path()).unwrap();
        let pods = Pods::find(&tree, |uid| is_known && uid.as_str() == BEST_EFFORT);
        let at = tree.groups().iter().position(|group| Some(group.id) == pods.pods_root)?;
        Some(tree.relative_path(at).to_str().unwrap().to_owned())
    };
    assert_eq!(root(true), None);
    // A kubelet in a container, whose group comes first by name.
    place(&format!("docker/kind/kubelet/kubepods/pod{GUARANTEED}"));
    assert_eq!(root(true).as_deref(), Some("docker/kind/kubelet/kubepods"));
    place("kubepods/burstable");
    assert_eq!(root(true).as_deref(), Some("kubepods"));
    // The node's kubelet has another driver now.
    place(&format!("kubepods.slice/kubepods-pod{}.slice", BURSTABLE.replace('-', "_")));
    assert_eq!(root(true).as_deref(), Some("kubepods.slice"));
    // It was configured to use another place.
    place(&format!("node/kubepods/besteffort/pod{BEST_EFFORT}"));
    assert_eq!(root(false).as_deref(), Some("kubepods.slice"));
    assert_eq!(root(true).as_deref(), Some("node/kubepods"));
}
