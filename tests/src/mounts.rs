//! The mount points of the cgroup hierarchies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use procfs::FromBufRead as _;
use procfs::process::MountInfos;

/// A cgroup hierarchy that the agent reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hierarchy {
    /// v1 memory controller.
    Memory,
    /// v1 pids controller.
    Pids,
    /// v1 freezer.
    Freezer,
    /// cgroup v2, whichever controllers it has.
    Unified,
}

/// The mount point of each hierarchy that this machine has.
#[derive(Clone, Debug)]
pub struct Mounts(BTreeMap<Hierarchy, PathBuf>);

impl Mounts {
    /// Finds the mount points in /proc/self/mountinfo.
    pub fn discover() -> Result<Self> {
        let text = std::fs::read("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
        let mounts = Self::parse(&text)?;
        if mounts.0.is_empty() {
            bail!("no cgroup hierarchy with memory, pids, freezer or cgroup2 is mounted");
        }
        Ok(mounts)
    }

    fn parse(mountinfo: &[u8]) -> Result<Self> {
        let mut found = BTreeMap::new();
        for mount in MountInfos::from_buf_read(mountinfo).context("parse /proc/self/mountinfo")? {
            let has = |option: &str| match &*mount.fs_type {
                "cgroup2" => option == "unified",
                "cgroup" => mount.super_options.contains_key(option),
                _ => false,
            };
            for (option, hierarchy) in [
                ("memory", Hierarchy::Memory),
                ("pids", Hierarchy::Pids),
                ("freezer", Hierarchy::Freezer),
                ("unified", Hierarchy::Unified),
            ] {
                if has(option) {
                    found.entry(hierarchy).or_insert_with(|| mount.mount_point.clone());
                }
            }
        }
        Ok(Self(found))
    }

    /// Returns the mount point, if the hierarchy is mounted.
    pub fn get(&self, hierarchy: Hierarchy) -> Option<&Path> {
        self.0.get(&hierarchy).map(PathBuf::as_path)
    }

    /// Returns only the hierarchy that has this controller: its own one in version 1, else the unified one.
    #[must_use]
    pub fn of_controller(mut self, v1: Hierarchy) -> Self {
        let hierarchy = if self.0.contains_key(&v1) { v1 } else { Hierarchy::Unified };
        self.0.retain(|found, _| *found == hierarchy);
        self
    }

    /// Returns all mount points.
    pub fn iter(&self) -> impl Iterator<Item = (Hierarchy, &Path)> {
        self.0.iter().map(|(&hierarchy, path)| (hierarchy, path.as_path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_of_hybrid_and_unified_hierarchies_are_found() {
        let hybrid = Mounts::parse(
            b"30 23 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
             31 23 0:27 / /sys/fs/cgroup/memory rw,relatime shared:3 - cgroup cgroup rw,memory\n\
             32 23 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
             33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        let memory = Path::new("/sys/fs/cgroup/memory");
        assert_eq!(hybrid.get(Hierarchy::Memory), Some(memory));
        assert_eq!(hybrid.get(Hierarchy::Freezer), None);
        assert_eq!(hybrid.iter().count(), 3);
        let unified =
            Mounts::parse(b"29 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n")
                .unwrap();
        assert_eq!(unified.iter().count(), 1);
    }
}
