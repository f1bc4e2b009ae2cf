//! `explain` as a user calls it, on scenarios that the kubelet decided as well, and on ours.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};
use std::process::Command;

const AGENT: &str = env!("CARGO_BIN_EXE_eviction-agent");

/// Returns the folder with the scenarios that the kubelet decided as well.
fn scenarios() -> PathBuf {
    folder("kubelet")
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scenarios").join(name)
}

fn explain(path: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(AGENT).arg("explain").arg(path).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The explanation of a scenario.
fn explained(path: &Path, arguments: &[&str]) -> String {
    let (code, out, err) = explain(path, arguments);
    assert_eq!((code, &*err), (0, ""), "{out}");
    out
}

macro_rules! explanations {
    ($folder:literal $($test:ident: $name:literal $($argument:literal)*;)*) => {
        $(
            #[test]
            fn $test() {
                let path = folder($folder).join($name).with_extension("json");
                insta::assert_snapshot!(explained(&path, &[$($argument),*]));
            }
        )*
    };
}

explanations! {
    "kubelet"
    above_request: "memory-rank-1-above-request-first";
    lower_priority: "memory-rank-2-lower-priority-first";
    larger_excess: "memory-rank-3-largest-excess-over-request-first";
    equal_pods: "memory-equal-pods-any-may-go";
    without_stats: "memory-pod-without-stats-goes-first";
    critical: "memory-critical-pod-is-passed-over";
    only_critical: "memory-only-critical-pods-nothing-evicted";
    soft_waits: "memory-soft-waits-for-its-grace-period";
    soft_grants_grace: "memory-soft-pod-grace-is-the-smaller-of-two";
    min_reclaim: "memory-min-reclaim-keeps-the-threshold-met";
    same_stats_time: "memory-same-stats-time-no-second-eviction";
    transition_period: "memory-condition-outlives-the-pressure-by-the-transition-period";
    missing_value: "memory-missing-figure-means-no-observation";
    reclaim_enough: "disk-shared-reclaim-is-enough";
    reclaim_not_enough: "disk-shared-reclaim-is-not-enough";
    no_stats_after_reclaim: "disk-no-stats-after-reclaim-means-evict";
    inodes: "disk-inodes";
    processes: "pid-rank-by-priority-then-processes";
    above_own_limit: "local-emptydir-above-its-size-limit";
    above_own_limit_but_critical: "local-critical-pod-is-not-evicted";
    no_pods: "no-active-pods";
    no_summary: "error-no-summary-changes-nothing";
    refused_configuration: "config-error-percent-above-100";
    admission: "admission-under-memory-pressure";
    pod_that_is_evicted: "memory-rank-3-largest-excess-over-request-first" "--pod" "pod-b";
    pod_that_is_not_evicted: "memory-rank-3-largest-excess-over-request-first" "--pod" "default/pod-a";
    pod_above_own_limit: "local-emptydir-above-its-size-limit" "--pod" "pod-a";
    enhanced: "memory-rank-3-largest-excess-over-request-first" "--profile" "enhanced";
    enhanced_pod: "memory-rank-3-largest-excess-over-request-first" "--profile" "enhanced" "--pod" "pod-a";
    json: "memory-hard-threshold-evicts-one-pod" "-o" "jsonl";
}

explanations! {
    "enhanced"
    ours_shortened_grace: "hard-threshold-shortens-grace-and-evicts-more";
    ours_pod_with_shortened_grace_period: "hard-threshold-shortens-a-soft-grace-period" "--pod" "hog";
    ours_eviction_in_flight: "in-flight-eviction-is-counted";
    ours_skipped: "skipped-page-cache-frees-too-little";
    ours_pod_that_is_skipped: "skipped-page-cache-frees-too-little" "--pod" "cache";
    ours_failed: "eviction-fails-and-the-next-pod-follows";
    ours_expired: "eviction-expires-and-the-next-pod-follows";
    ours_opted_out: "opt-out-by-annotation";
    ours_ignored_annotation: "opt-out-with-an-invalid-value";
    ours_last_resort: "opt-out-overridden-as-last-resort";
    ours_protected: "protection-never";
    ours_without_controller: "without-controller-is-not-evicted-for-a-soft-threshold";
    ours_limited: "rate-limit-per-owner";
    ours_cooling_down: "oom-cool-down-protects-the-pod";
    ours_frees_nothing: "disk-pod-without-usage-is-not-evicted";
    ours_too_young: "unknown-usage-of-a-young-pod";
    ours_implausible_capacity: "implausible-capacity-evicts-no-pod";
    ours_signals_unavailable: "unavailable-signals-after-failed-samples";
    ours_policy_trial: "config-change-pending-until-applied-manually";
    ours_without_psi_stall: "psi-without-stalls-evicts-no-pod";
    ours_predicted: "prediction-raises-the-condition";
    ours_killed_and_evicted: "oom-kill-during-an-eviction";
    ours_group_killed: "oom-group-kill-is-one-event";
}

#[test]
fn every_scenario_can_be_explained_in_every_form() {
    let (code, text, err) = explain(&scenarios(), &[]);
    assert_eq!((code, &*err), (0, ""));
    assert_eq!(text.lines().filter(|line| line.starts_with("scenario ")).count(), 85);
    assert!(!text.contains('\u{1b}'), "no colour into a pipe");
    let (code, lines, err) = explain(&scenarios(), &["-o", "jsonl"]);
    assert_eq!((code, &*err), (0, ""));
    let report = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let reports: Vec<_> = lines.lines().map(report).collect();
    assert!(reports.iter().all(|report| report["scenario"].is_string() && report["at"].is_string()));
    assert!(reports.iter().any(|report| report["evaluation"]["nearest"]["usage"].is_i64()));
}

#[test]
fn unknown_pod_is_an_error_that_names_the_most_similar_pod() {
    let (code, out, err) = explain(&scenarios().join("disk-inodes.json"), &["--pod", "default/podb"]);
    assert_eq!((code, &*out), (1, ""));
    assert_eq!(
        err,
        "error: explain pod default/podb: no such pod in the recording\nhelp: the nearest is default/pod-b\n"
    );
}

#[test]
fn pod_is_searched_in_all_scenarios() {
    let (code, out, err) = explain(&scenarios(), &["--pod", "default/pod-a"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(out.matches("\nscenario ").count() > 10, "{out}");
}

#[test]
fn usage_errors_have_exit_code_2() {
    let folder = scenarios();
    for wrong in [&["--check"][..], &["-o", "xml"], &["--pod"]] {
        assert_eq!(explain(&folder, wrong).0, 2, "{wrong:?}");
    }
    let output =
        Command::new(AGENT).args(["replay", "--pod", "a", "--scenarios"]).arg(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "--pod needs --explain");
}
