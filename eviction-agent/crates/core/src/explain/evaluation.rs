//! Writes one evaluation as text.

use crate::disk_layout::GarbageEstimate;
use crate::eviction::{Basis, EvaluationEnd, SkipReason};
use crate::explain::text::{TextPage, Tone, count, pod, printable, with_unit};
use crate::explain::{candidates, signals};
use crate::pod::PodName;
use crate::record::{
    CandidateOutcome, CandidateRecord, DecisionRecord, EvaluationRecord, EvictionRecord, InFlightPhase,
    InFlightRecord, SignalRecord, SizingRecord, SkippedVictim, ThresholdRecord,
};
use crate::signal::Resource;
use crate::units::display_bytes;

/// Returns whether an evaluation found no pressure and has nothing else to report.
pub(super) fn is_without_pressure(evaluation: &EvaluationRecord) -> bool {
    evaluation.end == EvaluationEnd::NoPressure
        && evaluation.evictions.is_empty()
        && evaluation.critical_pods.is_empty()
        && evaluation.refused_pods.is_empty()
        && evaluation.unknown_volumes == 0
        && evaluation.rejected.is_empty()
        && evaluation.thresholds.iter().all(|threshold| threshold.met.is_none() && !threshold.imminent)
}

/// Writes a whole evaluation.
pub(super) fn write(record: &DecisionRecord, evaluation: &EvaluationRecord, page: &mut TextPage) {
    let (tone, heading) = heading(evaluation);
    page.heading(record.at, tone, &heading);
    page.lines("short", signals::met(evaluation, record.at));
    page.lines("memory", evaluation.memory.iter().flat_map(signals::memory));
    page.lines("ahead", signals::imminent_thresholds(evaluation));
    page.lines("unknown", signals::unknown_signals(evaluation));
    page.lines("rejected", signals::rejected_readings(&evaluation.rejected));
    page.lines("no signal", signals::unavailable_signals(record));
    page.lines("policy", record.proposal.iter().flat_map(|one| signals::proposal(one, record.at)));
    page.lines("reclaim", reclaim(evaluation));
    page.lines("conditions", record.conditions.iter().map(|one| signals::condition(one, record.at)));
    page.lines("deficit", evaluation.deficit.iter().map(signals::deficit));
    page.lines("in flight", evaluation.in_flight.iter().map(in_flight_line));
    page.lines("sized", sizing_lines(evaluation));
    page.lines("skipped", evaluation.sizing.iter().flat_map(skipped_of).map(|(_, why)| why));
    above_limits(evaluation, page);
    if let Some(resource) = evaluation.starved {
        ranking(evaluation, resource, page);
    }
    if evaluation.unknown_volumes > 0 {
        let volumes = count(evaluation.unknown_volumes as usize, "volume");
        page.lines(
            "unknown",
            [format!("the usage of {volumes} under a limit: those limits are not applied")],
        );
    }
}

fn heading(evaluation: &EvaluationRecord) -> (Tone, String) {
    let above_limits: Vec<_> = evaluation.evictions.iter().filter(|one| one.is_above_limit()).collect();
    if above_limits.is_empty() {
        return end_heading(evaluation, "");
    }
    let evicted = format!("EVICT {}: above limits of local storage", named(&above_limits));
    let heading = match evaluation.end {
        EvaluationEnd::LocalStorage => evicted,
        _ => format!("{evicted}; {}", end_heading(evaluation, "OTHER ").1),
    };
    (Tone::Bad, heading)
}

/// Returns the heading about thresholds. `other` is not empty if pods are evicted for limits of their own.
fn end_heading(evaluation: &EvaluationRecord, other: &str) -> (Tone, String) {
    let short = evaluation.starved.map_or_else(String::new, |resource| format!(": short of {resource}"));
    let evicted = evicted_pods(evaluation.evictions.iter().filter(|one| !one.is_above_limit()));
    let no_eviction = |why: &str| (Tone::Warning, format!("NO {other}EVICTION{short}, but {why}"));
    let is_met = |threshold: &ThresholdRecord| threshold.met.is_some();
    if evaluation.left_to_kubelet.is_some() && evicted.is_empty() {
        return (Tone::Warning, format!("LEFT TO THE KUBELET{short}"));
    }
    match evaluation.end {
        EvaluationEnd::Evicted => (Tone::Bad, format!("{evicted}{short}")),
        EvaluationEnd::ReleaseInProgress
        | EvaluationEnd::RateLimited
        | EvaluationEnd::ApiServerUnavailable
        | EvaluationEnd::NoCandidates
            if !evicted.is_empty() =>
        {
            (Tone::Bad, format!("{evicted}{short}"))
        }
        EvaluationEnd::AwaitingReclaim => {
            let kinds: Vec<_> = evaluation.reclaim.iter().map(|kind| kind.name()).collect();
            let (kinds, other) = (kinds.join(" and "), other.to_lowercase());
            (Tone::Warning, format!("RECLAIM unused {kinds} before any {other}eviction{short}"))
        }
        EvaluationEnd::Reclaimed => {
            (Tone::Good, format!("ENOUGH was reclaimed, no {}eviction", other.to_lowercase()))
        }
        EvaluationEnd::CannotRank => no_eviction("pods cannot be ranked by what they use of it"),
        EvaluationEnd::AwaitingSpace => {
            let bytes = display_bytes(evaluation.awaited_bytes.unwrap_or(0).into());
            no_eviction(&format!("{bytes} will be freed (preallocated by xfs, or files of evicted pods)"))
        }
        EvaluationEnd::NoPods => no_eviction("there are no pods"),
        EvaluationEnd::OnlyCritical => no_eviction("all pods are critical"),
        EvaluationEnd::OnlyProtected => no_eviction("all pods that are not critical are protected"),
        EvaluationEnd::ReleaseInProgress => {
            (Tone::Warning, format!("WAIT{short}: terminating pods make up for it"))
        }
        EvaluationEnd::RateLimited => {
            (Tone::Warning, format!("NO FURTHER EVICTION{short}, but the rate limit is reached"))
        }
        EvaluationEnd::ApiServerUnavailable => no_eviction("the API server is unavailable"),
        EvaluationEnd::NoCandidates => no_eviction("no candidate is left"),
        EvaluationEnd::NoPressure if evaluation.thresholds.iter().any(is_met) => {
            (Tone::Warning, "WAIT: thresholds are met, but may not evict yet".to_owned())
        }
        EvaluationEnd::NoPressure if evaluation.thresholds.iter().any(|threshold| threshold.imminent) => {
            (Tone::Warning, "CALM, but not for long".to_owned())
        }
        EvaluationEnd::NoPressure | EvaluationEnd::LocalStorage => (Tone::Good, "CALM".to_owned()),
    }
}

/// Returns `EVICT a/b`, `EVICT a/b and c/d`, or `EVICT a/b and 3 more, SHORTEN e/f`. Empty without evictions.
fn evicted_pods<'a>(evictions: impl Iterator<Item = &'a EvictionRecord>) -> String {
    let (shortened, chosen): (Vec<_>, Vec<_>) = evictions.partition(|one| one.shortens_grace);
    let parts = [("EVICT", chosen), ("SHORTEN", shortened)];
    let parts = parts.iter().filter(|(_, pods)| !pods.is_empty());
    parts.map(|(verb, pods)| format!("{verb} {}", named(pods))).collect::<Vec<_>>().join(", ")
}

fn named(evictions: &[&EvictionRecord]) -> String {
    match evictions {
        [] => String::new(),
        [one] => pod(&one.pod),
        [one, other] => format!("{} and {}", pod(&one.pod), pod(&other.pod)),
        [one, rest @ ..] => format!("{} and {} more", pod(&one.pod), rest.len()),
    }
}

/// Returns the available amount of each signal that was short, before and after node-level reclaim.
fn reclaim(evaluation: &EvaluationRecord) -> Vec<String> {
    if let Some(GarbageEstimate { unused_bytes, deficit_bytes }) = evaluation.left_to_kubelet {
        let [unused, deficit] = [unused_bytes, deficit_bytes].map(|bytes| display_bytes(bytes.into()));
        return vec![format!("left to the kubelet: {unused} of unused images for a deficit of {deficit}")];
    }
    let is_met = |signal| evaluation.thresholds.iter().any(|one| one.signal == signal && one.met.is_some());
    let short = evaluation.signals_after_reclaim.iter().filter(|after| is_met(after.signal));
    let line = |after: &SignalRecord| {
        let is_enough = evaluation.end == EvaluationEnd::Reclaimed || is_resolved(evaluation, after);
        let note = if is_enough { "" } else { ", which is not enough" };
        format!("afterwards {} {}{note}", after.signal, signals::value(after.signal, Some(after)))
    };
    short.map(line).collect()
}

/// Returns whether node-level reclaim has freed what all met thresholds of the signal were missing.
fn is_resolved(evaluation: &EvaluationRecord, after: &SignalRecord) -> bool {
    let before = evaluation.signal(after.signal).and_then(|before| before.available);
    let freed = after.available.zip(before).map(|(after, before)| after.saturating_sub(before));
    let of_signal = evaluation.thresholds.iter().filter(|one| one.signal == after.signal);
    let mut missing = of_signal.filter_map(|one| Some(one.met?.missing));
    freed.is_some_and(|freed| missing.all(|missing| freed >= missing))
}

fn above_limits(evaluation: &EvaluationRecord, page: &mut TextPage) {
    // The other evictions are explained with the ranking, if there is one.
    let is_listed = |one: &&EvictionRecord| one.is_above_limit() || evaluation.candidates.is_empty();
    for eviction in evaluation.evictions.iter().filter(is_listed) {
        page.lines("goes", [pod(&eviction.pod), format!("  {}", candidates::above_limit(eviction))]);
    }
    if evaluation.candidates.is_empty() {
        let critical_pods = |name| format!("{} is above its own limits, but critical", pod(name));
        page.lines("spared", evaluation.critical_pods.iter().map(critical_pods));
        page.lines("rejected", evaluation.refused_pods.iter().map(candidates::refusal_line));
    }
}

fn ranking(evaluation: &EvaluationRecord, resource: Resource, page: &mut TextPage) {
    if evaluation.candidates.is_empty() {
        return;
    }
    page.out.push('\n');
    candidates::table(evaluation, resource, page);
    page.out.push('\n');
    page.lines("rejected", evaluation.refused_pods.iter().map(candidates::refusal_line));
    let is_victim =
        |(_, candidate): &(usize, &CandidateRecord)| candidate.result == CandidateOutcome::Evicted;
    for (rank, candidate) in evaluation.candidates.iter().enumerate().filter(is_victim) {
        let mut lines = vec![pod(&candidate.pod)];
        let reasons = candidates::victim(evaluation, rank, candidate, resource);
        lines.extend(reasons.into_iter().map(|line| format!("  {line}")));
        page.lines("why", lines);
    }
    // The change that would have spared an evicted pod was already written.
    let is_evicted = |name: &PodName| evaluation.evictions.iter().any(|eviction| eviction.pod == *name);
    let nearest =
        evaluation.nearest.iter().filter(|nearest| evaluation.sizing.is_empty() && !is_evicted(&nearest.pod));
    page.lines("nearest", nearest.map(|nearest| candidates::nearest_change(resource, nearest)));
}

pub(super) fn in_flight_line(InFlightRecord { pod: name, signal, state, .. }: &InFlightRecord) -> String {
    let name = pod(name);
    match state {
        InFlightPhase::Terminating { remaining_grace } => {
            format!("{name} for {signal}, {remaining_grace} of its grace period left")
        }
        InFlightPhase::Terminated { .. } => {
            format!("{name} is gone; values from before that still count it")
        }
        InFlightPhase::Failed { reason, age } => {
            format!("{name} did not go ({}), {age} ago", printable(reason))
        }
        InFlightPhase::Expired { age } => {
            format!("{name} did not go: its time was over {age} ago, and nothing was freed")
        }
    }
}

/// Returns a line for each threshold that was handled: its deficit, and what covers it.
pub(super) fn sizing_lines(evaluation: &EvaluationRecord) -> impl Iterator<Item = String> {
    evaluation.sizing.iter().map(|sizing| {
        let SizingRecord { signal, lacking, in_flight, chosen, remaining: open, .. } = sizing;
        let with_signal_unit = |number: i64| with_unit(signal.resource(), number);
        let victims = sizing.victims.iter().map(|victim| {
            let basis_note = match victim.release.basis {
                Basis::Request => ", as it requested: its usage is not known",
                Basis::Unknown => ": its usage is not known",
                Basis::Anonymous | Basis::WorkingSet | Basis::Usage => "",
            };
            format!("; {} frees {}{basis_note}", pod(&victim.pod), with_signal_unit(victim.release.amount))
        });
        let shortened =
            sizing.shortened.iter().map(|name| format!("; {} gets a shorter grace period", pod(name)));
        let detail: String = shortened.chain(victims).collect();
        let rest = match open {
            ..=0 => String::new(),
            open => format!("; {} remain lacking", with_signal_unit(*open)),
        };
        let [lacking, in_flight, chosen] = [*lacking, *in_flight, *chosen].map(with_signal_unit);
        format!("{signal} lacks {lacking}: {in_flight} on the way, {chosen} chosen{detail}{rest}")
    })
}

/// Returns the skipped pods of one threshold, each with the reason.
pub(super) fn skipped_of(sizing: &SizingRecord) -> impl Iterator<Item = (&PodName, String)> {
    let resource = sizing.signal.resource();
    sizing.skipped.iter().map(move |SkippedVictim { pod: name, reason, release, remaining: open }| {
        let (release, open) = (with_unit(resource, release.amount), with_unit(resource, *open));
        let why = match reason {
            SkipReason::FreesTooLittle => format!(
                "{} would free {release} of {open}, and others of its standing and priority more",
                pod(name)
            ),
            SkipReason::EvictionFailed => format!("{} did not go when it was to", pod(name)),
        };
        (name, why)
    })
}
