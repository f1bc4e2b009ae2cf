//! Recorded nodes, unpacked into a temporary folder.

use std::path::{Path, PathBuf};

use eviction_node::cgroup::hierarchy::{Hierarchies, Host};
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::cgroup::sampler::Sampler;

/// A machine with cgroup version 1 and the cgroupfs driver, recorded from a real one.
pub(crate) const V1: &str = include_str!("../fixtures/node-v1.txt");

/// A machine with cgroup version 2, the systemd driver and the groups of several runtimes.
pub(crate) const V2: &str = include_str!("../fixtures/node-v2.txt");

/// A folder that looks like a machine.
pub(crate) struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    /// Unpacks a recording: each file is a line `==> path <==` and its text.
    pub(crate) fn unpack(recording: &str) -> Self {
        // Hundreds of small files: in memory where there is such a place.
        let memory = Path::new("/dev/shm");
        let folder =
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let mut path = PathBuf::new();
        let mut text = String::new();
        for line in recording.split_inclusive('\n').chain(["==> <==\n"]) {
            match line.strip_prefix("==> ").and_then(|line| line.strip_suffix("<==\n")) {
                Some(next) => {
                    if !path.as_os_str().is_empty() {
                        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                        std::fs::write(&path, &text).unwrap();
                    }
                    path = match next.trim_end() {
                        "" => PathBuf::new(),
                        next => folder.path().join(next),
                    };
                    text.clear();
                }
                None => text.push_str(line),
            }
        }
        Self { folder }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        std::fs::write(self.path(path), text).unwrap();
    }

    pub(crate) fn host(&self) -> Host {
        Host { proc: self.path("proc"), root: self.folder.path().to_owned() }
    }

    pub(crate) fn hierarchies(&self) -> Hierarchies {
        Hierarchies::discover(&self.host()).unwrap()
    }

    pub(crate) fn root(&self, cgroup_root: &str) -> NodeRoot {
        NodeRoot::resolve(&self.hierarchies(), Path::new(cgroup_root)).unwrap()
    }

    pub(crate) fn sampler(&self, cgroup_root: &str) -> Sampler {
        self.sampler_with(cgroup_root, 4096)
    }

    pub(crate) fn sampler_with(&self, cgroup_root: &str, max_descriptors: usize) -> Sampler {
        Sampler::new(self.root(cgroup_root), &self.path("proc"), max_descriptors, |_| false).unwrap()
    }
}
