use eviction_core::reading::{Reading, UnknownReason};
use eviction_node::cgroup::names::PodUid;
use eviction_node::cgroup::pods::Pod;
use eviction_node::cgroup::sampler::{MemoryUsage, Sampler};
use eviction_node::clock::mono_ns;
use eviction_node::proc::process::read_task_capacity;

use crate::recorded::{Node, V1, V2};

const BURSTABLE: &str = "a7d0c9e4-12f8-4b36-9c5d-e81f02a64b97";

fn burstable_pod(sampler: &Sampler) -> Pod {
    sampler.pods().by_uid(&PodUid::new(BURSTABLE)).next().unwrap().clone()
}

/// Sets the usage of a pod and of all cgroups above it to 150 MB.
fn set_usage(node: &Node, pod: &Pod) {
    for folder in pod.path.ancestors().filter(|folder| !folder.as_os_str().is_empty()) {
        node.write(&format!("sys/fs/cgroup/{}/memory.current", folder.display()), "150000000\n");
    }
}

#[test]
fn node_memory_is_read_from_a_v1_cgroup() {
    let node = Node::unpack(V1);
    std::fs::rename(node.path("sys/fs/cgroup/memory"), node.path("outside")).unwrap();
    node.write("sys/fs/cgroup/memory/cgroup.procs", "");
    std::fs::rename(node.path("outside"), node.path("sys/fs/cgroup/memory/node")).unwrap();
    let mut sampler = node.sampler("/node");
    let sample = sampler.sample_node(&[]);
    let expected = MemoryUsage { usage: 110_338_048, working_set: 110_338_048 - 58_720_256 };
    assert_eq!(sample.memory, Reading::Known(expected));
    assert_eq!(sample.capacity, Reading::Known(268_435_456), "the limit of the group");
}

#[test]
fn the_whole_machine_is_read_from_meminfo() {
    for (recording, total) in [(V1, 24_684_096), (V2, 8_128_512)] {
        let node = Node::unpack(recording);
        let sample = node.sampler("/").sample_node(&[]);
        assert_eq!(sample.capacity, Reading::Known(total << 10));
        assert!(sample.memory.known().unwrap().working_set > 0);
    }
}

#[test]
fn v2_root_memory_equals_the_sum_that_the_kubelet_uses() {
    let node = Node::unpack(V2);
    let mut sampler = node.sampler("/");
    let ours = sampler.sample_node(&[]).memory;
    // The root of version 2 has no usage of its own: the kubelet adds up anonymous memory and page cache.
    let stat = std::fs::read_to_string(node.path("sys/fs/cgroup/memory.stat")).unwrap();
    let value = |key: &str| -> u64 {
        let line = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        line.unwrap().parse().unwrap()
    };
    let usage = value("anon") + value("file");
    let working_set = usage - value("inactive_file");
    assert_eq!(ours, Reading::Known(MemoryUsage { usage, working_set }));
}

#[test]
fn pods_and_containers_are_sampled_with_any_number_of_descriptors() {
    for recording in [V1, V2] {
        let node = Node::unpack(recording);
        // With descriptors for everything, for some, and for nothing.
        for descriptors in [4096, 7, 0] {
            let mut sampler = node.sampler_with("/", descriptors);
            sampler.sample_changed(0, u64::MAX);
            for (_, usage_only) in sampler.last_pods() {
                assert!(usage_only.usage.known().is_some());
                assert_eq!(usage_only.working_set, Reading::Unknown(UnknownReason::Absent));
                assert_eq!(usage_only.tasks, Reading::Unknown(UnknownReason::Absent));
            }
            sampler.sample_all(1);
            sampler.count_tasks();
            assert_eq!(sampler.last_pods().count(), sampler.pods().pods.len());
            for (pod, sample) in sampler.last_pods() {
                assert_eq!(sample.cgroup_id, pod.cgroup_id);
                assert!(sample.tasks.known().is_some());
                let of_pod = sample.working_set.known().unwrap();
                let inside = pod.containers.iter().filter(|container| container.path.starts_with(&pod.path));
                let containers = inside.map(|container| sampler.group(container.cgroup_id).unwrap());
                let sum: u64 = containers.map(|group| group.working_set.known().unwrap()).sum();
                assert!(of_pod.abs_diff(sum) < 1 << 20, "{}: {of_pod} and {sum}", pod.uid);
            }
        }
    }
}

#[test]
fn sample_changed_reads_only_pods_whose_usage_changed() {
    let node = Node::unpack(V2);
    let mut sampler = node.sampler("/");
    sampler.sample_all(1);
    let pod = burstable_pod(&sampler);
    let other = sampler.pods().pods.iter().find(|other| other.uid != pod.uid).unwrap().cgroup_id;
    let read_at = |sampler: &Sampler, id| sampler.group(id).unwrap().stat_at_ns;
    let (before, other_before) = (read_at(&sampler, pod.cgroup_id), read_at(&sampler, other));
    let all = sampler.pods().pods_root.unwrap();
    let all_before = read_at(&sampler, all);
    set_usage(&node, &pod);
    sampler.sample_changed(0, u64::MAX);
    assert_eq!(read_at(&sampler, pod.cgroup_id), before, "none may be read");
    sampler.sample_changed(32, u64::MAX);
    assert!(read_at(&sampler, pod.cgroup_id) > before);
    assert_eq!(read_at(&sampler, other), other_before);
    let again = read_at(&sampler, pod.cgroup_id);
    sampler.sample_changed(32, u64::MAX);
    assert_eq!(read_at(&sampler, pod.cgroup_id), again, "it has been read since it moved");
    assert_eq!(read_at(&sampler, all), all_before, "it is no pod's");
}

#[test]
fn cgroup_is_not_read_twice_for_one_sample() {
    let node = Node::unpack(V2);
    let mut sampler = node.sampler("/");
    sampler.sample_all(1);
    let pod = burstable_pod(&sampler);
    let id = pod.cgroup_id;
    let since_ns = mono_ns();
    sampler.sample_group(id, &[]);
    let read = sampler.group(id).unwrap();
    assert!(read.stat_at_ns >= since_ns);
    set_usage(&node, &pod);
    sampler.sample_changed(32, since_ns);
    assert_eq!(sampler.group(id).unwrap().stat_at_ns, read.stat_at_ns);
    sampler.sample_changed(32, mono_ns());
    let again = sampler.group(id).unwrap();
    assert_eq!(again.usage, Reading::Known(150_000_000), "another look begins");
    assert!(again.stat_at_ns > read.stat_at_ns);
}

#[test]
fn unchanged_cgroups_are_read_in_turn() {
    let node = Node::unpack(V2);
    let mut sampler = node.sampler("/");
    let groups: Vec<u64> = sampler.tree().groups().iter().map(|group| group.id).collect();
    let read = |sampler: &Sampler| -> Vec<u64> {
        groups.iter().map(|id| sampler.group(*id).unwrap().stat_at_ns).collect()
    };
    let later = |before: &[u64], now: &[u64]| -> Vec<bool> {
        before.iter().zip(now).map(|(before, now)| now > before).collect()
    };
    sampler.sample_all(3);
    let first = read(&sampler);
    sampler.sample_all(1);
    let readable = later(&vec![0; groups.len()], &read(&sampler));
    assert_eq!(later(&vec![0; groups.len()], &first), readable, "at first all are read");
    let mut turns = Vec::new();
    for _ in 0..3 {
        let before = read(&sampler);
        sampler.sample_all(3);
        turns.push(later(&before, &read(&sampler)));
    }
    for group in (0..groups.len()).filter(|group| readable[*group]) {
        assert_eq!(turns.iter().filter(|turn| turn[group]).count(), 1, "group {group}");
    }

    let pod = burstable_pod(&sampler);
    set_usage(&node, &pod);
    let before = read(&sampler);
    sampler.sample_all(1000);
    for (place, is_read) in later(&before, &read(&sampler)).into_iter().enumerate().skip(1) {
        let path = sampler.tree().relative_path(place);
        assert!(is_read || !pod.path.starts_with(&path), "{} is above what moved", path.display());
    }
}

#[test]
fn memory_limits_are_read_in_cgroup_v1_and_v2() {
    let node = Node::unpack(V2);
    let mut sampler = node.sampler("/");
    let pod = burstable_pod(&sampler);
    let limits = |sampler: &Sampler| {
        pod.containers.iter().map(|c| sampler.group(c.cgroup_id).unwrap().limit).collect::<Vec<_>>()
    };
    let high = Some(160 << 20);
    assert_eq!(limits(&sampler), [high, None, None], "memory.high is below memory.max");
    // A resize in place.
    let path = format!("sys/fs/cgroup/{}/memory.max", pod.containers[1].path.display());
    node.write(&path, "33554432\n");
    sampler.read_limit(pod.containers[1].cgroup_id);
    assert_eq!(limits(&sampler), [high, Some(32 << 20), None]);

    let node = Node::unpack(V1);
    let sampler = node.sampler("/");
    let root = sampler.group(sampler.tree().groups()[0].id).unwrap();
    assert_eq!(root.limit, Some(256 << 20));
}

#[test]
fn tasks_of_the_machine_and_of_a_cgroup_are_counted() {
    let node = Node::unpack(V2);
    assert_eq!(node.sampler("/").read_task_count(), Reading::Known(412));
    assert_eq!(read_task_capacity(&node.path("proc")), Reading::Known(63_278));
    let sampler = node.sampler("/kubepods.slice/kubepods-burstable.slice");
    assert_eq!(sampler.read_task_count(), Reading::Known(31));
    assert_eq!(sampler.read_task_limit(), Reading::Unknown(UnknownReason::Absent));
    let node = Node::unpack(V1);
    assert_eq!(node.sampler("/").read_task_limit(), Reading::Known(64));
}

/// The groups whose memory.stat was read by this work.
fn read_by(sampler: &mut Sampler, work: impl FnOnce(&mut Sampler)) -> Vec<u64> {
    let since_ns = mono_ns();
    work(sampler);
    let ids = sampler.tree().groups().iter().map(|group| group.id);
    ids.filter(|id| sampler.group(*id).unwrap().stat_at_ns >= since_ns).collect()
}

#[test]
fn changed_and_charged_cgroups_are_read_with_their_ancestors() {
    let node = Node::unpack(V2);
    let root = "/kubepods.slice";
    let mut sampler = node.sampler(root);
    let read = |charged: &[u64], sampler: &mut Sampler| {
        read_by(sampler, |sampler| {
            sampler.sample_node(charged);
        })
    };
    let all = sampler.tree().groups().len();
    assert_eq!(read(&[], &mut sampler).len(), all, "its first text is held against all of them");
    let of_root = sampler.tree().groups()[0].id;
    assert_eq!(read(&[], &mut sampler), [of_root], "nothing moved: the group itself");

    let pod = burstable_pod(&sampler);
    let folder = format!("sys/fs/cgroup{root}/{}", pod.containers[0].path.display());
    let leaf = format!("{folder}/workers/a");
    let grow = |path: &str, by: u64| {
        let file = format!("{path}/memory.current");
        let usage: u64 = std::fs::read_to_string(node.path(&file)).unwrap().trim().parse().unwrap();
        node.write(&file, format!("{}\n", usage + by));
    };
    let chain = [leaf.clone(), format!("{folder}/workers"), folder.clone()];
    let above = ["kubepods-burstable.slice", "."].map(|part| format!("sys/fs/cgroup{root}/{part}"));
    let pod_folder = format!("sys/fs/cgroup{root}/{}", pod.path.display());
    for path in chain.iter().chain([&pod_folder]).chain(&above) {
        grow(path, 5 << 20);
    }
    // Leaf, workers, container, pod, QoS class, and the root.
    assert_eq!(read(&[], &mut sampler).len(), 6);
    assert_eq!(read(&[], &mut sampler).len(), 1);
    // What the kernel side saw charging is read although its usage stands still.
    let init = read(&[pod.leaves[0], 0], &mut sampler);
    assert_eq!(init.len(), 5, "init, container, pod, QoS class, and the root");
}

#[test]
fn stale_ancestor_is_corrected_by_its_leaves() {
    let node = Node::unpack(V2);
    let mut sampler = node.sampler("/kubepods.slice");
    sampler.sample_all(1);
    let inactive_file = |sampler: &mut Sampler, charged: &[u64]| {
        let memory = sampler.sample_node(charged).memory.known().unwrap();
        memory.usage - memory.working_set
    };
    let before = inactive_file(&mut sampler, &[]);
    let pod = burstable_pod(&sampler);
    let leaf =
        format!("sys/fs/cgroup/kubepods.slice/{}/workers/a/memory.stat", pod.containers[0].path.display());
    let text = std::fs::read_to_string(node.path(&leaf)).unwrap();
    let lost = |bytes: u64| {
        text.replace("inactive_file 34603008\n", &format!("inactive_file {}\n", 34_603_008 - bytes))
    };
    assert_ne!(lost(1), text);
    let deepest = pod
        .leaves
        .iter()
        .copied()
        .find(|id| sampler.group(*id).unwrap().stat.inactive_file == Reading::Known(34_603_008))
        .unwrap();
    let difference = |sampler: &mut Sampler, charged: &[u64]| {
        inactive_file(sampler, charged).cast_signed() - before.cast_signed()
    };

    node.write(&leaf, lost(10 << 20));
    assert_eq!(difference(&mut sampler, &[deepest]), -(10 << 20));
    node.write(&leaf, lost(15 << 20));
    assert_eq!(difference(&mut sampler, &[deepest]), -(15 << 20));
    // It is kept while the tree is read again, and ends when the ancestor has caught up.
    std::fs::create_dir(node.path("sys/fs/cgroup/kubepods.slice/aaa")).unwrap();
    sampler.refresh(|_| false).unwrap();
    assert_eq!(difference(&mut sampler, &[]), -(15 << 20));
    let root = "sys/fs/cgroup/kubepods.slice/memory.stat";
    let of_root = std::fs::read_to_string(node.path(root)).unwrap();
    let now = before - (15 << 20);
    node.write(
        root,
        of_root.replace(&format!("inactive_file {before}\n"), &format!("inactive_file {now}\n")),
    );
    assert_eq!(difference(&mut sampler, &[deepest]), -(15 << 20));
    node.write(&leaf, lost(16 << 20));
    assert_eq!(difference(&mut sampler, &[deepest]), -(16 << 20));
}

#[test]
fn leaves_of_a_cgroup_at_its_limit_are_read_with_unchanged_usage() {
    let node = Node::unpack(V2);
    let root = "sys/fs/cgroup/kubepods.slice";
    let usage = std::fs::read_to_string(node.path(&format!("{root}/memory.current"))).unwrap();
    node.write(&format!("{root}/memory.max"), usage);
    let mut sampler = node.sampler("/kubepods.slice");
    sampler.sample_all(1);
    let cache = |sampler: &Sampler, id: u64| sampler.group(id).unwrap().stat.inactive_file.known();
    let leaves = sampler.pods().pods.iter().flat_map(|pod| pod.leaves.clone());
    let mut with_cache: Vec<u64> =
        leaves.filter(|id| cache(&sampler, *id).is_some_and(|it| it > 0)).collect();
    with_cache.sort_unstable_by_key(|id| std::cmp::Reverse(cache(&sampler, *id)));
    let read = read_by(&mut sampler, |sampler| {
        sampler.sample_node(&[]);
    });
    assert!(!with_cache.is_empty());
    for id in with_cache.iter().take(12) {
        assert!(read.contains(id), "those with most page cache to lose");
    }
}
