//! `cleanup`: removes what the agent has written into Node objects.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::configuration::DryRunArg;
use super::output::{Ended, Out, complain};
use crate::daemon::{self, CleanOptions, DryRun};
use eviction_kube::Clean;

/// Remove the agent's conditions and taints from nodes on which it no longer runs; those of others stay.
/// Exit code 1 if anything is left on any of them
#[derive(Debug, Args)]
pub(super) struct CleanupArgs {
    /// Names of the nodes
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "NODE")]
    nodes: Vec<String>,
    /// All nodes of the cluster
    #[arg(long)]
    all: bool,
    /// Kubeconfig file for the API server [default in a pod: the pod's service account]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,
    /// Report what would be removed and remove nothing; --dry-run alone means client
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "client")]
    dry_run: Option<DryRunArg>,
}

pub(super) fn run(args: CleanupArgs, out: &mut Out) -> Result<ExitCode, Ended> {
    let CleanupArgs { nodes, all, kubeconfig, dry_run } = args;
    let nodes = (!all).then_some(nodes);
    let dry_run = dry_run.map_or(DryRun::None, Into::into);
    let mut code = ExitCode::SUCCESS;
    for (node, result) in daemon::clean_nodes(&CleanOptions { kubeconfig, nodes, dry_run })? {
        match result {
            Ok(clean) => write!(out, "{}", text(&node, &clean, dry_run))?,
            Err(failure) => {
                let (text, failed) = failure.report();
                complain(&text);
                code = failed;
            }
        }
    }
    Ok(code)
}

/// A line for each thing that was removed, as kubectl writes it.
fn text(name: &str, clean: &Clean, dry_run: DryRun) -> String {
    let Clean { taints, conditions } = clean;
    let dry = match dry_run {
        DryRun::None => "",
        DryRun::Client => " (dry run)",
        DryRun::Server => " (server dry run)",
    };
    let taints = taints.iter().map(|taint| ("taint", taint));
    let lines = taints.chain(conditions.iter().map(|kind| ("condition", kind)));
    let lines: String =
        lines.map(|(what, which)| format!("node/{name}: {what} {which} removed{dry}\n")).collect();
    if lines.is_empty() { format!("node/{name}: nothing to remove{dry}\n") } else { lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_removed_thing_has_a_line() {
        let clean = Clean { taints: vec!["k:NoSchedule".into()], conditions: vec!["C".into()] };
        assert_eq!(
            text("n1", &clean, DryRun::None),
            "node/n1: taint k:NoSchedule removed\nnode/n1: condition C removed\n"
        );
        let nothing = text("n1", &Clean::default(), DryRun::Server);
        assert_eq!(nothing, "node/n1: nothing to remove (server dry run)\n");
    }
}
