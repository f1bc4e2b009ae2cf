use super::*;

#[test]
fn group_kill_counts_all_its_victims() {
    let mut engine = counting_engine();
    let member = |pid, victim| OomKill { oom_group: Some(42), ..kill(pid, victim) };
    killed(&mut engine, 1, member(10, OomVictimRole::Child));
    killed(&mut engine, 1, member(11, OomVictimRole::Unknown));
    let decision = killed(&mut engine, 1, member(12, OomVictimRole::Child));
    let DecisionKind::Oom(OomUpdate::Kill(last)) = decision.kind else { panic!() };
    let group = last.group.unwrap();
    assert_eq!((group.kills, group.victims.len(), group.victims_omitted), (3, 3, 0));
    let pods: Vec<_> = group.victims.iter().map(|victim| victim.pod.as_ref().unwrap().to_string()).collect();
    assert_eq!(pods, ["default/pod-a"; 3]);
    let decision = ended(&mut engine, 2, cgroup());
    assert!(decision.ended.is_empty(), "its status may still come");
    let ends = remaining_terminations(&mut engine);
    assert_eq!(only_termination(&ends), (TerminationCause::OomKilled, Explanation::GroupKilled, None));
    let kills = |it: &&Evidence| matches!(it, Evidence::KernelKills(_));
    assert_eq!(ends[0].evidence.iter().filter(kills).count(), 3);
    assert_eq!(engine.kills, 3);
    let mut last = None;
    for pid in 0..LISTED as u32 + 9 {
        last = Some(killed(&mut engine, 20_000 + i64::from(pid), member(pid, OomVictimRole::Child)));
    }
    let DecisionKind::Oom(OomUpdate::Kill(last)) = last.unwrap().kind else { panic!() };
    let group = last.group.expect("the same group, killed again");
    assert_eq!((group.kills, group.victims.len(), group.victims_omitted), (73, LISTED, 9));
}

/// Reports a kill of this time in an OOM group. Returns the number of kills in the group so far.
fn kills_in_group(engine: &mut CountingEngine, oom_group: u64, pid: u32, seconds: i64) -> u64 {
    let member =
        OomKill { at: Some(at(seconds)), oom_group: Some(oom_group), ..kill(pid, OomVictimRole::Child) };
    let decision = killed(engine, 100, member);
    let DecisionKind::Oom(OomUpdate::Kill(kill)) = decision.kind else { panic!() };
    kill.group.map_or(0, |group| group.kills)
}

#[test]
fn late_record_of_a_group_kill_counts_in_its_own_group() {
    let mut engine = counting_engine();
    let records = [(10, 1), (11, 4), (12, 1), (13, 4), (14, 2)];
    let kills = records.map(|(pid, seconds)| kills_in_group(&mut engine, 42, pid, seconds));
    assert_eq!(kills, [1, 1, 2, 2, 3]);
}

#[test]
fn the_oldest_of_too_many_group_kills_is_dropped() {
    let mut engine = counting_engine();
    let mut pid = 0;
    let mut kills = |oom_group: u64| {
        pid += 1;
        kills_in_group(&mut engine, oom_group, pid, 1)
    };
    assert!((0..=32).all(|oom_group| kills(oom_group) == 1));
    let again = [1, 32, 0].map(kills);
    assert_eq!(again, [2, 2, 1], "the group 0 was dropped");
}
