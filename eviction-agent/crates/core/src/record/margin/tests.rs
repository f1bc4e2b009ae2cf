//! Every margin is applied to the pods that it was computed for: with it the choice is another one, with one
//! unit less it is not.

use std::sync::Arc;

use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use crate::disk_layout::DiskLayout;
use crate::engine::Engine;
use crate::fixture::{at, container, hard, node, policy, requests, set, step};
use crate::input::Event;
use crate::pod::Pod;
use crate::reading::Reading;
use crate::record::{CandidateOutcome, CandidateRecord, DecisionRecord, EvaluationRecord, RecordSubject};
use crate::signal::Signal;
use crate::snapshot::{ContainerStatValues, PodStatValues, ProcessStats, Snapshot};
/// The values that a pod is ranked by, whatever is short.
#[derive(Clone, Debug)]
struct RankValues {
    usage: Option<i64>,
    /// The request in thousandths, so that requests are not always whole.
    request: i128,
    priority: i64,
}

#[derive(Clone, Copy, Debug)]
enum RankValueKind {
    Usage,
    Request,
    Priority,
}

impl RankValues {
    fn changed(&self, kind: RankValueKind, by: i64) -> Self {
        let mut changed = self.clone();
        match kind {
            RankValueKind::Usage => changed.usage = self.usage.map(|usage| usage + by),
            RankValueKind::Request => changed.request += i128::from(by) * 1000,
            RankValueKind::Priority => changed.priority += by,
        }
        changed
    }
}

const SIGNALS: [Signal; 4] =
    [Signal::MemoryAvailable, Signal::NodeFsAvailable, Signal::NodeFsInodesFree, Signal::PidAvailable];

/// Returns the record of an evaluation in which the signal is short and nothing can be reclaimed.
fn evaluation(signal: Signal, pods: &[RankValues]) -> EvaluationRecord {
    let pod = |(index, values): (usize, &RankValues)| {
        let amount = format!("{}m", values.request);
        let resources = requests(&[("memory", &amount), ("ephemeral-storage", &amount)]);
        Pod {
            uid: format!("{index:02}").into(),
            name: format!("pod-{index}").into(),
            priority: Some(i32::try_from(values.priority).unwrap()),
            containers: vec![container("main", resources)],
            ..Pod::default()
        }
    };
    let policy = policy(vec![hard(signal, "1000")]);
    let mut engine = Engine::new(policy.clone());
    step(&mut engine, 0, Event::Pods(set(pods.iter().enumerate().map(pod).collect())));
    let layout = DiskLayout { dedicated_image_fs: true, split_image_fs: false };
    step(&mut engine, 0, Event::DiskLayout(Ok(layout)));
    let mut stats = node(1, 1, at(1));
    stats.processes =
        Reading::Known(ProcessStats { max: Some(9), running: Some(8), ..ProcessStats::default() });
    let mut snapshot = Snapshot::of_node(stats);
    for (index, values) in pods.iter().enumerate() {
        let Some(usage) = values.usage.map(i64::cast_unsigned) else {
            continue;
        };
        let pod_values = PodStatValues {
            has_memory: true,
            memory_working_set: Some(usage),
            process_count: Some(usage),
            ..PodStatValues::default()
        };
        let logs = ContainerStatValues {
            logs_used: Some(usage),
            logs_inodes: Some(usage),
            ..ContainerStatValues::default()
        };
        snapshot.add_pod(&format!("{index:02}"), pod_values).add_container("main", logs);
    }
    let decision = step(&mut engine, 1, Event::Sample(Arc::new(snapshot)));
    match DecisionRecord::of(&decision).subject {
        RecordSubject::Evaluation(evaluation) => *evaluation,
        other => panic!("no pass: {other:?}"),
    }
}

fn victim(evaluation: &EvaluationRecord) -> Option<String> {
    evaluation.evictions.first().map(|eviction| eviction.pod.uid.to_string())
}

fn index(candidate: &CandidateRecord) -> usize {
    candidate.pod.uid.parse().unwrap()
}

/// Returns the pod that is evicted if one value of one pod changes.
fn victim_with(
    signal: Signal,
    pods: &[RankValues],
    index: usize,
    kind: RankValueKind,
    by: i64,
) -> Option<String> {
    let mut pods = pods.to_vec();
    pods[index] = pods[index].changed(kind, by);
    victim(&evaluation(signal, &pods))
}

fn values() -> impl Strategy<Value = RankValues> {
    let usage = prop_oneof![
        8 => 0..40i64,
        1 => select(&[i64::MAX, i64::MAX - 1, 1 << 40, -1, i64::MIN][..]),
    ];
    let request = prop_oneof![8 => 0..40_000i128, 1 => select(&[1_000_000_i128 << 40, 500][..])];
    let priority = prop_oneof![8 => -1..2i64, 1 => select(&[-2_147_483_648_i64, 1_000_000_000][..])];
    (of(usage), request, priority).prop_map(|(usage, request, priority)| RankValues {
        usage,
        request,
        priority,
    })
}

proptest! {
    #[test]
    fn margin_is_the_smallest_change_that_changes_the_victim(
        signal in select(&SIGNALS[..]),
        pods in prop::collection::vec(values(), 1..7),
    ) {
        let record = evaluation(signal, &pods);
        prop_assert_eq!(victim(&record).is_some(), true);
        prop_assert_eq!(record.candidates.iter().any(|one| one.margin.is_some()), pods.len() > 1);
        for candidate in &record.candidates {
            let Some(margin) = candidate.margin else { continue };
            let instead = match candidate.result {
                CandidateOutcome::Evicted => &record.candidates[margin.against].pod.uid,
                _ => &candidate.pod.uid,
            };
            let changes = [
                (RankValueKind::Usage, margin.usage),
                (RankValueKind::Request, margin.request),
                (RankValueKind::Priority, margin.priority),
            ];
            for (kind, by) in changes {
                let Some(by) = by else { continue };
                let victim_after = |by| victim_with(signal, &pods, index(candidate), kind, by);
                prop_assert_eq!(victim_after(by), Some(instead.to_string()), "{:?} by {}", kind, by);
                let less = by - by.signum();
                prop_assert_eq!(victim_after(less), victim(&record), "{:?} by less than {}", kind, by);
            }
        }
    }

    #[test]
    fn without_a_margin_no_change_changes_the_victim(
        signal in select(&SIGNALS[..]),
        pods in prop::collection::vec(values(), 2..7),
    ) {
        let record = evaluation(signal, &pods);
        for candidate in &record.candidates {
            let margin = candidate.margin.unwrap();
            let values = &pods[index(candidate)];
            let is_evicted = candidate.result == CandidateOutcome::Evicted;
            let victim_after = |kind, by| victim_with(signal, &pods, index(candidate), kind, by);
            if let (None, Some(usage)) = (margin.usage, values.usage) {
                let most = if is_evicted { -usage.max(0) } else { i64::MAX - usage.max(0) };
                prop_assert_eq!(victim_after(RankValueKind::Usage, most), victim(&record));
            }
            if margin.priority.is_none() {
                let least = if is_evicted { 1_000_000_000 } else { i64::from(i32::MIN) };
                let by = least - values.priority;
                prop_assert_eq!(victim_after(RankValueKind::Priority, by), victim(&record));
            }
        }
    }

    #[test]
    fn nearest_change_is_the_smallest_usage_margin(
        signal in select(&SIGNALS[..]),
        pods in prop::collection::vec(values(), 1..7),
    ) {
        let record = evaluation(signal, &pods);
        let least = record.candidates.iter().filter_map(|one| one.margin?.usage).map(i64::unsigned_abs).min();
        prop_assert_eq!(record.nearest.as_ref().map(|nearest| nearest.usage.unsigned_abs()), least);
        if let Some(nearest) = &record.nearest {
            prop_assert_eq!(Some(nearest.kept.uid.to_string()), victim(&record));
            let index = nearest.pod.uid.parse().unwrap();
            let victim_after = victim_with(signal, &pods, index, RankValueKind::Usage, nearest.usage);
            prop_assert_eq!(victim_after, Some(nearest.evicted.uid.to_string()));
        }
    }
}
