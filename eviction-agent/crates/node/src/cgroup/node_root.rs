//! The root of the node: its cgroup in each hierarchy.
#![forbid(unsafe_code)]

use std::path::{Component, Path, PathBuf};

use thiserror::Error;

use super::files::Version;
use super::hierarchy::{Hierarchies, Hierarchy};
use super::pods::Pods;
use crate::file::read_once;

/// The folders of the node's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRoot {
    /// Its folder in the hierarchy of the memory controller.
    pub memory: PathBuf,
    /// The version of that hierarchy.
    pub version: Version,
    /// Its folder in the hierarchy of the pids controller.
    pub pids: Option<PathBuf>,
    /// Its folder in the hierarchy of the freezer, or in the unified one.
    pub freezer: Option<PathBuf>,
    /// Its folder in the unified hierarchy.
    pub unified: Option<PathBuf>,
    /// Whether this is the root of the hierarchy, and the node the whole machine.
    pub whole_machine: bool,
    /// Whether the mount shows a part of the hierarchy only.
    pub partial: bool,
}

/// Why there is no root of the node.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum RootError {
    /// No hierarchy has a memory controller.
    #[error("no memory controller is mounted")]
    NoMemoryController,
    /// The path leads out of the hierarchy.
    #[error("cgroup root {} must not contain `..`", .0.display())]
    Outside(PathBuf),
    /// The cgroup does not exist.
    #[error("cgroup root {} does not exist: no control group {}", root.display(), path.display())]
    Absent {
        /// The root as it was given.
        root: PathBuf,
        /// The folder that does not exist.
        path: PathBuf,
    },
    /// The kernel does not sum up usages: memory of a pod's containers is not counted for the pod (v1 before
    /// 5.11, with memory.use_hierarchy at its default).
    #[error("{} is not hierarchical: memory.use_hierarchy is 0", path.display())]
    Flat {
        /// The cgroup.
        path: PathBuf,
    },
    /// The mount shows a part of the hierarchy in which there are no pods.
    #[error("{} hides the tree: a private cgroup namespace shows only a part of it, without any pods", mount.display())]
    HidesTheTree {
        /// The mount point.
        mount: PathBuf,
    },
}

impl RootError {
    /// Returns what the user can do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::NoMemoryController => {
                "boot without cgroup_disable=memory (on some systems with cgroup_enable=memory), and mount the cgroup hierarchies"
            }
            Self::Outside(_) => {
                "give the path of the group below the mount of each hierarchy, for instance /kubepods"
            }
            Self::Absent { .. } => {
                "give a path relative to the mount of the hierarchy, as in /proc/PID/cgroup; `/` is the whole machine"
            }
            Self::Flat { .. } => {
                "write 1 to memory.use_hierarchy of the root group before any group is made, as systemd does"
            }
            Self::HidesTheTree { .. } => {
                "mount the host's /sys/fs/cgroup into the container (hostPath), or run the agent in the host's cgroup namespace"
            }
        }
    }
}

impl NodeRoot {
    /// Returns the cgroup `cgroup_root`, a path from the mount of each hierarchy (`--cgroup-root`); `/` is the
    /// whole machine.
    pub fn resolve(hierarchies: &Hierarchies, cgroup_root: &Path) -> Result<Self, RootError> {
        let memory = hierarchies.memory.as_ref().ok_or(RootError::NoMemoryController)?;
        let mut relative = PathBuf::new();
        for component in cgroup_root.components() {
            match component {
                Component::Normal(name) => relative.push(name),
                Component::ParentDir => return Err(RootError::Outside(cgroup_root.to_owned())),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        let top = relative.as_os_str().is_empty();
        let folder = |hierarchy: &Hierarchy| match top {
            true => hierarchy.mount_point.clone(),
            false => hierarchy.mount_point.join(&relative),
        };
        let existing =
            |hierarchy: &Option<Hierarchy>| hierarchy.as_ref().map(folder).filter(|path| is_group(path));
        let path = folder(memory);
        if !is_group(&path) {
            return Err(RootError::Absent { root: cgroup_root.to_owned(), path });
        }
        if memory.version == Version::V1 && is_flat(&path) {
            return Err(RootError::Flat { path });
        }
        Ok(Self {
            memory: path,
            version: memory.version,
            pids: existing(&hierarchies.pids),
            freezer: existing(&hierarchies.freezer),
            unified: existing(&hierarchies.unified),
            whole_machine: top,
            partial: top && !memory.whole,
        })
    }

    /// Checks that the pods of this node are visible: a private cgroup namespace hides them, unless the kubelet
    /// runs in the same one.
    pub fn require_visible(&self, pods: &Pods) -> Result<(), RootError> {
        if self.partial && pods.pods_root.is_none() && pods.pods.is_empty() {
            return Err(RootError::HidesTheTree { mount: self.memory.clone() });
        }
        Ok(())
    }
}

/// Returns the folder of the cgroup at `relative`, a path from the node's root, in the hierarchy in which the root
/// has the folder `root`; `None` if it does not exist there.
pub fn find_group(root: Option<&PathBuf>, relative: &Path) -> Option<PathBuf> {
    root.map(|root| root.join(relative)).filter(|path| is_group(path))
}

fn is_group(path: &Path) -> bool {
    path.join("cgroup.procs").exists()
}

/// Returns whether the kernel counts each cgroup alone (`mem_cgroup_hierarchy_read` in mm/memcontrol.c). From
/// 5.11 on the file always contains 1.
fn is_flat(path: &Path) -> bool {
    read_once(&path.join("memory.use_hierarchy"), 32).is_ok_and(|text| text == b"0\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_without_hierarchical_accounting_is_refused() {
        let mount = tempfile::tempdir().unwrap();
        std::fs::write(mount.path().join("cgroup.procs"), "").unwrap();
        let hierarchies = |version| Hierarchies {
            memory: Some(Hierarchy {
                mount_point: mount.path().to_owned(),
                version,
                whole: true,
                read_only: false,
                controllers: Vec::new(),
            }),
            ..Hierarchies::default()
        };
        let resolve = |version| NodeRoot::resolve(&hierarchies(version), Path::new("/"));
        assert!(resolve(Version::V1).is_ok());
        std::fs::write(mount.path().join("memory.use_hierarchy"), "1\n").unwrap();
        assert!(resolve(Version::V1).is_ok());
        std::fs::write(mount.path().join("memory.use_hierarchy"), "0\n").unwrap();
        let error = resolve(Version::V1).unwrap_err();
        assert!(error.to_string().contains("memory.use_hierarchy is 0") && error.help().contains("write 1"));
        assert!(resolve(Version::V2).is_ok());
    }
}
