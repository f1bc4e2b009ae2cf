use proptest::prelude::*;

use super::*;
use crate::fixture::at;
use crate::oom::{AttributedCause, KillEntry, LimitScope, OomKill, OomVictimRole};
use crate::pod_ref::PodRef;

fn kill(victim: OomVictimRole) -> Evidence {
    let kill = OomKill { pid: 7, victim, ..OomKill::default() };
    Evidence::KernelKills(Box::new(KillEntry::new(&kill, at(1))))
}

fn status() -> Evidence {
    Evidence::Ended { seen: EndSeen::Status }
}

fn cause(cause: TerminationCause, explanation: Explanation) -> AttributedCause {
    let limit_scope = (cause == TerminationCause::OomKilled).then_some(LimitScope::Container);
    AttributedCause { cause, explanation, at: None, limit_scope }
}

fn container(pod_uid: &str, id: Option<&str>) -> ContainerRef {
    ContainerRef {
        pod: Some(PodRef::new("shop", "web")),
        pod_uid: pod_uid.into(),
        name: "app".into(),
        id: id.map(Into::into),
    }
}

fn ended(causes: &[(TerminationCause, Explanation)], evidence: Vec<Evidence>) -> ContainerTerminated {
    ContainerTerminated {
        container: container("u", Some("i1")),
        causes: causes.iter().map(|(of, explanation)| cause(*of, *explanation)).collect(),
        finished_at: at(2),
        exit_code: None,
        exit_signal: None,
        reason: "".into(),
        mismatch: None,
        evidence,
    }
}

fn late_status(reason: &str, exit_code: i32) -> ContainerEnded {
    ContainerEnded {
        at: Some(at(2)),
        pod: "u".into(),
        container: "app".into(),
        instance: Some("i1".into()),
        seen: EndSeen::Status,
        exit_code: Some(exit_code),
        reason: reason.into(),
        ..ContainerEnded::default()
    }
}

/// The same with the status among its evidence.
fn with_status(ended: &ContainerTerminated, end: &ContainerEnded) -> ContainerTerminated {
    let mut ended = ended.clone();
    (ended.reason, ended.exit_code) = (end.reason.clone(), end.exit_code);
    ended.evidence.push(status());
    ended
}

/// By what they differ, whichever of them comes first.
fn compare(ended: &ContainerTerminated, end: &ContainerEnded) -> Option<MismatchKind> {
    let at_once = StatusMismatch::default().terminated(at(3), &with_status(ended, end));
    let mut comparison = StatusMismatch::default();
    assert_eq!(comparison.terminated(at(3), ended), None, "there is no status yet");
    let late = comparison.status(at(60), end);
    assert_eq!(comparison.status(at(61), end), None, "once");
    let of = late.as_ref().map(|it| (&it.container, it.cause));
    assert!(of.is_none_or(|of| of == (&ended.container, ended.cause())));
    assert_eq!(at_once, late.map(|it| it.mismatch));
    at_once
}

#[test]
fn each_way_in_which_a_status_and_a_cause_can_differ() {
    use Explanation::*;
    use MismatchKind::*;
    use TerminationCause::*;
    let main = || vec![kill(OomVictimRole::Main)];
    let child = || vec![kill(OomVictimRole::Child)];
    type Case<'a> =
        (&'a [(TerminationCause, Explanation)], Vec<Evidence>, &'a str, i32, Option<MismatchKind>);
    let cases: [Case<'_>; 14] = [
        // They agree.
        (&[(OomKilled, MainProcessKilled)], main(), "OOMKilled", 137, None),
        (&[(OomKilled, ChildKilled)], child(), "OOMKilled", 1, None),
        (&[(Other, Exited)], vec![], "Completed", 0, None),
        (&[(Other, Exited)], vec![], "Error", 1, None),
        (&[(EvictedByAgent, EvictionUnderWay)], vec![], "Error", 143, None),
        (
            &[(EvictedByAgent, EvictionUnderWay), (OomKilled, MainProcessKilled)],
            main(),
            "OOMKilled",
            137,
            None,
        ),
        // They do not.
        (&[(OomKilled, MainProcessKilled)], main(), "Error", 137, Some(KillNotInStatus)),
        (&[(OomKilled, RuntimeSays)], vec![], "OOMKilled", 137, Some(NoKillSeen)),
        (&[(EvictedByKubelet, EvictionOnRecord)], vec![], "OOMKilled", 137, Some(NoKillSeen)),
        (&[(Other, OnlyAChildLongBefore)], child(), "OOMKilled", 0, Some(OnlyAChildKilled)),
        (&[(Other, Exited)], child(), "Completed", 0, Some(ChildNotInStatus)),
        (
            &[(Other, Explanation::KilledBySomebodyElse)],
            vec![],
            "Error",
            137,
            Some(MismatchKind::KilledByOtherProcess),
        ),
        (&[(EvictedByAgent, EvictionUnderWay)], vec![], "Error", 137, Some(KilledByEviction)),
        (&[(EvictedByKubelet, EvictionOnRecord)], vec![], "Error", 137, Some(KilledByEviction)),
    ];
    for (causes, evidence, reason, exit_code, difference) in cases {
        let got = compare(&ended(causes, evidence), &late_status(reason, exit_code));
        assert_eq!(got, difference, "{causes:?} and {reason} {exit_code}");
    }
}

#[test]
fn a_status_is_held_against_its_own_container_alone() {
    let of = |end: ContainerEnded| {
        let mut comparison = StatusMismatch::default();
        comparison.terminated(at(3), &ended(&[(TerminationCause::Other, Explanation::Unexplained)], vec![]));
        comparison.status(at(4), &end).map(|it| it.mismatch)
    };
    let killed = || late_status("Error", 137);
    assert!(of(killed()).is_some());
    assert_eq!(of(ContainerEnded { pod: "v".into(), ..killed() }), None);
    assert_eq!(of(ContainerEnded { instance: Some("i2".into()), ..killed() }), None);
    assert!(of(ContainerEnded { instance: None, ..killed() }).is_some());
    assert_eq!(of(ContainerEnded { instance: None, at: Some(at(5)), ..killed() }), None, "another end");
    assert_eq!(of(ContainerEnded { seen: EndSeen::Cgroup, ..killed() }), None);
}

#[test]
fn terminations_wait_for_ten_minutes_and_not_in_any_number() {
    let mut comparison = StatusMismatch::default();
    let nameless = ended(&[(TerminationCause::Other, Explanation::Unexplained)], vec![]);
    for nth in 0..2 * OPEN {
        let container = container(&nth.to_string(), Some("i1"));
        comparison.terminated(at(3), &ContainerTerminated { container, ..nameless.clone() });
    }
    assert_eq!((comparison.waiting(), comparison.unmatched()), (OPEN, OPEN as u64));
    let last = ContainerEnded { pod: (2 * OPEN - 1).to_string().into(), ..late_status("Error", 137) };
    assert_eq!(comparison.status(at(700), &last), None, "too late");
    assert_eq!((comparison.waiting(), comparison.unmatched()), (0, 2 * OPEN as u64));
}

fn causes() -> impl Strategy<Value = Vec<(TerminationCause, Explanation)>> {
    let cause = prop_oneof![
        Just((TerminationCause::EvictedByAgent, Explanation::EvictionUnderWay)),
        Just((TerminationCause::EvictedByKubelet, Explanation::EvictionOnRecord)),
        Just((TerminationCause::OomKilled, Explanation::MainProcessKilled)),
        Just((TerminationCause::OomKilled, Explanation::GroupKilled)),
        Just((TerminationCause::Other, Explanation::Exited)),
    ];
    prop::collection::vec(cause, 1..3)
}

proptest! {
    #[test]
    fn it_does_not_matter_which_comes_first(
        causes in causes(),
        kills in prop::collection::vec(prop_oneof![Just(OomVictimRole::Main), Just(OomVictimRole::Child)], 0..3),
        reason in prop_oneof![Just("OOMKilled"), Just("Error"), Just("Completed"), Just("")],
        exit_code in prop_oneof![Just(0), Just(1), Just(137), Just(143)],
    ) {
        let difference = compare(&ended(&causes, kills.iter().map(|it| kill(*it)).collect()), &late_status(reason, exit_code));
        let killed = causes.iter().any(|(cause, _)| *cause == TerminationCause::OomKilled);
        let agrees = (reason == "OOMKilled") == killed;
        prop_assert!(agrees || difference.is_some(), "what differs is said");
        if difference.is_none() {
            prop_assert!(agrees && (killed || (exit_code != 137 && kills.is_empty())));
        }
    }

    #[test]
    fn whatever_comes_its_memory_is_bounded_and_each_end_is_said_once(
        records in prop::collection::vec((any::<bool>(), 0..400_u16, 0..2_000_i64), 0..1_500),
    ) {
        let mut comparison = StatusMismatch::default();
        let mut terminations = 0;
        let mut said = 0;
        for (is_termination, uid, second) in records {
            let uid = uid.to_string();
            if is_termination {
                terminations += 1;
                comparison.terminated(at(second), &ContainerTerminated { container: container(&uid, Some("i1")), ..ended(&[(TerminationCause::Other, Explanation::Unexplained)], vec![]) });
            } else {
                let end = ContainerEnded { pod: uid.into(), ..late_status("OOMKilled", 137) };
                said += u64::from(comparison.status(at(second), &end).is_some());
            }
            prop_assert!(comparison.waiting() <= OPEN);
            prop_assert_eq!(terminations, said + comparison.waiting() as u64 + comparison.unmatched());
        }
    }
}

#[test]
fn a_late_status_that_differs_in_one_line() {
    let mismatch = ContainerStatusMismatch {
        container: container("u", None),
        cause: TerminationCause::OomKilled,
        mismatch: MismatchKind::KillNotInStatus,
    };
    assert_eq!(
        mismatch.to_string(),
        "container app of shop/web terminated: oom killed; its status came later and differs: the kernel's OOM killer killed it, which the status does not say"
    );
    assert_eq!(
        serde_json::to_string(&mismatch).unwrap(),
        r#"{"namespace":"shop","pod":"web","pod_uid":"u","container":"app","cause":"oom_killed","mismatch":"kill_not_in_status","mismatch_explanation":"the kernel's OOM killer killed it, which the status does not say"}"#
    );
}
