//! `run`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::configuration::{ConfigurationArgs, DiskArgs};
use super::output::{StreamFormat, VerbError};
use crate::cli::check::BackendArgs;
use crate::daemon::{self, Options};

/// Run the agent: watch the node's memory, disks and process IDs, and evict pods when an eviction threshold is met
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) configuration: ConfigurationArgs,
    /// Directory for state kept across restarts, one per agent: state.json (evictions in flight, node
    /// conditions, counters) and the configuration in force [default in a pod that acts:
    /// /run/eviction-agent; else no state is kept]
    #[arg(long, value_name = "DIR", help_heading = "Policy")]
    state_dir: Option<PathBuf>,
    /// Apply a changed configuration at once, even if it evicts pods
    #[arg(long, help_heading = "Policy")]
    apply_config_now: bool,
    /// Cgroup that stands for the node, relative to the mount point of each cgroup hierarchy
    #[arg(long, value_name = "PATH", default_value = "/", help_heading = "Testing")]
    cgroup_root: PathBuf,
    #[command(flatten)]
    disks: DiskArgs,
    /// Unix socket for `top`, `watch` and `explain` [default: agent.sock in the state directory]
    #[arg(long, value_name = "PATH", help_heading = "Output")]
    socket: Option<PathBuf>,
    /// Format of the event lines on standard output
    #[arg(short, long, help_heading = "Output", value_enum, default_value_t = StreamFormat::Table)]
    output: StreamFormat,
    #[command(flatten)]
    backends: BackendArgs,
    /// Log the debug messages of the BPF programs
    #[arg(long, help_heading = "Kernel")]
    bpf_debug_log: bool,
}

pub(super) fn run(args: RunArgs) -> Result<ExitCode, VerbError> {
    let RunArgs {
        configuration,
        state_dir,
        apply_config_now,
        cgroup_root,
        disks,
        socket,
        output,
        backends,
        bpf_debug_log,
    } = args;
    let pods_file = configuration.pods_file.clone();
    let memory_capacity = configuration.memory_bytes()?;
    let pid_capacity = configuration.pid_capacity;
    daemon::run(Options {
        configuration: configuration.files()?,
        state_dir,
        socket,
        apply_config_now,
        pods_file,
        cgroup_root,
        memory_capacity,
        pid_capacity,
        disks: disks.into(),
        json_lines: output == StreamFormat::Jsonl,
        choice: backends.into(),
        bpf_debug_log,
    })?;
    Ok(ExitCode::SUCCESS)
}
