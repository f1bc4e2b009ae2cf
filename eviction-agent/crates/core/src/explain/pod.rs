//! The history of one pod over all evaluations.

use super::{candidates, terminated};
use crate::explain::evaluation;
use crate::explain::text::{TextPage, Tone, count, pod, printable};
use crate::oom::OomUpdate;
use crate::pod::PodName;
use crate::record::{
    CandidateOutcome, CandidateRecord, DecisionRecord, EvaluationRecord, EvictionRecord, RecordSubject,
};
use crate::signal::Resource;
use crate::time::Timestamp;

/// Writes text about one pod, and collects its history from evaluation to evaluation.
#[derive(Debug)]
pub(super) struct PodExplainer {
    pod: PodName,
    evaluation_count: usize,
    ranked: usize,
    /// The times at which the pod was selected for eviction.
    evicted: Vec<Timestamp>,
    /// The number of its processes that the kernel killed.
    kills: u64,
}

impl PodExplainer {
    pub(super) fn new(pod: PodName) -> Self {
        Self { pod, evaluation_count: 0, ranked: 0, evicted: Vec::new(), kills: 0 }
    }

    /// Writes what a record contains about the pod.
    pub(super) fn explain(&mut self, record: &DecisionRecord, page: &mut TextPage) {
        match &record.subject {
            RecordSubject::Evaluation(evaluation) => self.evaluation(record, evaluation, page),
            RecordSubject::Admission { pod: admitted, .. } if *admitted == self.pod => {
                super::write(record, page);
            }
            RecordSubject::Oom(OomUpdate::Kill(kill)) if kill.pod_uid.as_deref() == Some(&*self.pod.uid) => {
                self.kills += u64::from(!kill.repeated);
                super::write(record, page);
            }
            RecordSubject::Oom(_)
            | RecordSubject::Admission { .. }
            | RecordSubject::Nothing
            | RecordSubject::NotEvaluated(_) => {}
        }
        for ended in record.terminations.iter().filter(|ended| ended.container.pod_uid == self.pod.uid) {
            terminated(record.at, ended, page);
        }
    }

    /// Writes the summary of all records.
    pub(super) fn finish(self, page: &mut TextPage) {
        let name = page.paint(Tone::Strong, &pod(&self.pod));
        let evaluations = count(self.evaluation_count, "evaluation");
        let times: Vec<String> = self.evicted.iter().map(ToString::to_string).collect();
        let selections = match &*times {
            [] => "it was never chosen".to_owned(),
            [once] => format!("it was chosen at {once}"),
            more => format!("it was chosen {} times: at {}", more.len(), more.join(", ")),
        };
        let kills = match self.kills {
            0 => String::new(),
            1 => "; the kernel killed a process of it".to_owned(),
            more => format!("; the kernel killed {more} processes of it"),
        };
        page.out += &format!("{name}: {evaluations}, ranked in {}; {selections}{kills}\n", self.ranked);
    }

    fn evaluation(&mut self, record: &DecisionRecord, evaluation: &EvaluationRecord, page: &mut TextPage) {
        self.evaluation_count += 1;
        let found = evaluation.candidates.iter().position(|candidate| candidate.pod == self.pod);
        let evicted = evaluation.evictions.iter().find(|eviction| eviction.pod == self.pod);
        if evicted.is_some_and(|eviction| !eviction.shortens_grace) {
            self.evicted.push(record.at);
        }
        let name = pod(&self.pod);
        let is_above_limit = evicted.is_some_and(EvictionRecord::is_above_limit);
        if let (Some(rank), Some(resource), false) = (found, evaluation.starved, is_above_limit) {
            self.ranked += 1;
            ranked(record.at, evaluation, rank, resource, page);
        } else if let Some(eviction) = evicted {
            let heading = match eviction.shortens_grace {
                true => format!("SHORTEN {name}: it was terminating with a longer grace period"),
                false => format!("EVICT {name}: above a limit of its own"),
            };
            page.heading(record.at, Tone::Bad, &heading);
            page.lines("why", [candidates::above_limit(eviction)]);
            if !eviction.shortens_grace {
                page.lines("message", [printable(eviction.message.trim_end())]);
            }
        } else {
            let is_critical = evaluation.critical_pods.contains(&self.pod);
            let critical = is_critical.then(|| "critical".to_owned());
            let why = critical.or_else(|| candidates::refusal_of(evaluation, &self.pod));
            let Some(why) = why else { return };
            let heading = format!("{name} is above a limit of its own, but {why}");
            page.heading(record.at, Tone::Warning, &heading);
        }
        page.out.push('\n');
    }
}

/// Writes the rank of the pod, its neighbours in the ranking, and what would have changed its outcome.
fn ranked(
    at: Timestamp,
    evaluation: &EvaluationRecord,
    rank: usize,
    resource: Resource,
    page: &mut TextPage,
) {
    let Some(own) = evaluation.candidates.get(rank) else {
        return;
    };
    let name = pod(&own.pod);
    let rank_text = format!("rank {} of {}, short of {resource}", rank + 1, evaluation.candidates.len());
    let (tone, heading) = match own.result {
        CandidateOutcome::Evicted => (Tone::Bad, format!("EVICT {name}: {rank_text}")),
        CandidateOutcome::GraceShortened => (Tone::Bad, format!("SHORTEN {name}: {rank_text}")),
        CandidateOutcome::NotReached => (Tone::Good, format!("{name} stays: {rank_text}")),
        _ => {
            let outcome = candidates::outcome(resource, own);
            (Tone::Warning, format!("{name} is not evicted ({outcome}): {rank_text}"))
        }
    };
    page.heading(at, tone, &heading);
    candidates::rows(&considered_and_neighbours(evaluation, rank), resource, page);
    match own.result {
        CandidateOutcome::Evicted => page.lines("why", candidates::victim(evaluation, rank, own, resource)),
        CandidateOutcome::Critical => {}
        CandidateOutcome::Protected => {
            page.lines("why not", candidates::refusal_of(evaluation, &own.pod).map(|why| format!("it {why}")))
        }
        CandidateOutcome::GraceShortened | CandidateOutcome::Terminating | CandidateOutcome::FailedLately => {
            let own = evaluation.in_flight.iter().filter(|in_flight| in_flight.pod == own.pod);
            page.lines("why", own.map(evaluation::in_flight_line));
        }
        CandidateOutcome::Skipped => {
            let own =
                evaluation.sizing.iter().flat_map(evaluation::skipped_of).filter(|(pod, _)| **pod == own.pod);
            page.lines("why not", own.map(|(_, why)| why));
        }
        CandidateOutcome::NotReached => page.lines("why not", reasons_not_evicted(evaluation, own, resource)),
    }
    let evictions = evaluation.evictions.iter().filter(|eviction| eviction.pod == own.pod);
    page.lines("message", evictions.map(|eviction| printable(eviction.message.trim_end())));
}

/// Returns the candidates that were considered, the neighbours of the pod, and the pod itself.
fn considered_and_neighbours(evaluation: &EvaluationRecord, rank: usize) -> Vec<(usize, &CandidateRecord)> {
    let near = rank.saturating_sub(1)..=rank + 1;
    let shown = |(index, candidate): &(usize, &CandidateRecord)| {
        near.contains(index) || !matches!(candidate.result, CandidateOutcome::NotReached)
    };
    evaluation.candidates.iter().enumerate().filter(shown).collect()
}

/// Returns why the pod was not evicted.
fn reasons_not_evicted(
    evaluation: &EvaluationRecord,
    own: &CandidateRecord,
    resource: Resource,
) -> Vec<String> {
    if own.critical {
        return vec!["it is critical: had its turn come, it would have been skipped".to_owned()];
    }
    let Some(rival) = own.margin.and_then(|margin| evaluation.candidates.get(margin.against)) else {
        // Evictions for limits of pods are not for the resource.
        let is_none_evicted = evaluation.evictions.iter().all(EvictionRecord::is_above_limit);
        return is_none_evicted.then(|| format!("no pod was evicted for {resource}")).into_iter().collect();
    };
    let reason = candidates::ranks_before(resource, rival, own);
    vec![
        format!("{} goes before it: {reason}", pod(&rival.pod)),
        format!("it {}", candidates::margin_sentence(resource, own, rival)),
    ]
}
