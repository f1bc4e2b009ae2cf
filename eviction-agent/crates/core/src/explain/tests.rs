use std::sync::Arc;

use super::{Explainer, explain_rank, forecast};
use crate::decision::ProposalState;
use crate::disk_layout::{DiskLayout, Parts, Reclaim};
use crate::engine::Engine;
use crate::fixture::{
    at, engine, enhanced, hard, memory_of, node, pod, policy, quantity, set, set_by, snapshot, soft, step,
};
use crate::input::Event;
use crate::oom::{
    ContainerRef, ContainerTerminated, Explanation, LimitScope, OomKill, OomUpdate, OomVictimRole,
    TerminationCause,
};
use crate::pod::{EmptyDir, Owner, Pod, PodName, PodRef, Volume};
use crate::policy::preferences::{PredictionMode, Preferences};
use crate::policy::{Policy, Rules, Threshold};
use crate::reading::UnknownReason;
use crate::record::{DecisionRecord, MemoryRecord, PodSample, RecordSubject, UnknownValue};
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable, NodeFsInodesFree};
use crate::signal::{NodeCondition, Resource, Signal};
use crate::signal_filter::{Implausible, RejectedReading};
use crate::snapshot::{ContainerStatValues, FsUsage, NodeStats, PodStatValues, Snapshot};
use crate::threshold::MemoryConditions;
use crate::trend::Eta;
use crate::units::{GoDuration, ThresholdValue};

struct Node {
    engine: Engine,
    explainer: Explainer,
    text: String,
}

impl Node {
    fn new(explainer: Explainer) -> Self {
        let critical = Pod { priority: Some(2_000_000_000), ..pod("critical", "0") };
        let odd = Pod { name: "bell\u{7}\u{1b}[31m".into(), ..pod("odd", "40") };
        let pods = set(vec![pod("greedy", "10"), pod("modest", "300"), critical, odd]);
        let share = ThresholdValue::Percentage(0.05);
        let policy = policy(vec![
            Threshold { min_reclaim: Some(share), ..hard(MemoryAvailable, "10%") },
            soft(NodeFsAvailable, "950", 60),
        ]);
        let engine = engine(policy, &pods);
        Self { engine, explainer, text: String::new() }
    }

    fn samples(mut self, samples: &[(i64, u64, u64)]) -> String {
        let usage = [("greedy", 200), ("modest", 250), ("critical", 290), ("odd", 90)]
            .map(|(uid, used)| memory_of(uid, used));
        for &(seconds, memory, disk) in samples {
            let sample = snapshot(node(memory, disk, at(seconds)), &usage);
            let decision = step(&mut self.engine, seconds, Event::Sample(sample));
            self.text += &self.explainer.explain(&DecisionRecord::of(&decision));
        }
        self.text + &self.explainer.finish()
    }
}

fn name_of(uid: &str) -> PodName {
    PodName { namespace: "default".into(), name: format!("pod-{uid}").into(), uid: uid.into() }
}

/// Memory pressure, then pressure by minimum reclaim alone, then none except a soft threshold.
const PRESSURE: [(i64, u64, u64); 6] =
    [(1, 900, 990), (11, 900, 990), (21, 50, 990), (31, 120, 990), (41, 900, 900), (451, 900, 990)];

#[test]
fn evaluations_under_pressure_are_explained_one_by_one() {
    insta::assert_snapshot!(Node::new(Explainer::default()).samples(&PRESSURE));
}

#[test]
fn bytes_elsewhere_and_awaited_bytes_are_explained() {
    let owned = |uid| {
        let owner = Owner { kind: "Job".into(), name: "j".into(), uid: "j".into() };
        Pod { owner: Some(owner), ..pod(uid, "10") }
    };
    let rules = Rules::enhanced(&Preferences::default());
    let policy = Policy { rules, ..policy(vec![hard(NodeFsAvailable, "50")]) };
    let mut engine =
        engine(policy.clone(), &set_by(&policy, vec![owned("writes-elsewhere"), owned("modest")]));
    let sample = |seconds, awaited_bytes| {
        let unmeasured = if awaited_bytes > 0 { Parts::ALL } else { Parts::default() };
        let mut snapshot =
            Snapshot::of_node(NodeStats { awaited_bytes, unmeasured, ..node(900, 40, at(seconds)) });
        for (uid, bytes_elsewhere) in [("writes-elsewhere", Some(3 << 20)), ("modest", None)] {
            let values = PodStatValues { bytes_elsewhere, ..PodStatValues::default() };
            let storage = ContainerStatValues {
                rootfs_used: Some(1 << 20),
                logs_used: Some(0),
                ..ContainerStatValues::default()
            };
            snapshot.add_pod(uid, values).add_container("c", storage);
        }
        Arc::new(snapshot)
    };
    let mut text = String::new();
    let mut explainer = Explainer::default();
    for sample in [sample(1, 64 << 20), sample(2, 0)] {
        let decision = step(&mut engine, 2, Event::Sample(Arc::clone(&sample)));
        text += &explainer.explain(&DecisionRecord::of(&decision));
        if decision.awaits_reclaim() {
            let decision = step(&mut engine, 2, Event::Reclaimed(Ok(sample)));
            text += &explainer.explain(&DecisionRecord::of(&decision));
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn text_for_a_terminal_is_coloured() {
    insta::assert_snapshot!(
        Node::new(Explainer::default().coloured(true)).samples(&PRESSURE[..4]).escape_debug()
    );
}

#[test]
fn an_evicted_pod_is_explained() {
    insta::assert_snapshot!(Node::new(Explainer::of_pod(name_of("greedy"))).samples(&PRESSURE));
}

#[test]
fn a_pod_that_is_not_evicted_is_explained() {
    insta::assert_snapshot!(Node::new(Explainer::of_pod(name_of("modest"))).samples(&PRESSURE));
}

#[test]
fn a_critical_pod_is_explained() {
    insta::assert_snapshot!(Node::new(Explainer::of_pod(name_of("critical"))).samples(&PRESSURE));
}

#[test]
fn an_eviction_above_a_limit_is_not_explained_by_a_threshold() {
    let empty_dir = EmptyDir { size_limit: Some(quantity("100")), ..EmptyDir::default() };
    let cache = Volume { name: "cache".into(), empty_dir: Some(empty_dir), ..Volume::default() };
    let full = Pod { volumes: vec![cache], ..pod("full", "1") };
    let policy = enhanced(vec![hard(MemoryAvailable, "100")], |_| ());
    let pods = set_by(&policy, vec![full, pod("greedy", "10"), pod("modest", "10")]);
    let mut engine = engine(policy, &pods);
    let mut snapshot = Snapshot::of_node(node(50, 900, at(1)));
    for (uid, used) in [("full", 5), ("greedy", 200), ("modest", 50)] {
        snapshot.add_pod(uid, memory_of(uid, used).1);
        if uid == "full" {
            snapshot.add_volume("cache", FsUsage { used: Some(200), inodes: None });
        }
    }
    let record = DecisionRecord::of(&step(&mut engine, 1, Event::Sample(Arc::new(snapshot))));
    let text = Explainer::default().explain(&record);
    for part in [
        "EVICT default/pod-full: above limits of local storage; EVICT default/pod-greedy: short of memory\n",
        "  goes       default/pod-full\n",
        "goes before default/pod-modest",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let row = text.lines().find(|line| line.contains("  default/pod-full  ")).unwrap();
    assert!(row.contains("terminating"), "{text}");
    let text = Explainer::of_pod(name_of("full")).explain(&record);
    assert!(text.contains("EVICT default/pod-full: above a limit of its own"), "{text}");
}

#[test]
fn an_eviction_by_prediction_is_explained_with_the_time_that_was_left() {
    let pods = set(vec![pod("greedy", "10")]);
    let policy =
        enhanced(vec![hard(MemoryAvailable, "100")], |it| it.prediction.mode = PredictionMode::Evict);
    let mut engine = engine(policy, &pods);
    let mut explainer = Explainer::default();
    let mut text = String::new();
    for (seconds, available) in (0..4).zip([500, 480, 460, 440]) {
        let sample = snapshot(node(available, 900, at(seconds)), &[memory_of("greedy", 200)]);
        let decision = step(&mut engine, seconds, Event::Sample(sample));
        text += &explainer.explain(&DecisionRecord::of(&decision));
    }
    assert!(text.contains("EVICT default/pod-greedy: short of memory"), "{text}");
    assert!(text.contains("memory.available will be below 100 in 17s (17s to 17s)"), "{text}");
}

#[test]
fn only_what_is_still_short_after_reclaim_is_not_enough() {
    let pods = set(vec![pod("a", "1")]);
    let policy = policy(vec![hard(NodeFsAvailable, "500"), hard(NodeFsInodesFree, "60")]);
    let mut engine = engine(policy, &pods);
    let sample = |disk| snapshot(node(900, disk, at(1)), &[memory_of("a", 5)]);
    step(&mut engine, 1, Event::Sample(sample(400)));
    let decision = step(&mut engine, 1, Event::Reclaimed(Ok(sample(600))));
    let text = Explainer::default().explain(&DecisionRecord::of(&decision));
    let is_short = |signal: &str| {
        let line = text.lines().find(|line| line.contains(&format!("afterwards {signal} "))).unwrap();
        line.ends_with("which is not enough")
    };
    assert!(!is_short("nodefs.available") && is_short("nodefs.inodesFree"), "{text}");
}

fn kill() -> OomKill {
    OomKill {
        at: Some(at(5)),
        pid: 4711,
        comm: "java\u{1b}".into(),
        pod: Some(PodRef::new("default", "pod-greedy")),
        pod_uid: Some("greedy".into()),
        container: Some("main".into()),
        limit_scope: LimitScope::Container,
        victim: OomVictimRole::Child,
        usage: Some(1 << 30),
        limit: Some(1 << 30),
        near_since: Some(at(1)),
        anon: Some(900 << 20),
        file: Some(0),
        oom_score_adj: Some(0),
        trigger_pid: Some(4711),
        trigger_comm: "java".into(),
        evicting_since: Some(at(2)),
        kills_in_pod: 2,
        ..OomKill::default()
    }
}

fn end() -> ContainerTerminated {
    ContainerTerminated {
        container: ContainerRef {
            pod: Some(PodRef::new("default", "pod-greedy")),
            pod_uid: "greedy".into(),
            name: "main".into(),
            id: None,
        },
        cause: TerminationCause::EvictedByAgent,
        explanation: Explanation::EvictionInProgress,
        inferred: false,
        contributing: vec![TerminationCause::OomKilled],
        limit_scope: Some(LimitScope::Node),
        finished_at: at(6),
        exit_code: Some(137),
        exit_signal: None,
        reason: "OOMKilled".into(),
        mismatch: None,
        evidence: Vec::new(),
        evidence_omitted: 0,
    }
}

/// Returns an OOM kill, one in no pod, a repeated one, and a termination.
fn kills() -> [DecisionRecord; 4] {
    let record = |subject, ended| DecisionRecord {
        at: at(7),
        subject,
        conditions: Vec::new(),
        terminations: ended,
        unknown_conditions: Vec::new(),
        unavailable: Vec::new(),
        proposal: None,
    };
    let subject = |kill| RecordSubject::Oom(OomUpdate::Kill(Box::new(kill)));
    let elsewhere = OomKill {
        pod: None,
        pod_uid: None,
        container: None,
        limit_scope: LimitScope::Node,
        inferred: true,
        victim: OomVictimRole::Unknown,
        usage: None,
        limit: None,
        anon: None,
        file: None,
        evicting_since: None,
        kills_in_pod: 0,
        ..kill()
    };
    [
        record(subject(kill()), Vec::new()),
        record(subject(elsewhere), Vec::new()),
        record(subject(OomKill { repeated: true, ..kill() }), Vec::new()),
        record(RecordSubject::Nothing, vec![end()]),
    ]
}

#[test]
fn oom_kills_and_terminations_are_explained() {
    let mut explainer = Explainer::default();
    let text: String = kills().iter().map(|record| explainer.explain(record)).collect();
    insta::assert_snapshot!(text + &explainer.finish());
}

#[test]
fn explaining_a_pod_includes_its_oom_kills() {
    let mut explainer = Explainer::of_pod(name_of("greedy"));
    let text: String = kills().iter().map(|record| explainer.explain(record)).collect();
    let text = text + &explainer.finish();
    assert!(!text.contains("unknown cgroup"), "{text}");
    assert!(text.contains("ENDED at 08:00:06Z: container main of default/pod-greedy terminated"), "{text}");
    assert!(text.ends_with("never chosen; the kernel killed a process of it\n"), "{text}");
}

/// Returns the record of a sample.
fn sample(memory: u64, disk: u64) -> DecisionRecord {
    let Node { mut engine, .. } = Node::new(Explainer::default());
    let decision = step(&mut engine, 1, Event::Sample(snapshot(node(memory, disk, at(1)), &[])));
    DecisionRecord::of(&decision)
}

#[test]
fn the_context_of_an_evaluation_is_explained() {
    let mut record = sample(900, 990);
    let RecordSubject::Evaluation(evaluation) = &mut record.subject else {
        panic!("no evaluation");
    };
    evaluation.memory = Some(MemoryRecord {
        available_by_working_set: Some(900 << 20),
        available_without_active_file: Some(1300 << 20),
        mem_available: None,
        working_set: Some(100 << 20),
        active_file: Some(400 << 20),
        some_avg10: Some(12.5),
        full_avg10: Some(0.25),
        stalled: Some(true),
        swap_used: Some(1 << 30),
        swap_total: Some(2 << 30),
        conditions: MemoryConditions::TooLittleStall,
        unknown: vec![UnknownValue { value: "mem_available", reason: UnknownReason::Unparsable }],
    });
    evaluation.rejected = vec![
        RejectedReading {
            signal: MemoryAvailable,
            available: 0,
            capacity: 1000,
            reason: Implausible::SuddenlyNothing { before: 900 },
        },
        RejectedReading {
            signal: NodeFsAvailable,
            available: 7,
            capacity: 3,
            reason: Implausible::AvailableAboveCapacity,
        },
    ];
    evaluation.thresholds[0].imminent = true;
    evaluation.thresholds[0].eta = Some(Eta {
        soonest: GoDuration::from_secs(4),
        expected: GoDuration::from_nanos(6_543_210_987),
        latest: None,
    });
    record.unavailable = vec![Signal::PidAvailable];
    record.unknown_conditions = vec![NodeCondition::PidPressure];
    record.proposal = Some(ProposalState::Pending {
        since: at(0),
        until: Some(at(300)),
        would_evict: vec![name_of("greedy")],
        would_reclaim: vec![Reclaim::Images],
    });
    let mut explainer = Explainer::default();
    let text = explainer.explain(&record);
    let mut later = sample(900, 990);
    later.unavailable = vec![Signal::PidAvailable];
    let text = text + &explainer.explain(&later) + &explainer.finish();
    insta::assert_snapshot!(text);
}

fn explained_ranks() -> Vec<String> {
    let critical = Pod { priority: Some(2_000_000_000), ..pod("d", "1Mi") };
    let pods =
        set(vec![pod("a", "10Mi"), Pod { priority: Some(5), ..pod("b", "10Mi") }, critical, pod("c", "1Gi")]);
    let used = [("a", 300), ("b", 500), ("d", 9), ("c", 600)].map(|(uid, mi)| memory_of(uid, mi << 20));
    let (snapshot, layout) = (snapshot(node(50, 1000, at(0)), &used).indexed(&pods), DiskLayout::default());
    let sample = PodSample { at: at(0), pods, snapshot, layout, in_flight: Vec::new(), sized: false };
    let ranking = sample.ranking(Signal::MemoryAvailable);
    let text = |index: usize| {
        let forecast = forecast(Resource::Memory, &ranking[index]);
        let lines = explain_rank(Signal::MemoryAvailable, &ranking, index);
        format!("{}\n[{forecast}]\n", lines.join("\n"))
    };
    (0..4).map(text).collect()
}

#[test]
fn a_rank_is_explained_with_what_would_change_it() {
    insta::assert_snapshot!(explained_ranks().join("\n"));
}
