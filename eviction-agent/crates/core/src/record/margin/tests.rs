//! Every margin is applied to the world that it was told for: with it the choice is another,
//! with one unit less it is not.

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
use crate::snapshot::{ContainerStatValues, PodStatValues, ProcessStats, SnapshotBuilder};
/// What a pod is ranked by, whatever is short.
#[derive(Clone, Debug)]
struct Figures {
    usage: Option<i64>,
    /// In thousandths, so that requests are not always whole.
    request: i128,
    priority: i64,
}

#[derive(Clone, Copy, Debug)]
enum Figure {
    Usage,
    Request,
    Priority,
}

impl Figures {
    fn changed(&self, figure: Figure, by: i64) -> Self {
        let mut changed = self.clone();
        match figure {
            Figure::Usage => changed.usage = self.usage.map(|usage| usage + by),
            Figure::Request => changed.request += i128::from(by) * 1000,
            Figure::Priority => changed.priority += by,
        }
        changed
    }
}

const SIGNALS: [Signal; 4] =
    [Signal::MemoryAvailable, Signal::NodeFsAvailable, Signal::NodeFsInodesFree, Signal::PidAvailable];

/// The record of one evaluation in which the signal is short and nothing can be collected instead.
fn evaluation(signal: Signal, world: &[Figures]) -> EvaluationRecord {
    let pod = |(index, values): (usize, &Figures)| {
        let amount = format!("{}m", values.request);
        let asks = requests(&[("memory", &amount), ("ephemeral-storage", &amount)]);
        Pod {
            uid: format!("{index:02}").into(),
            name: format!("pod-{index}").into(),
            priority: Some(i32::try_from(values.priority).unwrap()),
            containers: vec![container("main", asks)],
            ..Pod::default()
        }
    };
    let policy = policy(vec![hard(signal, "1000")]);
    let mut engine = Engine::new(policy.clone());
    step(&mut engine, 0, Event::Pods(set(world.iter().enumerate().map(pod).collect())));
    let layout = DiskLayout { dedicated_image_fs: true, split_image_fs: false };
    step(&mut engine, 0, Event::DiskLayout(Ok(layout)));
    let mut builder = SnapshotBuilder::new();
    let mut stats = node(1, 1, at(1));
    stats.processes =
        Reading::Known(ProcessStats { max: Some(9), running: Some(8), ..ProcessStats::default() });
    builder.node(stats);
    for (index, values) in world.iter().enumerate() {
        let Some(usage) = values.usage.map(i64::cast_unsigned) else {
            continue;
        };
        let of_pod = PodStatValues {
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
        builder.pod(&format!("{index:02}"), of_pod).container("main", logs);
    }
    let decision = step(&mut engine, 1, Event::Sample(Arc::new(builder.finish())));
    match DecisionRecord::of(&decision).subject {
        RecordSubject::Evaluated(evaluation) => *evaluation,
        other => panic!("no pass: {other:?}"),
    }
}

fn victim(evaluation: &EvaluationRecord) -> Option<String> {
    evaluation.evictions.first().map(|eviction| eviction.pod.uid.to_string())
}

fn index(candidate: &CandidateRecord) -> usize {
    candidate.pod.uid.parse().unwrap()
}

/// Who goes if a value of one pod is another.
fn victim_with(signal: Signal, world: &[Figures], index: usize, figure: Figure, by: i64) -> Option<String> {
    let mut world = world.to_vec();
    world[index] = world[index].changed(figure, by);
    victim(&evaluation(signal, &world))
}

fn values() -> impl Strategy<Value = Figures> {
    let usage = prop_oneof![
        8 => 0..40i64,
        1 => select(&[i64::MAX, i64::MAX - 1, 1 << 40, -1, i64::MIN][..]),
    ];
    let request = prop_oneof![8 => 0..40_000i128, 1 => select(&[1_000_000_i128 << 40, 500][..])];
    let priority = prop_oneof![8 => -1..2i64, 1 => select(&[-2_147_483_648_i64, 1_000_000_000][..])];
    (of(usage), request, priority).prop_map(|(usage, request, priority)| Figures { usage, request, priority })
}

proptest! {
    #[test]
    fn a_margin_is_exactly_what_it_takes(
        signal in select(&SIGNALS[..]),
        world in prop::collection::vec(values(), 1..7),
    ) {
        let record = evaluation(signal, &world);
        prop_assert_eq!(victim(&record).is_some(), true);
        prop_assert_eq!(record.candidates.iter().any(|one| one.margin.is_some()), world.len() > 1);
        for candidate in &record.candidates {
            let Some(margin) = candidate.margin else { continue };
            let instead = match candidate.result {
                CandidateOutcome::Evicted => &record.candidates[margin.against].pod.uid,
                _ => &candidate.pod.uid,
            };
            let changes = [
                (Figure::Usage, margin.usage),
                (Figure::Request, margin.request),
                (Figure::Priority, margin.priority),
            ];
            for (figure, by) in changes {
                let Some(by) = by else { continue };
                let who = |by| victim_with(signal, &world, index(candidate), figure, by);
                prop_assert_eq!(who(by), Some(instead.to_string()), "{:?} by {}", figure, by);
                prop_assert_eq!(who(by - by.signum()), victim(&record), "{:?} by less than {}", figure, by);
            }
        }
    }

    #[test]
    fn where_there_is_no_margin_no_change_would_do(
        signal in select(&SIGNALS[..]),
        world in prop::collection::vec(values(), 2..7),
    ) {
        let record = evaluation(signal, &world);
        for candidate in &record.candidates {
            let margin = candidate.margin.unwrap();
            let values = &world[index(candidate)];
            let goes = candidate.result == CandidateOutcome::Evicted;
            let who = |figure, by| victim_with(signal, &world, index(candidate), figure, by);
            if let (None, Some(usage)) = (margin.usage, values.usage) {
                let most = if goes { -usage.max(0) } else { i64::MAX - usage.max(0) };
                prop_assert_eq!(who(Figure::Usage, most), victim(&record));
            }
            if margin.priority.is_none() {
                let least = if goes { 1_000_000_000 } else { i64::from(i32::MIN) };
                let by = least - values.priority;
                prop_assert_eq!(who(Figure::Priority, by), victim(&record));
            }
        }
    }

    #[test]
    fn the_nearest_is_the_least_of_all_margins(
        signal in select(&SIGNALS[..]),
        world in prop::collection::vec(values(), 1..7),
    ) {
        let record = evaluation(signal, &world);
        let least = record.candidates.iter().filter_map(|one| one.margin?.usage).map(i64::unsigned_abs).min();
        prop_assert_eq!(record.nearest.as_ref().map(|nearest| nearest.usage.unsigned_abs()), least);
        if let Some(nearest) = &record.nearest {
            prop_assert_eq!(Some(nearest.kept.uid.to_string()), victim(&record));
            let index = nearest.pod.uid.parse().unwrap();
            let goes = victim_with(signal, &world, index, Figure::Usage, nearest.usage);
            prop_assert_eq!(goes, Some(nearest.evicted.uid.to_string()));
        }
    }
}
