//! The command line: one file per verb.

mod backends;
mod check;
mod cleanup;
mod cluster;
mod config;
mod configuration;
mod output;
mod profile;
mod replay;
mod retired;
mod run;
mod table;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::agent::{LogQueue, LogWriter, VERSION, hands_lie_in};

/// An eBPF-accelerated node pressure monitor and eviction agent for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "eviction-agent", version = VERSION, disable_help_subcommand = true)]
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
    Check(check::CheckArgs),
    Config(config::ConfigArgs),
    Replay(replay::ReplayArgs),
    Cleanup(cleanup::CleanupArgs),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Parses the arguments, starts the log, runs the verb. Exit codes: 0 done, 1 failed, 2 wrong usage. `hands` is the
/// code that decides and kills, as far as the linker has put it in one place (`hands.ld`).
pub fn main(hands: &'static [u8]) -> ExitCode {
    hands_lie_in(hands);
    let Cli { log_format, verb } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
    // The daemon must not be held up by whoever reads its log; the others end, and lose no line.
    let writer = match verb {
        Verb::Run(_) => match LogWriter::start(std::io::stderr()) {
            Ok(writer) => Some(writer),
            Err(error) => {
                eprintln!("error: start the log: {error}");
                return ExitCode::FAILURE;
            }
        },
        Verb::Check(_) | Verb::Config(_) | Verb::Replay(_) | Verb::Cleanup(_) => None,
    };
    start_log(log_format, writer.as_ref().map(LogWriter::queue));
    let result = match verb {
        Verb::Run(args) => run::run(args),
        Verb::Check(args) => check::check(args),
        Verb::Config(args) => config::config(args),
        Verb::Replay(args) => Ok(replay::run(&args)),
        Verb::Cleanup(args) => cleanup::run(args),
    };
    // What is still to be logged comes before the last word.
    drop(writer);
    match result {
        Ok(code) => code,
        Err(failure) => {
            let (text, code) = failure.report();
            eprint!("{text}");
            code
        }
    }
}

/// Prints help, or what is wrong with the arguments. Old names are reported with the new ones.
fn refused(error: &clap::Error) -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let retired = if error.use_stderr() { retired::errors(&arguments) } else { Vec::new() };
    if retired.is_empty() {
        error.exit();
    }
    for error in retired {
        eprintln!("error: {error}");
    }
    ExitCode::from(2)
}

fn start_log(format: LogFormat, queue: Option<LogQueue>) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let writer = match queue {
        Some(queue) => BoxMakeWriter::new(queue),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colour);
    match format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}
