use proptest::prelude::*;

use super::*;
use crate::oom::cause::AttributedCause;
use crate::pod::PodRef;

fn compare(
    causes: &[(TerminationCause, Explanation)],
    any_kill: bool,
    reason: &str,
    exit_code: i32,
) -> Option<MismatchKind> {
    let attributed = |(cause, explanation): &(TerminationCause, Explanation)| {
        let limit_scope = (*cause == TerminationCause::OomKilled).then_some(LimitScope::Container);
        AttributedCause { cause: *cause, explanation: *explanation, at: None, limit_scope }
    };
    let causes: Vec<_> = causes.iter().map(attributed).collect();
    MismatchKind::of(&causes, any_kill, reason, exit_code == 137)
}

#[test]
fn status_and_cause_are_compared_for_each_mismatch_kind() {
    use Explanation::*;
    use MismatchKind::*;
    use TerminationCause::*;
    type Case<'a> = (&'a [(TerminationCause, Explanation)], bool, &'a str, i32, Option<MismatchKind>);
    let cases: [Case<'_>; 14] = [
        // The status and the cause agree.
        (&[(OomKilled, InitProcessKilled)], true, "OOMKilled", 137, None),
        (&[(OomKilled, ChildKilled)], true, "OOMKilled", 1, None),
        (&[(Other, Exited)], false, "Completed", 0, None),
        (&[(Other, Exited)], false, "Error", 1, None),
        (&[(EvictedByAgent, EvictionInProgress)], false, "Error", 143, None),
        (
            &[(EvictedByAgent, EvictionInProgress), (OomKilled, InitProcessKilled)],
            true,
            "OOMKilled",
            137,
            None,
        ),
        // The status and the cause do not agree.
        (&[(OomKilled, InitProcessKilled)], true, "Error", 137, Some(KillNotInStatus)),
        (&[(OomKilled, RuntimeReported)], false, "OOMKilled", 137, Some(NoKillSeen)),
        (&[(EvictedByKubelet, EvictionOnRecord)], false, "OOMKilled", 137, Some(NoKillSeen)),
        (&[(Other, OnlyAChildLongBefore)], true, "OOMKilled", 0, Some(OnlyAChildKilled)),
        (&[(Other, Exited)], true, "Completed", 0, Some(ChildNotInStatus)),
        (
            &[(Other, Explanation::KilledByOtherProcess)],
            false,
            "Error",
            137,
            Some(MismatchKind::KilledByOtherProcess),
        ),
        (&[(EvictedByAgent, EvictionInProgress)], false, "Error", 137, Some(KilledByEviction)),
        (&[(EvictedByKubelet, EvictionOnRecord)], false, "Error", 137, Some(KilledByEviction)),
    ];
    for (causes, any_kill, reason, exit_code, difference) in cases {
        let got = compare(causes, any_kill, reason, exit_code);
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
        any_kill in any::<bool>(),
        reason in prop_oneof![Just("OOMKilled"), Just("Error"), Just("Completed"), Just("")],
        exit_code in prop_oneof![Just(0), Just(1), Just(137), Just(143)],
    ) {
        let difference = compare(&causes, any_kill, reason, exit_code);
        let killed = causes.iter().any(|(cause, _)| *cause == TerminationCause::OomKilled);
        let agrees = (reason == "OOMKilled") == killed;
        prop_assert!(agrees || difference.is_some());
        if difference.is_none() {
            prop_assert!(agrees && (killed || (exit_code != 137 && !any_kill)));
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
