use std::fs;

use eviction_core::reading::Reading;
use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

/// A cgroup in plain files with others below it.
struct Pod {
    folder: tempfile::TempDir,
}

impl Pod {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, usage: u64, anon: u64, inactive_file: u64) {
        let folder = self.path(path);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("memory.usage_in_bytes"), format!("{usage}\n")).unwrap();
        let stat = format!("total_rss {anon}\ntotal_inactive_file {inactive_file}\n");
        fs::write(folder.join("memory.stat"), stat).unwrap();
    }

    fn groups(&self) -> MemoryTree {
        MemoryTree::new(Version::V1, 100, Tree::scan(self.folder.path()).unwrap())
    }

    /// Returns anonymous memory, inactive page cache, and the working set, all read now.
    fn values(&self) -> [Option<u64>; 3] {
        let mut groups = self.groups();
        groups.read_subtree(0);
        values(&groups)
    }
}

fn values(groups: &MemoryTree) -> [Option<u64>; 3] {
    let sample = groups.memory[0].sample();
    [sample.stat.anon, sample.stat.inactive_file, sample.working_set].map(Reading::known)
}

fn sample(groups: &mut MemoryTree) -> Option<u64> {
    groups.sweep_moved(&[]);
    groups.read_level(0);
    values(groups)[2]
}

#[test]
fn stale_first_memory_stat_is_corrected() {
    let pod = Pod::new();
    pod.write("", 600 * MIB, 0, 100 * MIB);
    pod.write("leaf", 600 * MIB, 0, 500 * MIB);
    let mut groups = pod.groups();
    assert_eq!([sample(&mut groups), sample(&mut groups)], [Some(100 * MIB); 2]);
    pod.write("leaf", 599 * MIB, 0, 400 * MIB);
    pod.write("", 599 * MIB, 0, 100 * MIB);
    assert_eq!(sample(&mut groups), Some(199 * MIB), "the text is the one of before");
    pod.write("", 599 * MIB, 0, 401 * MIB);
    assert_eq!(sample(&mut groups), Some(198 * MIB), "a new one counts");
}

#[test]
fn memory_stat_from_between_two_samples_is_corrected() {
    let pod = Pod::new();
    pod.write("", 510 * MIB, 0, 410 * MIB);
    pod.write("idle", 10 * MIB, 0, 10 * MIB);
    pod.write("leaf", 500 * MIB, 0, 400 * MIB);
    let mut groups = pod.groups();
    groups.read_in_turn(1);
    pod.write("", 511 * MIB, 0, 360 * MIB);
    pod.write("leaf", 501 * MIB, 0, 300 * MIB);
    assert_eq!(sample(&mut groups), Some(201 * MIB), "nothing is left over, and the idle one has no more");
}

#[test]
fn usage_read_between_sweeps_does_not_hide_growth_below() {
    let pod = Pod::new();
    let write = |usage| ["", "pod", "pod/main"].map(|group| pod.write(group, usage, 0, 0));
    write(100 * MIB);
    let mut groups = pod.groups();
    groups.sweep_moved(&[]);
    let below = |groups: &MemoryTree| [1, 2].map(|index| groups.memory[index].usage.known());
    // Every sample of an ancestor ends like this: its own usage is read last.
    write(600 * MIB);
    groups.read_usage(0, mono_ns());
    groups.sweep_moved(&[]);
    assert_eq!(below(&groups), [Some(600 * MIB); 2]);
    write(700 * MIB);
    let since_ns = mono_ns();
    groups.read_subtree(0);
    assert_eq!(below(&groups), [Some(700 * MIB); 2], "usage is of the moment of memory.stat");
    assert!(!groups.read_again(1, since_ns), "both were read");
    assert!(groups.read_again(1, mono_ns()));
}

#[test]
fn memory_of_containers_counts_for_the_pod() {
    let pod = Pod::new();
    pod.write("", 210, 2, 90);
    pod.write("main", 200, 200, 0);
    pod.write("pause", 10, 1, 5);
    assert_eq!(pod.values(), [Some(201), Some(5), Some(205)]);
    // Memory that was freed does not count any more.
    pod.write("", 15, 200, 0);
    pod.write("main", 5, 0, 5);
    assert_eq!(pod.values(), [Some(1), Some(10), Some(5)]);
}

#[test]
fn pod_follows_its_containers_while_its_memory_stat_is_unchanged() {
    let pod = Pod::new();
    pod.write("", 300, 250, 20);
    pod.write("main", 200, 200, 0);
    pod.write("pause", 10, 1, 5);
    let mut groups = pod.groups();
    groups.read_subtree(0);
    assert_eq!(values(&groups), [Some(250), Some(20), Some(280)]);
    pod.write("main", 230, 210, 20);
    assert!(groups.read_again(0, mono_ns()));
    assert_eq!(values(&groups), [Some(260), Some(40), Some(260)]);
    fs::remove_dir_all(pod.path("pause")).unwrap();
    groups.adopt(Tree::scan(pod.folder.path()).unwrap());
    groups.read_subtree(0);
    assert_eq!(values(&groups), [Some(250), Some(20), Some(280)], "who is gone is left over in the text");
}

#[test]
fn own_part_of_a_pod_is_limited_by_its_own_usage() {
    let pod = Pod::new();
    pod.write("", 150, 100, 40);
    pod.write("main", 100, 90, 10);
    assert_eq!(pod.values(), [Some(100), Some(40), Some(110)]);
    pod.write("", 105, 100, 40);
    assert_eq!(pod.values(), [Some(95), Some(15), Some(90)]);
}

#[test]
fn deeply_nested_cgroups_count_for_the_pod() {
    let pod = Pod::new();
    pod.write("", 200, 0, 0);
    let mut path = "main".to_owned();
    for level in 0..40 {
        pod.write(&path, 200, 0, 0);
        path.push_str(&format!("/{level}"));
    }
    pod.write(&path, 200, 150, 50);
    assert_eq!(pod.values(), [Some(150), Some(50), Some(150)]);
}

#[test]
fn pod_keeps_its_own_value_where_that_of_a_child_is_unknown() {
    let pod = Pod::new();
    pod.write("", 200, 20, 0);
    pod.write("main", 200, 100, 0);
    fs::write(pod.path("main/memory.usage_in_bytes"), "?\n").unwrap();
    assert_eq!(pod.values()[0], Some(20));
    pod.write("main", 200, 100, 0);
    fs::write(pod.path("main/memory.stat"), "total_rss 1\ntotal_rss 1\ntotal_inactive_file 70\n").unwrap();
    assert_eq!(pod.values(), [Some(20), Some(70), Some(130)], "each value stands for itself");
}

#[test]
fn of_many_cgroups_only_the_changed_ones_are_read() {
    let pod = Pod::new();
    pod.write("", 300, 2, 20);
    pod.write("main", 210, 210, 0);
    for n in 0..SMALL_SUBTREE {
        pod.write(&format!("nested/{n}"), 2, 1, 1);
    }
    let few = SMALL_SUBTREE as u64;
    pod.write("nested", 60, few, 20);
    let mut groups = pod.groups();
    groups.read_in_turn(1);
    assert!(!groups.has_few_below(0));
    let read_ns = |groups: &MemoryTree| groups.memory.iter().map(|memory| memory.stat_at_ns).collect();
    let before: Vec<u64> = read_ns(&groups);
    pod.write("main", 220, 215, 0);
    pod.write("", 310, 2, 20);
    groups.sweep_moved(&[]);
    assert!(groups.read_again(0, mono_ns()));
    let after: Vec<u64> = read_ns(&groups);
    assert_eq!(before.iter().zip(&after).filter(|(before, after)| before < after).count(), 2);
    assert_eq!(values(&groups)[0], Some(215 + few));
}

#[test]
fn cgroup_without_the_memory_controller_does_not_count_as_removed() {
    let folder = tempfile::tempdir().unwrap();
    let child = folder.path().join("kubepods");
    fs::create_dir(&child).unwrap();
    fs::write(child.join("memory.current"), "4096\n").unwrap();
    fs::write(child.join("memory.stat"), "anon 1\n").unwrap();
    // Opened for each read, as when no descriptors are left.
    let mut groups = MemoryTree::new(Version::V2, 0, Tree::scan(folder.path()).unwrap());
    let sweep = |groups: &mut MemoryTree| {
        groups.sweep_moved(&[]);
        (groups.memory[0].usage, groups.memory[1].usage, groups.stale)
    };
    let absent = Reading::Unknown(UnknownReason::Absent);
    assert_eq!(sweep(&mut groups), (absent, Reading::Known(4096), false));
    assert!(!groups.memory[0].is_available(), "its values are not used");
    fs::write(folder.path().join("memory.current"), "8192\n").unwrap();
    assert_eq!(sweep(&mut groups).0, absent, "each sweep is not to try it again");
    groups.read_in_turn(1000);
    assert_eq!(groups.memory[0].usage, Reading::Known(8192));
    assert!(!groups.stale);
    fs::remove_dir_all(&child).unwrap();
    groups.read_in_turn(1000);
    assert!(groups.stale, "that one is gone");
}

proptest! {
    #[test]
    fn keep_greatest_leaves_the_greatest_elements(sizes in proptest::collection::vec(0..50_u64, 0..40)) {
        let mut chosen: Vec<_> = sizes.iter().copied().zip(0..).collect();
        keep_greatest(&mut chosen, 4);
        let mut left: Vec<u64> = chosen.into_iter().map(|(size, _)| size).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        let mut expected = sizes;
        expected.sort_unstable_by(|a, b| b.cmp(a));
        expected.truncate(4);
        prop_assert_eq!(left, expected);
    }

    #[test]
    fn consistent_memory_stat_is_not_corrected(
        own in (0..1_u64 << 40, 0..1_u64 << 30, 0..1_u64 << 30),
        parts in proptest::collection::vec((0..1_u64 << 40, 0..1_u64 << 30, 0..1_u64 << 30), 0..4),
    ) {
        let pod = Pod::new();
        let sum = parts.iter().fold((0_u64, 0_u64, 0_u64), |sum, part| (sum.0 + part.0, sum.1 + part.1, sum.2 + part.2));
        let (usage, anon, inactive_file) = (own.0 + (1_u64 << 31) + sum.0, own.1 + sum.1, own.2 + sum.2);
        pod.write("", usage, anon, inactive_file);
        for (n, (usage, anon, inactive_file)) in parts.iter().enumerate() {
            pod.write(&n.to_string(), *usage, *anon, *inactive_file);
        }
        prop_assert_eq!(pod.values(), [Some(anon), Some(inactive_file), Some(usage.saturating_sub(inactive_file))]);
    }
}
