//! What would have had to be different, in words.

use crate::record::{CandidateOutcome, CandidateRecord, NearestRecord};
use crate::signal::Resource;

use super::amount::{exact, pod};

/// The changes of one figure that would each have turned the fate of a candidate, joined by
/// "or"; nothing if none would have.
pub(super) fn changes(resource: Resource, candidate: &CandidateRecord) -> Option<String> {
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

/// What it would have taken, as a sentence about the candidate without its subject.
///
/// Where evictions are sized, what each frees counts as well, and nothing is said but where the
/// pod would have ranked.
pub(super) fn sentence(resource: Resource, candidate: &CandidateRecord, rival: &CandidateRecord) -> String {
    let rival = pod(&rival.pod);
    let sized = candidate.margin.is_some_and(|margin| margin.sized);
    match (changes(resource, candidate), candidate.fate) {
        (Some(changes), CandidateOutcome::Goes) if sized => {
            format!("would have ranked behind {rival} with {changes}")
        }
        (Some(changes), _) if sized => format!("would have ranked before {rival} with {changes}"),
        (Some(changes), CandidateOutcome::Goes) => {
            format!("would have stayed, and {rival} gone, with {changes}")
        }
        (Some(changes), _) => format!("would have gone instead of {rival} with {changes}"),
        (None, CandidateOutcome::Goes) => {
            format!("would have gone before {rival} whatever it used or requested")
        }
        (None, _) => format!("would have stayed behind {rival} whatever it used or requested"),
    }
}

/// For the last column of a table: what would have made the pod go.
pub(super) fn cell(resource: Resource, candidate: &CandidateRecord) -> String {
    match candidate.margin {
        Some(margin) => match (margin.usage, margin.priority) {
            (Some(usage), _) if margin.sized => format!("in turn with {} more used", exact(resource, usage)),
            (Some(usage), _) => format!("goes with {} more used", exact(resource, usage)),
            (None, Some(by)) => {
                format!("goes with a priority of {}", i64::from(candidate.priority).saturating_add(by))
            }
            (None, None) => "stays whatever it uses".to_owned(),
        },
        None => "stays".to_owned(),
    }
}

/// The smallest change of all.
pub(super) fn nearest(resource: Resource, nearest: &NearestRecord) -> String {
    let NearestRecord { pod: whose, usage, stays: _, goes } = nearest;
    let word = if *usage < 0 { "less" } else { "more" };
    let change = exact(resource, usage.saturating_abs());
    let instead = if whose == goes { "it".to_owned() } else { pod(goes) };
    format!("with {change} {word} used by {}, {instead} would have gone instead", pod(whose))
}
