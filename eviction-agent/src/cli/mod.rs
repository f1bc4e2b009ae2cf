//! The command line: one file per verb.

mod check;
mod configuration;
mod profile;
mod replay;
mod run;
mod rungs;
mod table;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::agent::VERSION;

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
    Replay(replay::ReplayArgs),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Parses the arguments, starts the log, runs the verb. Exit codes: 0 done, 1 failed, 2 wrong usage.
pub fn main() -> ExitCode {
    let Cli { log_format, verb } = Cli::parse();
    start_log(log_format);
    let result = match verb {
        Verb::Run(args) => run::run(args),
        Verb::Check(args) => check::check(args),
        Verb::Replay(args) => Ok(replay::run(&args)),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            let (text, code) = failure.report();
            eprint!("{text}");
            code
        }
    }
}

fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour);
    match format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}
