//! What an eviction explains, ours and the kubelet's, and how a kill in addition to it is reported.

use super::*;

#[test]
fn a_container_of_a_pod_that_we_evict_was_evicted_by_us() {
    let mut engine = watcher();
    evict_a(&mut engine, 1);
    ended(&mut engine, 2, status("Error", 143));
    assert_eq!(
        only(&later(&mut engine)),
        (TerminationCause::EvictedByAgent, Explanation::EvictionUnderWay, None)
    );
}

#[test]
fn what_ended_before_the_eviction_was_not_ended_by_it() {
    let mut engine = watcher();
    ended(&mut engine, 1, cgroup());
    evict_a(&mut engine, 2);
    assert_eq!(only(&later(&mut engine)), (TerminationCause::Other, Explanation::Unexplained, None));
}

#[test]
fn an_eviction_that_failed_explains_what_ended_until_then_and_no_more() {
    let mut engine = watcher();
    evict_a(&mut engine, 1);
    ended(&mut engine, 2, cgroup());
    step(&mut engine, 5, eviction_failed("a"));
    ended(&mut engine, 9, ContainerEnded { instance: Some("i2".into()), ..cgroup() });
    let causes: Vec<_> = later(&mut engine).iter().map(ContainerTerminated::cause).collect();
    assert_eq!(causes, [TerminationCause::EvictedByAgent, TerminationCause::Other]);
}

#[test]
fn a_kill_inside_an_eviction_is_both_in_order_and_counts_once_in_each() {
    let mut engine = watcher();
    evict_a(&mut engine, 1);
    let decision = killed(&mut engine, 2, kill(7, OomVictimRole::Main));
    let DecisionKind::Oom(OomUpdate::Kill(kill)) = &decision.kind else { panic!() };
    assert_eq!(kill.evicting_since, Some(at(1)));
    let ends = ended(&mut engine, 3, status("OOMKilled", 137)).ended;
    assert_eq!(
        only(&ends),
        (TerminationCause::EvictedByAgent, Explanation::EvictionUnderWay, Some(TerminationCause::OomKilled))
    );
    let kinds: Vec<_> = ends[0].evidence.iter().map(Evidence::at).collect();
    assert_eq!(kinds, [Some(at(1)), Some(at(2)), None], "in order");
    assert_eq!((&*engine.ends, engine.kills), (&[TerminationCause::EvictedByAgent][..], 1));
}

#[test]
fn a_kill_before_the_eviction_comes_first() {
    let mut engine = watcher();
    killed(&mut engine, 1, kill(7, OomVictimRole::Main));
    evict_a(&mut engine, 2);
    let ends = ended(&mut engine, 3, status("OOMKilled", 137)).ended;
    assert_eq!(
        only(&ends),
        (TerminationCause::OomKilled, Explanation::MainProcessKilled, Some(TerminationCause::EvictedByAgent))
    );
}

#[test]
fn the_kubelets_evictions_are_distinguished_from_ours() {
    let mut engine = watcher();
    let by_kubelet = |container: &str| ContainerEnded {
        container: container.into(),
        instance: Some(container.into()),
        evicted_by: Some(Evictor::Kubelet),
        ..status("Error", 137)
    };
    ended(&mut engine, 1, by_kubelet("main"));
    assert_eq!(
        only(&later(&mut engine)),
        (TerminationCause::EvictedByKubelet, Explanation::EvictionOnRecord, None)
    );
    let mut engine = watcher();
    let dated = ContainerEnded { evicted_at: Some(at(1)), ..by_kubelet("main") };
    killed(&mut engine, 2, OomKill { container_id: Some("main".into()), ..kill(7, OomVictimRole::Main) });
    let ends = ended(&mut engine, 3, dated).ended;
    assert_eq!(only(&ends).2, Some(TerminationCause::OomKilled), "evicted first, then killed");
}
