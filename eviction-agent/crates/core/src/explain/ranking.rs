//! Explains the rank of a pod and what would change it.

use super::candidates::{
    elsewhere_note, excess_text, margin_cell, margin_sentence, protection_notes, ranks_before,
};
use super::text::{amount, pod, quantity};
use crate::record::{CandidateOutcome, CandidateRecord};
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_layout::DiskLayout;
    use crate::fixture::{at, memory_of, node, pod, set, snapshot};
    use crate::pod::Pod;
    use crate::record::PodSample;

    fn explained() -> Vec<String> {
        let critical = Pod { priority: Some(2_000_000_000), ..pod("d", "1Mi") };
        let pods = set(vec![
            pod("a", "10Mi"),
            Pod { priority: Some(5), ..pod("b", "10Mi") },
            critical,
            pod("c", "1Gi"),
        ]);
        let used = [("a", 300), ("b", 500), ("d", 9), ("c", 600)].map(|(uid, mi)| memory_of(uid, mi << 20));
        let (snapshot, layout) =
            (snapshot(node(50, 1000, at(0)), &used).indexed(&pods), DiskLayout::default());
        let sample = PodSample { at: at(0), pods, snapshot, layout, in_flight: Vec::new(), sized: false };
        let ranking = sample.ranking(Signal::MemoryAvailable);
        let text = |index: usize| {
            let forecast = forecast(Resource::Memory, &ranking[index]);
            let lines = explain_rank(Signal::MemoryAvailable, &ranking, index);
            format!("{}\n[{forecast}]\n", lines.join("\n"))
        };
        (0..4).map(text).collect()
    }

    #[test]
    fn a_rank_is_explained_with_what_would_change_it() {
        insta::assert_snapshot!(explained().join("\n"));
    }
}
