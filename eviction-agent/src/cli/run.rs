//! `run`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::cluster::ClusterArgs;
use super::configuration::{CapacityArgs, ConfigurationArgs, ServiceArgs};
use super::rungs::RungArgs;
use crate::agent::{self, Failure, NodeFacts, Options, Output};

/// Watch the node's pressure and evict pods by the kubelet's rules, or by better ones.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    configuration: ConfigurationArgs,
    /// Folder in which the configuration in force is remembered, so that with the enhanced profile one that
    /// was changed before a start is held against the present as after SIGHUP; without it the configuration
    /// of the start is in force at once.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// File of what outlives the agent within a boot: since when thresholds are met, conditions,
    /// evictions under way, counts; default in a pod that acts:
    /// /run/eviction-agent/state.json. Each agent has one of its own.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Let changes of the configuration take effect at once, whomever they evict.
    #[arg(long)]
    accept: bool,
    /// The node's pods: a v1 PodList, JSON or YAML; read again when it changes.
    #[arg(long, value_name = "FILE", conflicts_with = "node_name")]
    pods: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The group that stands for the node, relative to the mount of each cgroup hierarchy.
    #[arg(long, value_name = "PATH", default_value = "/")]
    cgroup_root: PathBuf,
    #[command(flatten)]
    capacity: CapacityArgs,
    #[command(flatten)]
    service: ServiceArgs,
    /// File to which each decision is added by which a pod goes, as a scenario that `replay` runs again;
    /// beyond 64 MiB the next one begins, and FILE.1 is the one before.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// How events are written on standard output.
    #[arg(long, value_enum, default_value_t = OutputArg::Text)]
    output: OutputArg,
    #[command(flatten)]
    rungs: RungArgs,
    /// Let the BPF programs log their own diagnostics.
    #[arg(long)]
    bpf_log: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OutputArg {
    Text,
    Json,
}

pub(super) fn run(args: RunArgs) -> Result<ExitCode, Failure> {
    let RunArgs {
        configuration,
        state_dir,
        state,
        accept,
        pods,
        cluster,
        cgroup_root,
        capacity,
        service,
        record,
        output,
        rungs,
        bpf_log,
    } = args;
    let kubeconfig = cluster.kubeconfig();
    let caller = cluster.caller();
    let cluster = cluster.options(pods.is_some());
    let CapacityArgs { memory_capacity, pid_capacity } = capacity;
    let node = NodeFacts::find(cluster.is_some(), memory_capacity.as_deref(), pid_capacity)?;
    agent::run(Options {
        configuration: configuration.files(service, node, caller),
        state_dir,
        state,
        accept,
        pods,
        cluster,
        cgroup_root,
        memory_capacity,
        pid_capacity,
        kubeconfig,
        record,
        output: match output {
            OutputArg::Text => Output::Text,
            OutputArg::Json => Output::Json,
        },
        rungs: rungs.into(),
        bpf_log,
    })?;
    Ok(ExitCode::SUCCESS)
}
