//! The kernel files of signals, for the error message of a signal that cannot be read.

use std::path::{Path, PathBuf};

use eviction_core::reading::UnknownReason;
use eviction_core::signal::Signal;
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::file::{ReasonText, read_once};

/// Files of a cgroup from which memory signals are read, of cgroup v1 and v2.
const MEMORY: [&str; 6] = [
    "memory.usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.current",
    "memory.max",
    "memory.stat",
    "cgroup.procs",
];

/// The maximum size in bytes that is read of a file. None of these files is larger.
const LIMIT: usize = 4 << 20;

/// The files of each signal. Files that did not exist at the start are left out.
#[derive(Debug, Default)]
pub(crate) struct SignalFiles {
    memory: Vec<PathBuf>,
    pids: Vec<PathBuf>,
    pods: Vec<PathBuf>,
}

impl SignalFiles {
    /// Returns the files of the node.
    pub(crate) fn of(root: &NodeRoot, proc: &Path) -> Self {
        let memory = memory_files(&root.memory).chain([proc.join("meminfo")]);
        let pids = root.pids.iter().map(|folder| folder.join("pids.current"));
        Self { memory: existing(memory), pids: existing(pids), pods: Vec::new() }
    }

    /// Sets the folder of the cgroup of all pods. Without a folder the previous files stay, because errors
    /// are about those.
    pub(super) fn set_pods_folder(&mut self, folder: Option<&Path>) {
        if let Some(folder) = folder {
            self.pods = existing(memory_files(folder));
        }
    }

    /// Returns the reason why a signal cannot be read: the operation, the file and the error.
    pub(super) fn error(&self, signal: Signal, why: UnknownReason) -> String {
        let files = match signal {
            Signal::PidAvailable => &*self.pids,
            Signal::AllocatableMemoryAvailable => &*self.pods,
            Signal::MemoryAvailable => &*self.memory,
            // Signals of disks are not read from files.
            _ => &[],
        };
        if !matches!(why, UnknownReason::Unreadable(_) | UnknownReason::Failed) {
            return error_text(why);
        }
        let failing = files.iter().find_map(|file| Some((file, read_once(file, LIMIT).err()?)));
        match failing.or_else(|| Some((files.first()?, why))) {
            Some((file, why)) => format!("read {}: {}", file.display(), error_text(why)),
            None => error_text(why),
        }
    }
}

fn memory_files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    MEMORY.iter().map(|name| folder.join(name))
}

fn existing(files: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    files.filter(|file| file.exists()).collect()
}

/// Returns the reason as text, without the number that the standard library appends to an OS error.
fn error_text(why: UnknownReason) -> String {
    let text = ReasonText(why).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_file_and_the_cause() {
        let folder = tempfile::tempdir().unwrap();
        let pods = folder.path().join("kubepods");
        std::fs::create_dir(&pods).unwrap();
        for name in ["memory.usage_in_bytes", "memory.limit_in_bytes"] {
            std::fs::write(pods.join(name), "1\n").unwrap();
        }
        let mut files = SignalFiles::default();
        files.set_pods_folder(Some(&pods));
        std::fs::remove_file(pods.join("memory.limit_in_bytes")).unwrap();
        files.set_pods_folder(None);
        let error = files.error(Signal::AllocatableMemoryAvailable, UnknownReason::Failed);
        let file = pods.join("memory.limit_in_bytes");
        assert_eq!(error, format!("read {}: No such file or directory", file.display()));
        assert_eq!(files.error(Signal::PidAvailable, UnknownReason::Unreadable(13)), "Permission denied");
        assert_eq!(files.error(Signal::AllocatableMemoryAvailable, UnknownReason::Stale), "too old");
        files.memory = vec![pods.join("memory.usage_in_bytes")];
        let error = files.error(Signal::NodeFsAvailable, UnknownReason::Unreadable(5));
        assert_eq!(error, "Input/output error", "no file of memory is named for a disk");
    }
}
