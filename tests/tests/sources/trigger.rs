//! What the kernel tells of a version 2 group: tasks that wait for memory, and limits that are run into.

use std::path::PathBuf;

use eviction_node::cgroup::files::Version;
use eviction_node::cgroup::tree::Tree;
use eviction_node::notify::memory_events::{self, MemoryEvents, Watched};
use eviction_node::notify::psi::PsiTrigger;
use tests::cgroup::{Group, Subtree};
use tests::mounts::Hierarchy;
use tests::workload::Workload;

use crate::MIB;
use crate::is_quiet;
use crate::run;
use crate::workload;

/// The folder of version 2. On a hybrid machine memory is limited elsewhere, and tells of waiting here all the same.
fn folder(group: &Group) -> Option<PathBuf> {
    group.dir(Hierarchy::Unified).filter(|folder| folder.join("memory.pressure").exists())
}

/// Reads a file again and again that does not quite fit. The kernel counts the waits only for pages that it removed
/// a moment ago (`workingset_refault`): not those of a file many times as large as the limit.
fn thrash(group: &Group) -> Workload {
    group.limit_memory(24 * MIB).unwrap();
    let folder = tests::folder::on_disk().unwrap();
    let arguments = ["cache", "--size", "32M", "--again", "--dir", folder.to_str().unwrap()];
    Workload::start(workload(), group, arguments).unwrap()
}

#[test]
fn tasks_that_wait_for_memory_are_reported() {
    let subtree = Subtree::new("trigger").unwrap();
    let Some(folder) = folder(subtree.root()) else { tests::skip!("no memory.pressure of version 2") };
    run(async {
        let mut reader = thrash(subtree.root());
        let trigger = PsiTrigger::open(&folder).unwrap();
        assert!(is_quiet(trigger.fired()).await, "nobody waits yet");
        reader.go().unwrap();
        trigger.fired().await.unwrap();
        trigger.fired().await.unwrap();
        drop(reader);
        subtree.remove().unwrap();
    });
}

#[test]
fn the_end_of_the_group_is_reported() {
    let subtree = Subtree::new("trigger-end").unwrap();
    let group = subtree.group("group").unwrap();
    let Some(folder) = folder(&group) else { tests::skip!("no memory.pressure of version 2") };
    run(async {
        let trigger = PsiTrigger::open(&folder).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        let error = trigger.fired().await.unwrap_err();
        assert!(error.to_string().contains("the group is gone"), "{error}");
        let error = PsiTrigger::open(&folder).unwrap_err();
        assert!(error.to_string().contains("memory.pressure"), "{error}");
        drop(subtree);
    });
}

#[test]
fn a_limit_that_is_run_into_is_reported_where_version_2_has_memory() {
    let subtree = Subtree::new("trigger-limit").unwrap();
    let Some(folder) = folder(subtree.root()) else { tests::skip!("no memory.pressure of version 2") };
    run(async {
        let found = memory_events::probe(&folder);
        if !folder.join("memory.events").exists() {
            // On a hybrid machine memory is with version 1.
            let error = found.unwrap_err();
            assert!(error.help().unwrap().contains("memory.events"), "{error}");
            return;
        }
        let mut trigger = MemoryEvents::new(Version::V2);
        trigger.follow(&Tree::scan(&folder, None).unwrap(), Watched::Node).unwrap();
        let mut reader = thrash(subtree.root());
        assert!(is_quiet(trigger.fired()).await, "there is room yet");
        reader.go().unwrap();
        trigger.fired().await.unwrap();
        trigger.fired().await.unwrap();
        drop(reader);
        subtree.remove().unwrap();
    });
}
