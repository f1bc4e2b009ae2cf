//! `node`: what the agent has written into nodes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::agent::{self, Clean, CleanOptions, Cleaned, Failure};

/// What the agent has written into the objects of nodes.
#[derive(Debug, Args)]
pub(super) struct NodeArgs {
    #[command(subcommand)]
    verb: NodeVerb,
}

#[derive(Debug, Subcommand)]
enum NodeVerb {
    Clean(CleanArgs),
}

/// Take the agent's conditions and taints away, once it runs on these nodes no more; those of others
/// stay as they are. Exit code 1 if anything is left on any of them.
#[derive(Debug, Args)]
struct CleanArgs {
    /// The names of the nodes.
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// How to reach the API server, and as whom; default in a pod: the pod's own service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Let the server check everything, and do nothing of it.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: NodeArgs) -> Result<ExitCode, Failure> {
    let NodeArgs { verb: NodeVerb::Clean(args) } = args;
    let CleanArgs { nodes, kubeconfig, dry_run } = args;
    let mut code = ExitCode::SUCCESS;
    for Cleaned { node, result } in agent::clean_nodes(&CleanOptions { kubeconfig, nodes, dry_run })? {
        match result {
            Ok(clean) => print!("{}", text(&node, &clean, dry_run)),
            Err(failure) => {
                let (text, failed) = failure.report();
                eprint!("{text}");
                code = failed;
            }
        }
    }
    Ok(code)
}

/// A line for each thing that was there, in the manner of kubectl.
fn text(name: &str, clean: &Clean, dry_run: bool) -> String {
    let Clean { taints, conditions } = clean;
    let dry = if dry_run { " (server dry run)" } else { "" };
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
    fn each_thing_that_was_there_has_a_line() {
        let clean = Clean { taints: vec!["k:NoSchedule".into()], conditions: vec!["C".into()] };
        assert_eq!(
            text("n1", &clean, false),
            "node/n1: taint k:NoSchedule removed\nnode/n1: condition C removed\n"
        );
        assert_eq!(text("n1", &Clean::default(), true), "node/n1: nothing to remove (server dry run)\n");
    }
}
