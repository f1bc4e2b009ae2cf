//! Explains the ranking: as a table and pod by pod, why one pod ranks before another, and what would have changed
//! the result.

use crate::explain::text::{TextPage, Tone, amount, count, exact, pod, printable, quantity, with_unit};
use crate::pod::PodName;
use crate::pods::PodProtection;
use crate::policy::preferences::EvictionOrder;
use crate::protection::RefusedPod;
use crate::rank::OverRequestClass;
use crate::record::{CandidateOutcome, CandidateRecord, EvaluationRecord, EvictionRecord, NearestRecord};
use crate::signal::{Resource, Signal};

/// Returns sentences about the pod at an index of a ranking for a signal, the heading first.
pub fn explain_rank(signal: Signal, candidates: &[CandidateRecord], index: usize) -> Vec<String> {
    let Some(own) = candidates.get(index) else { return Vec::new() };
    let (name, resource) = (pod(&own.pod), signal.resource());
    let of = candidates.iter().filter_map(|it| it.rank).count();
    let mut lines = vec![match (own.rank, &own.skipped_reason) {
        (Some(1), _) => format!("{name} is evicted first for {signal}: rank 1 of {of}"),
        (Some(rank), _) => format!("{name} has rank {rank} of {of} for {signal}"),
        (None, Some(why)) => format!("{name} is not evicted for {signal}: {why}"),
        (None, None) => format!("{name} is not evicted for {signal}"),
    }];
    let used = own.usage.map_or_else(|| "an unknown amount".to_owned(), |usage| amount(resource, usage));
    let request =
        own.request.as_ref().map(|request| format!(" and requests {}", quantity(resource, request)));
    let excess = own.excess.map(|_| format!(": {}", excess_text(resource, own)));
    lines.push(format!("uses {used}{}{}", request.unwrap_or_default(), excess.unwrap_or_default()));
    let rival = own.margin.and_then(|margin| candidates.get(margin.against));
    lines.extend(rival.map(|rival| margin_sentence(resource, own, rival)));
    if own.rank.is_some() {
        let is_ranked = |it: &&CandidateRecord| it.rank.is_some();
        let before = candidates[..index].iter().rfind(is_ranked);
        let after = candidates[index + 1..].iter().find(is_ranked);
        lines.extend(
            before.map(|it| format!("{} goes before it: {}", pod(&it.pod), ranks_before(resource, it, own))),
        );
        lines.extend(
            after.map(|it| format!("goes before {}: {}", pod(&it.pod), ranks_before(resource, own, it))),
        );
    }
    lines.extend(own.too_young.map(|age| format!("started {age} ago and has no sample yet")));
    lines.extend(elsewhere_note(own).map(|note| format!("uses {note}")));
    lines.extend(protection_notes(own));
    lines
}

/// Returns what happens to a pod if a threshold of this resource is met now, short enough for a table column.
pub fn forecast(resource: Resource, candidate: &CandidateRecord) -> String {
    match candidate.result {
        CandidateOutcome::Evicted => "evicted next".to_owned(),
        CandidateOutcome::Terminating | CandidateOutcome::GraceShortened => "terminating".to_owned(),
        CandidateOutcome::FailedLately => "last eviction failed".to_owned(),
        CandidateOutcome::Protected | CandidateOutcome::Critical => {
            format!("never: {}", candidate.skipped_reason.as_deref().unwrap_or("critical"))
        }
        CandidateOutcome::NotReached | CandidateOutcome::Skipped if candidate.critical => {
            "never: critical".to_owned()
        }
        CandidateOutcome::NotReached | CandidateOutcome::Skipped => margin_cell(resource, candidate),
    }
}

/// The number of top candidates that the table shows even if they were not considered.
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

/// Writes a table of the first candidates and of all that were considered.
pub(super) fn table(evaluation: &EvaluationRecord, resource: Resource, page: &mut TextPage) {
    let shown = |(rank, candidate): &(usize, &CandidateRecord)| {
        *rank < SHOWN || !matches!(candidate.result, CandidateOutcome::NotReached)
    };
    let chosen: Vec<_> = evaluation.candidates.iter().enumerate().filter(shown).collect();
    rows(&chosen, resource, page);
    let hidden = evaluation.candidates.len() - chosen.len();
    if hidden > 0 {
        let text = format!("  … and {} more, not considered", count(hidden, "pod"));
        page.out += &page.paint(Tone::Faint, &text);
        page.out.push('\n');
    }
}

/// Writes a table of these candidates, each with its index.
pub(super) fn rows(candidates: &[(usize, &CandidateRecord)], resource: Resource, page: &mut TextPage) {
    let row = |(rank, candidate): &(usize, &CandidateRecord)| {
        let request = candidate.request.as_ref().map(|request| quantity(resource, request));
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
        let cells = vec![
            (rank + 1).to_string(),
            pod(&candidate.pod),
            candidate.usage.map_or_else(|| "?".to_owned(), |usage| amount(resource, usage)),
            request.unwrap_or_else(|| "-".to_owned()),
            above.map_or_else(|| "-".to_owned(), |above| signed(resource, above)),
            candidate.priority.to_string(),
            with_notes(outcome(resource, candidate), candidate),
        ];
        (cells, tone)
    };
    page.table(&COLUMNS, candidates.iter().map(row));
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

/// Adds notes on the pod that may have affected its rank to an outcome.
fn with_notes(outcome: String, candidate: &CandidateRecord) -> String {
    let age_note = candidate.too_young.map(|age| format!("started {age} ago, no sample yet"));
    let elsewhere = elsewhere_note(candidate);
    let notes: Vec<String> =
        protection_notes(candidate).into_iter().chain(elsewhere).chain(age_note).collect();
    match (&*outcome, notes.is_empty()) {
        (_, true) => outcome,
        ("", false) => format!("({})", notes.join(", ")),
        (_, false) => format!("{outcome} ({})", notes.join(", ")),
    }
}

/// Returns a note about bytes that are not part of the usage.
fn elsewhere_note(candidate: &CandidateRecord) -> Option<String> {
    let bytes = i64::try_from(candidate.bytes_elsewhere?).unwrap_or(i64::MAX);
    let bytes = amount(Resource::EphemeralStorage, bytes);
    Some(format!("at least {bytes} more outside of its volumes or in deleted files"))
}

/// Explains why a pod was selected, its grace period, and what would have spared it.
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
        lines.push(grace_period_text(evaluation, eviction));
    }
    if let Some(rival) = candidate.margin.and_then(|margin| evaluation.candidates.get(margin.against)) {
        lines.push(margin_sentence(resource, candidate, rival));
    }
    lines
}

/// Writes the grace period of an eviction and the reason for its length.
fn grace_period_text(evaluation: &EvaluationRecord, eviction: &EvictionRecord) -> String {
    let handled = evaluation.thresholds.iter().find(|threshold| threshold.met.is_some_and(|met| met.driving));
    let kind = match handled {
        Some(threshold) if threshold.is_hard() => ", as the threshold is hard",
        Some(_) => ", as the threshold is soft",
        None => "",
    };
    format!("is given {}s to end{kind}", eviction.grace_period_seconds)
}

/// Explains why a pod above its own limits is evicted.
pub(super) fn above_limit(eviction: &EvictionRecord) -> String {
    let message = printable(eviction.message.trim_end());
    format!("{message} It is given {}s to end.", eviction.grace_period_seconds)
}

/// Returns why `ahead` ranks before `behind`, as a clause about `ahead`.
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
            let request = |one: &CandidateRecord| one.request.as_ref().map(|it| quantity(resource, it));
            let [a, b] = [ahead, behind].map(|one| request(one).unwrap_or_default());
            format!("nothing is known of either, and it requests less: {a} against {b}")
        }
        (None, Some(_)) => format!("nothing is known of its {resource}, which counts as most"),
        _ => "they are alike in everything that counts, and its uid is the lower one".to_owned(),
    }
}

/// Returns how the usage of a pod compares with its request: `500Mi above its request`.
fn excess_text(resource: Resource, candidate: &CandidateRecord) -> String {
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
        OverRequestClass::NotRequestable => "its request does not count for this resource",
    };
    let other = match behind.class {
        OverRequestClass::NoStats => "nothing is known of the other's usage",
        OverRequestClass::Exceeds => "the other uses more than it requests",
        OverRequestClass::Within => "the other does not",
        OverRequestClass::Unknown => "the other is not known to",
        OverRequestClass::NotRequestable => "nor does the other's",
    };
    match ahead.class {
        OverRequestClass::NoStats => reason.to_owned(),
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

/// Returns the changes of a single value that would each have changed the outcome for a candidate, joined by
/// "or". None if there is no such change.
pub(super) fn margin_changes(resource: Resource, candidate: &CandidateRecord) -> Option<String> {
    let margin = candidate.margin?;
    let direction = |by: i64| if by < 0 { "less" } else { "more" };
    let change_text =
        |by: i64, what: &str| format!("{} {} {what}", exact(resource, by.saturating_abs()), direction(by));
    let priority = |by: i64| format!("a priority of {}", i64::from(candidate.priority).saturating_add(by));
    let changes = match (margin.usage, margin.request) {
        (Some(usage), Some(request)) if usage == request.saturating_neg() => {
            vec![format!("{} used or {} requested", change_text(usage, "").trim_end(), direction(request))]
        }
        (usage, request) => {
            let used = usage.map(|by| change_text(by, "used"));
            used.into_iter().chain(request.map(|by| change_text(by, "requested"))).collect()
        }
    };
    let changes: Vec<String> = changes.into_iter().chain(margin.priority.map(priority)).collect();
    (!changes.is_empty()).then(|| changes.join(", or "))
}

/// Returns what would change the choice between a candidate and its rival, as a sentence about the candidate
/// without its subject.
///
/// If several pods are selected by what each one frees, the sentence only states where the pod would rank.
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

/// Returns the change that would have led to the eviction of the pod, short enough for a table column.
fn margin_cell(resource: Resource, candidate: &CandidateRecord) -> String {
    match candidate.margin.map(|margin| (margin.usage, margin.priority)) {
        Some((Some(usage), _)) => format!("needs +{}", amount(resource, usage)),
        Some((None, Some(by))) => {
            format!("needs priority {}", i64::from(candidate.priority).saturating_add(by))
        }
        Some((None, None)) | None => String::new(),
    }
}

/// Returns the smallest of all changes that would have changed the result.
pub(super) fn nearest_change(resource: Resource, nearest: &NearestRecord) -> String {
    let NearestRecord { pod: changed_pod, usage, kept: _, evicted } = nearest;
    let direction = if *usage < 0 { "less" } else { "more" };
    let change = exact(resource, usage.saturating_abs());
    let instead = if changed_pod == evicted { "it".to_owned() } else { pod(evicted) };
    format!("with {change} {direction} used by {}, {instead} would have gone instead", pod(changed_pod))
}

/// Returns why a pod was refused in an evaluation, as a sentence without its subject.
pub(super) fn refusal_of(evaluation: &EvaluationRecord, name: &PodName) -> Option<String> {
    let refused = evaluation.refused_pods.iter().find(|refused| refused.pod == *name)?;
    Some(refused.why.to_string())
}

/// Returns a pod and why it was refused.
pub(super) fn refusal_line(refused: &RefusedPod<PodName>) -> String {
    format!("{} {}", pod(&refused.pod), refused.why)
}

/// Returns why one pod ranks before another if their eviction orders differ. The order counts before the
/// class and the priority.
pub(super) fn order_reason(ahead: &CandidateRecord, behind: &CandidateRecord) -> Option<String> {
    let reason = match (ahead.protection.order, behind.protection.order) {
        (a, b) if a == b => return None,
        (EvictionOrder::First, _) => "it is to go first by the operator's table",
        (_, EvictionOrder::Never) => "the other is never to go by the operator's table",
        (_, EvictionOrder::OptedOut) => "the other opted out",
        _ => "the other is to go last",
    };
    Some(reason.to_owned())
}

/// Returns why one pod ranks before another of the same class and priority, if their controllers or hints differ.
pub(super) fn protection_reason(ahead: &CandidateRecord, behind: &CandidateRecord) -> Option<String> {
    let [one, other] = [&ahead.protection, &behind.protection];
    if one.without_controller != other.without_controller {
        return Some("the other has no owner to bring it back".to_owned());
    }
    (one.hint != other.hint).then(|| format!("its hint is lower: {} against {}", one.hint, other.hint))
}

/// Returns what protects a pod or moves it forward, for the table.
fn protection_notes(candidate: &CandidateRecord) -> Vec<String> {
    let PodProtection { order, rule, without_controller, hint, ignored, rate_limit_key: _ } =
        &candidate.protection;
    let by_rule = rule.map_or_else(String::new, |rule| format!(" by policy.protection[{rule}]"));
    let mut notes = Vec::new();
    match order {
        EvictionOrder::First => notes.push(format!("first{by_rule}")),
        EvictionOrder::Normal => {}
        EvictionOrder::Last => notes.push(format!("last{by_rule}")),
        EvictionOrder::OptedOut => notes.push("opted out".to_owned()),
        EvictionOrder::Never => notes.push(format!("never{by_rule}")),
    }
    if *without_controller {
        notes.push("no owner".to_owned());
    }
    if *hint != 0 {
        notes.push(format!("hint {hint}"));
    }
    if !ignored.is_empty() {
        notes.push(format!("{} ignored", count(ignored.len(), "annotation")));
    }
    notes
}
