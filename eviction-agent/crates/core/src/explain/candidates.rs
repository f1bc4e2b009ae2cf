//! The ranking as a table, why one pod ranks before another, and what would have changed it.

use crate::explain::text::{Style, Table, Tone, amount, count, exact, pod, printable, quantity, with_unit};
use crate::pod::PodName;
use crate::pods::EvictionOrder;
use crate::rank::OverRequestClass;
use crate::record::{
    CandidateOutcome, CandidateRecord, EvaluationRecord, EvictionRecord, NearestRecord, ProtectionRecord,
    RefusedPodRecord,
};
use crate::signal::Resource;

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
        *rank < SHOWN || !matches!(candidate.result, CandidateOutcome::NotReached)
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

/// These candidates, each with its index.
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
        let tone = match candidate.result {
            CandidateOutcome::Evicted => Some(Tone::Bad),
            CandidateOutcome::GraceShortened
            | CandidateOutcome::Terminating
            | CandidateOutcome::FailedLately
            | CandidateOutcome::Critical
            | CandidateOutcome::Protected
            | CandidateOutcome::Skipped => Some(Tone::Warning),
            CandidateOutcome::NotReached => None,
        };
        table.row(
            vec![
                (rank + 1).to_string(),
                pod(&candidate.pod),
                candidate.usage.map_or_else(unknown, |usage| amount(resource, usage)),
                request.unwrap_or_else(|| "-".to_owned()),
                above.map_or_else(|| "-".to_owned(), |above| signed(resource, above)),
                candidate.priority.to_string(),
                noted(outcome(resource, candidate), candidate),
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

pub(super) fn outcome(resource: Resource, candidate: &CandidateRecord) -> String {
    match candidate.result {
        CandidateOutcome::Evicted => "GOES".to_owned(),
        CandidateOutcome::Critical => "critical: skipped".to_owned(),
        CandidateOutcome::Protected => "protected: skipped".to_owned(),
        CandidateOutcome::GraceShortened => "terminating: grace period shortened".to_owned(),
        CandidateOutcome::Terminating => "terminating".to_owned(),
        CandidateOutcome::FailedLately => "last eviction failed: not evicted".to_owned(),
        CandidateOutcome::Skipped => "skipped".to_owned(),
        CandidateOutcome::NotReached if candidate.critical => "critical: would be skipped".to_owned(),
        CandidateOutcome::NotReached => margin_cell(resource, candidate),
    }
}

/// With what else is known of the pod, and moved its place.
fn noted(outcome: String, candidate: &CandidateRecord) -> String {
    let young = candidate.too_young.map(|age| format!("started {age} ago, no sample yet"));
    let notes: Vec<String> = protection_notes(candidate).into_iter().chain(young).collect();
    match (&*outcome, notes.is_empty()) {
        (_, true) => outcome,
        ("", false) => format!("({})", notes.join(", ")),
        (_, false) => format!("{outcome} ({})", notes.join(", ")),
    }
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
        matches!(other.result, CandidateOutcome::Evicted | CandidateOutcome::NotReached) && !other.critical
    });
    lines.push(match next {
        Some((_, next)) => {
            let reason = ranks_before(resource, candidate, next);
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
        lines.push(margin_sentence(resource, candidate, rival));
    }
    lines
}

/// How long it may take, and why so long.
fn granted(evaluation: &EvaluationRecord, eviction: &EvictionRecord) -> String {
    let handled = evaluation.thresholds.iter().find(|threshold| threshold.met.is_some_and(|met| met.driving));
    let kind = match handled {
        Some(threshold) if threshold.is_hard() => ", as the threshold is hard",
        Some(_) => ", as the threshold is soft",
        None => "",
    };
    format!("is given {}s to end{kind}", eviction.grace_period_seconds)
}

/// Why a pod above its own limits is evicted.
pub(super) fn above_limit(eviction: &EvictionRecord) -> String {
    let message = printable(eviction.message.trim_end());
    format!("{message} It is given {}s to end.", eviction.grace_period_seconds)
}

/// Why `ahead` ranks before `behind`, as a sentence about the former without its subject.
pub(super) fn ranks_before(resource: Resource, ahead: &CandidateRecord, behind: &CandidateRecord) -> String {
    if let Some(reason) = order_reason(ahead, behind) {
        return reason;
    }
    if ahead.class.class() != behind.class.class() {
        return class_reason(ahead, behind);
    }
    if ahead.priority != behind.priority {
        return format!("its priority is lower: {} against {}", ahead.priority, behind.priority);
    }
    if ahead.class != behind.class {
        return "nothing is known of the other's usage, and such pods go last among their priority"
            .to_owned();
    }
    if let Some(reason) = protection_reason(ahead, behind) {
        return reason;
    }
    match (ahead.excess, behind.excess) {
        (Some(a), Some(b)) if a != b => excess_reason(resource, (ahead, a), (behind, b)),
        (None, None) if ahead.request != behind.request => {
            let request = |one: &CandidateRecord| one.request.as_deref().map(|text| quantity(resource, text));
            let [a, b] = [ahead, behind].map(|one| request(one).unwrap_or_default());
            format!("nothing is known of either, and it requests less: {a} against {b}")
        }
        (None, Some(_)) => format!("nothing is known of its {resource}, which counts as most"),
        _ => "they are alike in everything that counts, and its uid is the lower one".to_owned(),
    }
}

/// How a pod stands to its request: `500Mi above its request`.
pub(super) fn excess_text(resource: Resource, candidate: &CandidateRecord) -> String {
    match candidate.excess {
        None => "nothing is known of its usage".to_owned(),
        Some(excess) if candidate.request.is_none() => format!("it uses {}", with_unit(resource, excess)),
        Some(excess) if excess < 0 => {
            format!("it is {} below its request", amount(resource, excess.saturating_neg()))
        }
        Some(0) => "it uses just what it requests".to_owned(),
        Some(excess) => format!("it is {} above its request", amount(resource, excess)),
    }
}

fn class_reason(ahead: &CandidateRecord, behind: &CandidateRecord) -> String {
    let reason = match ahead.class {
        OverRequestClass::NoStats => "nothing is known of its usage, and such pods go first",
        OverRequestClass::Exceeds => "it uses more than it requests",
        OverRequestClass::Within => "it uses no more than it requests",
        OverRequestClass::Unknown => "it is not known to use more than it requests",
        OverRequestClass::Alike => "its request does not count for this resource",
    };
    let other = match behind.class {
        OverRequestClass::NoStats => "nothing is known of the other's usage",
        OverRequestClass::Exceeds => "the other uses more than it requests",
        OverRequestClass::Within => "the other does not",
        OverRequestClass::Unknown => "the other is not known to",
        OverRequestClass::Alike => "nor does the other's",
    };
    match (ahead.class, behind.class) {
        (OverRequestClass::NoStats, _) => reason.to_owned(),
        _ => format!("{reason}, {other}"),
    }
}

fn excess_reason(
    resource: Resource,
    (ahead, a): (&CandidateRecord, i64),
    (behind, b): (&CandidateRecord, i64),
) -> String {
    if ahead.request.is_none() {
        return format!("it uses more: {} against {}", amount(resource, a), with_unit(resource, b));
    }
    format!(
        "{}, the other {}",
        excess_text(resource, ahead),
        excess_text(resource, behind).trim_start_matches("it ")
    )
}

/// The changes of one value that would each have turned the fate of a candidate, joined by
/// "or"; nothing if none would have.
pub(super) fn margin_changes(resource: Resource, candidate: &CandidateRecord) -> Option<String> {
    let margin = candidate.margin?;
    let word = |by: i64| if by < 0 { "less" } else { "more" };
    let of = |by: i64, what: &str| format!("{} {} {what}", exact(resource, by.saturating_abs()), word(by));
    let priority = |by: i64| format!("a priority of {}", i64::from(candidate.priority).saturating_add(by));
    let ways = match (margin.usage, margin.request) {
        (Some(usage), Some(request)) if usage == request.saturating_neg() => {
            vec![format!("{} used or {} requested", of(usage, "").trim_end(), word(request))]
        }
        (usage, request) => {
            let used = usage.map(|by| of(by, "used"));
            used.into_iter().chain(request.map(|by| of(by, "requested"))).collect()
        }
    };
    let ways: Vec<String> = ways.into_iter().chain(margin.priority.map(priority)).collect();
    (!ways.is_empty()).then(|| ways.join(", or "))
}

/// What would change the choice between a candidate and its rival, as a sentence about the candidate without its
/// subject.
///
/// Where evictions are sized, what each pod frees counts as well, so it says only where the pod would rank.
pub(super) fn margin_sentence(
    resource: Resource,
    candidate: &CandidateRecord,
    rival: &CandidateRecord,
) -> String {
    let rival = pod(&rival.pod);
    let is_evicted = candidate.result == CandidateOutcome::Evicted;
    let Some(changes) = margin_changes(resource, candidate) else {
        let side = if is_evicted { "before" } else { "behind" };
        return format!("stays {side} {rival} whatever it uses or requests");
    };
    match (is_evicted, candidate.margin.is_some_and(|margin| margin.sized)) {
        (true, false) => format!("would stay, and {rival} would be evicted, with {changes}"),
        (false, false) => format!("would be evicted in place of {rival} with {changes}"),
        (true, true) => format!("would rank behind {rival} with {changes}"),
        (false, true) => format!("would rank before {rival} with {changes}"),
    }
}

/// What would have the pod evicted, in a few words for a column.
pub(super) fn margin_cell(resource: Resource, candidate: &CandidateRecord) -> String {
    match candidate.margin.map(|margin| (margin.usage, margin.priority)) {
        Some((Some(usage), _)) => format!("needs +{}", amount(resource, usage)),
        Some((None, Some(by))) => {
            format!("needs priority {}", i64::from(candidate.priority).saturating_add(by))
        }
        Some((None, None)) | None => String::new(),
    }
}

/// The smallest change of all.
pub(super) fn nearest_change(resource: Resource, nearest: &NearestRecord) -> String {
    let NearestRecord { pod: whose, usage, kept: _, evicted: goes } = nearest;
    let word = if *usage < 0 { "less" } else { "more" };
    let change = exact(resource, usage.saturating_abs());
    let instead = if whose == goes { "it".to_owned() } else { pod(goes) };
    format!("with {change} {word} used by {}, {instead} would have gone instead", pod(whose))
}

/// Why a pod was refused in an evaluation, as a sentence without its subject.
pub(super) fn refusal_of(evaluation: &EvaluationRecord, name: &PodName) -> Option<String> {
    let refused = evaluation.refused_pods.iter().find(|refused| refused.pod == *name)?;
    Some(refused.why.to_string())
}

/// A pod and why it was refused.
pub(super) fn refusal_line(refused: &RefusedPodRecord) -> String {
    format!("{} {}", pod(&refused.pod), refused.why)
}

/// Why one pod ranks before another if that is for what they are protected by, before standing
/// and priority are looked at.
pub(super) fn order_reason(ahead: &CandidateRecord, behind: &CandidateRecord) -> Option<String> {
    let (a, b) = (order_of(ahead), order_of(behind));
    if a == b {
        return None;
    }
    Some(match (a, b) {
        (EvictionOrder::First, _) => "it is to go first by the operator's table".to_owned(),
        (_, EvictionOrder::Never) => "the other is never to go by the operator's table".to_owned(),
        (_, EvictionOrder::OptedOut) => "the other opted out".to_owned(),
        _ => "the other is to go last".to_owned(),
    })
}

/// The same, among those of the same standing and priority.
pub(super) fn protection_reason(ahead: &CandidateRecord, behind: &CandidateRecord) -> Option<String> {
    let bare = |candidate: &CandidateRecord| {
        candidate.protection.as_ref().is_some_and(|protection| protection.without_controller)
    };
    let hint =
        |candidate: &CandidateRecord| candidate.protection.as_ref().map_or(0, |protection| protection.hint);
    if bare(ahead) != bare(behind) {
        return Some("the other has no owner to bring it back".to_owned());
    }
    let (a, b) = (hint(ahead), hint(behind));
    (a != b).then(|| format!("its hint is lower: {a} against {b}"))
}

fn order_of(candidate: &CandidateRecord) -> EvictionOrder {
    candidate.protection.as_ref().map_or(EvictionOrder::default(), |protection| protection.order)
}

/// What protects a pod or puts it forward, for the table.
pub(super) fn protection_notes(candidate: &CandidateRecord) -> Vec<String> {
    let Some(ProtectionRecord { order: turn, rule, without_controller: bare, hint, ignored_annotations }) =
        &candidate.protection
    else {
        return Vec::new();
    };
    let by_rule = rule.map_or_else(String::new, |rule| format!(" by policy.protection[{rule}]"));
    let mut notes = Vec::new();
    match turn {
        EvictionOrder::First => notes.push(format!("first{by_rule}")),
        EvictionOrder::Normal => {}
        EvictionOrder::Last => notes.push(format!("last{by_rule}")),
        EvictionOrder::OptedOut => notes.push("opted out".to_owned()),
        EvictionOrder::Never => notes.push(format!("never{by_rule}")),
    }
    if *bare {
        notes.push("no owner".to_owned());
    }
    if *hint != 0 {
        notes.push(format!("hint {hint}"));
    }
    if !ignored_annotations.is_empty() {
        notes.push(format!("{} ignored", count(ignored_annotations.len(), "annotation")));
    }
    notes
}
