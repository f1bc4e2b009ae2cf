//! The command line: one file per verb.

mod check;
mod cluster;
mod config;
mod configuration;
mod node;
mod output;
mod profile;
mod replay;
mod run;
mod rungs;
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
    /// How the log on standard error is written; RUST_LOG chooses what is logged.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
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
    Node(node::NodeArgs),
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
    let Cli { log_format, verb } = Cli::parse();
    // The daemon must not be held up by whoever reads its log; the others end, and lose no line.
    let writer = match verb {
        Verb::Run(_) => match LogWriter::start(std::io::stderr()) {
            Ok(writer) => Some(writer),
            Err(error) => {
                eprintln!("error: start the log: {error}");
                return ExitCode::FAILURE;
            }
        },
        Verb::Check(_) | Verb::Config(_) | Verb::Replay(_) | Verb::Node(_) => None,
    };
    start_log(log_format, writer.as_ref().map(LogWriter::queue));
    let result = match verb {
        Verb::Run(args) => run::run(args),
        Verb::Check(args) => check::check(args),
        Verb::Config(args) => config::config(args),
        Verb::Replay(args) => Ok(replay::run(&args)),
        Verb::Node(args) => node::run(args),
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
