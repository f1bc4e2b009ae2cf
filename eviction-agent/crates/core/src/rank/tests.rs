use std::cmp::Ordering;

use proptest::prelude::*;

use super::{Candidate, Measure, rank};
use crate::disk_layout::DiskLayout;
use crate::fixture::arbitrary::{pods as any_pods, snapshot as any_snapshot};
use crate::fixture::{pod, set, snapshot_of};
use crate::pod::Pod;
use crate::signal::Signal;
use crate::snapshot::NodeStats;

fn order(measure: Measure, pods: Vec<Pod>, usage: &[(&str, u64)]) -> Vec<String> {
    let pods = set(pods);
    let sample = snapshot_of(NodeStats::default(), usage).indexed(&pods);
    let uid = |candidate: &Candidate| pods.get(candidate.pod).unwrap().pod.uid.to_string();
    let mut ranked = Vec::new();
    rank(measure, &pods, &sample, &mut ranked);
    ranked.iter().map(uid).collect()
}

fn with_priority(uid: &str, memory: &str, priority: i32) -> Pod {
    Pod { priority: Some(priority), ..pod(uid, memory) }
}

#[test]
fn pods_rank_by_over_request_then_priority_then_excess_then_uid() {
    let pods = vec![
        with_priority("within", "300", -9),
        with_priority("high", "10", 5),
        pod("tie-2", "10"),
        pod("tie-1", "10"),
        pod("most", "10"),
        with_priority("unseen", "10", 100),
    ];
    let usage = [("within", 200), ("high", 900), ("tie-2", 50), ("tie-1", 50), ("most", 60)];
    assert_eq!(order(Measure::Memory, pods, &usage), ["unseen", "most", "tie-1", "tie-2", "high", "within"]);
}

#[test]
fn pod_without_process_count_ranks_first_only_in_its_priority() {
    let pods =
        vec![with_priority("unseen", "1", 1), with_priority("seen", "1", 1), with_priority("low", "1", 0)];
    let usage = [("seen", 1), ("low", 1)];
    assert_eq!(order(Measure::Processes, pods, &usage), ["low", "unseen", "seen"]);
}

#[test]
fn requests_out_of_the_range_of_nanos_are_equal() {
    let pods = vec![pod("a", "3e40"), pod("c", "1e40"), pod("b", "2e40"), pod("d", "1e28")];
    let usage = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];
    assert_eq!(order(Measure::Memory, pods, &usage), ["d", "a", "b", "c"]);
}

#[test]
fn candidate_takes_at_most_48_bytes() {
    assert!(size_of::<Candidate>() <= 48);
}

pub(super) fn measures() -> impl Strategy<Value = Measure> {
    let layout = any::<[bool; 2]>()
        .prop_map(|[dedicated_image_fs, split_image_fs]| DiskLayout { dedicated_image_fs, split_image_fs });
    (prop::sample::select(&Signal::ALL[..]), layout).prop_map(|(signal, layout)| Measure::of(signal, layout))
}

proptest! {
    /// The order is irreflexive and asymmetric, and that of the list for every pair, not only for neighbours.
    #[test]
    fn the_order_is_strict_and_total(
        measure in measures(),
        pods in any_pods(),
        sample in any_snapshot(),
    ) {
        let (sample, mut ranked) = (sample.indexed(&pods), Vec::new());
        rank(measure, &pods, &sample, &mut ranked);
        prop_assert_eq!(ranked.len(), pods.len());
        for (i, a) in ranked.iter().enumerate() {
            for b in &ranked[i + 1..] {
                prop_assert_eq!(a.key().cmp(&b.key()), Ordering::Less);
                prop_assert_eq!(b.key().cmp(&a.key()), Ordering::Greater);
            }
        }
    }

    /// The first pod does not depend on the order in which the pods are listed.
    #[test]
    fn order_of_the_pod_list_does_not_affect_the_ranking(memory in prop::collection::vec(0..4u64, 2..9)) {
        let uids: Vec<_> = (0..memory.len()).map(|n| n.to_string()).collect();
        let pods: Vec<_> = uids.iter().map(|uid| pod(uid, "2")).collect();
        let usage: Vec<_> = uids.iter().map(String::as_str).zip(memory).collect();
        let mut reversed = pods.clone();
        reversed.reverse();
        prop_assert_eq!(
            order(Measure::Memory, pods, &usage),
            order(Measure::Memory, reversed, &usage)
        );
    }
}
