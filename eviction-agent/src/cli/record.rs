//! `record`: runs an agent that records and takes no action. `record snapshot`: copies the end of a
//! recording.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use jiff::SignedDuration;

use super::output::{Out, VerbError, write_stderr};
use super::report::duration;
use super::run::{self, RunArgs};
use crate::daemon::Failure;
use crate::telemetry::recording::reader::{copy_end, is_recording};

/// Watch the node as `run` does, evict no pod, and record what is needed to decide again
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct RecordArgs {
    /// Directory of the recording; in place of `recorder.directory` of the AgentConfiguration
    #[arg(value_name = "DIR", required = true)]
    directory: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
    #[command(subcommand)]
    pub(super) copy: Option<RecordVerb>,
}

#[derive(Debug, Subcommand)]
pub(super) enum RecordVerb {
    /// Copy the end of a recording, which an agent may be writing, into one file
    Snapshot {
        /// The recording: a directory of `recorder.directory`
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// File to write, NAME.rec.zst, or - for standard output
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// So long before the end of the recording; the copy begins with the segment of that time
        #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
        last: SignedDuration,
    },
}

/// Runs the agent without actions, and records.
pub(super) fn record(mut args: RecordArgs) -> Result<ExitCode, VerbError> {
    // Without the verb `snapshot`, clap requires the directory.
    args.run.configuration.record_only(args.directory.unwrap_or_default())?;
    run::run(args.run)
}

/// Copies the end of a recording.
pub(super) fn copy(verb: &RecordVerb, out: &mut Out) -> Result<ExitCode, VerbError> {
    let RecordVerb::Snapshot { directory, file, last } = verb;
    let last = last.unsigned_abs();
    let failed = |error: std::io::Error| {
        Failure::because(format!("copy {} to {}", directory.display(), file.display()), &error)
    };
    let left_out = if file.as_os_str() == "-" {
        copy_end(directory, last, out)
    } else if is_recording(file) && file.extension().is_some_and(|it| it == "zst") {
        let options = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file);
        options.and_then(|mut file| copy_end(directory, last, &mut file))
    } else {
        let error = format!("record snapshot {}: the name must end in .rec.zst", file.display());
        return Err(Failure::usage(error).into());
    };
    for why in left_out.map_err(failed)? {
        write_stderr(&format!("warning: left out {why}\n"));
    }
    Ok(ExitCode::SUCCESS)
}
