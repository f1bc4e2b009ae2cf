//! `what-if`: replays a recording under changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::Write as _;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use eviction_core::policy::preferences::Profile;
use eviction_core::signal::Signal;
use eviction_core::units::{Format, Quantity, display_bytes};

use super::configuration::profile_parser;
use super::output::{
    Out, StreamFormat, VerbError, columns, report_unreadable, table, write_json_line, write_stderr,
};
use crate::daemon::Failure;
use crate::scenario::what_if::{Changes, Comparison, compare, summary};

/// The number of thresholds of a sweep.
const STEPS: i64 = 10;

/// Decide a recording again with something changed: which pods would have been evicted
#[derive(Debug, Args)]
pub(super) struct WhatIfArgs {
    /// Recording: a directory of `recorder.directory` or one of its segments
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Field of the KubeletConfiguration, for example evictionHard.memory.available=1Gi (repeatable)
    #[arg(long, value_name = "FIELD=VALUE")]
    kubelet: Vec<String>,
    /// Field of the AgentConfiguration, for example policy.maxEvictionsPerSync=1 (repeatable)
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
    /// Eviction rules to follow
    #[arg(long, value_parser = profile_parser())]
    profile: Option<Profile>,
    /// Memory request of a pod (repeatable)
    #[arg(long, value_name = "NAMESPACE/NAME=QUANTITY")]
    request: Vec<String>,
    /// Priority of a pod (repeatable)
    #[arg(long, value_name = "NAMESPACE/NAME=NUMBER")]
    priority: Vec<String>,
    /// Pod that opts out of eviction; counts in the profile enhanced (repeatable)
    #[arg(long, value_name = "NAMESPACE/NAME")]
    protect: Vec<String>,
    /// Pod that is not there (repeatable)
    #[arg(long, value_name = "NAMESPACE/NAME")]
    without: Vec<String>,
    /// Ten hard thresholds of a signal, for example memory.available=100Mi..2Gi
    #[arg(long, value_name = "SIGNAL=FROM..TO", conflicts_with = "expect")]
    sweep: Option<String>,
    /// Exit with 1 unless this holds: evictions=N, evictions<=N, evictions>=N, or same (repeatable)
    #[arg(long, value_name = "CONDITION")]
    expect: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = StreamFormat::Table, help_heading = "Output")]
    output: StreamFormat,
}

pub(super) fn run(args: &WhatIfArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let changes = changes(args)?;
    if let Some(sweep) = &args.sweep {
        return run_sweep(args, &changes, sweep, out);
    }
    let conditions: Vec<Condition> =
        args.expect.iter().map(|it| Condition::parse(it)).collect::<Result<_, _>>()?;
    let comparison = compare_recording(args, &changes)?;
    match args.output {
        StreamFormat::Jsonl => write_json_line(&comparison, out)?,
        StreamFormat::Table => {
            let pods = |pods: &[String]| if pods.is_empty() { "-".to_owned() } else { pods.join(", ") };
            let rows = comparison.rows.iter().map(|row| {
                let basis = if row.projected { "projected" } else { "fact" };
                [row.at.to_string(), pods(&row.recorded), pods(&row.what_if), basis.to_owned()]
            });
            out.write_all(table(["TIME", "RECORDED", "WHAT IF", "BASIS"], rows, columns()).as_bytes())?;
            out.write_all(summary(&comparison).as_bytes())?;
        }
    }
    let failed: Vec<_> = conditions.iter().filter(|it| !it.holds(&comparison)).collect();
    for Condition { words, .. } in &failed {
        write_stderr(&format!("error: expected {words}\n"));
    }
    let is_whole = report_unreadable(&comparison.errors) == 0;
    Ok(if failed.is_empty() && is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compare_recording(args: &WhatIfArgs, changes: &Changes) -> Result<Comparison, Failure> {
    compare(&args.file, changes).map_err(|error| Failure::failed(format!("what-if: {error}")))
}

fn run_sweep(
    args: &WhatIfArgs,
    changes: &Changes,
    sweep: &str,
    out: &mut Out,
) -> Result<ExitCode, VerbError> {
    let usage_error = || Failure::usage(format!("--sweep {sweep}: must be SIGNAL=FROM..TO with quantities"));
    let (signal, range) = sweep.split_once('=').ok_or_else(usage_error)?;
    let (from, to) = range.split_once("..").ok_or_else(usage_error)?;
    let bytes = |text| Quantity::parse(text).map(|it| it.value()).map_err(|_| usage_error());
    let (from, to) = (bytes(from)?, bytes(to)?);
    if Signal::from_name(signal).is_none() || from > to || from < 0 {
        return Err(usage_error().into());
    }
    let field = format!("evictionHard.{signal}");
    if changes.kubelet.contains_key(&field) {
        return Err(Failure::usage(format!("--sweep and --kubelet {field} contradict each other")).into());
    }
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    let (whole, rest) = ((to - from) / (STEPS - 1), (to - from) % (STEPS - 1));
    for step in 0..STEPS {
        // The last one is exactly `to`.
        let value = from + whole * step + rest * step / (STEPS - 1);
        let value = Quantity::from_i64(value, Format::BinarySi).to_string();
        let mut changes = changes.clone();
        changes.kubelet.insert(field.clone(), value.clone());
        let comparison = compare_recording(args, &changes)?;
        // Each replay meets the same segments.
        errors = comparison.errors;
        let result = comparison.what_if;
        if args.output == StreamFormat::Jsonl {
            let line = serde_json::json!({"signal": signal, "threshold": value, "whatIf": result});
            writeln!(out, "{line}")?;
        }
        let bytes = |it: Option<i64>| it.map_or_else(|| "-".to_owned(), |it| display_bytes(it.into()));
        rows.push([
            value,
            result.evictions.to_string(),
            bytes(result.least_available),
            bytes(result.least_headroom),
        ]);
    }
    if args.output == StreamFormat::Table {
        let heading = ["THRESHOLD", "EVICTIONS", "LEAST AVAILABLE", "LEAST HEADROOM"];
        out.write_all(table(heading, rows, columns()).as_bytes())?;
    }
    Ok(if report_unreadable(&errors) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the changes. Contradictory changes are an error.
fn changes(args: &WhatIfArgs) -> Result<Changes, Failure> {
    let WhatIfArgs { kubelet, set, profile, request, priority, protect, without, .. } = args;
    let mut agent: BTreeMap<String, String> = pairs("--set", set, str::parse)?;
    if let Some(profile) = profile {
        let name = profile.name();
        if agent.insert("profile".to_owned(), name.to_owned()).is_some_and(|before| before != name) {
            return Err(Failure::usage("--profile and --set profile contradict each other"));
        }
    }
    let changes = Changes {
        kubelet: pairs("--kubelet", kubelet, str::parse)?,
        agent,
        requests: pairs("--request", request, Quantity::parse)?,
        priorities: pairs("--priority", priority, str::parse)?,
        protect: protect.iter().cloned().collect(),
        without: without.iter().cloned().collect(),
    };
    let changed: BTreeSet<&String> =
        changes.requests.keys().chain(changes.priorities.keys()).chain(&changes.protect).collect();
    if let Some(pod) = changes.without.iter().find(|pod| changed.contains(pod)) {
        return Err(Failure::usage(format!("{pod}: --without contradicts another change of the pod")));
    }
    Ok(changes)
}

/// Parses `KEY=VALUE` texts. A key may be repeated only with the same value.
fn pairs<T, E: Display>(
    flag: &str,
    texts: &[String],
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<BTreeMap<String, T>, Failure> {
    let mut given: BTreeMap<&str, &str> = BTreeMap::new();
    let mut pairs = BTreeMap::new();
    for text in texts {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| Failure::usage(format!("{flag} {text}: must have the form KEY=VALUE")))?;
        if let Some(other) = given.insert(key, value).filter(|other| *other != value) {
            return Err(Failure::usage(format!("{flag} {key}: {other} and {value} contradict each other")));
        }
        let value = parse(value).map_err(|error| Failure::usage(format!("{flag} {text}: {error}")))?;
        pairs.insert(key.to_owned(), value);
    }
    Ok(pairs)
}

/// A condition of `--expect`.
struct Condition {
    /// What is expected, for an error.
    words: String,
    /// The expected number of evictions. Without it the evictions must be the same ones.
    evictions: Option<RangeInclusive<usize>>,
}

impl Condition {
    fn parse(text: &str) -> Result<Self, Failure> {
        let usage_error = || {
            let error = "must be evictions=N, evictions<=N, evictions>=N or same";
            Failure::usage(format!("--expect {text}: {error}"))
        };
        if text == "same" {
            return Ok(Self { words: "the same evictions".to_owned(), evictions: None });
        }
        let rest = text.strip_prefix("evictions").ok_or_else(usage_error)?;
        let operators = [("<=", "at most "), (">=", "at least "), ("=", "")];
        let operator = operators.into_iter().find(|(operator, _)| rest.starts_with(operator));
        let (operator, words) = operator.ok_or_else(usage_error)?;
        let number: usize = rest[operator.len()..].parse().map_err(|_| usage_error())?;
        let evictions = match operator {
            "<=" => 0..=number,
            ">=" => number..=usize::MAX,
            _ => number..=number,
        };
        Ok(Self { words: format!("{words}{number} evictions"), evictions: Some(evictions) })
    }

    fn holds(&self, comparison: &Comparison) -> bool {
        match &self.evictions {
            Some(evictions) => evictions.contains(&comparison.what_if.evictions),
            None => comparison.is_same(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_a_range_of_evictions_or_the_same_ones() {
        let holds = |text: &str| {
            let Condition { words, evictions } = Condition::parse(text).ok()?;
            Some((words, evictions.map(|evictions| [1, 2, 3].map(|count| evictions.contains(&count)))))
        };
        let of = |words: &str, held| Some((words.to_owned(), held));
        assert_eq!(holds("evictions=2"), of("2 evictions", Some([false, true, false])));
        assert_eq!(holds("evictions<=2"), of("at most 2 evictions", Some([true, true, false])));
        assert_eq!(holds("evictions>=2"), of("at least 2 evictions", Some([false, true, true])));
        assert_eq!(holds("same"), of("the same evictions", None));
        for wrong in ["", "evictions", "evictions=", "evictions<2", "evictions=x", "evictions=-1", "same=1"] {
            assert_eq!(holds(wrong), None, "{wrong}");
        }
    }
}
