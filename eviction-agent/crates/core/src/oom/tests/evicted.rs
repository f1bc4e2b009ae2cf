//! What an eviction by the agent or the kubelet explains, and how a kill in addition to it is reported.

use super::*;

#[test]
fn container_of_an_evicted_pod_is_attributed_to_the_agent() {
    let mut engine = counting_engine();
    evict_a(&mut engine.engine, 1);
    ended(&mut engine, 2, status("Error", 143));
    assert_eq!(
        only_termination(&remaining_terminations(&mut engine)),
        (TerminationCause::EvictedByAgent, Explanation::EvictionInProgress, None)
    );
}

#[test]
fn container_that_ends_after_its_evicted_pod_was_removed_has_the_name_of_the_pod() {
    let mut engine = counting_engine();
    evict_a(&mut engine.engine, 1);
    step(&mut engine.engine, 2, Event::Pods(set(vec![pod("b", "10")])));
    ended(&mut engine, 3, cgroup());
    let ends = remaining_terminations(&mut engine);
    assert_eq!(ends[0].container.to_string(), "container main of default/pod-a");
    assert_eq!(ends[0].cause, TerminationCause::EvictedByAgent);
    assert_eq!(engine.engine.oom().anomalies().unknown_pods, 0);
}

#[test]
fn eviction_with_a_grace_period_of_hours_explains_a_termination_that_waits_for_records() {
    let mut engine = counting_engine();
    evict_a(&mut engine.engine, 1);
    ended(&mut engine, 8_000, cgroup());
    step(&mut engine.engine, 8_001, Event::Pods(set(vec![pod("b", "10")])));
    assert_eq!(
        only_termination(&remaining_terminations(&mut engine)),
        (TerminationCause::EvictedByAgent, Explanation::EvictionInProgress, None)
    );
}

#[test]
fn termination_before_the_eviction_is_not_attributed_to_it() {
    let mut engine = counting_engine();
    ended(&mut engine, 1, cgroup());
    evict_a(&mut engine.engine, 2);
    assert_eq!(
        only_termination(&remaining_terminations(&mut engine)),
        (TerminationCause::Other, Explanation::Unexplained, None)
    );
}

#[test]
fn failed_eviction_explains_only_terminations_before_its_failure() {
    let mut engine = counting_engine();
    evict_a(&mut engine.engine, 1);
    ended(&mut engine, 2, cgroup());
    step(&mut engine.engine, 5, eviction_failed("a"));
    ended(&mut engine, 9, ContainerEnded { container_id: Some("i2".into()), ..cgroup() });
    let causes: Vec<_> = remaining_terminations(&mut engine).iter().map(|ended| ended.cause).collect();
    assert_eq!(causes, [TerminationCause::EvictedByAgent, TerminationCause::Other]);
}

#[test]
fn eviction_that_succeeded_explains_no_termination_of_a_restarted_container() {
    let mut engine = counting_engine();
    evict_a(&mut engine.engine, 1);
    let result = Event::Evicted { uid: "a".into(), result: Ok(()) };
    step(&mut engine.engine, 2, result);
    // The pod is selected again, and the executor rejects it. The first eviction still counts.
    evict_a(&mut engine.engine, 3);
    step(&mut engine.engine, 3, eviction_failed("a"));
    ended(&mut engine, 5, cgroup());
    let restarted: Option<Box<str>> = Some("i2".into());
    let later = OomKill { container_id: restarted.clone(), ..kill(8, OomVictimRole::Init) };
    let decision = killed(&mut engine, 100, later);
    let DecisionKind::Oom(OomUpdate::Kill(kill)) = &decision.kind else { panic!() };
    assert_eq!(kill.evicting_since, None);
    ended(&mut engine, 101, ContainerEnded { container_id: restarted, ..status("OOMKilled", 137) });
    assert_eq!(engine.ends, [TerminationCause::EvictedByAgent, TerminationCause::OomKilled]);
}

#[test]
fn kill_during_an_eviction_is_a_contributing_cause() {
    let mut engine = counting_engine();
    evict_a(&mut engine.engine, 1);
    let decision = killed(&mut engine, 2, kill(7, OomVictimRole::Init));
    let DecisionKind::Oom(OomUpdate::Kill(kill)) = &decision.kind else { panic!() };
    assert_eq!(kill.evicting_since, Some(at(1)));
    let ends = ended(&mut engine, 3, status("OOMKilled", 137)).ended;
    assert_eq!(
        only_termination(&ends),
        (
            TerminationCause::EvictedByAgent,
            Explanation::EvictionInProgress,
            Some(TerminationCause::OomKilled)
        )
    );
    let kinds: Vec<_> = ends[0].evidence.iter().map(Evidence::at).collect();
    assert_eq!(kinds, [Some(at(1)), Some(at(2)), None], "in order");
    assert_eq!((&*engine.ends, engine.kills), (&[TerminationCause::EvictedByAgent][..], 1));
}

#[test]
fn kill_before_the_eviction_is_the_main_cause() {
    let mut engine = counting_engine();
    killed(&mut engine, 1, kill(7, OomVictimRole::Init));
    evict_a(&mut engine.engine, 2);
    let ends = ended(&mut engine, 3, status("OOMKilled", 137)).ended;
    assert_eq!(
        only_termination(&ends),
        (TerminationCause::OomKilled, Explanation::InitProcessKilled, Some(TerminationCause::EvictedByAgent))
    );
}

#[test]
fn evictions_of_the_kubelet_are_distinguished_from_the_agents() {
    let mut engine = counting_engine();
    let by_kubelet = |container: &str| ContainerEnded {
        container: container.into(),
        container_id: Some(container.into()),
        evicted_by: Some(Evictor::Kubelet),
        ..status("Error", 137)
    };
    ended(&mut engine, 1, by_kubelet("main"));
    assert_eq!(
        only_termination(&remaining_terminations(&mut engine)),
        (TerminationCause::EvictedByKubelet, Explanation::EvictionOnRecord, None)
    );
    let mut engine = counting_engine();
    let dated = ContainerEnded { evicted_at: Some(at(1)), ..by_kubelet("main") };
    killed(&mut engine, 2, OomKill { container_id: Some("main".into()), ..kill(7, OomVictimRole::Init) });
    let ends = ended(&mut engine, 3, dated).ended;
    assert_eq!(only_termination(&ends).2, Some(TerminationCause::OomKilled), "evicted first, then killed");
}
