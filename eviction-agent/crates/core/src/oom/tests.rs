use super::*;
use crate::decision::{Decision, DecisionKind};
use crate::engine::Engine;
use crate::fixture::{at, engine, hard, memory_of, node, pod, policy, set, snapshot, step};
use crate::input::Event;
use crate::reading::UnknownReason;
use crate::signal::Signal::MemoryAvailable;

mod evicted;
mod group;
mod late;
mod random;
mod status_mismatch;

/// An engine, with the kills and terminations that it reported.
struct CountingEngine {
    engine: Engine,
    kills: u64,
    ends: Vec<TerminationCause>,
}

impl CountingEngine {
    fn count(&mut self, decision: Decision) -> Decision {
        if let DecisionKind::Oom(OomUpdate::Kill(kill)) = &decision.kind {
            self.kills += u64::from(!kill.repeated);
        }
        self.ends.extend(decision.ended.iter().map(|ended| ended.cause));
        decision
    }

    fn ends_of(&self, cause: TerminationCause) -> usize {
        self.ends.iter().filter(|it| **it == cause).count()
    }
}

fn counting_engine() -> CountingEngine {
    let pods = set(vec![pod("a", "10"), pod("b", "10")]);
    let engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &pods);
    CountingEngine { engine, kills: 0, ends: Vec::new() }
}

fn kill(pid: u32, victim: OomVictimRole) -> OomKill {
    OomKill {
        pid,
        tid: pid,
        comm: "java".into(),
        pod_uid: Some("a".into()),
        container: Some("main".into()),
        container_id: Some("i1".into()),
        limit_scope: LimitScope::Container,
        victim,
        ..OomKill::default()
    }
}

fn status(reason: &str, exit_code: i32) -> ContainerEnded {
    ContainerEnded {
        pod_uid: "a".into(),
        container: "main".into(),
        container_id: Some("i1".into()),
        seen: TerminationSource::Status,
        exit_code: Some(exit_code),
        reason: reason.into(),
        ..ContainerEnded::default()
    }
}

fn cgroup() -> ContainerEnded {
    ContainerEnded { seen: TerminationSource::Cgroup, exit_code: None, ..status("", 0) }
}

fn killed(engine: &mut CountingEngine, seconds: i64, kill: OomKill) -> Decision {
    let decision = step(&mut engine.engine, seconds, Event::OomKill(Box::new(kill)));
    engine.count(decision)
}

fn ended(engine: &mut CountingEngine, seconds: i64, end: ContainerEnded) -> Decision {
    let decision = step(&mut engine.engine, seconds, Event::ContainerEnded(Box::new(end)));
    engine.count(decision)
}

fn evict_a(engine: &mut Engine, seconds: i64) {
    let sample = snapshot(node(50, 900, at(seconds)), &[memory_of("a", 400), memory_of("b", 5)]);
    let decision = step(engine, seconds, Event::Sample(sample));
    assert_eq!(crate::fixture::victims(&decision)[0].0, "a");
}

/// Returns the terminations that are reported once no more records arrive.
fn remaining_terminations(engine: &mut CountingEngine) -> Vec<ContainerTerminated> {
    let decision = step(&mut engine.engine, 10_000, Event::SampleFailed(UnknownReason::Absent));
    engine.count(decision).ended
}

/// Returns the cause of the only termination, its explanation, and the first contributing cause.
fn only_termination(
    ended: &[ContainerTerminated],
) -> (TerminationCause, Explanation, Option<TerminationCause>) {
    let [ended] = ended else { panic!("not one termination: {ended:?}") };
    (ended.cause, ended.explanation, ended.contributing.first().copied())
}

fn eviction_failed(uid: &str) -> Event {
    Event::Evicted { uid: uid.into(), result: Err("dry run".into()) }
}

#[test]
fn single_container_pod_has_the_same_cause_for_both_limit_scopes() {
    // Which of the two limits is met first is chance: both have the same value, and the memory of the sandbox
    // is also charged to the pod's cgroup.
    let attributed = |limit_scope: LimitScope, victim: OomVictimRole, reason: &str, exit_code: i32| {
        let mut engine = counting_engine();
        killed(&mut engine, 1, OomKill { limit_scope, ..kill(7, victim) });
        let mut ends = ended(&mut engine, 2, status(reason, exit_code)).ended;
        ends.extend(remaining_terminations(&mut engine));
        let cause = only_termination(&ends);
        let expected = (cause.0 == TerminationCause::OomKilled).then_some(limit_scope);
        assert_eq!((ends[0].limit_scope, &*ends[0].contributing), (expected, &[][..]));
        assert_eq!(engine.kills, 1);
        (cause, ends[0].mismatch)
    };
    for victim in [OomVictimRole::Init, OomVictimRole::Child, OomVictimRole::Unknown] {
        for reason in ["OOMKilled", "Error", "Completed"] {
            for exit_code in [0, 1, 137] {
                let of = |owner| attributed(owner, victim, reason, exit_code);
                let (containers, pods) = (of(LimitScope::Container), of(LimitScope::Pod));
                assert_eq!(containers, pods, "{victim:?} {reason} {exit_code}");
            }
        }
    }
}

#[test]
fn killed_init_process_ends_the_container() {
    let mut engine = counting_engine();
    assert!(killed(&mut engine, 1, kill(7, OomVictimRole::Init)).ended.is_empty());
    let decision = ended(&mut engine, 2, status("OOMKilled", 137));
    assert_eq!(
        only_termination(&decision.ended),
        (TerminationCause::OomKilled, Explanation::InitProcessKilled, None)
    );
    assert_eq!(decision.ended[0].limit_scope, Some(LimitScope::Container));
    assert_eq!(decision.ended[0].container.pod.as_ref().unwrap().to_string(), "default/pod-a");
    assert!(remaining_terminations(&mut engine).is_empty(), "published once");
}

#[test]
fn the_order_of_the_records_does_not_matter() {
    type AddRecord = fn(&mut CountingEngine);
    let records: [AddRecord; 3] = [
        |engine| {
            let kill = OomKill { at: Some(at(1)), ..kill(7, OomVictimRole::Init) };
            killed(engine, 5, kill);
        },
        |engine| {
            ended(engine, 5, ContainerEnded { at: Some(at(1)), ..cgroup() });
        },
        |engine| {
            ended(engine, 5, ContainerEnded { at: Some(at(1)), ..status("OOMKilled", 137) });
        },
    ];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut engine = counting_engine();
        for record in order {
            records[record](&mut engine);
        }
        remaining_terminations(&mut engine);
        assert_eq!((&*engine.ends, engine.kills), (&[TerminationCause::OomKilled][..], 1), "{order:?}");
    }
}

#[test]
fn killed_child_does_not_end_the_container() {
    let mut engine = counting_engine();
    killed(&mut engine, 1, kill(8, OomVictimRole::Child));
    assert!(remaining_terminations(&mut engine).is_empty());
    assert_eq!((engine.kills, engine.ends.len()), (1, 0));
}

#[test]
fn status_and_child_kills_determine_the_cause() {
    use Explanation::{ChildKilled, Exited, KilledByOtherProcess, OnlyAChildLongBefore, RuntimeReported};
    use TerminationCause::{OomKilled, Other};
    for (child_killed, seconds, reason, exit_code, cause, explanation, limit_scope) in [
        // A shell fails because its child was killed.
        (true, 2, "OOMKilled", 137, OomKilled, ChildKilled, Some(LimitScope::Container)),
        (true, 3600, "OOMKilled", 1, Other, OnlyAChildLongBefore, None),
        (true, 2, "Completed", 0, Other, Exited, None),
        (false, 2, "Error", 137, Other, KilledByOtherProcess, None),
        (false, 2, "OOMKilled", 137, OomKilled, RuntimeReported, Some(LimitScope::Unknown)),
    ] {
        let mut engine = counting_engine();
        if child_killed {
            killed(&mut engine, 1, kill(8, OomVictimRole::Child));
        }
        ended(&mut engine, seconds, status(reason, exit_code));
        let ends = remaining_terminations(&mut engine);
        assert_eq!(only_termination(&ends), (cause, explanation, None), "{reason} {exit_code}");
        assert_eq!(ends[0].limit_scope, limit_scope, "{explanation:?}");
        assert_eq!(explanation.is_inferred(), cause == OomKilled);
    }
}

#[test]
fn recent_kill_of_a_victim_with_unknown_role_is_an_inferred_cause() {
    let mut engine = counting_engine();
    killed(&mut engine, 1, kill(8, OomVictimRole::Unknown));
    ended(&mut engine, 2, cgroup());
    assert_eq!(
        only_termination(&remaining_terminations(&mut engine)),
        (TerminationCause::OomKilled, Explanation::ProcessKilled, None)
    );
    killed(
        &mut engine,
        10_100,
        OomKill { container: None, container_id: None, ..kill(9, OomVictimRole::Unknown) },
    );
    let end = ContainerEnded { container_id: Some("i2".into()), ..status("Error", 137) };
    ended(&mut engine, 10_101, end);
    let ends = step(&mut engine.engine, 20_000, Event::SampleFailed(UnknownReason::Absent)).ended;
    assert_eq!(only_termination(&ends), (TerminationCause::OomKilled, Explanation::ProcessKilled, None));
}

#[test]
fn each_instance_of_a_restarted_container_gets_its_own_cause() {
    let mut engine = counting_engine();
    killed(&mut engine, 1, kill(7, OomVictimRole::Init));
    ended(&mut engine, 1, status("OOMKilled", 137));
    killed(&mut engine, 4, OomKill { container_id: Some("i2".into()), ..kill(7, OomVictimRole::Init) });
    ended(&mut engine, 4, ContainerEnded { container_id: Some("i2".into()), ..status("OOMKilled", 137) });
    ended(&mut engine, 5, ContainerEnded { container_id: Some("i3".into()), ..status("Error", 1) });
    remaining_terminations(&mut engine);
    assert_eq!(
        (engine.ends_of(TerminationCause::OomKilled), engine.ends_of(TerminationCause::Other)),
        (2, 1)
    );
}

#[test]
fn kill_explains_only_the_first_of_two_terminations_without_ids() {
    let mut engine = counting_engine();
    let nameless =
        |seconds| OomKill { at: Some(at(seconds)), container_id: None, ..kill(7, OomVictimRole::Init) };
    let end =
        |seconds, code| ContainerEnded { at: Some(at(seconds)), container_id: None, ..status("Error", code) };
    killed(&mut engine, 1, nameless(1));
    ended(&mut engine, 1, end(1, 137));
    ended(&mut engine, 5, end(5, 1));
    remaining_terminations(&mut engine);
    assert_eq!(
        (engine.ends_of(TerminationCause::OomKilled), engine.ends_of(TerminationCause::Other)),
        (1, 1)
    );
}

#[test]
fn kills_outside_of_pods_and_in_unknown_pods_are_counted() {
    let mut engine = counting_engine();
    let outside_pods = OomKill {
        pod_uid: None,
        container: None,
        limit_scope: LimitScope::Other,
        ..kill(7, OomVictimRole::Unknown)
    };
    killed(&mut engine, 1, outside_pods);
    let unknown_pod = OomKill { pod_uid: Some("ghost".into()), ..kill(8, OomVictimRole::Init) };
    let decision = killed(&mut engine, 2, unknown_pod);
    let DecisionKind::Oom(OomUpdate::Kill(unknown_pod)) = decision.kind else { panic!() };
    assert_eq!((engine.kills, unknown_pod.kills_in_pod), (2, 1));
    ended(&mut engine, 3, ContainerEnded { container: "".into(), container_id: None, ..cgroup() });
    let anomalies = engine.engine.oom().anomalies();
    assert_eq!((anomalies.unknown_pods, anomalies.nameless_ends), (1, 1));
}

#[test]
fn evidence_of_a_termination_is_bounded() {
    let mut engine = counting_engine();
    for pid in (1..=LISTED as u32).rev() {
        killed(&mut engine, 1, kill(pid, OomVictimRole::Child));
    }
    ended(&mut engine, 2, cgroup());
    let ends = remaining_terminations(&mut engine);
    assert_eq!((ends[0].evidence.len(), ends[0].evidence_omitted), (LISTED, 1));
    let Evidence::KernelKills(first) = &ends[0].evidence[0] else { panic!("{:?}", ends[0].evidence) };
    assert_eq!(first.pid, 1, "kills at the same time are in the order of their process ids");
}

#[test]
fn pod_history_is_dropped_an_hour_after_the_pod_was_removed() {
    let kills_in_pod = |forgotten_after| {
        let mut engine = counting_engine();
        killed(&mut engine, 1, kill(7, OomVictimRole::Init));
        step(&mut engine.engine, 2, Event::Pods(set(vec![pod("b", "10")])));
        step(&mut engine.engine, forgotten_after, Event::Pods(set(vec![pod("b", "10")])));
        let again = killed(&mut engine, forgotten_after, kill(8, OomVictimRole::Init));
        let DecisionKind::Oom(OomUpdate::Kill(kill)) = again.kind else { panic!() };
        kill.kills_in_pod
    };
    assert_eq!([3_500, 3_700].map(kills_in_pod), [2, 1]);
}

#[test]
fn clock_set_back_only_delays_a_cause() {
    let mut engine = counting_engine();
    ended(&mut engine, 500, status("Error", 1));
    assert!(step(&mut engine.engine, 1, Event::SampleFailed(UnknownReason::Absent)).ended.is_empty());
    let decision = killed(&mut engine, 1, OomKill { at: Some(at(900)), ..kill(3, OomVictimRole::Child) });
    assert_eq!(engine.engine.oom().anomalies().from_the_future, 1);
    let DecisionKind::Oom(OomUpdate::Kill(kill)) = decision.kind else { panic!() };
    assert_eq!(kill.at, Some(at(1)));
    assert_eq!(remaining_terminations(&mut engine).len(), 1);
}

#[test]
fn flood_of_pods_is_bounded_and_every_termination_gets_a_cause() {
    let mut engine = counting_engine();
    let mut causes = 0;
    for n in 0..5_000u32 {
        let (uid, container) = (format!("u{}", n % 2_500), format!("{n}{}", "x".repeat(10_000)));
        let kill = OomKill {
            pod_uid: Some(uid.as_str().into()),
            container: Some(container.as_str().into()),
            ..kill(n, OomVictimRole::Child)
        };
        causes += killed(&mut engine, 1, kill).ended.len();
        let end = ContainerEnded {
            pod_uid: uid.into(),
            container: container.into(),
            container_id: None,
            ..cgroup()
        };
        causes += ended(&mut engine, 1, end).ended.len();
    }
    assert!(engine.engine.oom().anomalies().forgotten >= 2_500 - 1_024);
    let ends = remaining_terminations(&mut engine);
    assert!(ends.iter().all(|end| end.container.name.len() <= 256));
    causes += ends.len();
    assert_eq!(causes, 5_000);
    assert_eq!((engine.ends.len(), engine.kills), (5_000, 5_000));
}

#[test]
fn records_contain_the_kill_and_the_termination() {
    use crate::record::DecisionRecord;
    let mut engine = counting_engine();
    evict_a(&mut engine.engine, 1);
    let kill = OomKill {
        usage: Some(64 << 20),
        limit: Some(64 << 20),
        anon: Some(60 << 20),
        oom_group: Some(42),
        ..kill(7, OomVictimRole::Init)
    };
    let killed = killed(&mut engine, 2, kill);
    let end = ended(&mut engine, 3, status("OOMKilled", 137));
    let reports = [DecisionRecord::of(&killed), DecisionRecord::of(&end)];
    insta::assert_json_snapshot!(reports);
}
