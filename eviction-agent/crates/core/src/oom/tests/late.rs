//! Records that arrive after the cause was decided, more than once, or without what identifies them.

use super::*;

#[test]
fn repeated_and_late_records_count_as_anomalies() {
    let mut engine = counting_engine();
    for seconds in [1, 3] {
        killed(&mut engine, seconds, OomKill { at: Some(at(1)), ..kill(7, OomVictimRole::Init) });
    }
    for _ in 0..3 {
        ended(&mut engine, 3, ContainerEnded { at: Some(at(1)), ..status("OOMKilled", 137) });
    }
    remaining_terminations(&mut engine);
    ended(&mut engine, 10_001, status("Error", 1));
    killed(&mut engine, 10_002, kill(9, OomVictimRole::Init));
    assert_eq!((engine.kills, engine.ends.len()), (2, 1));
    let anomalies = engine.engine.oom().anomalies();
    assert_eq!((anomalies.repeated_kills, anomalies.late_ends, anomalies.late_kills), (1, 3, 1));
}

/// Returns the mismatch of a status that arrives after the cause was decided by the removal of the cgroup.
fn late_mismatch(mut engine: CountingEngine, status: ContainerEnded) -> Option<MismatchKind> {
    ended(&mut engine, 2, cgroup());
    assert_eq!(remaining_terminations(&mut engine)[0].mismatch, None, "there is no status yet");
    let mut mismatch = |seconds| {
        let decision = ended(&mut engine, seconds, status.clone());
        let DecisionKind::Oom(OomUpdate::End { mismatch, .. }) = decision.kind else { panic!() };
        mismatch
    };
    let first = mismatch(10_001);
    assert_eq!(mismatch(10_002), None, "once");
    assert!(first.iter().all(|it| it.container.to_string() == "container main of default/pod-a"));
    first.map(|it| it.mismatch)
}

#[test]
fn late_status_has_the_same_mismatch_as_one_in_time() {
    use MismatchKind::{ChildNotInStatus, KilledByOtherProcess, NoKillSeen, OnlyAChildKilled};
    let child_killed_long_before = || {
        let mut engine = counting_engine();
        killed(&mut engine, 1, OomKill { at: Some(at(-3_600)), ..kill(8, OomVictimRole::Child) });
        engine
    };
    for (new_engine, reason, exit_code, expected) in [
        // The runtime's reason alone is a cause, but not a kill that was seen.
        (counting_engine as fn() -> CountingEngine, "OOMKilled", 137, Some(NoKillSeen)),
        (counting_engine, "Error", 137, Some(KilledByOtherProcess)),
        (counting_engine, "Completed", 0, None),
        (child_killed_long_before, "OOMKilled", 137, Some(OnlyAChildKilled)),
        (child_killed_long_before, "Error", 137, Some(KilledByOtherProcess)),
        (child_killed_long_before, "Completed", 0, Some(ChildNotInStatus)),
    ] {
        let mut engine = new_engine();
        ended(&mut engine, 2, status(reason, exit_code));
        let in_time = remaining_terminations(&mut engine)[0].mismatch;
        let late = late_mismatch(new_engine(), status(reason, exit_code));
        assert_eq!([in_time, late], [expected; 2], "{reason} {exit_code}");
    }
}

#[test]
fn late_status_is_compared_only_with_its_own_container() {
    let late_mismatch_of = |status| late_mismatch(counting_engine(), status);
    let killed = || ContainerEnded { at: Some(at(2)), ..status("Error", 137) };
    assert!(late_mismatch_of(killed()).is_some());
    assert_eq!(late_mismatch_of(ContainerEnded { pod_uid: "b".into(), ..killed() }), None);
    assert_eq!(late_mismatch_of(ContainerEnded { container_id: Some("i2".into()), ..killed() }), None);
    assert!(late_mismatch_of(ContainerEnded { container_id: None, ..killed() }).is_some());
    let another = ContainerEnded { container_id: None, at: Some(at(5)), ..killed() };
    assert_eq!(late_mismatch_of(another), None, "another end");
    assert_eq!(late_mismatch_of(ContainerEnded { seen: TerminationSource::Cgroup, ..killed() }), None);
}

#[test]
fn kills_without_a_process_id_each_count() {
    let mut engine = counting_engine();
    for _ in 0..2 {
        killed(&mut engine, 1, OomKill { at: Some(at(1)), ..kill(0, OomVictimRole::Unknown) });
    }
    assert_eq!((engine.kills, engine.engine.oom().anomalies().repeated_kills), (2, 0));
    let decision = ended(&mut engine, 2, ContainerEnded { exit_code: Some(137), ..cgroup() });
    assert!(decision.ended.is_empty());
    assert_eq!(
        only_termination(&remaining_terminations(&mut engine)),
        (TerminationCause::OomKilled, Explanation::ProcessKilled, None)
    );
}

#[test]
fn reused_process_id_counts_as_another_kill() {
    let mut engine = counting_engine();
    killed(&mut engine, 1, kill(7, OomVictimRole::Child));
    killed(&mut engine, 2, kill(7, OomVictimRole::Child));
    assert_eq!(engine.kills, 2);
}
