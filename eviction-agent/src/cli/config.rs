//! `config`: the configuration in force, with the origin of each value.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use eviction_config::Setting;

use super::configuration::{CapacityArgs, ConfigurationArgs, ServiceArgs};
use super::output::{Format, Out, VerbError, columns, table, wrap};
use crate::cli::configuration::ClusterArgs;
use crate::daemon::{self, EffectiveConfig, EffectiveThreshold, NodeFacts};

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

pub(super) fn config(args: ConfigArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let ConfigArgs { output, configuration, pods_file, cluster, capacity, service } = args;
    let CapacityArgs { memory_capacity, pid_capacity } = capacity;
    let (options, caller) = (cluster.settings(), cluster.caller());
    let in_cluster = cluster.has_pods(pods_file.as_deref());
    let node = NodeFacts::find(in_cluster, memory_capacity.as_deref(), pid_capacity)?;
    let mut configured = daemon::configured(&configuration.files(service, node, caller)?)?;
    configured.settings.splice(0..0, options);
    output.write(out, "the configuration", &configured, report)?;
    Ok(ExitCode::SUCCESS)
}

/// The minimum number of columns for a table. Narrower terminals get a list.
const NARROW: u16 = 80;

fn report(configured: &EffectiveConfig, _is_wide: bool) -> String {
    let EffectiveConfig { profile: _, thresholds, settings, notes } = configured;
    let columns = columns();
    let values = settings
        .iter()
        .map(|Setting { path, value, origin }| [path.clone(), value.clone(), origin.to_string()]);
    let mut text = match columns.filter(|columns| *columns < NARROW) {
        // Columns of a few letters are not readable.
        Some(_) => {
            values.map(|[path, value, from]| wrap(&format!("{path}: {value} ({from})"), columns)).collect()
        }
        None => table(["SETTING", "VALUE", "FROM"], values, columns),
    };
    let thresholds = thresholds.iter().map(|threshold| {
        let EffectiveThreshold { signal, watched, below, grace_period, min_reclaim } = threshold;
        let grace_period = match (watched, grace_period) {
            (false, _) => "not watched",
            (true, None) => "none",
            (true, Some(grace_period)) => grace_period,
        };
        let min_reclaim = min_reclaim.as_deref().unwrap_or("none");
        [(*signal).to_owned(), below.clone(), grace_period.to_owned(), min_reclaim.to_owned()]
    });
    let heading = ["SIGNAL", "THRESHOLD", "GRACE PERIOD", "MIN RECLAIM"];
    text.push_str(&format!("\n{}", table(heading, thresholds, columns)));
    for note in notes {
        text.push_str(&wrap(&format!("note: {note}"), columns));
    }
    text
}
