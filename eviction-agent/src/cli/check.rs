//! `check`: reports what this node supports, which backends would be used, and what is missing.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use eviction_config::Setting;
use eviction_kube::DaemonSetName;

use crate::cli::configuration::{ConfigurationArgs, DiskArgs};
use crate::cli::output::{Out, OutputFormat, VerbError, columns, table, wrap, write_stderr};
use crate::daemon;
use crate::daemon::{EffectiveConfig, Failure, Findings, NO_BACKEND};
use crate::telemetry::event_log::Backend;

/// The timeout of the wait for a DaemonSet.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The width of the table if there is no terminal.
const COLUMNS: u16 = 80;

/// Check what this node supports, and what is missing. Exit code 1 if `run` with the same options would not
/// start
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Output format
    #[arg(short, long, help_heading = "Output", value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    #[command(flatten)]
    configuration: ConfigurationArgs,
    /// Check only whether the pods of this DaemonSet are ready, for 30 s at most
    #[arg(long = "daemonset", value_name = "NAMESPACE/NAME", help_heading = "Cluster")]
    daemon_set: Option<DaemonSetName>,
    /// Cgroup that stands for the node, relative to the mount point of each cgroup hierarchy
    #[arg(long, value_name = "PATH", default_value = "/", help_heading = "Testing")]
    cgroup_root: PathBuf,
    #[command(flatten)]
    disks: DiskArgs,
    #[command(flatten)]
    backends: BackendArgs,
}

pub(super) fn check(args: CheckArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let CheckArgs { output, configuration, daemon_set, cgroup_root, disks, backends } = args;
    if let Some(name) = daemon_set {
        let kubeconfig = configuration.kubeconfig.as_deref();
        let ready = daemon::await_daemon_set(kubeconfig, &name, READY_TIMEOUT)?;
        if ready == 0 {
            let failure = Failure::failed(format!("DaemonSet {name}: no node is to have a pod of it"));
            return Err(failure.help("its nodeSelector and affinity say which nodes do").into());
        }
        writeln!(out, "DaemonSet {name}: {ready} of {ready} pods are ready")?;
        return Ok(ExitCode::SUCCESS);
    }
    let pods_file = configuration.pods_file.clone();
    let files = configuration.files()?;
    let findings =
        daemon::check(&files, pods_file.as_deref(), &cgroup_root, &disks.into(), &backends.into())?;
    output.write(out, "findings", &findings, report)?;
    if matches!(output, OutputFormat::Table | OutputFormat::Wide) {
        write_stderr(&errors_and_help(&findings, output == OutputFormat::Wide || !findings.would_start));
    }
    Ok(if findings.would_start { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the status of a source's backend, with a short reason. A source is degraded if its preferred backend is
/// not available.
fn status(source: &Backend) -> (&'static str, String) {
    let Backend { source: _, backend, reason } = source;
    if backend == NO_BACKEND {
        return ("missing", reason.split_once("; ").map_or(&**reason, |(first, _)| first).to_owned());
    }
    match source.preferred() {
        Some(preferred) => ("degraded", format!("{backend} in place of {preferred}")),
        None => ("ok", backend.clone()),
    }
}

fn report(findings: &Findings, is_wide: bool) -> String {
    let Findings { configuration, would_start, sources, facts: _, problems } = findings;
    let number = |wanted: &str| sources.iter().filter(|source| status(source).0 == wanted).count();
    let result = match (would_start, problems.len()) {
        (true, _) => "run would start".to_owned(),
        (false, 1) => "run would not start: 1 error".to_owned(),
        (false, errors) => format!("run would not start: {errors} errors"),
    };
    let (ok, degraded, missing) = (number("ok"), number("degraded"), number("missing"));
    let summary = format!("{result}; sources: {ok} ok, {degraded} degraded, {missing} missing");
    if is_wide {
        return format!("{summary}\n\n{}", details(findings, configuration.as_ref()));
    }
    let width = columns().unwrap_or(COLUMNS);
    format!("{}\n{}", wrap(&summary, Some(width)), short_table(sources, width))
}

/// Returns one line per source, cut to 80 columns. On a narrower terminal cells are wrapped.
fn short_table(sources: &[Backend], width: u16) -> String {
    let longest = sources.iter().map(|source| source.source.len()).max().unwrap_or(0).max("SOURCE".len());
    // Two columns of padding after each cell.
    let rest = usize::from(COLUMNS).saturating_sub(longest + "degraded".len() + 3 * 2);
    let rows = sources.iter().map(|source| {
        let (status, reason) = status(source);
        [source.source.clone(), status.to_owned(), truncate(&reason, rest)]
    });
    table(["SOURCE", "STATUS", "REASON"], rows, Some(width.min(COLUMNS)))
}

/// Cuts a text to at most `limit` characters, with an ellipsis if it was longer.
fn truncate(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let kept: String = text.chars().take(limit.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Returns all findings, for `-o wide`.
fn details(findings: &Findings, configuration: Option<&EffectiveConfig>) -> String {
    let Findings { sources, facts, .. } = findings;
    let columns = columns();
    let sources = sources.iter().map(|source| {
        let Backend { source: name, backend, reason } = source;
        [name.clone(), status(source).0.to_owned(), backend.clone(), reason.clone()]
    });
    let mut text = table(["SOURCE", "STATUS", "BACKEND", "REASON"], sources, columns);
    let facts = facts.iter().map(|fact| {
        let usable = match (fact.usable, fact.required) {
            (true, _) => "yes",
            (false, true) => "no, required",
            (false, false) => "no",
        };
        [fact.name.to_owned(), usable.to_owned(), fact.found.clone()]
    });
    text.push_str(&format!("\n{}", table(["CAPABILITY", "USABLE", "FOUND"], facts, columns)));
    if let Some(configured) = configuration {
        text.push_str(&format!("\n{}", settings(configured, columns)));
    }
    let names: Vec<_> = daemon::backend_names().collect();
    text.push_str(&format!("\n{}", wrap(&format!("backends: {}", names.join("; ")), columns)));
    text
}

/// Returns the profile, and the settings that differ from their defaults.
fn settings(configured: &EffectiveConfig, columns: Option<u16>) -> String {
    let EffectiveConfig { profile, thresholds: _, settings, notes } = configured;
    let chosen = settings.iter().filter(|setting| !setting.origin.is_default());
    let rows: Vec<_> = chosen
        .map(|Setting { path, value, origin }| [path.clone(), value.clone(), origin.to_string()])
        .collect();
    let mut text = format!("profile: {}\n", profile.name());
    match rows.is_empty() {
        true => text.push_str("all settings have their defaults\n"),
        false => text.push_str(&table(["SETTING", "VALUE", "FROM"], rows, columns)),
    }
    for note in notes {
        text.push_str(&wrap(&format!("note: {note}"), columns));
    }
    text
}

/// Returns the errors and what to do about them, for standard error.
fn errors_and_help(findings: &Findings, has_help: bool) -> String {
    let Findings { facts, problems, .. } = findings;
    let columns = columns();
    let errors = problems.iter().map(|problem| wrap(&format!("error: {problem}"), columns));
    let unusable = facts.iter().filter(|fact| has_help && !fact.usable);
    let helps = unusable.filter_map(|fact| Some(format!("help: {}: {}", fact.name, fact.help?)));
    errors.chain(helps.map(|help| wrap(&help, columns))).collect()
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Kernel")]
pub(super) struct BackendArgs {
    /// Use only this backend for its source, for example "kprobe page_counter_try_charge";
    /// repeatable. `check -o wide` lists the backends.
    #[arg(long = "backend", value_name = "NAME", value_parser = known_backend)]
    only: Vec<String>,
    /// Do not use this backend; repeatable.
    #[arg(long = "disable-backend", value_name = "NAME", value_parser = can_be_disabled)]
    disabled: Vec<String>,
}

impl From<BackendArgs> for daemon::BackendSelection {
    fn from(args: BackendArgs) -> Self {
        let BackendArgs { only, disabled } = args;
        Self { only, deny: disabled, failed: Vec::new() }
    }
}

fn known_backend(name: &str) -> Result<String, String> {
    match daemon::backend_names().any(|known| known == name) {
        true => Ok(name.to_owned()),
        false => {
            let names: Vec<_> = daemon::backend_names().map(|name| format!("`{name}`")).collect();
            Err(format!("no such backend; the backends are {}", names.join(", ")))
        }
    }
}

fn can_be_disabled(name: &str) -> Result<String, String> {
    match known_backend(name)? {
        name if name == daemon::TIMER => {
            Err("the timer cannot be disabled: every other backend falls back to it".to_owned())
        }
        name => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, backend: &str, reason: &str) -> Backend {
        Backend { source: name.to_owned(), backend: backend.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn source_with_a_fallback_is_degraded_and_without_backend_missing() {
        let better = "fexit page_counter_try_charge: the kernel refuses it; kprobe x: too";
        let (degraded, reason) = status(&source("charge", "tp_btf mod_memcg_state", better));
        assert_eq!(
            (degraded, &*reason),
            ("degraded", "tp_btf mod_memcg_state in place of fexit page_counter_try_charge")
        );
        let (missing, reason) = status(&source("charge", NO_BACKEND, "no BTF: x; y"));
        assert_eq!((missing, &*reason), ("missing", "no BTF: x"));
        let timer = source("timer", "timerfd", "on every kernel");
        assert_eq!(status(&timer), ("ok", "timerfd".to_owned()));
    }

    #[test]
    fn sources_have_one_line_in_80_columns_and_fit_into_40() {
        let long = "set oom_score_adj: Permission denied (os error 13), and so on, and so on, and so on";
        let sources = [source("oom protection", "none", long), source("task", &"tp ".repeat(40), "")];
        let text = short_table(&sources, 80);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let text = short_table(&sources, 40);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains("missing"), "{text}");
    }
}
