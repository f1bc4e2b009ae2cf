//! `check`: what this machine offers, what would be used, what is missing.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::backends::BackendArgs;
use super::cluster::ClusterArgs;
use super::configuration::{CapacityArgs, ConfigurationArgs, ServiceArgs};
use super::output::Format;
use super::table::Table;
use crate::agent::{self, Configured, Failure, Findings, NodeFacts};
use crate::config::Setting;

/// Check what this node supports, and what is missing. Exit code 1 if `run` with the same options would not
/// start
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Output format
    #[arg(short, long, help_heading = "Output", value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(flatten)]
    configuration: ConfigurationArgs,
    /// File with the node's pods (a v1 PodList, JSON or YAML); it is checked too
    #[arg(long, value_name = "FILE", conflicts_with = "node_name", help_heading = "Cluster")]
    pods_file: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Cgroup that stands for the node, relative to the mount point of each cgroup hierarchy
    #[arg(long, value_name = "PATH", default_value = "/", help_heading = "Testing")]
    cgroup_root: PathBuf,
    #[command(flatten)]
    capacity: CapacityArgs,
    #[command(flatten)]
    service: ServiceArgs,
    #[command(flatten)]
    backends: BackendArgs,
}

pub(super) fn check(args: CheckArgs) -> Result<ExitCode, Failure> {
    let CheckArgs { output, configuration, pods_file, cluster, cgroup_root, capacity, service, backends } =
        args;
    let caller = cluster.caller();
    let cluster = cluster.options(pods_file.is_some());
    let CapacityArgs { memory_capacity, pid_capacity } = capacity;
    let node = NodeFacts::find(cluster.is_some(), memory_capacity.as_deref(), pid_capacity)?;
    let files = configuration.files(service, node, caller)?;
    let findings =
        agent::check(&files, pods_file.as_deref(), cluster.as_ref(), &cgroup_root, &backends.into())?;
    output.print("findings", &findings, table)?;
    Ok(if findings.would_start { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(findings: &Findings) -> String {
    let Findings { configuration, would_start, sources, facts, problems } = findings;
    let mut rungs = Table::new(["SOURCE", "RUNG", "REASON"]);
    for source in sources {
        rungs.row([&source.source, &source.backend, &source.reason]);
    }
    let mut offers = Table::new(["MACHINE", "USABLE", "FOUND"]);
    for fact in facts {
        let usable = match (fact.usable, fact.required) {
            (true, _) => "yes",
            (false, true) => "no, required",
            (false, false) => "no",
        };
        offers.row([fact.subject.name(), usable, &fact.found]);
    }
    let mut text = format!("{rungs}\n{offers}");
    if let Some(configured) = configuration {
        text.push_str(&format!("\n{}", settings(configured)));
    }
    let helps =
        facts.iter().filter(|fact| !fact.usable).filter_map(|fact| Some((fact.subject.name(), fact.help?)));
    for (subject, help) in helps {
        text.push_str(&format!("\nhelp: {subject}: {help}"));
    }
    for problem in problems {
        text.push_str(&format!("\nerror: {problem}"));
    }
    let verdict = if *would_start { "run would start" } else { "run would not start" };
    format!("{text}\n\n{verdict}\n")
}

/// Whose decisions, and what does not have its default.
fn settings(configured: &Configured) -> String {
    let Configured { profile, thresholds: _, settings, notes } = configured;
    let mut table = Table::new(["SETTING", "FROM", "VALUE"]);
    let chosen = settings.iter().filter(|setting| !setting.origin.is_default());
    for Setting { path, value, origin } in chosen {
        table.row([path, &origin.to_string(), value]);
    }
    let notes: String = notes.iter().map(|note| format!("note: {note}\n")).collect();
    let profile = profile.name();
    format!("profile {profile}; what is not listed here has its default\n{table}{notes}")
}
