use super::*;
use crate::decision::Decision;
use crate::engine::Engine;
use crate::fixture::{at, engine, hard, memory_of, node, pod, policy, set, snapshot, step};
use crate::input::Event;
use crate::progress::EvictionResult;
use crate::signal::Signal::MemoryAvailable;

mod evicted;
mod random;

fn watcher() -> Engine {
    engine(policy(vec![hard(MemoryAvailable, "100")]), &set(vec![pod("a", "10"), pod("b", "10")]))
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
        pod: "a".into(),
        container: "main".into(),
        instance: Some("i1".into()),
        seen: EndSeen::Status,
        exit_code: Some(exit_code),
        reason: reason.into(),
        ..ContainerEnded::default()
    }
}

fn cgroup() -> ContainerEnded {
    ContainerEnded { seen: EndSeen::Cgroup, exit_code: None, ..status("", 0) }
}

fn killed(engine: &mut Engine, seconds: i64, kill: OomKill) -> Decision {
    step(engine, seconds, Event::OomKill(Box::new(kill)))
}

fn ended(engine: &mut Engine, seconds: i64, end: ContainerEnded) -> Decision {
    step(engine, seconds, Event::ContainerEnded(Box::new(end)))
}

fn evict_a(engine: &mut Engine, seconds: i64) {
    let look = snapshot(node(50, 900, at(seconds)), &[memory_of("a", 400), memory_of("b", 5)]);
    let decision = step(engine, seconds, Event::Sample(look));
    assert_eq!(crate::fixture::victims(&decision)[0].0, "a");
}

/// What comes when nothing comes any more.
fn later(engine: &mut Engine) -> Vec<ContainerTerminated> {
    step(engine, 10_000, Event::SampleFailed(crate::reading::UnknownReason::Absent)).ended
}

/// The one cause, with its explanation and what else happened.
fn only(ended: &[ContainerTerminated]) -> (TerminationCause, Explanation, Option<TerminationCause>) {
    let [ended] = ended else { panic!("not one termination: {ended:?}") };
    (ended.cause(), ended.causes[0].explanation, ended.contributing().next())
}

fn eviction_failed(uid: &str) -> Event {
    Event::Evicted(EvictionResult { uid: uid.into(), result: Err("dry run".into()) })
}

#[test]
fn in_a_pod_of_one_container_its_limit_and_the_pods_come_to_the_same() {
    // Which of the two is met first is chance: both are the same, and the pod's group has the sandbox's
    // memory charged to it as well.
    let attributed = |limit_scope: LimitScope, victim: OomVictimRole, reason: &str, exit_code: i32| {
        let mut engine = watcher();
        killed(&mut engine, 1, OomKill { limit_scope, ..kill(7, victim) });
        let mut ends = ended(&mut engine, 2, status(reason, exit_code)).ended;
        ends.extend(later(&mut engine));
        let cause = only(&ends);
        let owners: Vec<_> = ends[0].causes.iter().map(|cause| cause.limit_scope).collect();
        let expected = (cause.0 == TerminationCause::OomKilled).then_some(limit_scope);
        assert_eq!(owners, [expected]);
        assert_eq!(engine.oom().kills().of(limit_scope, victim), 1);
        (cause, StatusMismatch::default().terminated(at(11_000), &ends[0]))
    };
    for victim in [OomVictimRole::Main, OomVictimRole::Child, OomVictimRole::Unknown] {
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
fn the_main_process_killed_is_the_containers_end() {
    let mut engine = watcher();
    assert!(killed(&mut engine, 1, kill(7, OomVictimRole::Main)).ended.is_empty());
    let decision = ended(&mut engine, 2, status("OOMKilled", 137));
    assert_eq!(only(&decision.ended), (TerminationCause::OomKilled, Explanation::MainProcessKilled, None));
    assert_eq!(decision.ended[0].causes[0].limit_scope, Some(LimitScope::Container));
    assert_eq!(decision.ended[0].container.pod.as_ref().unwrap().to_string(), "default/pod-a");
    assert!(later(&mut engine).is_empty(), "published once");
    let tracker = engine.oom();
    assert_eq!(tracker.kills().of(LimitScope::Container, OomVictimRole::Main), 1);
    assert_eq!((tracker.ends().of(TerminationCause::OomKilled), tracker.ends().total()), (1, 1));
    let of_container = &tracker.pod("a").unwrap().containers()["main"];
    assert_eq!((of_container.kills.total(), of_container.ends.total()), (1, 1));
    assert_eq!((tracker.last_kill("a"), tracker.last_kill("b")), (Some(at(1)), None));
}

#[test]
fn the_order_of_the_records_does_not_matter() {
    type Tell = fn(&mut Engine);
    let records: [Tell; 3] = [
        |engine| {
            let kill = OomKill { at: Some(at(1)), ..kill(7, OomVictimRole::Main) };
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
        let mut engine = watcher();
        for record in order {
            records[record](&mut engine);
        }
        later(&mut engine);
        let tracker = engine.oom();
        assert_eq!(
            (tracker.ends().of(TerminationCause::OomKilled), tracker.ends().total()),
            (1, 1),
            "{order:?}"
        );
        assert_eq!(tracker.kills().total(), 1, "{order:?}");
    }
}

#[test]
fn a_child_killed_ends_no_container() {
    let mut engine = watcher();
    killed(&mut engine, 1, kill(8, OomVictimRole::Child));
    assert!(later(&mut engine).is_empty());
    assert_eq!(engine.oom().kills().of(LimitScope::Container, OomVictimRole::Child), 1);
    assert_eq!(engine.oom().ends().total(), 0);
}

#[test]
fn a_shell_that_fails_because_its_child_was_killed_ended_by_it() {
    let mut engine = watcher();
    killed(&mut engine, 1, kill(8, OomVictimRole::Child));
    ended(&mut engine, 2, status("OOMKilled", 137));
    let ends = later(&mut engine);
    assert_eq!(only(&ends), (TerminationCause::OomKilled, Explanation::ChildKilled, None));
    assert!(ends[0].causes[0].explanation.is_inferred());
}

#[test]
fn a_runtime_that_blames_a_childs_kill_of_long_ago_is_not_believed() {
    let mut engine = watcher();
    killed(&mut engine, 1, kill(8, OomVictimRole::Child));
    ended(&mut engine, 3600, status("OOMKilled", 1));
    assert_eq!(only(&later(&mut engine)), (TerminationCause::Other, Explanation::OnlyAChildLongBefore, None));
}

#[test]
fn an_end_without_a_failure_was_not_caused_by_a_childs_kill() {
    let mut engine = watcher();
    killed(&mut engine, 1, kill(8, OomVictimRole::Child));
    ended(&mut engine, 2, status("Completed", 0));
    assert_eq!(only(&later(&mut engine)), (TerminationCause::Other, Explanation::Exited, None));
}

#[test]
fn exit_137_alone_is_no_oom_kill() {
    let mut engine = watcher();
    ended(&mut engine, 1, status("Error", 137));
    assert_eq!(only(&later(&mut engine)), (TerminationCause::Other, Explanation::KilledBySomebodyElse, None));
}

#[test]
fn the_runtimes_word_counts_where_nobody_watched() {
    let mut engine = watcher();
    ended(&mut engine, 1, status("OOMKilled", 137));
    let ends = later(&mut engine);
    assert_eq!(only(&ends), (TerminationCause::OomKilled, Explanation::RuntimeSays, None));
    assert_eq!(ends[0].causes[0].limit_scope, Some(LimitScope::Unknown));
}

#[test]
fn a_victim_of_an_unknown_kind_just_before_is_an_inferred_cause() {
    let mut engine = watcher();
    killed(&mut engine, 1, kill(8, OomVictimRole::Unknown));
    ended(&mut engine, 2, cgroup());
    assert_eq!(only(&later(&mut engine)), (TerminationCause::OomKilled, Explanation::ProcessKilled, None));
    killed(
        &mut engine,
        10_100,
        OomKill { container: None, container_id: None, ..kill(9, OomVictimRole::Unknown) },
    );
    let end = ContainerEnded { instance: Some("i2".into()), ..status("Error", 137) };
    ended(&mut engine, 10_101, end);
    let ends = step(&mut engine, 20_000, Event::SampleFailed(crate::reading::UnknownReason::Absent)).ended;
    assert_eq!(only(&ends), (TerminationCause::OomKilled, Explanation::ProcessKilled, None));
}

#[test]
fn a_restarted_container_has_ends_of_its_own() {
    let mut engine = watcher();
    killed(&mut engine, 1, kill(7, OomVictimRole::Main));
    ended(&mut engine, 1, status("OOMKilled", 137));
    killed(&mut engine, 4, OomKill { container_id: Some("i2".into()), ..kill(7, OomVictimRole::Main) });
    ended(&mut engine, 4, ContainerEnded { instance: Some("i2".into()), ..status("OOMKilled", 137) });
    ended(&mut engine, 5, ContainerEnded { instance: Some("i3".into()), ..status("Error", 1) });
    later(&mut engine);
    let ends = engine.oom().ends();
    assert_eq!((ends.of(TerminationCause::OomKilled), ends.of(TerminationCause::Other)), (2, 1));
}

#[test]
fn a_restart_without_ids_is_not_blamed_on_the_kill_that_ended_the_last_one() {
    let mut engine = watcher();
    let nameless =
        |seconds| OomKill { at: Some(at(seconds)), container_id: None, ..kill(7, OomVictimRole::Main) };
    let end =
        |seconds, code| ContainerEnded { at: Some(at(seconds)), instance: None, ..status("Error", code) };
    killed(&mut engine, 1, nameless(1));
    ended(&mut engine, 1, end(1, 137));
    ended(&mut engine, 5, end(5, 1));
    later(&mut engine);
    let ends = engine.oom().ends();
    assert_eq!((ends.of(TerminationCause::OomKilled), ends.of(TerminationCause::Other)), (1, 1));
}

#[test]
fn repeated_and_late_records_count_for_nothing() {
    let mut engine = watcher();
    for seconds in [1, 3] {
        killed(&mut engine, seconds, OomKill { at: Some(at(1)), ..kill(7, OomVictimRole::Main) });
    }
    for _ in 0..3 {
        ended(&mut engine, 3, ContainerEnded { at: Some(at(1)), ..status("OOMKilled", 137) });
    }
    later(&mut engine);
    ended(&mut engine, 10_001, status("Error", 1));
    killed(&mut engine, 10_002, kill(9, OomVictimRole::Main));
    let tracker = engine.oom();
    assert_eq!((tracker.kills().total(), tracker.ends().total()), (2, 1));
    let odd = tracker.anomalies();
    assert_eq!((odd.repeated_kills, odd.late_ends, odd.late_kills), (1, 3, 1));
}

#[test]
fn kills_of_which_nobody_saw_the_victim_each_count() {
    let mut engine = watcher();
    for _ in 0..2 {
        killed(&mut engine, 1, OomKill { at: Some(at(1)), ..kill(0, OomVictimRole::Unknown) });
    }
    let tracker = engine.oom();
    assert_eq!((tracker.kills().total(), tracker.anomalies().repeated_kills), (2, 0));
    let decision = ended(&mut engine, 2, ContainerEnded { exit_code: Some(137), ..cgroup() });
    assert!(decision.ended.is_empty());
    assert_eq!(only(&later(&mut engine)), (TerminationCause::OomKilled, Explanation::ProcessKilled, None));
}

#[test]
fn a_process_id_that_is_used_again_is_another_kill() {
    let mut engine = watcher();
    killed(&mut engine, 1, kill(7, OomVictimRole::Child));
    killed(&mut engine, 2, kill(7, OomVictimRole::Child));
    assert_eq!(engine.oom().kills().total(), 2);
}

#[test]
fn kills_outside_of_pods_and_in_unknown_ones_are_counted() {
    let mut engine = watcher();
    let nowhere = OomKill {
        pod_uid: None,
        container: None,
        limit_scope: LimitScope::Other,
        ..kill(7, OomVictimRole::Unknown)
    };
    killed(&mut engine, 1, nowhere);
    killed(&mut engine, 2, OomKill { pod_uid: Some("ghost".into()), ..kill(8, OomVictimRole::Main) });
    ended(&mut engine, 3, ContainerEnded { container: "".into(), instance: None, ..cgroup() });
    let tracker = engine.oom();
    assert_eq!(tracker.kills().total(), 2);
    assert_eq!(tracker.pod("ghost").unwrap().kills().total(), 1);
    assert_eq!((tracker.anomalies().unknown_pods, tracker.anomalies().nameless_ends), (1, 1));
}

#[test]
fn a_group_kill_has_all_its_victims() {
    let mut engine = watcher();
    let member = |pid, victim| OomKill { oom_group: Some(42), ..kill(pid, victim) };
    killed(&mut engine, 1, member(10, OomVictimRole::Child));
    killed(&mut engine, 1, member(11, OomVictimRole::Unknown));
    let decision = killed(&mut engine, 1, member(12, OomVictimRole::Child));
    let crate::decision::DecisionKind::Oom(OomUpdate::Kill(last)) = decision.kind else { panic!() };
    let group = last.group.unwrap();
    assert_eq!((group.kills, group.victims.len(), group.victims_omitted), (3, 3, 0));
    let pods: Vec<_> = group.victims.iter().map(|victim| victim.pod.as_ref().unwrap().to_string()).collect();
    assert_eq!(pods, ["default/pod-a"; 3]);
    let decision = ended(&mut engine, 2, cgroup());
    assert!(decision.ended.is_empty(), "its status may still come");
    let ends = later(&mut engine);
    assert_eq!(only(&ends), (TerminationCause::OomKilled, Explanation::GroupKilled, None));
    let kills = |it: &&Evidence| matches!(it, Evidence::KernelKills(_));
    assert_eq!(ends[0].evidence.iter().filter(kills).count(), 3);
    let tracker = engine.oom();
    assert_eq!((tracker.kills().total(), tracker.kills().groups()), (3, 1));
    let mut last = None;
    for pid in 0..LISTED as u32 + 9 {
        last = Some(killed(&mut engine, 20_000 + i64::from(pid), member(pid, OomVictimRole::Child)));
    }
    assert_eq!(engine.oom().kills().groups(), 2, "the same group, killed again");
    let crate::decision::DecisionKind::Oom(OomUpdate::Kill(last)) = last.unwrap().kind else { panic!() };
    let group = last.group.unwrap();
    assert_eq!((group.kills, group.victims.len(), group.victims_omitted), (73, LISTED, 9));
}

#[test]
fn it_is_forgotten_an_hour_after_the_pod_is_gone_and_totals_stay() {
    let mut engine = watcher();
    killed(&mut engine, 1, kill(7, OomVictimRole::Main));
    step(&mut engine, 2, Event::Pods(set(vec![pod("b", "10")])));
    assert!(engine.oom().pod("a").is_some());
    step(&mut engine, 3_700, Event::Pods(set(vec![pod("b", "10")])));
    assert!(engine.oom().pod("a").is_none());
    assert_eq!(engine.oom().kills().total(), 1);
}

#[test]
fn a_clock_that_goes_back_delays_a_cause_and_nothing_else() {
    let mut engine = watcher();
    ended(&mut engine, 500, status("Error", 1));
    assert!(
        step(&mut engine, 1, Event::SampleFailed(crate::reading::UnknownReason::Absent)).ended.is_empty()
    );
    killed(&mut engine, 1, OomKill { at: Some(at(900)), ..kill(3, OomVictimRole::Child) });
    assert_eq!(engine.oom().anomalies().from_the_future, 1);
    assert_eq!(engine.oom().last_kill("a"), Some(at(1)));
    assert_eq!(later(&mut engine).len(), 1);
}

#[test]
fn a_flood_of_pods_and_containers_stays_within_bounds_and_every_end_gets_its_cause() {
    let mut engine = watcher();
    let mut causes = 0;
    for n in 0..5_000u32 {
        let (uid, container) = (format!("u{}", n % 2_500), format!("{n}{}", "x".repeat(10_000)));
        let kill = OomKill {
            pod_uid: Some(uid.as_str().into()),
            container: Some(container.as_str().into()),
            ..kill(n, OomVictimRole::Child)
        };
        causes += killed(&mut engine, 1, kill).ended.len();
        let end = ContainerEnded { pod: uid.into(), container: container.into(), instance: None, ..cgroup() };
        causes += ended(&mut engine, 1, end).ended.len();
    }
    assert!(engine.oom().pods().len() <= 1_024);
    let longest = engine.oom().pods().flat_map(|(_, pod)| pod.containers().keys().map(|name| name.len()));
    assert!(longest.max().unwrap() <= 256);
    causes += later(&mut engine).len();
    assert_eq!(causes, 5_000);
    assert_eq!(engine.oom().ends().total(), 5_000);
    assert_eq!(engine.oom().kills().total(), 5_000);
}

#[test]
fn a_record_has_kill_and_end() {
    use crate::record::DecisionRecord;
    let mut engine = watcher();
    evict_a(&mut engine, 1);
    let kill = OomKill {
        usage: Some(64 << 20),
        limit: Some(64 << 20),
        anon: Some(60 << 20),
        oom_group: Some(42),
        ..kill(7, OomVictimRole::Main)
    };
    let killed = killed(&mut engine, 2, kill);
    let end = ended(&mut engine, 3, status("OOMKilled", 137));
    let reports = [DecisionRecord::of(&killed), DecisionRecord::of(&end)];
    insta::assert_json_snapshot!(reports);
}
