//! `replay --explain`: every decision with its whole reason.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::core::explain::{Explainer, Style};
use crate::core::report::{About, PodName, Report, StoryReport};
use crate::scenario::run::Explained;

/// How decisions are explained.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// Explain every decision, instead of printing outcomes.
    #[arg(long, conflicts_with = "check")]
    pub(super) explain: bool,
    /// Tell the story of one pod: why it went, or what went before it.
    #[arg(long, value_name = "[NAMESPACE/]NAME", requires = "explain")]
    pod: Option<String>,
    /// How explanations are written.
    #[arg(short, long, value_enum, default_value_t = Format::Text, requires = "explain")]
    output: Format,
}

/// How explanations are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// One report a line.
    Json,
}

/// Explains scenarios, and remembers whether the pod was ever found.
pub(super) struct Explanations<'a> {
    args: &'a ExplainArgs,
    style: Style,
    found: bool,
    names: BTreeSet<String>,
}

/// A report with the scenario that it belongs to.
#[derive(Serialize)]
struct Line<'a> {
    scenario: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

impl<'a> Explanations<'a> {
    pub(super) fn new(args: &'a ExplainArgs) -> Self {
        let coloured =
            io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
        Self {
            args,
            style: if coloured { Style::Coloured } else { Style::Plain },
            found: false,
            names: BTreeSet::new(),
        }
    }

    /// Explains one scenario, unless it is about other pods only.
    pub(super) fn write(&mut self, explained: &Explained, out: &mut impl Write) -> io::Result<()> {
        let Explained { outcome, pods, reports } = explained;
        let Some(asked) = self.args.pod.as_deref() else {
            return self.about(&outcome.name, None, explained, out);
        };
        let meant: Vec<&PodName> = pods.iter().filter(|pod| is_meant(pod, asked)).collect();
        if meant.is_empty() {
            self.names.extend(pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)));
        }
        for pod in meant {
            self.found = true;
            match self.args.output {
                Format::Text => self.about(&outcome.name, Some(pod), explained, out)?,
                Format::Json => {
                    let reports = reports.iter().filter(|report| concerns(report, pod));
                    lines(&outcome.name, reports, out)?;
                }
            }
        }
        Ok(())
    }

    fn about(
        &self,
        name: &str,
        pod: Option<&PodName>,
        explained: &Explained,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let Explained { outcome, pods: _, reports } = explained;
        if self.args.output == Format::Json {
            return lines(name, reports, out);
        }
        writeln!(out, "scenario {}\n", name.escape_debug())?;
        if let Some(error) = &outcome.config_error {
            let stage = &outcome.config_error_stage;
            return writeln!(out, "the configuration is refused ({stage}): {}\n", error.escape_debug());
        }
        let mut explainer = match pod {
            Some(pod) => Explainer::of_pod(self.style, pod.clone()),
            None => Explainer::new(self.style),
        };
        for report in reports {
            out.write_all(explainer.explain(report).as_bytes())?;
        }
        out.write_all(explainer.finish().as_bytes())?;
        if pod.is_some() { writeln!(out) } else { Ok(()) }
    }

    /// What is wrong with the pod that was asked for, if no scenario has it.
    pub(super) fn complaint(&self) -> Option<String> {
        let asked = self.args.pod.as_deref().filter(|_| !self.found)?;
        let nearest = self.names.iter().max_by(|a, b| likeness(asked, a).total_cmp(&likeness(asked, b)));
        let hint = nearest
            .map_or_else(String::new, |name| format!("\nhelp: the nearest is {}", name.escape_debug()));
        Some(format!("explain pod {}: no scenario has a pod of that name{hint}", asked.escape_debug()))
    }
}

/// With a namespace both must fit, without one the name alone.
fn is_meant(pod: &PodName, asked: &str) -> bool {
    match asked.split_once('/') {
        Some((namespace, name)) => *pod.namespace == *namespace && *pod.name == *name,
        None => *pod.name == *asked,
    }
}

fn likeness(asked: &str, name: &str) -> f64 {
    let bare = name.split_once('/').map_or(name, |(_, bare)| bare);
    let against = if asked.contains('/') { name } else { bare };
    strsim::jaro_winkler(&asked.to_lowercase(), &against.to_lowercase())
}

/// Whether a report has something to say about a pod.
fn concerns(report: &Report, pod: &PodName) -> bool {
    if report.ended.iter().any(|ended| ended.uid == pod.uid) {
        return true;
    }
    match &report.about {
        About::Pass(pass) => {
            pass.candidates.iter().any(|candidate| candidate.pod == *pod)
                || pass.evictions.iter().any(|eviction| eviction.pod == *pod)
                || pass.spared.contains(pod)
        }
        About::Admission { pod: asked, .. } => asked == pod,
        About::Story(StoryReport::OomKill(kill)) => kill.pod.as_ref() == Some(pod),
        About::Story(StoryReport::ContainerEnded(end)) => end.uid == pod.uid,
        About::Nothing | About::NoPass(_) => false,
    }
}

fn lines<'a>(
    scenario: &str,
    reports: impl IntoIterator<Item = &'a Report>,
    out: &mut impl Write,
) -> io::Result<()> {
    for report in reports {
        serde_json::to_writer(&mut *out, &Line { scenario, report })?;
        out.write_all(b"\n")?;
    }
    Ok(())
}
