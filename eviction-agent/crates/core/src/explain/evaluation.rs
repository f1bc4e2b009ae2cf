//! One evaluation as text.

use crate::eviction::EvaluationEnd;
use crate::pod::PodName;
use crate::record::{CandidateOutcome, CandidateRecord, DecisionRecord, EvaluationRecord, EvictionRecord};
use crate::signal::Resource;

use super::amount::{count, pod};
use super::style::{Style, Tone};
use super::{candidates, margin, refusal, shortage, signal, sizing};

/// Width of the labels at the left.
const LABEL: usize = 11;

/// Writes lines under labels.
pub(super) struct TextPage<'a> {
    pub(super) style: Style,
    pub(super) out: &'a mut String,
}

impl TextPage<'_> {
    pub(super) fn heading(&mut self, at: &str, tone: Tone, text: &str) {
        *self.out += &format!("{}  {}\n", at, self.style.paint(tone, text));
    }

    /// Lines of one kind; the label stands before the first.
    pub(super) fn lines(&mut self, label: &str, lines: impl IntoIterator<Item = String>) {
        for (place, line) in lines.into_iter().enumerate() {
            let label = if place == 0 { label } else { "" };
            *self.out += &format!("  {}{line}\n", self.style.paint(Tone::Strong, &format!("{label:LABEL$}")));
        }
    }
}

/// Whether an evaluation has nothing to tell that its predecessors did not.
pub(super) fn is_calm(evaluation: &EvaluationRecord) -> bool {
    evaluation.end == EvaluationEnd::NoPressure
        && evaluation.evictions.is_empty()
        && evaluation.spared.is_empty()
        && evaluation.refused_pods.is_empty()
        && evaluation.unknown_volumes == 0
        && evaluation.refused.is_empty()
        && evaluation.thresholds.iter().all(|threshold| threshold.met.is_none() && !threshold.imminent)
}

/// All of an evaluation.
pub(super) fn write(record: &DecisionRecord, evaluation: &EvaluationRecord, page: &mut TextPage<'_>) {
    let (tone, heading) = heading(evaluation);
    page.heading(&record.at.to_string(), tone, &heading);
    page.lines("short", shortage::met(evaluation, record.at));
    page.lines("memory", evaluation.memory.iter().flat_map(signal::memory));
    page.lines("ahead", signal::ahead(evaluation));
    page.lines("unknown", shortage::blind(evaluation));
    page.lines("rejected", signal::refused(&evaluation.refused));
    page.lines("no signal", signal::blind(record));
    page.lines("policy", record.proposal.iter().flat_map(|one| signal::proposal(one, record.at)));
    page.lines("reclaim", reclaim(evaluation));
    page.lines("conditions", record.conditions.iter().map(|one| shortage::condition(one, record.at)));
    page.lines("deficit", evaluation.deficit.iter().map(shortage::deficit));
    page.lines("in flight", sizing::flights(evaluation));
    page.lines("sized", sizing::sums(evaluation));
    page.lines("skipped", sizing::passed_over(evaluation));
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
    let short = evaluation.starved.map_or_else(String::new, |resource| format!(": short of {resource}"));
    let going = going(&evaluation.evictions);
    match evaluation.end {
        EvaluationEnd::Evicted => (Tone::Bad, format!("{going}{short}")),
        EvaluationEnd::LocalStorage => (Tone::Bad, format!("{going}: above limits of local storage")),
        EvaluationEnd::ReleaseInProgress
        | EvaluationEnd::RateLimited
        | EvaluationEnd::ApiUnreachable
        | EvaluationEnd::NoCandidates
            if !going.is_empty() =>
        {
            (Tone::Bad, format!("{going}{short}"))
        }
        EvaluationEnd::AwaitingReclaim => {
            let kinds: Vec<_> = evaluation.reclaim.iter().map(|kind| kind.name()).collect();
            (Tone::Warning, format!("RECLAIM unused {} before any eviction{short}", kinds.join(" and ")))
        }
        EvaluationEnd::Reclaimed => (Tone::Good, "ENOUGH was reclaimed, no eviction".to_owned()),
        EvaluationEnd::CannotRank => {
            (Tone::Warning, format!("NO EVICTION{short}, but in this disk layout pods cannot be ranked"))
        }
        EvaluationEnd::NoPods => (Tone::Warning, format!("NO EVICTION{short}, but there are no pods")),
        EvaluationEnd::OnlyCritical => {
            (Tone::Warning, format!("NO EVICTION{short}, but all pods are critical"))
        }
        EvaluationEnd::OnlyProtected => {
            (Tone::Warning, format!("NO EVICTION{short}, but all pods that are not critical are protected"))
        }
        EvaluationEnd::ReleaseInProgress => {
            (Tone::Warning, format!("WAIT{short}: terminating pods make up for it"))
        }
        EvaluationEnd::RateLimited => {
            (Tone::Warning, format!("NO FURTHER EVICTION{short}, but the rate limit is reached"))
        }
        EvaluationEnd::ApiUnreachable => {
            (Tone::Warning, format!("NO EVICTION{short}, but the API server is unavailable"))
        }
        EvaluationEnd::NoCandidates => {
            (Tone::Warning, format!("NO EVICTION{short}, but no candidate is left"))
        }
        EvaluationEnd::NoPressure
            if evaluation.thresholds.iter().any(|threshold| threshold.met.is_some()) =>
        {
            (Tone::Warning, "WAIT: thresholds are met, but may not evict yet".to_owned())
        }
        EvaluationEnd::NoPressure if evaluation.thresholds.iter().any(|threshold| threshold.imminent) => {
            (Tone::Warning, "CALM, but not for long".to_owned())
        }
        EvaluationEnd::NoPressure => (Tone::Good, "CALM".to_owned()),
    }
}

/// `EVICT a/b`, `EVICT a/b and c/d`, `EVICT a/b and 3 more, HURRY e/f`; empty if nobody goes.
fn going(evictions: &[EvictionRecord]) -> String {
    let (hurried, chosen): (Vec<_>, Vec<_>) = evictions.iter().partition(|one| one.takes_over);
    let parts = [("EVICT", chosen), ("HURRY", hurried)];
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

/// What each signal that is short was before node-level reclaim, and after it.
fn reclaim(evaluation: &EvaluationRecord) -> Vec<String> {
    let after = evaluation.signals_after_reclaim.iter();
    let changed = after.filter(|after| {
        let met = |signal| evaluation.thresholds.iter().any(|one| one.signal == signal && one.met.is_some());
        met(after.signal)
    });
    changed
        .map(|after| {
            let signal = after.signal;
            let now = shortage::value(signal, Some(after));
            let enough =
                if evaluation.end == EvaluationEnd::Reclaimed { "" } else { ", which is not enough" };
            format!("afterwards {signal} {now}{enough}")
        })
        .collect()
}

fn above_limits(evaluation: &EvaluationRecord, page: &mut TextPage<'_>) {
    if evaluation.end != EvaluationEnd::LocalStorage && !evaluation.candidates.is_empty() {
        return;
    }
    for eviction in &evaluation.evictions {
        page.lines("goes", [pod(&eviction.pod), format!("  {}", candidates::above_limit(eviction))]);
    }
    if evaluation.candidates.is_empty() {
        let spared = |name| format!("{} is above its own limits, but critical", pod(name));
        page.lines("spared", evaluation.spared.iter().map(spared));
        page.lines("rejected", evaluation.refused_pods.iter().map(refusal::line));
    }
}

fn ranking(evaluation: &EvaluationRecord, resource: Resource, page: &mut TextPage<'_>) {
    if evaluation.candidates.is_empty() {
        return;
    }
    page.out.push('\n');
    candidates::table(evaluation, resource, page.style, page.out);
    page.out.push('\n');
    page.lines("rejected", evaluation.refused_pods.iter().map(refusal::line));
    let goes = |(_, candidate): &(usize, &CandidateRecord)| candidate.fate == CandidateOutcome::Goes;
    for (rank, candidate) in evaluation.candidates.iter().enumerate().filter(goes) {
        let mut lines = vec![pod(&candidate.pod)];
        let reasons = candidates::victim(evaluation, rank, candidate, resource);
        lines.extend(reasons.into_iter().map(|line| format!("  {line}")));
        page.lines("why", lines);
    }
    // What would have spared one that goes has just been told.
    let told = |name: &PodName| evaluation.evictions.iter().any(|eviction| eviction.pod == *name);
    let nearest =
        evaluation.nearest.iter().filter(|nearest| evaluation.sizing.is_empty() && !told(&nearest.pod));
    page.lines("nearest", nearest.map(|nearest| margin::nearest(resource, nearest)));
}
