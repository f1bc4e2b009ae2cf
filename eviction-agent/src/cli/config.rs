//! `config`: the configuration in force, with the origin of each value.

use std::process::ExitCode;

use clap::Args;
use eviction_config::Setting;

use super::configuration::ConfigurationArgs;
use super::output::{Out, OutputFormat, VerbError, columns, table, wrap};
use crate::daemon::{EffectiveConfig, EffectiveThreshold};

/// Print the configuration that `run` would use: every value, and where it comes from
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// Output format
    #[arg(short, long, help_heading = "Output", value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    #[command(flatten)]
    configuration: ConfigurationArgs,
}

pub(super) fn config(args: ConfigArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let ConfigArgs { output, configuration } = args;
    let cluster_settings = configuration.cluster_settings();
    let mut configured = EffectiveConfig::of(configuration.files()?.load()?);
    configured.settings.splice(0..0, cluster_settings);
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
        let EffectiveThreshold { signal, watched: _, below, grace_period, min_reclaim } = threshold;
        let [grace_period, min_reclaim] =
            [grace_period, min_reclaim].map(|it| it.as_deref().unwrap_or("none").to_owned());
        [(*signal).to_owned(), below.clone(), grace_period, min_reclaim]
    });
    let heading = ["SIGNAL", "THRESHOLD", "GRACE PERIOD", "MIN RECLAIM"];
    text.push_str(&format!("\n{}", table(heading, thresholds, columns)));
    for note in notes {
        text.push_str(&wrap(&format!("note: {note}"), columns));
    }
    text
}
