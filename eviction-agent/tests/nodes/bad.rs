use eviction_core::reading::{Reading, UnknownReason};

use crate::recorded::{Node, V1, V2};

const LEAF: &str = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b5c2e77_4a19_4c83_9f6e_1d2a3b4c5d6e.slice";

#[test]
fn bad_memory_stat_makes_only_that_working_set_unknown() {
    for (text, why) in [
        ("", UnknownReason::Unparsable),
        ("anon 1\nfile 2\n", UnknownReason::Absent),
        ("inactive_file 5\ninactive_file 5\n", UnknownReason::Unparsable),
        ("inactive_file 18446744073709551615\n", UnknownReason::Implausible),
        ("inactive_file -1\n", UnknownReason::Implausible),
        ("inactive_file max\n", UnknownReason::Unparsable),
        ("inactive_file 123", UnknownReason::Unparsable),
        ("\0\0\0\n", UnknownReason::Absent),
    ] {
        let node = Node::unpack(V2);
        let stat = format!("sys/fs/cgroup/{LEAF}/memory.stat");
        node.write(&stat, text);
        let mut sampler = node.sampler("/");
        sampler.sample_all(1);
        let samples = sampler.last_pods().map(|(_, sample)| sample);
        let (bad, good): (Vec<_>, Vec<_>) = samples.partition(|sample| sample.working_set.known().is_none());
        assert_eq!((bad.len(), good.len()), (1, 4), "{text:?}");
        assert_eq!(bad[0].working_set, Reading::Unknown(why), "{text:?}");
        assert!(bad[0].usage.known().is_some());
    }
}

#[test]
fn a_bad_usage_is_unknown_and_never_zero() {
    for (text, why) in [
        ("", UnknownReason::Unparsable),
        ("max\n", UnknownReason::Unparsable),
        ("-4096\n", UnknownReason::Implausible),
        ("18446744073709551615\n", UnknownReason::Implausible),
        ("12 34\n", UnknownReason::Unparsable),
        ("99999999999999999999999999999999999999999999\n", UnknownReason::Unparsable),
    ] {
        let node = Node::unpack(V2);
        node.write("sys/fs/cgroup/kubepods.slice/memory.current", text);
        let mut sampler = node.sampler("/kubepods.slice");
        assert_eq!(sampler.sample_node(&[]).memory, Reading::Unknown(why), "{text:?}");
        let root = sampler.group(sampler.tree().groups()[0].id).unwrap();
        assert!(root.stat.inactive_file.known().is_some());
    }
}

#[test]
fn bad_meminfo_makes_the_node_memory_unknown() {
    for (text, why) in [
        (String::new(), UnknownReason::Unparsable),
        ("MemTotal: 1 kB\n".to_owned(), UnknownReason::Absent),
        ("x".repeat(100_000), UnknownReason::Unparsable),
    ] {
        let node = Node::unpack(V1);
        node.write("proc/meminfo", text);
        let sample = node.sampler("/").sample_node(&[]);
        assert_eq!(sample.memory, Reading::Unknown(why));
    }
    let node = Node::unpack(V1);
    std::fs::remove_file(node.path("proc/meminfo")).unwrap();
    let sample = node.sampler("/").sample_node(&[]);
    assert_eq!(sample.memory, Reading::Unknown(UnknownReason::Unreadable(2)));
    assert_eq!(sample.capacity, Reading::Unknown(UnknownReason::Unreadable(2)));
}

#[test]
fn task_counts_are_unknown_without_a_pids_controller() {
    let node = Node::unpack(V1);
    std::fs::remove_dir_all(node.path("sys/fs/cgroup/pids")).unwrap();
    let mut sampler = node.sampler("/");
    sampler.sample_all(1);
    sampler.count_tasks();
    for (_, sample) in sampler.last_pods() {
        assert_eq!(sample.tasks, Reading::Unknown(UnknownReason::Absent));
        assert!(sample.working_set.known().is_some());
    }
    let absent = Reading::Unknown(UnknownReason::Absent);
    assert_eq!(node.sampler("/kubepods").read_task_count(), absent);
}

#[test]
fn memory_of_a_cgroup_without_the_controller_is_unknown() {
    let node = Node::unpack(V2);
    for file in ["memory.current", "memory.stat", "memory.max", "memory.high"] {
        std::fs::remove_file(node.path(&format!("sys/fs/cgroup/{LEAF}/{file}"))).unwrap();
    }
    let mut sampler = node.sampler("/");
    sampler.sample_all(1);
    let unknown = sampler.last_pods().filter(|(_, sample)| sample.usage.known().is_none());
    assert_eq!(unknown.count(), 1);
}

#[test]
fn scan_of_an_unreadable_folder_is_an_error() {
    let node = Node::unpack(V1);
    assert!(eviction_node::cgroup::tree::Tree::scan(&node.path("no/such")).is_err());
    let file = node.path("sys/fs/cgroup/memory/memory.stat");
    let error = eviction_node::cgroup::tree::Tree::scan(&file).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read control group {}", file.display()));
}
