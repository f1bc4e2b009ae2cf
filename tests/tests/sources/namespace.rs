//! An agent in a private cgroup namespace, with and without the host's hierarchies mounted.

use std::fs;
use std::path::Path;
use std::process::Command;

use eviction_bpf::preflight::probe;
use eviction_node::cgroup::hierarchy::{Hierarchies, Host};
use eviction_node::cgroup::node_root::{NodeRoot, RootError};
use eviction_node::cgroup::pods::Pods;
use eviction_node::cgroup::tree::Tree;
use tests::cgroup::{Driver, Qos, Subtree, pod_uid};
use tests::mounts::Hierarchy;

/// Takes the calling thread out of the machine's cgroup and mount namespaces.
fn leave_namespaces() -> std::io::Result<()> {
    // SAFETY: changes the namespaces of this thread alone, which ends with the test.
    match unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Runs a command in the namespaces of this thread.
fn run(command: &str, arguments: &[&str]) {
    let status = Command::new(command).args(arguments).status().unwrap();
    assert!(status.success(), "{command} {arguments:?}: {status}");
}

fn pods(root: &NodeRoot) -> Pods {
    Pods::find(&Tree::scan(&root.memory).unwrap(), |_| false)
}

#[test]
fn a_private_cgroup_namespace_is_bypassed_or_reported() {
    let subtree = Subtree::new("namespace").unwrap();
    let Some(group) = subtree.group("agent").unwrap().dir(Hierarchy::Memory) else {
        tests::skip!("no memory controller of version 1")
    };
    subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(1)).unwrap();
    // A thread can leave namespaces for itself, and takes them with it when it ends.
    let path = subtree.path();
    let result =
        std::thread::scope(|scope| scope.spawn(|| check_in_namespace(&group, &path)).join()).unwrap();
    subtree.remove().unwrap();
    if let Err(error) = result {
        tests::skip!("no private namespaces: {error}");
    }
}

/// Checks what an agent in the group `own` sees of the subtree at `node`.
fn check_in_namespace(own: &Path, node: &Path) -> std::io::Result<()> {
    // The thread's own view, under the path that the agent reads.
    let view = tempfile::tempdir().unwrap();
    let thread = rustix::thread::gettid().as_raw_nonzero();
    std::os::unix::fs::symlink(format!("/proc/self/task/{thread}"), view.path().join("self")).unwrap();
    let host = Host { proc: view.path().to_owned(), root: "/".into() };
    let own_mount = tempfile::tempdir().unwrap();
    let mount_point = own_mount.path();
    fs::write(own.join("tasks"), thread.to_string()).unwrap();
    leave_namespaces()?;
    run("mount", &["--make-rprivate", "/"]);
    run("mount", &["-t", "cgroup", "-o", "memory", "none", mount_point.to_str().unwrap()]);

    // The host's hierarchies are mounted too: they show more, so the agent uses them.
    let hierarchies = Hierarchies::discover(&host).unwrap();
    let memory = hierarchies.memory.as_ref().unwrap();
    assert!(memory.whole && memory.mount_point != mount_point, "{memory:?}");
    let root = NodeRoot::resolve(&hierarchies, node).unwrap();
    assert_eq!(pods(&root).pods.len(), 1);
    assert_eq!(root.require_visible(&pods(&root)), Ok(()));

    // Without them the agent sees only what is below its own cgroup, and reports that the rest is hidden.
    run("umount", &["-l", "/sys/fs/cgroup"]);
    let hierarchies = Hierarchies::discover(&host).unwrap();
    let memory = hierarchies.memory.as_ref().unwrap();
    assert!(!memory.whole && memory.mount_point == mount_point, "{memory:?}");
    let root = NodeRoot::resolve(&hierarchies, Path::new("/")).unwrap();
    let hidden = root.require_visible(&pods(&root)).unwrap_err();
    assert_eq!(hidden, RootError::HidesTheTree { mount: mount_point.to_owned() });
    let facts = probe(&host, &hierarchies, Some(&root));
    let namespace = facts.iter().find(|fact| fact.subject == "cgroup-namespace").unwrap();
    assert!(namespace.found.starts_with("a private one") && !namespace.usable, "{namespace:?}");

    // A kubelet inside the same namespace, as in a node that is a container: its pods are visible.
    fs::create_dir(mount_point.join("kubepods")).unwrap();
    assert_eq!(root.require_visible(&pods(&root)), Ok(()));
    fs::remove_dir(mount_point.join("kubepods")).unwrap();
    // Otherwise the removal of the temporary folder would go through the mount.
    run("umount", &[mount_point.to_str().unwrap()]);
    Ok(())
}
