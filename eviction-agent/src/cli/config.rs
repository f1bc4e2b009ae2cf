//! `config`: what would be decided by, and who says so.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::cluster::ClusterArgs;
use super::configuration::{CapacityArgs, ConfigurationArgs, ServiceArgs};
use super::output::Format;
use super::table::Table;
use crate::agent::{self, ActsBelow, Configured, Failure, NodeFacts};
use crate::config::Setting;

/// Print the configuration that `run` would use: every value, and where it comes from
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// Output format
    #[arg(short, long, help_heading = "Output", value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(flatten)]
    configuration: ConfigurationArgs,
    /// Pods come from this file and not from the API server, as with `run`; the file is not read
    #[arg(long, value_name = "FILE", conflicts_with = "node_name", help_heading = "Cluster")]
    pods_file: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    capacity: CapacityArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

pub(super) fn config(args: ConfigArgs) -> Result<ExitCode, Failure> {
    let ConfigArgs { output, configuration, pods_file, cluster, capacity, service } = args;
    let CapacityArgs { memory_capacity, pid_capacity } = capacity;
    let (options, caller) = (cluster.settings(), cluster.caller());
    let in_cluster = cluster.options(pods_file.is_some()).is_some();
    let node = NodeFacts::find(in_cluster, memory_capacity.as_deref(), pid_capacity)?;
    let mut configured = agent::configured(&configuration.files(service, node, caller)?)?;
    configured.settings.splice(0..0, options);
    output.print("the configuration", &configured, table)?;
    Ok(ExitCode::SUCCESS)
}

fn table(configured: &Configured) -> String {
    let Configured { profile: _, thresholds, settings, notes } = configured;
    let mut values = Table::new(["SETTING", "VALUE", "FROM"]);
    for Setting { path, value, origin } in settings {
        values.row([path, value, &origin.to_string()]);
    }
    let mut lines = Table::new(["SIGNAL", "ACTS BELOW", "AFTER", "MIN RECLAIM"]);
    for ActsBelow { signal, watched, below, grace_period, min_reclaim } in thresholds {
        let after = if *watched { grace_period.as_deref().unwrap_or("at once") } else { "not watched" };
        lines.row([signal, below, after, min_reclaim.as_deref().unwrap_or("none")]);
    }
    let notes: String = notes.iter().map(|note| format!("note: {note}\n")).collect();
    format!("{values}\n{lines}{notes}")
}
