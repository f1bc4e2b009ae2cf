//! `record`: a recording without an agent that acts.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::output::Ended;
use super::run::{self, RunArgs};

/// Watch the node as `run` does, evict no pod, and record what is needed to decide again
#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    /// Directory of the recording; in place of `recorder.directory` of the AgentConfiguration
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    run: RunArgs,
}

pub(super) fn record(args: RecordArgs) -> Result<ExitCode, Ended> {
    run::record(args.run, args.directory)
}
