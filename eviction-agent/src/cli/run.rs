//! `run`: the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::cluster::ClusterArgs;
use super::configuration::ConfigurationArgs;
use super::rungs::RungArgs;
use crate::agent::{self, Act, Failure, Options, Output};

/// Watch the node's pressure and evict pods by the kubelet's rules, or by better ones.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    configuration: ConfigurationArgs,
    /// Folder in which the configuration in force is remembered, so that one that was changed
    /// before a start is held against the present as after SIGHUP; without it the configuration of
    /// the start is in force at once.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
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
    /// Memory that the node has, a quantity; default: MemTotal.
    #[arg(long, value_name = "QUANTITY")]
    memory_capacity: Option<String>,
    /// Process ids that the node has; default: what the kernel allows.
    #[arg(long, value_name = "N")]
    pid_capacity: Option<u64>,
    /// What is done to victims.
    #[arg(long, value_enum, default_value_t = ActArg::DryRun)]
    act: ActArg,
    /// How events are written on standard output.
    #[arg(long, value_enum, default_value_t = OutputArg::Text)]
    output: OutputArg,
    /// Address of /metrics, /healthz and /readyz; port 0 lets the system choose.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9095")]
    listen: SocketAddr,
    #[command(flatten)]
    rungs: RungArgs,
    /// Let the BPF programs log their own diagnostics.
    #[arg(long)]
    bpf_log: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ActArg {
    /// Say what would be done.
    DryRun,
    /// End the processes of the victim's cgroup.
    Kill,
    /// Ask the API server to evict the victim.
    Evict,
    /// Ask the API server whether it would, with everything checked and nothing done.
    EvictDryRun,
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
        accept,
        pods,
        cluster,
        cgroup_root,
        memory_capacity,
        pid_capacity,
        act,
        output,
        listen,
        rungs,
        bpf_log,
    } = args;
    let kubeconfig = cluster.kubeconfig();
    let cluster = cluster.options(pods.is_some());
    agent::run(Options {
        configuration: configuration.into(),
        state_dir,
        accept,
        pods,
        cluster,
        cgroup_root,
        memory_capacity,
        pid_capacity,
        kubeconfig,
        act: match act {
            ActArg::DryRun => Act::DryRun,
            ActArg::Kill => Act::Kill,
            ActArg::Evict => Act::Evict,
            ActArg::EvictDryRun => Act::EvictDryRun,
        },
        output: match output {
            OutputArg::Text => Output::Text,
            OutputArg::Json => Output::Json,
        },
        listen,
        rungs: rungs.into(),
        bpf_log,
    })?;
    Ok(ExitCode::SUCCESS)
}
