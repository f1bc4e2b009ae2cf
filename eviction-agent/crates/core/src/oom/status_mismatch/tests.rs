use proptest::prelude::*;

use super::*;
use crate::fixture::at;
use crate::oom::{KillEntry, LimitScope, OomKill, OomVictimRole};
use crate::pod::PodRef;

fn kill(victim: OomVictimRole) -> Evidence {
    let kill = OomKill { pid: 7, victim, ..OomKill::default() };
    Evidence::KernelKills(Box::new(KillEntry::new(&kill, at(1))))
}

fn cause(cause: TerminationCause, explanation: Explanation) -> AttributedCause {
    let limit_scope = (cause == TerminationCause::OomKilled).then_some(LimitScope::Container);
    AttributedCause { cause, explanation, at: None, limit_scope }
}

fn compare(
    causes: &[(TerminationCause, Explanation)],
    evidence: &[Evidence],
    reason: &str,
    exit_code: i32,
) -> Option<MismatchKind> {
    let causes: Vec<_> = causes.iter().map(|(of, explanation)| cause(*of, *explanation)).collect();
    FoundCause::of(&causes, evidence).compare(reason, Some(exit_code), None)
}

#[test]
fn status_and_cause_are_compared_for_each_mismatch_kind() {
    use Explanation::*;
    use MismatchKind::*;
    use TerminationCause::*;
    let main = || vec![kill(OomVictimRole::Init)];
    let child = || vec![kill(OomVictimRole::Child)];
    type Case<'a> =
        (&'a [(TerminationCause, Explanation)], Vec<Evidence>, &'a str, i32, Option<MismatchKind>);
    let cases: [Case<'_>; 14] = [
        // The status and the cause agree.
        (&[(OomKilled, InitProcessKilled)], main(), "OOMKilled", 137, None),
        (&[(OomKilled, ChildKilled)], child(), "OOMKilled", 1, None),
        (&[(Other, Exited)], vec![], "Completed", 0, None),
        (&[(Other, Exited)], vec![], "Error", 1, None),
        (&[(EvictedByAgent, EvictionInProgress)], vec![], "Error", 143, None),
        (
            &[(EvictedByAgent, EvictionInProgress), (OomKilled, InitProcessKilled)],
            main(),
            "OOMKilled",
            137,
            None,
        ),
        // The status and the cause do not agree.
        (&[(OomKilled, InitProcessKilled)], main(), "Error", 137, Some(KillNotInStatus)),
        (&[(OomKilled, RuntimeReported)], vec![], "OOMKilled", 137, Some(NoKillSeen)),
        (&[(EvictedByKubelet, EvictionOnRecord)], vec![], "OOMKilled", 137, Some(NoKillSeen)),
        (&[(Other, OnlyAChildLongBefore)], child(), "OOMKilled", 0, Some(OnlyAChildKilled)),
        (&[(Other, Exited)], child(), "Completed", 0, Some(ChildNotInStatus)),
        (
            &[(Other, Explanation::KilledByOtherProcess)],
            vec![],
            "Error",
            137,
            Some(MismatchKind::KilledByOtherProcess),
        ),
        (&[(EvictedByAgent, EvictionInProgress)], vec![], "Error", 137, Some(KilledByEviction)),
        (&[(EvictedByKubelet, EvictionOnRecord)], vec![], "Error", 137, Some(KilledByEviction)),
    ];
    for (causes, evidence, reason, exit_code, difference) in cases {
        let got = compare(causes, &evidence, reason, exit_code);
        assert_eq!(got, difference, "{causes:?} and {reason} {exit_code}");
    }
}

fn causes() -> impl Strategy<Value = Vec<(TerminationCause, Explanation)>> {
    let cause = prop_oneof![
        Just((TerminationCause::EvictedByAgent, Explanation::EvictionInProgress)),
        Just((TerminationCause::EvictedByKubelet, Explanation::EvictionOnRecord)),
        Just((TerminationCause::OomKilled, Explanation::InitProcessKilled)),
        Just((TerminationCause::OomKilled, Explanation::GroupKilled)),
        Just((TerminationCause::Other, Explanation::Exited)),
    ];
    prop::collection::vec(cause, 1..3)
}

proptest! {
    #[test]
    fn status_that_differs_from_the_cause_is_a_mismatch(
        causes in causes(),
        kills in prop::collection::vec(prop_oneof![Just(OomVictimRole::Init), Just(OomVictimRole::Child)], 0..3),
        reason in prop_oneof![Just("OOMKilled"), Just("Error"), Just("Completed"), Just("")],
        exit_code in prop_oneof![Just(0), Just(1), Just(137), Just(143)],
    ) {
        let evidence: Vec<_> = kills.iter().map(|it| kill(*it)).collect();
        let difference = compare(&causes, &evidence, reason, exit_code);
        let killed = causes.iter().any(|(cause, _)| *cause == TerminationCause::OomKilled);
        let agrees = (reason == "OOMKilled") == killed;
        prop_assert!(agrees || difference.is_some());
        if difference.is_none() {
            prop_assert!(agrees && (killed || (exit_code != 137 && kills.is_empty())));
        }
    }
}

#[test]
fn late_mismatch_is_written_in_one_line() {
    let pod = Some(PodRef::new("shop", "web"));
    let mismatch = ContainerStatusMismatch {
        container: ContainerRef { pod, pod_uid: "u".into(), name: "app".into(), id: None },
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
