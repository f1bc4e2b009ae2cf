use std::path::Path;

use eviction_bpf::preflight::probe;
use eviction_node::cgroup::files::Version;
use eviction_node::cgroup::hierarchy::Hierarchies;
use eviction_node::cgroup::node_root::{NodeRoot, RootError};
use eviction_node::cgroup::pods::Pods;
use eviction_node::cgroup::tree::Tree;

use crate::recorded::{Node, V1, V2};

#[test]
fn hierarchies_of_recorded_nodes_are_discovered() {
    let v1 = Node::unpack(V1).hierarchies();
    let memory = v1.memory.unwrap();
    assert_eq!((memory.version, memory.read_only), (Version::V1, false));
    assert!(v1.pids.unwrap().mount_point.ends_with("sys/fs/cgroup/pids"));
    assert!(v1.freezer.unwrap().mount_point.ends_with("sys/fs/cgroup/freezer"));
    // The recording has no unified hierarchy under its mount point.
    assert_eq!(v1.unified, None);
    let v2 = Node::unpack(V2).hierarchies();
    assert_eq!(v2.memory.as_ref().unwrap().version, Version::V2);
    assert_eq!(v2.memory, v2.unified);
    assert_eq!(v2.pids, v2.unified);
}

#[test]
fn missing_or_outside_cgroup_root_is_an_error() {
    let node = Node::unpack(V1);
    let hierarchies = node.hierarchies();
    let error = NodeRoot::resolve(&hierarchies, Path::new("/no/such")).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("cgroup root /no/such does not exist: no control group "), "{text}");
    assert!(text.ends_with("sys/fs/cgroup/memory/no/such"), "{text}");
    for outside in ["/..", "..", "/kubepods/../../../etc"] {
        let error = NodeRoot::resolve(&hierarchies, Path::new(outside)).unwrap_err();
        assert!(matches!(error, RootError::Outside(_)), "{outside}: {error}");
        assert!(!error.help().is_empty());
    }
    // A folder that is no control group.
    std::fs::create_dir(node.path("sys/fs/cgroup/memory/plain")).unwrap();
    assert!(matches!(NodeRoot::resolve(&hierarchies, Path::new("/plain")), Err(RootError::Absent { .. })));
    let none = NodeRoot::resolve(&Hierarchies::default(), Path::new("/"));
    assert_eq!(none, Err(RootError::NoMemoryController));
    for same in ["/", "", ".", "//./"] {
        assert_eq!(node.root(same), node.root("/"));
        assert!(node.root(same).whole_machine);
    }
    for same in ["kubepods", "/kubepods", "/kubepods/", "./kubepods"] {
        assert_eq!(node.root(same), node.root("/kubepods"));
        assert!(!node.root(same).whole_machine);
    }
}

#[test]
fn a_namespace_that_hides_the_tree_is_an_error() {
    // In a recording no folder has the inode number of a hierarchy's root, as in a private
    // cgroup namespace.
    for recording in [V1, V2] {
        let node = Node::unpack(recording);
        let root = node.root("/");
        assert!(root.partial);
        let pods = |root: &NodeRoot| Pods::find(&Tree::scan(&root.memory).unwrap(), |_| false);
        // The kubelet lives in the same namespace: its pods are seen.
        assert_eq!(root.require_visible(&pods(&root)), Ok(()));
        // A group that was asked for by name is what was asked for.
        let part = node.root("/system.slice");
        assert_eq!(part.require_visible(&Pods::default()), Ok(()));
        for folder in ["memory/kubepods", "kubepods.slice", "system.slice"] {
            let _ = std::fs::remove_dir_all(node.path(&format!("sys/fs/cgroup/{folder}")));
        }
        let error = root.require_visible(&pods(&root)).unwrap_err();
        assert!(error.to_string().contains("hides the tree"), "{error}");
        assert!(error.help().contains("/sys/fs/cgroup"));
    }
}

#[test]
fn probe_reports_available_features() {
    let node = Node::unpack(V2);
    let hierarchies = node.hierarchies();
    let facts = probe(&node.host(), &hierarchies, Some(&node.root("/")));
    let fact = |subject: &str| facts.iter().find(|fact| fact.subject == subject).unwrap();
    for subject in [
        "memory-controller",
        "pids-controller",
        "freezer",
        "cgroup-kill",
        "pressure",
        "meminfo",
        "tasks",
        "capabilities",
    ] {
        assert!(fact(subject).usable, "{:?}", fact(subject));
    }
    assert!(fact("memory-controller").required && fact("meminfo").required);
    assert!(!fact("usage-threshold").usable);
    assert!(fact("usage-threshold").found.contains("version 2"));
    let namespace = fact("cgroup-namespace");
    assert!(!namespace.usable && namespace.help.unwrap().contains("hostPath"));
    assert_eq!(fact("tasks").found, "412 of 63278");
    assert!(facts.iter().all(|fact| !fact.found.is_empty() && !fact.name.is_empty()));
}

#[test]
fn probe_reports_missing_features() {
    let node = Node::unpack(V2);
    std::fs::remove_dir_all(node.path("proc/pressure")).unwrap();
    std::fs::remove_file(node.path("proc/meminfo")).unwrap();
    node.write("proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t1\t0\n");
    let facts = probe(&node.host(), &Hierarchies::default(), None);
    let found = |subject: &str| {
        let fact = facts.iter().find(|fact| fact.subject == subject).unwrap();
        assert!(!fact.usable, "{fact:?}");
        (fact.found.as_str(), fact.required)
    };
    assert_eq!(found("memory-controller"), ("switched off at boot", true));
    assert_eq!(found("pressure"), ("the kernel was built without it", false));
    assert!(found("meminfo").0.ends_with("No such file or directory (os error 2)"));
    assert!(found("meminfo").1);
    found("pids-controller");
    found("cgroup-kill");
    // Mounted, but nothing can be written.
    let v1 = Node::unpack(V1);
    let mounts = std::fs::read_to_string(v1.path("proc/self/mountinfo")).unwrap();
    v1.write(
        "proc/self/mountinfo",
        mounts.replace(" rw,relatime - cgroup cgroup", " ro,relatime - cgroup cgroup"),
    );
    let facts = probe(&v1.host(), &v1.hierarchies(), Some(&v1.root("/")));
    let freezer = facts.iter().find(|fact| fact.subject == "freezer").unwrap();
    assert!(!freezer.usable && freezer.help.unwrap().contains("writable"));
}
