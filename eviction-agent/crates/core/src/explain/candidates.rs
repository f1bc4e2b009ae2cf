//! The ranking as a table, and why its first went before its second.

use crate::record::{CandidateOutcome, CandidateRecord, EvaluationRecord, EvictionRecord};
use crate::signal::Resource;

use super::amount::{amount, count, pod, printable, quantity};
use super::style::{Style, Tone};
use super::table::Table;
use super::{margin, reason, refusal};

/// How many of those that only rank are shown.
const SHOWN: usize = 8;

const COLUMNS: [(&str, bool); 7] = [
    ("RANK", true),
    ("POD", false),
    ("USES", true),
    ("REQUESTS", true),
    ("ABOVE", true),
    ("PRIORITY", true),
    ("", false),
];

/// The first candidates, and all whose turn came.
pub(super) fn table(evaluation: &EvaluationRecord, resource: Resource, style: Style, out: &mut String) {
    let shown = |(rank, candidate): &(usize, &CandidateRecord)| {
        *rank < SHOWN || !matches!(candidate.fate, CandidateOutcome::Stays)
    };
    let chosen: Vec<_> = evaluation.candidates.iter().enumerate().filter(shown).collect();
    rows(&chosen, resource, style, out);
    let hidden = evaluation.candidates.len() - chosen.len();
    if hidden > 0 {
        let text = format!("  … and {} more, all behind these", count(hidden, "pod"));
        *out += &style.paint(Tone::Faint, &text);
        out.push('\n');
    }
}

/// These candidates, each with its place.
pub(super) fn rows(
    candidates: &[(usize, &CandidateRecord)],
    resource: Resource,
    style: Style,
    out: &mut String,
) {
    let mut table = Table::new(&COLUMNS);
    for (rank, candidate) in candidates {
        let unknown = || "?".to_owned();
        let request = candidate.request.as_deref().map(|text| quantity(resource, text));
        let above = candidate.request.as_ref().and(candidate.excess);
        let tone = match candidate.fate {
            CandidateOutcome::Goes => Some(Tone::Bad),
            CandidateOutcome::Hurried
            | CandidateOutcome::OnItsWay
            | CandidateOutcome::LetBe
            | CandidateOutcome::Critical
            | CandidateOutcome::Refused
            | CandidateOutcome::PassedOver => Some(Tone::Warning),
            CandidateOutcome::Stays => None,
        };
        table.row(
            vec![
                (rank + 1).to_string(),
                pod(&candidate.pod),
                candidate.usage.map_or_else(unknown, |usage| amount(resource, usage)),
                request.unwrap_or_else(|| "-".to_owned()),
                above.map_or_else(|| "-".to_owned(), |above| signed(resource, above)),
                candidate.priority.to_string(),
                noted(verdict(resource, candidate), candidate),
            ],
            tone,
        );
    }
    table.write(style, out);
}

fn signed(resource: Resource, number: i64) -> String {
    let sign = if number > 0 { "+" } else { "" };
    format!("{sign}{}", amount(resource, number))
}

fn verdict(resource: Resource, candidate: &CandidateRecord) -> String {
    match candidate.fate {
        CandidateOutcome::Goes => "GOES".to_owned(),
        CandidateOutcome::Critical => "critical: skipped".to_owned(),
        CandidateOutcome::Refused => "protected: skipped".to_owned(),
        CandidateOutcome::Hurried => "terminating: grace period shortened".to_owned(),
        CandidateOutcome::OnItsWay => "terminating".to_owned(),
        CandidateOutcome::LetBe => "last eviction failed: not evicted".to_owned(),
        CandidateOutcome::PassedOver => "skipped".to_owned(),
        CandidateOutcome::Stays if candidate.critical => "critical: would be skipped".to_owned(),
        CandidateOutcome::Stays => margin::cell(resource, candidate),
    }
}

/// With what else is known of the pod, and moved its place.
fn noted(verdict: String, candidate: &CandidateRecord) -> String {
    let young = candidate.too_young.map(|age| format!("started {age} ago, no sample yet"));
    let notes: Vec<String> = refusal::notes(candidate).into_iter().chain(young).collect();
    if notes.is_empty() { verdict } else { format!("{verdict} ({})", notes.join(", ")) }
}

/// Why a victim, what it is granted, and what would have spared it.
pub(super) fn victim(
    evaluation: &EvaluationRecord,
    rank: usize,
    candidate: &CandidateRecord,
    resource: Resource,
) -> Vec<String> {
    let mut lines = Vec::new();
    let next = evaluation.candidates.iter().enumerate().skip(rank + 1).find(|(_, other)| {
        matches!(other.fate, CandidateOutcome::Goes | CandidateOutcome::Stays) && !other.critical
    });
    lines.push(match next {
        Some((_, next)) => {
            let reason = reason::ahead(resource, candidate, next);
            format!("goes before {}: {reason}", pod(&next.pod))
        }
        None if evaluation.candidates.len() == 1 => "is the only pod".to_owned(),
        None if rank > 0 => "is the last that may go".to_owned(),
        None => "is the only pod that may go".to_owned(),
    });
    if let Some(eviction) = evaluation.evictions.iter().find(|eviction| eviction.pod == candidate.pod) {
        lines.push(granted(evaluation, eviction));
    }
    if let Some(rival) = candidate.margin.and_then(|margin| evaluation.candidates.get(margin.against)) {
        lines.push(margin::sentence(resource, candidate, rival));
    }
    lines
}

/// How long it may take, and why so long.
fn granted(evaluation: &EvaluationRecord, eviction: &EvictionRecord) -> String {
    let handled = evaluation.thresholds.iter().find(|threshold| threshold.met.is_some_and(|met| met.handled));
    let kind = match handled {
        Some(threshold) if threshold.is_hard() => ", as the threshold is hard",
        Some(_) => ", as the threshold is soft",
        None => "",
    };
    format!("is given {}s to end{kind}", eviction.grace_period_seconds)
}

/// What a pod above its own limits is told.
pub(super) fn above_limit(eviction: &EvictionRecord) -> String {
    let message = printable(eviction.message.trim_end());
    format!("{message} It is given {}s to end.", eviction.grace_period_seconds)
}
