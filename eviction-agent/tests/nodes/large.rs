use std::path::{Path, PathBuf};

use eviction_core::reading::Reading;
use eviction_node::cgroup::tree::Tree;

use crate::recorded::{Node, V2};

fn group(path: &Path, usage: u64) {
    std::fs::create_dir_all(path).unwrap();
    std::fs::write(path.join("memory.current"), format!("{usage}\n")).unwrap();
    std::fs::write(path.join("memory.stat"), format!("anon 1\nfile 2\ninactive_file {}\n", usage / 2))
        .unwrap();
}

#[test]
fn cgroups_twelve_levels_deep_are_found() {
    let node = Node::unpack(V2);
    let uid = "44444444-4444-4444-8444-444444444444";
    let pod = format!("kubepods.slice/kubepods-pod{}.slice", uid.replace('-', "_"));
    let mut path = node.path("sys/fs/cgroup").join(&pod);
    group(&path, 4096);
    for level in 0..12 {
        path = path.join(format!("level{level}"));
        group(&path, 4096);
    }
    let mut sampler = node.sampler("/");
    sampler.sample_all(1);
    let found = sampler.pods().pods.iter().find(|found| found.uid.as_str() == uid).unwrap();
    assert_eq!(found.leaves.len(), 1);
    let deepest = sampler.tree().groups().iter().position(|group| group.id == found.leaves[0]).unwrap();
    assert_eq!(sampler.tree().relative_path(deepest), path.strip_prefix(sampler.tree().root()).unwrap());
    let mut written = PathBuf::from("/something/else");
    sampler.tree().write_path(deepest, &mut written);
    assert_eq!(written, path);
    assert_eq!(sampler.group(found.leaves[0]).unwrap().working_set, Reading::Known(2048));
}

#[test]
fn thousands_of_cgroups_are_sampled_with_few_descriptors() {
    let node = Node::unpack(V2);
    let pods = node.path("sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice");
    let mut expected = 0;
    for number in 0..500_u64 {
        let pod = pods.join(format!("kubepods-burstable-pod55555555_5555_4555_8555_{number:012x}.slice"));
        for container in 0..6 {
            expected += 1;
            group(&pod.join(format!("cri-containerd-{:064x}.scope", number * 10 + container)), 8192);
        }
    }
    // Fewer descriptors than groups.
    let mut sampler = node.sampler_with("/kubepods.slice", 200);
    sampler.sample_all(1);
    assert_eq!(sampler.last_pods().count(), 500 + 5);
    let with_memory = sampler
        .pods()
        .pods
        .iter()
        .flat_map(|pod| &pod.containers)
        .filter(|container| sampler.group(container.cgroup_id).unwrap().working_set == Reading::Known(4096))
        .count();
    assert_eq!(with_memory, expected);
    let rescanned = sampler.tree().rescan().unwrap();
    assert_eq!(rescanned.groups().len(), sampler.tree().groups().len());
}

#[test]
fn scan_skips_and_counts_cgroups_beyond_the_maximum() {
    let folder = tempfile::tempdir().unwrap();
    for outer in 0..50 {
        for inner in 0..999 {
            std::fs::create_dir_all(folder.path().join(format!("o{outer}/i{inner}"))).unwrap();
        }
    }
    let all = Tree::scan(folder.path()).unwrap();
    assert_eq!((all.groups().len(), all.skipped()), (50_001, 0));
    // Beyond a cap they are counted; what there is room for stays a tree.
    let few = Tree::scan_at_most(folder.path(), 10_000).unwrap();
    assert_eq!(few.groups().len(), 10_000);
    assert!(few.skipped() >= 40, "{} are skipped on purpose", few.skipped());
    for (index, group) in few.groups().iter().enumerate().skip(1) {
        let parent = group.parent.unwrap();
        assert!(parent < index && index < group.end && group.end <= few.groups()[parent].end);
    }
    // And found again when there is room.
    assert_eq!(few.rescan().unwrap().groups().len(), 50_001);
}
