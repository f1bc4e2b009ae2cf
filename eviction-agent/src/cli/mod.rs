//! The command line: one file per verb.

mod about;
mod check;
mod cleanup;
mod client;
mod config;
mod configuration;
mod cri_proxy;
mod explain;
mod export;
mod output;
mod record;
mod replay;
mod report;
mod run;
mod top;
mod ui;
mod watch;
mod what_if;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use output::{Out, VerbError, is_coloured, write_stderr};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::daemon::{LineWriter, VERSION};

/// An eBPF-accelerated node pressure monitor and eviction agent for Kubernetes
#[derive(Debug, Parser)]
#[command(name = "eviction-agent", version = VERSION)]
struct Cli {
    /// Format of the log on standard error; RUST_LOG sets what is logged
    #[arg(long, global = true, help_heading = "Output", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(run::RunArgs),
    Record(record::RecordArgs),
    Check(check::CheckArgs),
    Config(config::ConfigArgs),
    Explain(explain::ExplainArgs),
    Top(top::TopArgs),
    Watch(watch::WatchArgs),
    Replay(replay::ReplayArgs),
    WhatIf(what_if::WhatIfArgs),
    Export(export::ExportArgs),
    Report(report::ReportArgs),
    Ui(ui::UiArgs),
    Cleanup(cleanup::CleanupArgs),
    CriProxy(cri_proxy::CriProxyArgs),
    /// Do nothing until stopped: the container of a DaemonSet whose work is done by init containers
    #[command(hide = true)]
    Pause,
    #[command(flatten)]
    About(about::AboutVerb),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Text lines
    Text,
    /// One JSON object per line
    Json,
}

/// Parses the arguments, starts the log and runs the verb. Exit codes: 0 done, 1 failed, 2 wrong usage.
pub fn main() -> ExitCode {
    let Cli { log_format, verb } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return print_help_or_errors(&error),
    };
    match verb {
        Verb::Run(args) => run_daemon(log_format, || run::run(args)),
        Verb::Record(args) => match args.copy {
            None => run_daemon(log_format, || record::record(args)),
            Some(verb) => run_short_lived(log_format, |out| record::copy(&verb, out)),
        },
        Verb::Check(args) => run_short_lived(log_format, |out| check::check(args, out)),
        Verb::Config(args) => run_short_lived(log_format, |out| config::config(args, out)),
        Verb::Explain(args) => run_short_lived(log_format, |out| explain::run(&args, out)),
        Verb::Top(args) => run_short_lived(log_format, |out| top::run(&args, out)),
        Verb::Watch(args) => run_short_lived(log_format, |out| watch::run(&args, out)),
        Verb::Replay(args) => run_short_lived(log_format, |out| replay::run(&args, out)),
        Verb::WhatIf(args) => run_short_lived(log_format, |out| what_if::run(&args, out)),
        Verb::Export(args) => run_short_lived(log_format, |out| export::run(&args, out)),
        Verb::Report(args) => run_short_lived(log_format, |out| report::run(&args, out)),
        Verb::Ui(args) => run_short_lived(log_format, |out| ui::run(args, out)),
        Verb::Cleanup(args) => run_short_lived(log_format, |out| cleanup::run(args, out)),
        Verb::CriProxy(args) => run_short_lived(log_format, |_| cri_proxy::run(&args)),
        Verb::Pause => loop {
            std::thread::park();
        },
        Verb::About(verb) => run_short_lived(log_format, |out| about::run(&verb, Cli::command(), out)),
    }
}

/// Runs a verb that runs until it is stopped.
fn run_daemon(log_format: LogFormat, run: impl FnOnce() -> Result<ExitCode, VerbError>) -> ExitCode {
    // A slow reader of the log must not block the daemon.
    let writer = match LineWriter::start_log() {
        Ok(writer) => writer,
        Err(error) => {
            write_stderr(&format!("error: start the log: {error}\n"));
            return ExitCode::FAILURE;
        }
    };
    start_log(log_format, Some(writer.clone()));
    let result = run();
    // Log lines are written before the final error.
    writer.finish_log();
    // `report` does not lock standard output: the thread that writes it may hold the lock for ever if
    // the reader does not read.
    output::report(result)
}

/// Runs a verb that ends by itself.
fn run_short_lived(
    log_format: LogFormat,
    run: impl FnOnce(&mut Out) -> Result<ExitCode, VerbError>,
) -> ExitCode {
    start_log(log_format, None);
    let mut out = output::out();
    let result = run(&mut out);
    output::end(out, result)
}

/// Prints the help, or the errors of the arguments. Errors about old names contain the new ones.
fn print_help_or_errors(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let text = error.render();
        let is_coloured = is_coloured(&std::io::stdout());
        let text = if is_coloured { text.ansi().to_string() } else { text.to_string() };
        let mut out = output::out();
        let written = out.write_all(text.as_bytes()).map(|()| ExitCode::SUCCESS);
        return output::end(out, written.map_err(Into::into));
    }
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let retired = retired_errors(&arguments);
    match retired.is_empty() {
        // Printing fails only without a reader.
        true => drop(error.print()),
        false => retired.iter().for_each(|error| write_stderr(&format!("error: {error}\n"))),
    }
    ExitCode::from(2)
}

fn start_log(format: LogFormat, writer: Option<LineWriter>) {
    let (filter, error) = filter(std::env::var_os(EnvFilter::DEFAULT_ENV));
    if let Some(error) = error {
        write_stderr(&format!("warning: RUST_LOG: {error}; logging at level info\n"));
    }
    let writer = match writer {
        Some(writer) => BoxMakeWriter::new(writer),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let colour = is_coloured(&std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colour);
    match format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}

/// kube logs the whole text of a list that it cannot decode, and failures that the agent reports
/// itself.
const KUBE: [&str; 2] = ["kube_client=error", "kube_runtime=error"];

/// Returns the filter of RUST_LOG, or `info` if it is not set, and the error in RUST_LOG.
fn filter(given: Option<std::ffi::OsString>) -> (EnvFilter, Option<String>) {
    let default = || EnvFilter::new("info");
    let (filter, error) = match given.filter(|given| !given.is_empty()) {
        None => (default(), None),
        Some(given) => match given.to_str().map(EnvFilter::try_new) {
            Some(Ok(filter)) => (filter, None),
            Some(Err(error)) => (default(), Some(error.to_string())),
            None => (default(), Some("is not UTF-8".to_owned())),
        },
    };
    if filter.to_string().contains("kube_") {
        return (filter, error);
    }
    let filter = KUBE.iter().filter_map(|text| text.parse().ok()).fold(filter, EnvFilter::add_directive);
    (filter, error)
}

/// Flags of earlier versions, each with its replacement.
const RETIRED_FLAGS: [(&str, &str); 10] = [
    ("--act", "--action none|kill|evict"),
    ("--rung", "--backend NAME"),
    ("--deny-rung", "--disable-backend NAME"),
    ("--state", "--state-dir DIR"),
    ("--accept", "--apply-config-now"),
    ("--pods", "--pods-file FILE"),
    ("--listen", "--listen-address ADDRESS"),
    ("--bpf-log", "--bpf-debug-log"),
    ("--explain", "the verb `explain FILE`"),
    ("--record", "recorder.directory in the AgentConfiguration"),
];

/// Values of `--act` whose replacement differs from that of the flag.
const RETIRED_ACTIONS: [(&str, &str); 2] =
    [("dry-run", "--action none"), ("evict-dry-run", "--action evict --dry-run=server")];

/// Returns one error for each old flag or verb in these arguments, which do not include the program's
/// name.
fn retired_errors(arguments: &[String]) -> Vec<String> {
    let mut errors = Vec::new();
    let mut words = arguments.iter().map(String::as_str).take_while(|word| *word != "--").peekable();
    let mut verb = None;
    while let Some(word) = words.next() {
        if !word.starts_with('-') && verb.is_none() {
            verb = Some(word);
            if word == "node" {
                let rest = words.next_if_eq(&"clean").map_or_else(String::new, |clean| format!(" {clean}"));
                errors.push(format!("parse arguments: node{rest}: use the verb `cleanup NODE...`"));
            }
            continue;
        }
        let (flag, value) = word.split_once('=').map_or((word, None), |(flag, value)| (flag, Some(value)));
        let Some((_, new)) = RETIRED_FLAGS.iter().find(|(old, _)| *old == flag) else { continue };
        let value = value.or_else(|| words.peek().copied());
        let of_value = RETIRED_ACTIONS.iter().find(|(act, _)| flag == "--act" && value == Some(act));
        let new = of_value.map_or(new, |(_, new)| new);
        errors.push(format!("parse arguments: {flag}: use {new}"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_rust_log_is_reported() {
        for (given, is_wrong) in [("", false), ("debug", false), ("eviction_agent=nonsense=1", true)] {
            assert_eq!(filter(Some(given.into())).1.is_some(), is_wrong, "{given}");
        }
        assert!(filter(None).1.is_none());
    }

    #[test]
    fn kube_logs_only_errors_unless_rust_log_names_it() {
        for given in [None, Some("debug".into()), Some("eviction_agent=trace".into())] {
            let (filter, _) = filter(given);
            assert!(KUBE.iter().all(|directive| filter.to_string().contains(directive)), "{filter}");
        }
        let (filter, _) = filter(Some("kube_client=debug".into()));
        assert_eq!(filter.to_string(), "kube_client=debug");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn errors_of(line: &str) -> Vec<String> {
        retired_errors(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn each_old_flag_is_named_with_the_new_one() {
        for (old, new) in RETIRED_FLAGS {
            for line in [format!("run {old} x"), format!("run {old}=x")] {
                let expected = format!("parse arguments: {old}: use {new}");
                assert_eq!(errors_of(&line), [expected], "{line}");
            }
        }
    }

    #[test]
    fn the_old_actions_are_translated() {
        let errors = errors_of("run --act evict-dry-run --act=dry-run --act kill");
        let expected = ["--action evict --dry-run=server", "--action none", "--action none|kill|evict"];
        assert_eq!(errors, expected.map(|new| format!("parse arguments: --act: use {new}")));
    }

    #[test]
    fn the_old_verb_is_named_as_it_was_given() {
        assert_eq!(
            errors_of("node clean n1"),
            ["parse arguments: node clean: use the verb `cleanup NODE...`"]
        );
        assert_eq!(errors_of("node"), ["parse arguments: node: use the verb `cleanup NODE...`"]);
        assert_eq!(errors_of("cleanup node"), [""; 0]);
    }

    #[test]
    fn arguments_after_two_dashes_are_not_flags() {
        assert_eq!(errors_of("run -- --act kill"), [""; 0]);
        assert_eq!(errors_of("run --action kill --pods-file x"), [""; 0]);
    }
}
