//! `explain`: the rank of a pod, or every decision of a recording with its reasons.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use eviction_core::explain::Explainer;
use eviction_core::oom::OomUpdate;
use eviction_core::pod::PodName;
use eviction_core::record::{DecisionRecord, RecordSubject};
use eviction_core::signal::Signal;
use eviction_core::time::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::client::SocketArgs;
use super::output::{
    Out, StreamFormat, VerbError, is_coloured, report_unreadable, write_json_line, write_stderr,
};
use super::replay::PolicyArgs;
use crate::daemon::Failure;
use crate::scenario::read;
use crate::scenario::recording;
use crate::scenario::run::{self, ExplainedScenario};
use crate::telemetry::live::nearest_name;
use crate::telemetry::recording::reader::is_recording;

/// Explain why a pod has its place in the order of eviction, now or in recordings, and what would change it
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// Now, by the running agent: the pod, [NAMESPACE/]NAME; without one the pod that is evicted next. Or
    /// recordings (a directory of `recorder.directory` or one of its segments) or scenarios: files,
    /// directories, or - for standard input; they may be compressed with zstd (.zst)
    #[arg(value_name = "POD|FILE")]
    subjects: Vec<PathBuf>,
    /// Explain one pod only: why it was evicted, or which pods were before it
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pod: Option<String>,
    #[command(flatten)]
    socket: SocketArgs,
    /// Explain decisions of a recording around this time only, within a minute; for example
    /// 2026-01-05T08:00:30Z
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Explain decisions for this eviction signal only, for example memory.available
    #[arg(long, value_name = "SIGNAL", value_parser = known_signal)]
    signal: Option<Signal>,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = StreamFormat::Table, help_heading = "Output")]
    output: StreamFormat,
}

fn known_signal(name: &str) -> Result<Signal, String> {
    Signal::from_name(name).ok_or_else(|| "no such eviction signal".to_owned())
}

/// Runs the verb. Exit code 1 if a scenario is invalid or no scenario has the pod.
pub(super) fn run(args: &ExplainArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let is_file = |subject: &PathBuf| subject.as_os_str() == "-" || subject.exists();
    match &*args.subjects {
        [] => explain_now(args, args.pod.as_deref(), out),
        [subject] if !is_file(subject) && args.pod.is_none() => {
            explain_now(args, Some(&subject.to_string_lossy()), out)
        }
        _ => explain_recordings(args, out),
    }
}

/// Explains the rank of a pod now, with data of the running agent.
fn explain_now(args: &ExplainArgs, pod: Option<&str>, out: &mut Out) -> Result<ExitCode, VerbError> {
    if args.policy.is_given() {
        let error = "explain: --config and --profile are for recordings; a running agent has its own policy";
        return Err(Failure::usage(error).into());
    }
    let signal = args.signal.unwrap_or(Signal::MemoryAvailable);
    let pod = pod.map_or_else(String::new, |pod| format!("&pod={pod}"));
    let answer: Value = args.socket.get_json(&format!("/v1/explain?signal={signal}{pod}"))?;
    match args.output {
        StreamFormat::Jsonl => writeln!(out, "{answer}")?,
        StreamFormat::Table => {
            let lines = answer["lines"].as_array().into_iter().flatten().filter_map(Value::as_str);
            for (number, line) in lines.enumerate() {
                writeln!(out, "{}{line}", if number == 0 { "" } else { "  " })?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn explain_recordings(args: &ExplainArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let overrides = args.policy.overrides()?;
    let mut code = ExitCode::SUCCESS;
    let (mut is_found, mut names) = (false, BTreeSet::new());
    let mut write = |explained: ExplainedScenario, out: &mut Out| {
        is_found |= write_scenario(args, &explained, out)?;
        if args.pod.is_some() && !is_found {
            names.extend(explained.pods.iter().map(ToString::to_string));
        }
        io::Result::Ok(())
    };
    for file in &args.subjects {
        if is_recording(file) {
            let explained = recorded_decisions(args, file, &mut code)?;
            write(explained, out)?;
            continue;
        }
        for found in read::cases(file) {
            let explained = found.and_then(|case| {
                let name = case.scenario.name.clone();
                run::run(case.scenario, &overrides).map_err(|error| format!("explain {name}: {error}"))
            });
            match explained {
                Ok(explained) => write(explained, out)?,
                Err(cause) => {
                    code = ExitCode::FAILURE;
                    write_stderr(&format!("error: {cause}\n"));
                }
            }
        }
    }
    if let Some(wanted) = args.pod.as_deref().filter(|_| !is_found) {
        code = ExitCode::FAILURE;
        let hint = nearest_name(wanted, names.into_iter())
            .map_or_else(String::new, |name| format!("\nhelp: the nearest is {}", name.escape_debug()));
        let wanted = wanted.escape_debug();
        write_stderr(&format!("error: explain pod {wanted}: no such pod in the recording{hint}\n"));
    }
    Ok(code)
}

/// Returns the decisions of a recording around the time of the options.
fn recorded_decisions(
    args: &ExplainArgs,
    file: &Path,
    code: &mut ExitCode,
) -> Result<ExplainedScenario, Failure> {
    if args.policy.is_given() {
        let error = "explain: --config and --profile do not change a recording";
        return Err(Failure::usage(error).help("use `what-if`"));
    }
    let minute = jiff::SignedDuration::from_mins(1);
    let within = args.at.map_or((Timestamp::MIN, Timestamp::MAX), |at| {
        (at.checked_sub(minute).unwrap_or(Timestamp::MIN), at.checked_add(minute).unwrap_or(Timestamp::MAX))
    });
    let (explained, errors) = recording::explained(file, within)
        .map_err(|error| Failure::because(format!("read {}", file.display()), &error))?;
    if report_unreadable(&errors) > 0 {
        *code = ExitCode::FAILURE;
    }
    Ok(explained)
}

/// Returns whether a decision is about a threshold of this signal.
fn is_of_signal(report: &DecisionRecord, signal: Signal) -> bool {
    report.evaluation().is_some_and(|evaluation| {
        evaluation.starved == Some(signal.resource())
            || evaluation.evictions.iter().any(|eviction| eviction.signal == signal.name())
    })
}

/// A decision record with its scenario.
#[derive(Serialize)]
pub(super) struct ExplainLine<'a> {
    pub(super) scenario: &'a str,
    #[serde(flatten)]
    pub(super) report: &'a DecisionRecord,
}

/// Explains a scenario, unless it has only other pods than the one of the options. Returns whether it has that pod.
fn write_scenario(args: &ExplainArgs, explained: &ExplainedScenario, out: &mut Out) -> io::Result<bool> {
    let Some(wanted) = args.pod.as_deref() else {
        write_explanation(args, None, explained, out)?;
        return Ok(false);
    };
    let mut is_found = false;
    for pod in explained.pods.iter().filter(|pod| pod.matches(wanted)) {
        is_found = true;
        write_explanation(args, Some(pod), explained, out)?;
    }
    Ok(is_found)
}

/// Explains the decisions of a scenario that the options select: all, or those that concern one pod.
fn write_explanation(
    args: &ExplainArgs,
    pod: Option<&PodName>,
    explained: &ExplainedScenario,
    out: &mut Out,
) -> io::Result<()> {
    let ExplainedScenario { outcome, pods: _, reports } = explained;
    let mut reports = reports.iter().filter(|it| args.signal.is_none_or(|signal| is_of_signal(it, signal)));
    if args.output == StreamFormat::Jsonl {
        let scenario = &*outcome.name;
        let mut reports = reports.filter(|report| pod.is_none_or(|pod| concerns(report, pod)));
        return reports.try_for_each(|report| write_json_line(&ExplainLine { scenario, report }, out));
    }
    writeln!(out, "scenario {}\n", outcome.name.escape_debug())?;
    if let Some(error) = &outcome.config_error {
        let stage = &outcome.config_error_stage;
        return writeln!(out, "the configuration is refused ({stage}): {}\n", error.escape_debug());
    }
    let explainer = pod.map_or_else(Explainer::default, |pod| Explainer::of_pod(pod.clone()));
    let mut explainer = explainer.coloured(is_coloured(&io::stdout()));
    reports.try_for_each(|report| out.write_all(explainer.explain(report).as_bytes()))?;
    out.write_all(explainer.finish().as_bytes())?;
    if pod.is_some() { writeln!(out) } else { Ok(()) }
}

/// Returns whether a decision record concerns a pod.
fn concerns(report: &DecisionRecord, pod: &PodName) -> bool {
    if report.terminations.iter().any(|ended| ended.container.pod_uid == pod.uid) {
        return true;
    }
    match &report.subject {
        RecordSubject::Evaluation(evaluation) => {
            evaluation.candidates.iter().any(|candidate| candidate.pod == *pod)
                || evaluation.evictions.iter().any(|eviction| eviction.pod == *pod)
                || evaluation.critical_pods.contains(pod)
                || evaluation.refused_pods.iter().any(|refused| refused.pod == *pod)
        }
        RecordSubject::Admission { pod: other, .. } => other == pod,
        RecordSubject::Oom(OomUpdate::Kill(kill)) => kill.pod_uid.as_deref() == Some(&*pod.uid),
        RecordSubject::Oom(OomUpdate::End { uid, .. }) => *uid == pod.uid,
        RecordSubject::Nothing | RecordSubject::NotEvaluated(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use eviction_core::fixture::{at, engine, enhanced, hard, memory_of, node, pod, quantity, set_by, step};
    use eviction_core::input::Event;
    use eviction_core::pod::{EmptyDir, Pod, Volume};
    use eviction_core::pods::EVICT;
    use eviction_core::snapshot::{FsUsage, Snapshot};

    use super::*;

    #[test]
    fn a_decision_concerns_a_protected_pod_above_a_limit_of_its_own() {
        let empty_dir = EmptyDir { size_limit: Some(quantity("100")), ..EmptyDir::default() };
        let volume = Volume { name: "cache".into(), empty_dir: Some(empty_dir), ..Volume::default() };
        let annotations = [(EVICT.into(), "false".into())].into_iter().collect();
        let full = Pod { volumes: vec![volume], annotations, ..pod("full", "1") };
        let policy = enhanced(vec![hard(Signal::MemoryAvailable, "100")], |_| ());
        let pods = set_by(&policy, vec![full.clone()]);
        let mut engine = engine(policy, &pods);
        let mut snapshot = Snapshot::of_node(node(500, 900, at(1)));
        let used = FsUsage { used: Some(200), inodes: None };
        snapshot.add_pod("full", memory_of("full", 5).1).add_volume("cache", used);
        let record = DecisionRecord::of(&step(&mut engine, 1, Event::Sample(Arc::new(snapshot))));
        assert!(record.evaluation().unwrap().candidates.is_empty(), "no threshold is met");
        assert!(concerns(&record, &PodName::of(&full)));
        assert!(!concerns(&record, &PodName::of(&pod("other", "1"))));
    }
}
