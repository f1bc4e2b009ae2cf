//! `cleanup`: removes the agent's conditions and taints from Node objects, and its files on a node.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::configuration::dry_run_parser;
use super::output::{Out, VerbError, report_failure};
use crate::daemon::{self, CleanedDir, DryRun};
use eviction_kube::{DaemonSetName, Leftovers};

/// The timeout of the wait for the DaemonSet. Helm gives a hook 5 minutes.
const READY_TIMEOUT: Duration = Duration::from_secs(180);

/// Remove the agent's conditions and taints from nodes on which it no longer runs, or its files from this machine;
/// those of others stay. Exit code 1 if anything is left
#[derive(Debug, Args)]
pub(super) struct CleanupArgs {
    /// Names of the nodes
    #[arg(required_unless_present_any = ["all", "state_dir"], conflicts_with = "all", value_name = "NODE")]
    nodes: Vec<String>,
    /// All nodes of the cluster
    #[arg(long)]
    all: bool,
    /// Remove the agent's files from this state directory, and the directory if it is empty then; whatever a killed
    /// agent has left stopped goes on. Refused while an agent runs here
    #[arg(long, value_name = "DIR", conflicts_with_all = ["nodes", "all", "after", "kubeconfig", "dry_run"])]
    state_dir: Option<PathBuf>,
    /// Wait until the pods of this DaemonSet are ready, for 3 minutes at most; then clean in any case
    #[arg(long, value_name = "NAMESPACE/NAME", help_heading = "Cluster")]
    after: Option<DaemonSetName>,
    /// Kubeconfig file for the API server [default in a pod: the pod's service account]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,
    /// Report what would be removed and remove nothing; --dry-run alone means client
    #[arg(
        long,
        value_parser = dry_run_parser(),
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "client"
    )]
    dry_run: Option<DryRun>,
}

pub(super) fn run(args: CleanupArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let CleanupArgs { nodes, all, state_dir, after, kubeconfig, dry_run } = args;
    if let Some(dir) = state_dir {
        out.write_all(dir_text(&dir, &daemon::clean_state_dir(&dir)?).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let nodes = (!all).then_some(nodes);
    let dry_run = dry_run.unwrap_or_default();
    let mut code = ExitCode::SUCCESS;
    let kubeconfig = kubeconfig.as_deref();
    if let Some(set) = after
        && let Err(failure) = daemon::await_daemon_set(kubeconfig, &set, READY_TIMEOUT)
    {
        code = report_failure(&failure);
    }
    for (node, result) in daemon::clean_nodes(kubeconfig, nodes, dry_run)? {
        match result {
            Ok(removed) => write!(out, "{}", text(&node, &removed, dry_run))?,
            Err(failure) => code = report_failure(&failure),
        }
    }
    Ok(code)
}

/// Returns a line for each file of a state directory.
fn dir_text(dir: &Path, cleaned: &CleanedDir) -> String {
    let CleanedDir { undone, removed, foreign } = cleaned;
    let undone = (*undone > 0).then(|| format!("control files of pods written back: {undone}\n"));
    let removed = removed.iter().map(|path| format!("{} removed\n", path.display()));
    let foreign = foreign.iter().map(|path| format!("{} is not the agent's: stays\n", path.display()));
    let lines: String = undone.into_iter().chain(removed).chain(foreign).collect();
    if lines.is_empty() { format!("{}: nothing to remove\n", dir.display()) } else { lines }
}

/// Returns a line for each removed condition and taint, in the format of kubectl.
fn text(name: &str, removed: &Leftovers, dry_run: DryRun) -> String {
    let Leftovers { taints, conditions } = removed;
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
    fn each_removed_object_has_a_line() {
        let removed = Leftovers { taints: vec!["k:NoSchedule".into()], conditions: vec!["C".into()] };
        assert_eq!(
            text("n1", &removed, DryRun::None),
            "node/n1: taint k:NoSchedule removed\nnode/n1: condition C removed\n"
        );
        let nothing = text("n1", &Leftovers::default(), DryRun::Server);
        assert_eq!(nothing, "node/n1: nothing to remove (server dry run)\n");
        let cleaned = CleanedDir { undone: 2, removed: vec!["/r/a".into()], foreign: vec!["/r/b".into()] };
        let lines = "control files of pods written back: 2\n/r/a removed\n/r/b is not the agent's: stays\n";
        assert_eq!(dir_text(Path::new("/r"), &cleaned), lines);
        assert_eq!(dir_text(Path::new("/r"), &CleanedDir::default()), "/r: nothing to remove\n");
    }
}
