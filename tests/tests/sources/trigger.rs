//! Notifications of the kernel about a cgroup v2 group: tasks that wait for memory, and limits that are reached.

use std::path::PathBuf;

use eviction_node::cgroup::files::Version;
use eviction_node::cgroup::tree::Tree;
use eviction_node::notify::memory_events::{self, MemoryEventsWatch};
use eviction_node::notify::psi::PsiWatch;
use tests::cgroup::{Group, Subtree};
use tests::mounts::Hierarchy;
use tests::workload::Workload;

use crate::MIB;
use crate::is_quiet;
use crate::run;

/// Returns the cgroup v2 folder. On a hybrid machine memory is limited elsewhere, and waits are reported here all the
/// same.
fn folder(group: &Group) -> Option<PathBuf> {
    group.dir(Hierarchy::Unified).filter(|folder| folder.join("memory.pressure").exists())
}

/// Starts a process that reads a file again and again that does not quite fit. The kernel counts the waits only for
/// pages that it removed a moment ago (`workingset_refault`), not those of a file many times as large as the limit.
fn thrash(group: &Group) -> Workload {
    group.limit_memory(24 * MIB).unwrap();
    let folder = tests::folder::on_disk().unwrap();
    let arguments = ["cache", "--size", "32M", "--again", "--dir", folder.to_str().unwrap()];
    Workload::start(group, arguments).unwrap()
}

#[test]
fn tasks_that_wait_for_memory_are_reported() {
    let subtree = Subtree::new("trigger").unwrap();
    let Some(folder) = folder(subtree.root()) else { tests::skip!("no memory.pressure of version 2") };
    run(async {
        let mut reader = thrash(subtree.root());
        let trigger = PsiWatch::open(&folder).unwrap();
        assert!(is_quiet(trigger.fired()).await, "no task stalls yet");
        reader.go().unwrap();
        trigger.fired().await.unwrap();
        trigger.fired().await.unwrap();
        drop(reader);
        subtree.remove().unwrap();
    });
}

#[test]
fn the_removal_of_the_cgroup_is_reported() {
    let subtree = Subtree::new("trigger-end").unwrap();
    let group = subtree.group("group").unwrap();
    let Some(folder) = folder(&group) else { tests::skip!("no memory.pressure of version 2") };
    run(async {
        let trigger = PsiWatch::open(&folder).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        let error = trigger.fired().await.unwrap_err();
        assert!(error.to_string().contains("the group is gone"), "{error}");
        let error = PsiWatch::open(&folder).unwrap_err();
        assert!(error.to_string().contains("memory.pressure"), "{error}");
        drop(subtree);
    });
}

#[test]
fn a_reached_memory_limit_is_reported_on_cgroup_v2() {
    let subtree = Subtree::new("trigger-limit").unwrap();
    let Some(folder) = folder(subtree.root()) else { tests::skip!("no memory.pressure of version 2") };
    run(async {
        let found = memory_events::probe(&folder);
        if !folder.join("memory.events").exists() {
            // On a hybrid machine cgroup v1 has the memory controller.
            let error = found.unwrap_err();
            assert!(error.to_string().contains("memory.events"), "{error}");
            return;
        }
        let mut trigger = MemoryEventsWatch::new(Version::V2);
        trigger.watch_node(&Tree::scan(&folder).unwrap()).unwrap();
        let mut reader = thrash(subtree.root());
        assert!(is_quiet(trigger.fired()).await, "there is room yet");
        reader.go().unwrap();
        trigger.fired().await.unwrap();
        trigger.fired().await.unwrap();
        drop(reader);
        subtree.remove().unwrap();
    });
}
