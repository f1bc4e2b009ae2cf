//! Finds which controllers are in which hierarchy, and where those are mounted.
#![forbid(unsafe_code)]

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::files::Version;
use crate::file::{FileError, read_once};
use crate::mountinfo::{MOUNTINFO_LIMIT, MountInfo, parse_mounts};

/// The inode number of the root of every hierarchy (`cgroup_setup_root` in
/// kernel/cgroup/cgroup.c warns about anything else).
const ROOT_INODE: u64 = 1;

/// The machine as a program sees it: the path of its `/proc`, and the folder that mount points are relative to.
/// Tests use recorded ones.
#[derive(Clone, Debug)]
pub struct Host {
    /// The proc file system.
    pub proc: PathBuf,
    /// The folder that mount points are relative to.
    pub root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self { proc: "/proc".into(), root: "/".into() }
    }
}

impl Host {
    /// Returns `path` below the root, also if it is absolute.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// A hierarchy as it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Version 1 or 2.
    pub version: Version,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Whether the mount shows the whole hierarchy. A mount that was made inside a private cgroup namespace
    /// shows a part of it.
    pub whole: bool,
    /// Whether nothing can be written. Then event_control thresholds, pressure triggers and cgroup.kill cannot
    /// be used.
    pub read_only: bool,
    /// The names of its controllers. For version 1 they are all options of the file system, also other ones.
    pub controllers: Vec<String>,
}

impl Hierarchy {
    /// Reads a mount. Returns `None` if no hierarchy is found there, for instance because something else is mounted
    /// above it.
    fn read(mount: &MountInfo) -> Option<Self> {
        let inode = std::fs::metadata(&mount.mount_point).ok()?.ino();
        std::fs::metadata(mount.mount_point.join("cgroup.procs")).ok()?;
        // Version 1 has no such file. A version 2 whose file cannot be read counts as one without controllers.
        let controllers = read_once(&mount.mount_point.join("cgroup.controllers"), 4096).unwrap_or_default();
        Self::new(mount, inode, &controllers)
    }

    /// Creates the hierarchy of a mount, given the inode number of its directory and, for version 2, the text of
    /// `cgroup.controllers`. Returns `None` for another file system.
    fn new(mount: &MountInfo, inode: u64, controllers: &[u8]) -> Option<Self> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let version = version_of(mount)?;
        let controllers = match version {
            Version::V1 => mount.super_options().map(text).collect(),
            Version::V2 => controllers.split(u8::is_ascii_whitespace).map(text).collect(),
        };
        let (whole, read_only) = (inode == ROOT_INODE, mount.is_read_only());
        Some(Self { version, mount_point: mount.mount_point.clone(), whole, read_only, controllers })
    }

    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }
}

/// The hierarchy of each controller that is used. On v2 they are all the same one; on a hybrid machine each has
/// its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// Memory usage and limits.
    pub memory: Option<Hierarchy>,
    /// Process counts and limits.
    pub pids: Option<Hierarchy>,
    /// Stopping all processes of a cgroup; on v2 every cgroup can be frozen.
    pub freezer: Option<Hierarchy>,
    /// The unified hierarchy, also where it has no controllers.
    pub unified: Option<Hierarchy>,
}

impl Hierarchies {
    /// Reads the mounts of this process and chooses among them.
    ///
    /// # Errors
    /// If the mounts cannot be read, so that the hierarchies are not known.
    pub fn discover(host: &Host) -> Result<Self, FileError> {
        let path = host.proc.join("self/mountinfo");
        let fail = |why| FileError::unreadable(&path, why);
        let text = read_once(&path, MOUNTINFO_LIMIT).map_err(fail)?;
        let mounts: Vec<_> = parse_mounts(&text)
            .map(|mount| MountInfo { mount_point: host.path(&mount.mount_point), ..mount })
            .collect();
        Ok(Self::choose(&mounts, &Hierarchy::read))
    }

    /// Chooses one mount for each controller: version 1 before version 2, a mount that shows the whole hierarchy
    /// before one that shows a part, a writable one before a read-only one, the first of equals.
    fn choose(mounts: &[MountInfo], read: &dyn Fn(&MountInfo) -> Option<Hierarchy>) -> Self {
        let mounts: Vec<_> = mounts.iter().filter(|mount| version_of(mount).is_some()).collect();
        // Of mounts on the same mount point only the last can be reached.
        let is_last = |(index, mount): &(usize, &&MountInfo)| {
            mounts[index + 1..].iter().all(|later| later.mount_point != mount.mount_point)
        };
        let reachable = mounts.iter().enumerate().filter(is_last);
        let visible: Vec<_> = reachable.filter_map(|(_, mount)| read(mount)).collect();
        let best = |wanted: &dyn Fn(&Hierarchy) -> bool| {
            let wanted = visible.iter().filter(|it| wanted(it));
            wanted.min_by_key(|it| (it.version == Version::V2, !it.whole, it.read_only)).cloned()
        };
        let controller = |name: &str| best(&|it| it.has(name));
        let unified = best(&|it| it.version == Version::V2);
        Self {
            memory: controller("memory"),
            pids: controller("pids"),
            freezer: controller("freezer").or_else(|| unified.clone()),
            unified,
        }
    }
}

/// Returns the version of a mounted hierarchy; `None` for another file system.
fn version_of(mount: &MountInfo) -> Option<Version> {
    match mount.fs_type.as_str() {
        "cgroup" => Some(Version::V1),
        "cgroup2" => Some(Version::V2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::error::chain;

    /// Chooses among the mounts of this mountinfo file. Each shows the root of its hierarchy.
    fn choose(mountinfo: &str, controllers: &str) -> Hierarchies {
        choose_with(mountinfo, |mount| Hierarchy::new(mount, ROOT_INODE, controllers.as_bytes()))
    }

    fn choose_with(mountinfo: &str, read: impl Fn(&MountInfo) -> Option<Hierarchy>) -> Hierarchies {
        let mounts: Vec<_> = parse_mounts(mountinfo.as_bytes()).collect();
        Hierarchies::choose(&mounts, &read)
    }

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:10 master:2 - cgroup cgroup rw,memory\n\
        37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n\
        39 31 0:36 / /sys/fs/cgroup/pids ro,relatime - cgroup cgroup rw,pids\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";

    #[test]
    fn a_hybrid_machine_has_its_controllers_in_version_1() {
        let found = choose(HYBRID, "");
        let memory = found.memory.unwrap();
        assert_eq!((memory.version, memory.whole, memory.read_only), (Version::V1, true, false));
        assert_eq!(memory.mount_point, Path::new("/sys/fs/cgroup/memory"));
        assert!(found.pids.unwrap().read_only);
        assert_eq!(found.freezer.unwrap().mount_point, Path::new("/sys/fs/cgroup/freezer"));
        assert_eq!(found.unified.unwrap().mount_point, Path::new("/sys/fs/cgroup/unified"));
    }

    #[test]
    fn unified_machine_has_all_controllers_in_one_hierarchy() {
        let found = choose(UNIFIED, "cpuset cpu io memory pids\n");
        assert_eq!(found.memory, found.unified);
        assert_eq!(found.pids, found.unified);
        assert_eq!(found.freezer, found.unified, "groups of version 2 are frozen without a controller");
        assert_eq!(found.memory.unwrap().version, Version::V2);
    }

    #[test]
    fn a_controller_that_is_off_is_absent() {
        let found = choose(UNIFIED, "cpu pids\n");
        assert_eq!(found.memory, None);
        assert!(found.pids.is_some());
        assert_eq!(choose("", ""), Hierarchies::default());
        assert_eq!(choose_with(HYBRID, |_| None), Hierarchies::default());
    }

    #[test]
    fn the_mount_that_shows_more_is_used() {
        // A container with a cgroup mount of its own, and the host's mounted beside it.
        let text = format!("{UNIFIED}99 23 0:26 /../../.. /host/sys/fs/cgroup rw - cgroup2 cgroup2 ro\n");
        let read = |mount: &MountInfo| {
            let inode = if mount.mount_point.starts_with("/host") { ROOT_INODE } else { 4711 };
            Hierarchy::new(mount, inode, b"memory pids")
        };
        let memory = choose_with(&text, read).memory.unwrap();
        assert_eq!(memory.mount_point, Path::new("/host/sys/fs/cgroup"));
        assert!(memory.whole && memory.read_only);
        let alone = choose_with(UNIFIED, read).memory.unwrap();
        assert!(!alone.whole);
        // Of two mounts on one another only the upper one is visible.
        let text = format!("{HYBRID}50 31 0:40 / /sys/fs/cgroup/memory rw - cgroup2 none rw\n");
        let memory = choose(&text, "memory").memory.unwrap();
        assert_eq!(memory.version, Version::V2);
    }

    #[test]
    fn error_about_unreadable_mounts_names_the_file() {
        let host = Host { proc: "/nonexistent".into(), root: "/".into() };
        let error = chain(&Hierarchies::discover(&host).unwrap_err());
        assert_eq!(error, "cannot read /nonexistent/self/mountinfo: No such file or directory (os error 2)");
    }
}
