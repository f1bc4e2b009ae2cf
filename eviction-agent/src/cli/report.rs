//! `report`: writes a recording as one page.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use eviction_core::time::Timestamp;
use eviction_core::units::GoDuration;
use jiff::SignedDuration;

use super::output::{Out, VerbError, write_stderr};
use crate::daemon::Failure;
use crate::report::Report;
use crate::report::recording::{Window, read};

/// Write a recording as one page: signals against thresholds, pods, events, decisions and their reasons
#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// Recording: a directory of `recorder.directory` or one of its segments
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    window: WindowArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Html, help_heading = "Output")]
    output: ReportFormat,
    /// File to write to, in place of standard output
    #[arg(short = 'O', long, value_name = "FILE", help_heading = "Output")]
    output_file: Option<PathBuf>,
}

/// Which part of a recording.
#[derive(Debug, Args)]
pub(super) struct WindowArgs {
    /// First time, for example 2026-01-05T08:00:30Z [default: the beginning of the recording]
    #[arg(long, value_name = "TIME")]
    from: Option<Timestamp>,
    /// Last time [default: the end of the recording]
    #[arg(long, value_name = "TIME")]
    to: Option<Timestamp>,
    /// The time around this one, by as much as --window on each side
    #[arg(long, value_name = "TIME", conflicts_with_all = ["from", "to"])]
    at: Option<Timestamp>,
    /// Time before and after --at
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration, requires = "at")]
    window: SignedDuration,
    /// So long before the end of the recording, for example 10m
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with_all = ["from", "to", "at"])]
    last: Option<SignedDuration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// One HTML page, which works offline
    Html,
    /// Markdown, for a ticket
    Md,
    /// One JSON document
    Json,
}

pub(super) fn duration(text: &str) -> Result<SignedDuration, String> {
    let duration = GoDuration::parse(text)?;
    let duration = SignedDuration::from_nanos(duration.as_nanos());
    if duration.is_positive() { Ok(duration) } else { Err("must be more than 0s".to_owned()) }
}

impl WindowArgs {
    /// Returns the report of this part of a recording. Its warnings are printed on standard error.
    pub(super) fn read(&self, file: &std::path::Path) -> Result<Report, Failure> {
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from > to
        {
            return Err(Failure::usage(format!("report: --from {from} is after --to {to}")));
        }
        let report = read(file, |all| self.within(all));
        let report = report.map_err(|error| Failure::failed(format!("report: {error}")))?;
        report.warnings.iter().for_each(|warning| write_stderr(&format!("warning: {warning}\n")));
        Ok(report)
    }

    fn within(&self, (first, last): Window) -> Window {
        let before = |at: Timestamp, by| at.checked_sub(by).unwrap_or(Timestamp::MIN);
        match (self.at, self.last) {
            (Some(at), _) => (before(at, self.window), at.checked_add(self.window).unwrap_or(Timestamp::MAX)),
            (None, Some(length)) => (before(last, length), last),
            (None, None) => (self.from.unwrap_or(first), self.to.unwrap_or(last)),
        }
    }
}

pub(super) fn run(args: &ReportArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let report = args.window.read(&args.file)?;
    let text = match args.output {
        ReportFormat::Html => {
            report.html().map_err(|error| Failure::because("read random numbers", &error))?
        }
        ReportFormat::Md => report.markdown(),
        ReportFormat::Json => report.json() + "\n",
    };
    match &args.output_file {
        None => out.write_all(text.as_bytes())?,
        Some(file) => std::fs::write(file, text)
            .map_err(|error| Failure::because(format!("write {}", file.display()), &error))?,
    }
    Ok(ExitCode::SUCCESS)
}
