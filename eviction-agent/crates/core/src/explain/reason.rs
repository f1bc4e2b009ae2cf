//! Why one pod ranks before another: the first criterion that tells them apart.

use crate::rank::OverRequestClass;
use crate::record::CandidateRecord;
use crate::signal::Resource;

use super::amount::{amount, quantity, spoken};
use super::refusal;

/// Why `ahead` ranks before `behind`, as a sentence about the former without its subject.
pub(super) fn ahead(resource: Resource, ahead: &CandidateRecord, behind: &CandidateRecord) -> String {
    if let Some(reason) = refusal::turn_ahead(ahead, behind) {
        return reason;
    }
    if ahead.standing.class() != behind.standing.class() {
        return standing(ahead, behind);
    }
    if ahead.priority != behind.priority {
        return format!("its priority is lower: {} against {}", ahead.priority, behind.priority);
    }
    if ahead.standing != behind.standing {
        return "nothing is known of the other's usage, and such pods go last among their priority"
            .to_owned();
    }
    if let Some(reason) = refusal::shelter_ahead(ahead, behind) {
        return reason;
    }
    match (ahead.excess, behind.excess) {
        (Some(a), Some(b)) if a != b => excess(resource, (ahead, a), (behind, b)),
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
pub(super) fn stands(resource: Resource, candidate: &CandidateRecord) -> String {
    match candidate.excess {
        None => "nothing is known of its usage".to_owned(),
        Some(excess) if candidate.request.is_none() => format!("it uses {}", spoken(resource, excess)),
        Some(excess) if excess < 0 => {
            format!("it is {} below its request", amount(resource, excess.saturating_neg()))
        }
        Some(0) => "it uses just what it requests".to_owned(),
        Some(excess) => format!("it is {} above its request", amount(resource, excess)),
    }
}

fn standing(ahead: &CandidateRecord, behind: &CandidateRecord) -> String {
    let reason = match ahead.standing {
        OverRequestClass::NoStats => "nothing is known of its usage, and such pods go first",
        OverRequestClass::Exceeds => "it uses more than it requests",
        OverRequestClass::Within => "it uses no more than it requests",
        OverRequestClass::Unknown => "it is not known to use more than it requests",
        OverRequestClass::Alike => "its request does not count for this resource",
    };
    let other = match behind.standing {
        OverRequestClass::NoStats => "nothing is known of the other's usage",
        OverRequestClass::Exceeds => "the other uses more than it requests",
        OverRequestClass::Within => "the other does not",
        OverRequestClass::Unknown => "the other is not known to",
        OverRequestClass::Alike => "nor does the other's",
    };
    match (ahead.standing, behind.standing) {
        (OverRequestClass::NoStats, _) => reason.to_owned(),
        _ => format!("{reason}, {other}"),
    }
}

fn excess(
    resource: Resource,
    (ahead, a): (&CandidateRecord, i64),
    (behind, b): (&CandidateRecord, i64),
) -> String {
    if ahead.request.is_none() {
        return format!("it uses more: {} against {}", amount(resource, a), spoken(resource, b));
    }
    format!("{}, the other {}", stands(resource, ahead), stands(resource, behind).trim_start_matches("it "))
}
