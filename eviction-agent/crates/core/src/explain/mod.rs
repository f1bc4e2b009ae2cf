//! Explains records as text: what was short, which pods were evicted and why, which were not and why not, and
//! the smallest change that would have led to another victim.
//!
//! All texts are made from [`DecisionRecord`] alone, without IO, so a replay, a live agent and a recording
//! give the same text. [`Explainer`] takes one record after the other. Consecutive evaluations in which
//! nothing happened become one line.

mod candidates;
mod evaluation;
mod pod;
mod signals;
#[cfg(test)]
mod tests;
mod text;

pub use candidates::{explain_rank, forecast};
use text::{TextPage, Tone};

use super::decision::NotEvaluated;
use super::oom::{ContainerTerminated, OomKill, OomUpdate};
use super::record::{DecisionRecord, EvaluationRecord, RecordSubject};
use super::signal::NodeCondition;
use super::time::Timestamp;
use crate::pod::PodName;

/// Writes text about records, in the order in which it gets them. The default covers everything and has no colours.
#[derive(Debug, Default)]
pub struct Explainer {
    /// Whether text is coloured with ANSI escape sequences.
    is_coloured: bool,
    /// The pod, if only one is covered.
    pod: Option<pod::PodExplainer>,
    no_pressure: Option<NoPressureRun>,
}

/// Consecutive evaluations in which nothing happened.
#[derive(Debug)]
struct NoPressureRun {
    evaluations: usize,
    from: Timestamp,
    to: Timestamp,
    conditions: Vec<NodeCondition>,
    unknown: Vec<String>,
}

impl Explainer {
    /// Returns an explainer that covers one pod.
    pub fn of_pod(pod: PodName) -> Self {
        Self { pod: Some(pod::PodExplainer::new(pod)), ..Self::default() }
    }

    /// Sets whether text is coloured with ANSI escape sequences, which only a terminal displays.
    #[must_use]
    pub fn coloured(self, is_coloured: bool) -> Self {
        Self { is_coloured, ..self }
    }

    /// Returns the text about a record, with line ends. Empty if there is nothing to write yet.
    pub fn explain(&mut self, record: &DecisionRecord) -> String {
        let mut page = TextPage::new(self.is_coloured);
        if let Some(pod) = &mut self.pod {
            pod.explain(record, &mut page);
            return page.out;
        }
        match &record.subject {
            RecordSubject::Evaluation(evaluation)
                if record.proposal.is_none() && evaluation::is_without_pressure(evaluation) =>
            {
                self.count_no_pressure(record, evaluation, &mut page);
            }
            RecordSubject::Nothing | RecordSubject::Oom(OomUpdate::End { .. })
                if record.proposal.is_none() => {}
            _ => {
                self.end_no_pressure_run(&mut page);
                write(record, &mut page);
            }
        }
        if !record.terminations.is_empty() {
            self.end_no_pressure_run(&mut page);
            record.terminations.iter().for_each(|ended| terminated(record.at, ended, &mut page));
        }
        page.out
    }

    /// Returns the remaining text when no record follows.
    pub fn finish(&mut self) -> String {
        let mut page = TextPage::new(self.is_coloured);
        self.end_no_pressure_run(&mut page);
        if let Some(pod) = self.pod.take() {
            pod.finish(&mut page);
        }
        page.out
    }

    fn count_no_pressure(
        &mut self,
        record: &DecisionRecord,
        evaluation: &EvaluationRecord,
        page: &mut TextPage,
    ) {
        let conditions: Vec<_> = record.conditions.iter().map(|condition| condition.condition).collect();
        let mut unknown = signals::unknown_signals(evaluation);
        unknown.extend(signals::unavailable_signals(record));
        let is_like = |run: &&mut NoPressureRun| run.conditions == conditions && run.unknown == unknown;
        if let Some(run) = self.no_pressure.as_mut().filter(is_like) {
            run.evaluations += 1;
            run.to = record.at;
            return;
        }
        self.end_no_pressure_run(page);
        self.no_pressure =
            Some(NoPressureRun { evaluations: 1, from: record.at, to: record.at, conditions, unknown });
    }

    fn end_no_pressure_run(&mut self, page: &mut TextPage) {
        let Some(NoPressureRun { evaluations, from, to, conditions, unknown }) = self.no_pressure.take()
        else {
            return;
        };
        let until =
            if evaluations == 1 { String::new() } else { format!(", until {}", text::clock(to, from)) };
        let held = match &*conditions {
            [] => String::new(),
            held => {
                let names: Vec<_> = held.iter().map(|condition| condition.name()).collect();
                format!("; the transition period keeps {}", names.join(" and "))
            }
        };
        let evaluations = text::count(evaluations, "evaluation");
        page.heading(from, Tone::Good, &format!("CALM for {evaluations}{until}{held}"));
        page.lines("unknown", unknown);
        page.out.push('\n');
    }
}

/// Writes what a record is about.
fn write(record: &DecisionRecord, page: &mut TextPage) {
    match &record.subject {
        RecordSubject::Oom(OomUpdate::Kill(kill)) => return oom_kill(record.at, kill, page),
        RecordSubject::Nothing | RecordSubject::Oom(OomUpdate::End { .. }) => {
            page.heading(record.at, Tone::Warning, "POLICY");
            page.lines("policy", record.proposal.iter().flat_map(|one| signals::proposal(one, record.at)));
        }
        RecordSubject::Evaluation(evaluation) => evaluation::write(record, evaluation, page),
        RecordSubject::NotEvaluated(why) => {
            let text = format!("NO EVALUATION: {}", not_evaluated(*why));
            page.heading(record.at, Tone::Warning, &text);
        }
        RecordSubject::Admission { pod, admit, message } => {
            admission(record, pod, *admit, message.as_deref(), page);
        }
    }
    page.out.push('\n');
}

fn not_evaluated(why: NotEvaluated) -> String {
    match why {
        NotEvaluated::NothingToEnforce => {
            "there are no thresholds, and pods are not held to limits".to_owned()
        }
        NotEvaluated::LayoutUnknown => "it is not known yet how the file systems are laid out".to_owned(),
        NotEvaluated::LayoutRefused => {
            "the image file system is split, which KubeletSeparateDiskGC does not allow: \
             later evaluations raise conditions, but evict for no threshold"
                .to_owned()
        }
        NotEvaluated::NoSample(why) => format!("the sample of the node failed: {}", signals::unknown(why)),
        NotEvaluated::NotAwaitingReclaim => {
            "a second sample came although nothing was being reclaimed".to_owned()
        }
    }
}

fn admission(
    record: &DecisionRecord,
    name: &PodName,
    admit: bool,
    message: Option<&str>,
    page: &mut TextPage,
) {
    let name = text::pod(name);
    let reason =
        message.map_or_else(String::new, |message| format!(": {}", text::printable(message.trim_end())));
    match admit {
        true => page.heading(record.at, Tone::Good, &format!("ADMIT {name}")),
        false => page.heading(record.at, Tone::Warning, &format!("REFUSE {name}{reason}")),
    }
}

/// Writes an OOM kill, unless the record is a repeated one. The sentence is that of its event line.
fn oom_kill(at: Timestamp, kill: &OomKill, page: &mut TextPage) {
    if kill.repeated {
        return;
    }
    page.heading(at, Tone::Bad, &format!("OOM KILL: {}", text::printable(&kill.to_string())));
    let since = kill.evicting_since.map(|since| text::clock(since, at));
    page.lines("eviction", since.map(|since| format!("the pod has been evicted since {since}")));
    if kill.kills_in_pod > 1 {
        page.lines("before", [format!("{} kills in this pod so far", kill.kills_in_pod)]);
    }
    page.out.push('\n');
}

/// Writes a terminated container and the cause of its termination. The sentence is that of its event line.
fn terminated(at: Timestamp, terminated: &ContainerTerminated, page: &mut TextPage) {
    let (when, sentence) =
        (text::clock(terminated.finished_at, at), text::printable(&terminated.to_string()));
    page.heading(at, Tone::Warning, &format!("ENDED at {when}: {sentence}"));
    page.out.push('\n');
}
