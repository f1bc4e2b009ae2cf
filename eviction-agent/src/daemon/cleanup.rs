//! The command `cleanup`: removes what agents that do not run any more have left, from the objects of nodes and from the
//! state directory of this node.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use eviction_config::DryRun;
use eviction_kill::{NodeLock, UNDO_LOG, undo};
use eviction_kube::{Leftovers, NodeName, Observer, clean_node, find_leftovers, list_nodes};
use eviction_node::cgroup::hierarchy::Host;

use super::cluster::connect;
use super::reclaim::IMAGES_FILE;
use super::run_once;
use super::saved_config::CONFIG_FILE;
use super::startup::resolve_root;
use super::state::{STATE_FILE, SUFFIXES};
use super::supervise::SOCKET;
use crate::error::{Failure, chain};

/// A node, and what was removed from it, or why that failed.
type Cleaned = (String, Result<Leftovers, Failure>);

/// Removes the agent's conditions and taints from these nodes, else from all nodes of the cluster, one after
/// the other. Without a kubeconfig, uses the service account of the pod that this runs in.
///
/// # Errors
/// If the API server cannot be reached, its nodes cannot be listed, or a name is not a valid node name.
pub fn clean_nodes(
    kubeconfig: Option<&Path>,
    nodes: Option<Vec<String>>,
    dry_run: DryRun,
) -> Result<Vec<Cleaned>, Failure> {
    for name in nodes.iter().flatten() {
        NodeName::parse(Some(name))?;
    }
    let client = connect(kubeconfig, Observer::default())?;
    run_once(async {
        let names = match nodes {
            Some(names) => names,
            None => list_nodes(&client).await?,
        };
        let mut cleaned = Vec::new();
        for name in names {
            let result = match dry_run {
                DryRun::Client => find_leftovers(&client, &name).await,
                DryRun::None | DryRun::Server => clean_node(&client, &name, dry_run == DryRun::Server).await,
            };
            cleaned.push((name, result.map_err(Failure::from)));
        }
        Ok(cleaned)
    })?
}

/// The result of cleaning a state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanedDir {
    /// The number of pods' control files that were restored to their values from before an agent was killed.
    pub undone: u32,
    /// The removed files, and the directory if it was empty then.
    pub removed: Vec<PathBuf>,
    /// Files that are not the agent's, and stay.
    pub foreign: Vec<PathBuf>,
}

/// Undoes temporary writes of a killed agent, such as a freeze, and removes the agent's files, and the
/// directory if it is empty then.
///
/// # Errors
/// If an agent runs on this node, or anything cannot be undone or removed.
pub fn clean_state_dir(dir: &Path) -> Result<CleanedDir, Failure> {
    clean(dir, &resolve_root(&Host::default(), Path::new("/"))?.memory)
}

/// Cleans a directory. `root` is the directory of the node's root cgroup, which agents lock.
fn clean(dir: &Path, root: &Path) -> Result<CleanedDir, Failure> {
    let failed = |operation: &str, path: &Path, error| {
        Failure::because(format!("{operation} {}", path.display()), &error)
    };
    let mut cleaned = CleanedDir::default();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(cleaned),
        entries => entries.map_err(|error| failed("read", dir, error))?,
    };
    let help = "remove its DaemonSet or stop its service first";
    let _lock = NodeLock::acquire(root)
        .map_err(|error| Failure::failed(format!("clean {}: {}", dir.display(), chain(&error))).help(help))?;
    // An agent in a dry run takes no lock.
    if UnixStream::connect(dir.join(SOCKET)).is_ok() {
        let what = format!("clean {}: an agent runs: it answers at {SOCKET}", dir.display());
        return Err(Failure::failed(what).help(help));
    }
    for entry in entries {
        let entry = entry.map_err(|error| failed("read", dir, error))?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) || !is_own(&name) {
            cleaned.foreign.push(path);
            continue;
        }
        if name.starts_with(UNDO_LOG) {
            cleaned.undone += undo(&path).map_err(|error| failed("undo what is in", &path, error))?;
        }
        fs::remove_file(&path).map_err(|error| failed("remove", &path, error))?;
        cleaned.removed.push(path);
    }
    cleaned.removed.sort();
    cleaned.foreign.sort();
    if cleaned.foreign.is_empty() {
        fs::remove_dir(dir).map_err(|error| failed("remove", dir, error))?;
        cleaned.removed.push(dir.to_owned());
    }
    Ok(cleaned)
}

/// Returns whether the agent creates files with this name.
fn is_own(name: &str) -> bool {
    // While the socket is created its file has the extension `new` instead of its own.
    let new = Path::new(SOCKET).with_extension("new");
    let is_log = name.strip_prefix(UNDO_LOG).is_some_and(|id| id.parse::<u64>().is_ok());
    let is_state = [STATE_FILE, CONFIG_FILE, IMAGES_FILE].into_iter().any(|file| {
        name.strip_prefix(file).is_some_and(|suffix| suffix.is_empty() || SUFFIXES.contains(&suffix))
    });
    is_log || is_state || name == SOCKET || Path::new(name) == new
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a state directory, a cgroup with a value of an agent that was killed, and a directory that
    /// represents the node's root cgroup.
    fn killed_agent_dir() -> (tempfile::TempDir, PathBuf, PathBuf) {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().unwrap();
        let [dir, root] = ["run", "root"].map(|name| folder.path().join(name));
        let group = root.join("pod1");
        fs::create_dir(&dir).unwrap();
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("pids.max"), "0").unwrap();
        let id = fs::metadata(&group).unwrap().ino();
        let line = format!("+\t{id}\t0\t7\t{}\n", group.join("pids.max").display());
        fs::write(dir.join("holds-1"), line).unwrap();
        for name in ["state.json", "state.json.set-aside", "config.json", "images.json.new", "agent.new"] {
            fs::write(dir.join(name), "x").unwrap();
        }
        // A socket whose process has ended.
        drop(std::os::unix::net::UnixListener::bind(dir.join("agent.sock")).unwrap());
        (folder, dir, root)
    }

    #[test]
    fn clean_undoes_writes_and_removes_all_files() {
        let (_folder, dir, root) = killed_agent_dir();
        let cleaned = clean(&dir, &root).unwrap();
        assert_eq!((cleaned.undone, cleaned.foreign), (1, vec![]));
        assert_eq!((cleaned.removed.len(), cleaned.removed.last()), (8, Some(&dir)));
        assert_eq!(fs::read_to_string(root.join("pod1/pids.max")).unwrap(), "7");
        assert!(!dir.exists());
        assert_eq!(clean(&dir, &root).unwrap(), CleanedDir::default(), "a second time there is nothing");
    }

    #[test]
    fn clean_keeps_and_lists_foreign_files() {
        let (_folder, dir, root) = killed_agent_dir();
        let foreign = ["config.json.bak", "holds-x", "recordings"].map(|name| dir.join(name));
        fs::create_dir(&foreign[2]).unwrap();
        foreign[..2].iter().for_each(|path| fs::write(path, "x").unwrap());
        let cleaned = clean(&dir, &root).unwrap();
        assert_eq!((cleaned.removed.len(), &cleaned.foreign[..]), (7, &foreign[..]));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
    }

    #[test]
    fn clean_is_refused_while_an_agent_runs() {
        let (_folder, dir, root) = killed_agent_dir();
        let lock = NodeLock::acquire(&root).unwrap();
        let (text, _) = clean(&dir, &root).unwrap_err().report();
        assert!(text.contains("another agent has it") && text.contains("help: "), "{text}");
        drop(lock);
        fs::remove_file(dir.join("agent.sock")).unwrap();
        let listening = std::os::unix::net::UnixListener::bind(dir.join("agent.sock")).unwrap();
        let (text, _) = clean(&dir, &root).unwrap_err().report();
        assert!(text.contains("an agent runs: it answers at agent.sock"), "{text}");
        drop(listening);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 7);
        clean(&dir, &root).unwrap();
    }

    #[test]
    fn an_undo_log_that_cannot_be_undone_is_kept() {
        let (_folder, dir, root) = killed_agent_dir();
        // Nothing can be written to a directory.
        fs::remove_file(root.join("pod1/pids.max")).unwrap();
        fs::create_dir(root.join("pod1/pids.max")).unwrap();
        let (text, _) = clean(&dir, &root).unwrap_err().report();
        assert!(text.contains("holds-1: not every change in it can be undone"), "{text}");
        assert!(fs::metadata(dir.join("holds-1")).unwrap().len() > 0);
    }
}
