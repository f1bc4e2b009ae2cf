//! Reports as text for people: what was short, who went and why, who did not and why not, and
//! how little it would have taken for another to go.
//!
//! Everything here is made from [`DecisionRecord`] alone, without IO, so that a replay, a live agent
//! and a recording read the same. [`Explainer`] takes one record after the other. Passes in
//! which nothing happened become one line.

mod candidates;
mod evaluation;
mod oom;
mod pod;
mod ranking;
mod signals;
#[cfg(test)]
mod tests;
mod text;

use evaluation::TextPage;
pub use ranking::{explain_rank, forecast};
pub use text::Style;
use text::Tone;

use super::decision::NotEvaluated;
use super::oom::OomUpdate;
use super::record::{DecisionRecord, EvaluationRecord, RecordSubject};
use super::signal::NodeCondition;
use super::time::Timestamp;
use crate::pod::PodName;

/// Writes text about records, in the order in which they come.
#[derive(Debug, Default)]
pub struct Explainer {
    style: Style,
    history: Option<pod::PodHistory>,
    calm: Option<Calm>,
}

/// Passes in a row in which nothing happened.
#[derive(Debug)]
struct Calm {
    passes: usize,
    from: Timestamp,
    to: Timestamp,
    conditions: Vec<NodeCondition>,
    blind: Vec<String>,
}

impl Explainer {
    /// Tells all there is to tell.
    pub fn new(style: Style) -> Self {
        Self { style, ..Self::default() }
    }

    /// Tells what concerns one pod.
    pub fn of_pod(style: Style, pod: PodName) -> Self {
        Self { style, history: Some(pod::PodHistory::new(pod)), calm: None }
    }

    /// Explains a record: text with line ends, or nothing yet.
    pub fn explain(&mut self, record: &DecisionRecord) -> String {
        let mut out = String::new();
        if let Some(history) = &mut self.history {
            history.explain(record, &mut TextPage { style: self.style, out: &mut out });
            return out;
        }
        match &record.subject {
            RecordSubject::Nothing | RecordSubject::Oom(OomUpdate::End(_)) => {
                if let Some(proposal) = &record.proposal {
                    self.end_calm(&mut out);
                    let mut page = TextPage { style: self.style, out: &mut out };
                    page.heading(&record.at.to_string(), Tone::Warning, "POLICY");
                    page.lines("policy", signals::proposal(proposal, record.at));
                    page.out.push('\n');
                }
            }
            RecordSubject::Oom(OomUpdate::Kill(kill)) => {
                self.end_calm(&mut out);
                oom::kill(record.at, kill, &mut TextPage { style: self.style, out: &mut out });
            }
            RecordSubject::Evaluated(evaluation)
                if record.proposal.is_none() && evaluation::is_calm(evaluation) =>
            {
                self.count_calm(record, evaluation, &mut out)
            }
            RecordSubject::Evaluated(evaluation) => {
                self.end_calm(&mut out);
                evaluation::write(record, evaluation, &mut TextPage { style: self.style, out: &mut out });
                out.push('\n');
            }
            RecordSubject::NotEvaluated(why) => {
                self.end_calm(&mut out);
                let mut page = TextPage { style: self.style, out: &mut out };
                page.heading(
                    &record.at.to_string(),
                    Tone::Warning,
                    &format!("NO PASS: {}", not_evaluated(*why)),
                );
                page.out.push('\n');
            }
            RecordSubject::Admission { pod, admit, message } => {
                self.end_calm(&mut out);
                let mut page = TextPage { style: self.style, out: &mut out };
                admission(record, pod, *admit, message.as_deref(), &mut page);
                page.out.push('\n');
            }
        }
        if !record.ended.is_empty() {
            self.end_calm(&mut out);
            let mut page = TextPage { style: self.style, out: &mut out };
            record.ended.iter().for_each(|ended| oom::terminated(record.at, ended, &mut page));
        }
        out
    }

    /// What is still to be said when no record follows.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.end_calm(&mut out);
        if let Some(history) = self.history.take() {
            history.finish(&mut TextPage { style: self.style, out: &mut out });
        }
        out
    }

    fn count_calm(&mut self, record: &DecisionRecord, evaluation: &EvaluationRecord, out: &mut String) {
        let conditions: Vec<_> = record.conditions.iter().map(|condition| condition.condition).collect();
        let mut blind = signals::unknown_signals(evaluation);
        blind.extend(signals::unavailable_signals(record));
        let is_like = |calm: &&mut Calm| calm.conditions == conditions && calm.blind == blind;
        if let Some(calm) = self.calm.as_mut().filter(is_like) {
            calm.passes += 1;
            calm.to = record.at;
            return;
        }
        self.end_calm(out);
        self.calm = Some(Calm { passes: 1, from: record.at, to: record.at, conditions, blind });
    }

    fn end_calm(&mut self, out: &mut String) {
        let Some(Calm { passes, from, to, conditions, blind }) = self.calm.take() else {
            return;
        };
        let until = if passes == 1 { String::new() } else { format!(", until {}", text::clock(to, from)) };
        let held = match &*conditions {
            [] => String::new(),
            held => {
                let names: Vec<_> = held.iter().map(|condition| condition.name()).collect();
                format!("; the transition period keeps {}", names.join(" and "))
            }
        };
        let passes = text::evaluations(passes);
        let text = self.style.paint(Tone::Good, &format!("CALM for {passes}{until}{held}"));
        let mut page = TextPage { style: self.style, out };
        *page.out += &format!("{from}  {text}\n");
        page.lines("unknown", blind);
        page.out.push('\n');
    }
}

fn not_evaluated(why: NotEvaluated) -> String {
    match why {
        NotEvaluated::NothingToEnforce => {
            "there are no thresholds, and pods are not held to limits".to_owned()
        }
        NotEvaluated::LayoutUnknown => "it is not known yet how the file systems are laid out".to_owned(),
        NotEvaluated::LayoutRefused => {
            "the image file system is split, which KubeletSeparateDiskGC does not allow: \
             later passes raise conditions, but evict for no threshold"
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
    page: &mut TextPage<'_>,
) {
    let (name, at) = (text::pod(name), record.at.to_string());
    let reason =
        message.map_or_else(String::new, |message| format!(": {}", text::printable(message.trim_end())));
    match admit {
        true => page.heading(&at, Tone::Good, &format!("ADMIT {name}")),
        false => page.heading(&at, Tone::Warning, &format!("REFUSE {name}{reason}")),
    }
}
