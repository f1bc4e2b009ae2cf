//! Event lines and metrics of the steps of an eviction.

use crate::telemetry::metrics::Metrics;
use eviction_core::progress::{ApiOperation, ApiResult, KillProgress, KillRejection, Signalled};
use eviction_core::signal::Signal;

use super::TelemetryExporter;
use crate::telemetry::event_log::{self, Event};
use crate::telemetry::queue::EvictionUpdate;

impl TelemetryExporter {
    pub(super) fn progress(&mut self, update: EvictionUpdate) {
        let EvictionUpdate { id, pod, signal, decided_mono_ns, mono_ns, step } = update;
        let at = self.clock.at(mono_ns);
        let decision_id = self.decision_ids.of(id);
        if let Some(events) = &mut self.events {
            match &step {
                Ok(progress) => {
                    let at = self.clock.shown(at.wall);
                    events.progressed((id, &decision_id), &pod, progress, at);
                }
                Err(_) => events.rejected(id),
            }
        }
        let is_condition_patch =
            matches!(&step, Ok(KillProgress::Answered { operation: ApiOperation::Condition, .. }));
        let (outcome, processes, why) = describe(step);
        debug_assert!(RESULTS.contains(&outcome), "{outcome} is not among them");
        self.metrics.eviction_results.with([outcome]).inc();
        if !is_condition_patch {
            observe_duration(&self.metrics, outcome, at.mono_ns.saturating_sub(decided_mono_ns));
        }
        if outcome == TERMINATED && !is_condition_patch {
            let eviction_signal = signal.map_or("", Signal::name);
            let namespace = self.metrics.namespace(&pod.namespace);
            self.metrics.evictions.with([eviction_signal.into(), namespace]).inc();
        }
        let event = event_log::EvictionProgress {
            id,
            decision_id,
            pod: event_log::PodRef::from(&*pod),
            pod_uid: pod.uid.to_string(),
            result: outcome,
            processes,
            reason: why,
            mono_ns: at.mono_ns,
            since_decision_us: at.mono_ns.saturating_sub(decided_mono_ns) / 1_000,
        };
        self.publish(at.wall, Event::EvictionProgress(event));
    }
}

const TERMINATED: &str = "terminated";

/// Results that end an eviction. A dry run has none of them.
pub(crate) const ENDS: [&str; 4] = [TERMINATED, "replaced", "processes_remaining", "abandoned"];

/// Observes the duration of an eviction, if this result is its end.
fn observe_duration(metrics: &Metrics, result: &'static str, took_ns: u64) {
    if ENDS.contains(&result) {
        #[expect(clippy::cast_precision_loss, reason = "a histogram's value")]
        metrics.eviction_duration.with([result]).observe(took_ns as f64 / 1e9);
    }
}

/// The results that [`describe`] returns, which include those of [`ApiResult::name`].
pub(crate) const RESULTS: [&str; 16] = [
    "dry_run",
    "signalled",
    "killed",
    "error",
    TERMINATED,
    "processes_remaining",
    "abandoned",
    "accepted",
    "pdb_denied",
    "throttled",
    "forbidden",
    "unauthorized",
    "replaced",
    "rejected",
    "unknown",
    "not_sent",
];

/// Joins the parts of a reason. Returns `None` if there is no part.
fn joined(parts: impl IntoIterator<Item = String>, separator: &str) -> Option<String> {
    parts.into_iter().reduce(|all, part| all + separator + &part)
}

/// Describes a response of the API server. Only the response to the eviction request ends the
/// eviction.
fn describe_api_result(
    operation: ApiOperation,
    answered: &ApiResult,
    is_dry: bool,
) -> (&'static str, Option<String>) {
    let name = if is_dry { "dry_run" } else { answered.name() };
    let operation = match operation {
        ApiOperation::Eviction => None,
        other => Some(format!("request: {}", other.name())),
    };
    let throttled = match answered {
        ApiResult::Throttled { pause } => Some(format!("retry after {pause:?}")),
        _ => None,
    };
    let dry = is_dry.then(|| answered.name().to_owned());
    let why = [operation, dry, throttled, answered.why().map(str::to_owned)];
    (name, joined(why.into_iter().flatten(), ": "))
}

/// Returns the bytes as a quantity, rounded up, so that a value above the bound is shown as above
/// it.
fn at_most(bytes: u64) -> String {
    match bytes.div_ceil(1 << 10) {
        kib @ ..1024 => format!("{kib}Ki"),
        _ => format!("{}Mi", bytes.div_ceil(1 << 20)),
    }
}

/// Returns the result of a step, the number of its processes, and the reason.
fn describe(step: Result<KillProgress, KillRejection>) -> (&'static str, Option<usize>, Option<String>) {
    let describe_signalled = |signalled: Signalled| {
        let Signalled { sent, ended: _, moved, denied, unreachable, unreadable_groups, whole_group: _ } =
            signalled;
        let anomalies = [
            (moved, "left the cgroup and were not signalled"),
            (denied, "not permitted by the kernel (CAP_KILL is missing)"),
            (unreachable, "outside this PID namespace"),
            (unreadable_groups, "cgroups could not be read"),
        ];
        let anomalies = anomalies.into_iter().filter(|(count, _)| *count > 0);
        (Some(sent as usize), joined(anomalies.map(|(count, what)| format!("{count} {what}")), ", "))
    };
    let progress = match step {
        Err(refused) => return ("rejected", None, Some(refused.to_string())),
        Ok(progress) => progress,
    };
    match progress {
        KillProgress::WouldSignal { pids, unreachable } => {
            let why = (unreachable > 0).then(|| format!("{unreachable} more outside this PID namespace"));
            ("dry_run", Some(pids.len()), why)
        }
        KillProgress::TermSent(signalled) => {
            let (processes, why) = describe_signalled(signalled);
            ("signalled", processes, why)
        }
        KillProgress::KillSent { signalled, grown } => {
            let (processes, why) = describe_signalled(signalled);
            let grown = grown.map(|bytes| format!("grew by {} since SIGTERM", at_most(bytes)));
            ("killed", processes, joined(grown.into_iter().chain(why), ", "))
        }
        KillProgress::Error { what } => ("error", None, Some(what)),
        KillProgress::Terminated { unreaped, killed: _ } => {
            let unreaped = unreaped.filter(|count| *count > 0);
            let why = unreaped.map(|count| format!("{count} terminated processes are not reaped yet"));
            (TERMINATED, None, why)
        }
        KillProgress::ProcessesRemaining { processes, unreachable, unreadable_groups } => {
            let survivors = processes.iter().map(|(pid, why)| format!("{pid} ({why:?})").to_lowercase());
            let mut why = joined(survivors, ", ").unwrap_or_default();
            if unreachable > 0 {
                why.push_str(&format!(" and {unreachable} outside this PID namespace"));
            }
            if unreadable_groups > 0 {
                why.push_str(&format!(" and those of {unreadable_groups} cgroups that cannot be read"));
            }
            ("processes_remaining", Some(processes.len()), Some(why))
        }
        KillProgress::Answered { operation, answered, is_dry } => {
            let (name, why) = describe_api_result(operation, &answered, is_dry);
            (name, None, why)
        }
        KillProgress::Abandoned => ("abandoned", None, Some("the agent ends".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Form;

    #[test]
    fn only_the_end_of_an_eviction_has_a_duration() {
        let metrics = Metrics::new("0", "0");
        for result in RESULTS {
            observe_duration(&metrics, result, 1_500_000_000);
        }
        let text = metrics.encode(Form::OpenMetrics).unwrap();
        let sums: Vec<_> =
            text.lines().filter(|line| line.contains("eviction_duration_seconds_sum")).collect();
        let ends = ["abandoned", "processes_remaining", "replaced", "terminated"];
        assert_eq!(
            sums,
            ends.map(|end| format!("eviction_agent_eviction_duration_seconds_sum{{result=\"{end}\"}} 1.5"))
        );
    }

    #[test]
    fn kill_reason_reports_the_growth_since_sigterm() {
        let killed = |grown, moved| {
            let signalled = Signalled { sent: 2, moved, ..Signalled::default() };
            let (outcome, processes, why) = describe(Ok(KillProgress::KillSent { signalled, grown }));
            assert_eq!((outcome, processes), ("killed", Some(2)));
            why
        };
        assert_eq!(killed(None, 0), None);
        assert_eq!(killed(Some((16 << 20) + 1), 0).unwrap(), "grew by 17Mi since SIGTERM");
        assert_eq!(killed(Some(4097), 0).unwrap(), "grew by 5Ki since SIGTERM");
        let both = "grew by 3072Mi since SIGTERM, 1 left the cgroup and were not signalled";
        assert_eq!(killed(Some(3 << 30), 1).unwrap(), both);
    }
}
