//! Cgroups that are created and removed while they are sampled.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use eviction_core::reading::{Reading, UnknownReason};
use eviction_node::cgroup::names::PodUid;
use eviction_node::cgroup::sampler::Sampler;
use eviction_node::file::is_removed;
use tests::cgroup::{Driver, Qos, Subtree, container_id, pod_uid};
use tests::process::{HANG, Stop};
use tests::workload::Workload;

use crate::MIB;
use crate::sampler;

/// Returns the ids of all cgroups as of the last refresh.
fn ids(sampler: &Sampler) -> BTreeSet<u64> {
    sampler.tree().groups().iter().map(|group| group.id).collect()
}

#[test]
fn values_of_a_removed_cgroup_are_unknown_and_not_zero() {
    let subtree = Subtree::new("gone").unwrap();
    let pod = subtree.pod(Driver::Systemd, Qos::BestEffort, &pod_uid(1)).unwrap();
    let name = Driver::Systemd.container(&container_id(1));
    let container = pod.group(&name).unwrap();
    let mut sampler = sampler(&subtree);
    sampler.sample_all(1);
    sampler.count_tasks();
    let tasks: Vec<_> = sampler.last_pods().map(|(_, sample)| sample.tasks).collect();
    assert_eq!(tasks, [Reading::Known(0)]);
    let found = sampler.pods().pods[0].clone();
    assert_eq!(found.uid, PodUid::new(&pod_uid(1)));
    assert_eq!(*found.containers[0].id, *container_id(1));

    container.destroy().unwrap();
    sampler.sample_all(1);
    let removed = sampler.group(found.containers[0].cgroup_id).unwrap();
    assert!(matches!(removed.usage, Reading::Unknown(why) if is_removed(why)), "{removed:?}");
    assert!(matches!(removed.working_set, Reading::Unknown(_)));
    assert!(sampler.is_stale());
    let before = ids(&sampler);
    sampler.refresh(|_| false).unwrap();
    let after = ids(&sampler);
    assert!(after.is_subset(&before) && after.len() == before.len() - 1, "{before:?} {after:?}");
    assert!(!sampler.is_stale());
    assert_eq!(sampler.group(found.containers[0].cgroup_id), None);

    // A new cgroup of the same name is another cgroup.
    let recreated = pod.group(&name).unwrap();
    sampler.refresh(|_| false).unwrap();
    let new = sampler.pods().pods[0].containers[0].clone();
    assert_ne!(new.cgroup_id, found.containers[0].cgroup_id);
    drop(recreated);
    subtree.remove().unwrap();
}

/// A kubelet that is started with the other driver creates its pods again beside the old cgroups.
#[test]
fn a_pod_with_cgroups_of_both_drivers_is_one_pod() {
    let subtree = Subtree::new("drivers").unwrap();
    let uids = [pod_uid(1), pod_uid(2)];
    let make = |driver: Driver, place: u64| {
        let pod = subtree.pod(driver, Qos::Burstable, &uids[place as usize]).unwrap();
        pod.group(driver.container(&container_id(place))).unwrap();
        pod
    };
    let old: Vec<_> = (0..2).map(|place| make(Driver::Cgroupfs, place)).collect();
    let mut sampler = sampler(&subtree);
    let containers = |sampler: &eviction_node::cgroup::sampler::Sampler, place: usize| {
        let uid = PodUid::new(&uids[place]);
        let pods = sampler.pods();
        for pod in pods.by_uid(&uid) {
            assert!(pod.path.to_str().unwrap().contains("burstable"));
            for container in &pod.containers {
                let (owner, _) = pods.owner(container.cgroup_id).unwrap();
                assert_eq!(owner.uid, uid, "a group is never another pod's");
                assert_eq!(*container.id, *container_id(place as u64));
            }
        }
        pods.by_uid(&uid).map(|pod| pod.containers.len()).sum::<usize>()
    };
    assert_eq!([0, 1].map(|place| containers(&sampler, place)), [1, 1]);
    let new = make(Driver::Systemd, 0);
    sampler.refresh(|_| false).unwrap();
    assert_eq!([0, 1].map(|place| containers(&sampler, place)), [2, 1]);
    old[0].destroy().unwrap();
    sampler.refresh(|_| false).unwrap();
    assert_eq!([0, 1].map(|place| containers(&sampler, place)), [1, 1]);
    new.destroy().unwrap();
    sampler.refresh(|_| false).unwrap();
    assert_eq!([0, 1].map(|place| containers(&sampler, place)), [0, 1]);
    subtree.remove().unwrap();
}

#[test]
fn values_of_a_removed_root_cgroup_are_unknown() {
    let subtree = Subtree::new("root-gone").unwrap();
    let mut sampler = sampler(&subtree);
    assert!(sampler.sample_node(&[]).memory.known().is_some());
    subtree.remove().unwrap();
    let memory = sampler.sample_node(&[]).memory;
    assert_eq!(memory, Reading::Unknown(UnknownReason::Unreadable(19)));
    assert!(sampler.refresh(|_| false).is_err());
}

#[test]
fn sampling_continues_while_cgroups_are_created_and_removed() {
    let subtree = Subtree::new("churn").unwrap();
    subtree.root().limit_memory(64 * MIB).unwrap();
    let lasting = subtree.pod(Driver::Cgroupfs, Qos::Guaranteed, &pod_uid(0)).unwrap();
    let lasting = lasting.group(container_id(0)).unwrap();
    let holder = Workload::hold(&lasting, "16M").unwrap();
    let stop = AtomicBool::new(false);
    let (mut samples, mut added, mut removed) = (0, 0, 0);
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            let mut made = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(1 + made % 7)).unwrap();
                for container in 0..3 {
                    pod.group(container_id(made * 3 + container)).unwrap();
                }
                pod.destroy().unwrap();
                made += 1;
            }
            made
        });
        let stopper = Stop(&stop);
        let mut sampler = sampler(&subtree);
        let start = Instant::now();
        while (added < 150 || removed < 150) && start.elapsed() < HANG {
            let memory = sampler.sample_node(&[]).memory.known().unwrap();
            assert!(memory.working_set >= 16 * MIB, "{memory:?}");
            sampler.sample_all(1);
            for (_, sample) in sampler.last_pods() {
                // Never a value of a removed cgroup.
                let is_removed = matches!(sample.usage, Reading::Unknown(why) if is_removed(why));
                assert!(is_removed || sample.usage.known().is_some(), "{sample:?}");
            }
            let before = ids(&sampler);
            sampler.refresh(|_| false).unwrap();
            let after = ids(&sampler);
            assert_eq!(sampler.tree().skipped(), 0);
            added += after.difference(&before).count();
            removed += before.difference(&after).count();
            samples += 1;
            let kept = sampler.pods().by_uid(&PodUid::new(&pod_uid(0))).next().unwrap();
            assert_eq!(kept.containers.len(), 1, "the lasting pod is never lost");
        }
        drop(stopper);
        println!(
            "{} pods made, {samples} samples, {added} groups seen to come, {removed} to go",
            maker.join().unwrap()
        );
    });
    assert!(added >= 150 && removed >= 150, "{added} {removed}");
    drop(holder);
    subtree.remove().unwrap();
}
