//! Opens the cgroups of pods, only those below the node's root cgroup, and reads and writes their control files.
#![forbid(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, Stat, fstat, open, openat};
use rustix::io::{Errno, read, write};
use rustix::path::Arg;

/// The directories of one cgroup, one for each of its hierarchies. In cgroup v2 they are all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupDirs {
    /// The expected cgroup id (inode number) of `memory`, if known. If another cgroup has taken the path in
    /// the meantime, nothing is killed.
    pub id: Option<u64>,
    /// The directory in the hierarchy of the memory controller. Its processes are killed. The other
    /// directories only serve to stop forks and to freeze.
    pub memory: PathBuf,
    /// The directory in the hierarchy of the pids controller.
    pub pids: Option<PathBuf>,
    /// The directory in the hierarchy of the freezer. In the unified hierarchy every cgroup has a freezer.
    pub freezer: Option<PathBuf>,
    /// The directory in the unified hierarchy, also if that has no controllers.
    pub unified: Option<PathBuf>,
}

/// The directories of the node's root cgroup. They are opened once, at the start: there a missing directory is an
/// error and does not count as a removed pod, and a kill opens only the pod's directories.
#[derive(Debug)]
pub struct CgroupScope {
    memory: Root,
    pids: Option<Root>,
    freezer: Option<Root>,
    unified: Option<Root>,
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
    dir: OwnedFd,
    stat: Stat,
}

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Root {
    fn open(path: &Path) -> Result<Self, String> {
        let opened = || {
            // The mount point itself may be a link, as cpu is to cpu,cpuacct.
            let dir = open(path, DIR.difference(OFlags::NOFOLLOW), Mode::empty())?;
            let stat = fstat(&dir)?;
            Ok(Self { path: path.to_owned(), dir, stat })
        };
        opened().map_err(|error| unopenable(path, error))
    }

    /// Opens a directory below the root. Returns `None` if the cgroup is removed.
    fn open_below(&self, path: &Path) -> Result<Option<(OwnedFd, Stat)>, String> {
        let outside = || {
            format!("cgroup {} does not lie below the node's root {}", path.display(), self.path.display())
        };
        let relative = strictly_below(&self.path, path).ok_or_else(outside)?;
        let opened = || {
            let dir = openat(&self.dir, relative, DIR, Mode::empty())?;
            let stat = fstat(&dir)?;
            Ok((dir, stat))
        };
        match opened() {
            // Another file system is mounted there.
            Ok((_, stat)) if stat.st_dev != self.stat.st_dev => Err(outside()),
            Ok(opened) => Ok(Some(opened)),
            Err(Errno::NOENT | Errno::NODEV) => Ok(None),
            Err(error) => Err(unopenable(path, error)),
        }
    }
}

fn unopenable(path: &Path, error: Errno) -> String {
    format!("open cgroup {}: {error}", path.display())
}

/// Returns the path from `root` to `path`, if `path` is below `root`. Compares whole components: `pod10` is
/// not below `pod1`.
fn strictly_below<'a>(root: &Path, path: &'a Path) -> Option<&'a Path> {
    let relative = path.strip_prefix(root).ok()?;
    let mut components = relative.components().peekable();
    components.peek()?;
    components.all(|component| matches!(component, Component::Normal(_))).then_some(relative)
}

/// A pinned cgroup of a pod. If another cgroup takes its path later, this one still refers to the old cgroup.
#[derive(Debug)]
pub(super) struct PinnedCgroup {
    /// The path of `memory`, for messages.
    pub(super) path: PathBuf,
    /// The directory in the hierarchy of the memory controller, which lists the processes.
    pub(super) memory: OwnedFd,
    /// Whether `memory` is in the unified hierarchy, which can kill a cgroup as a whole.
    pub(super) is_unified: bool,
    /// The directory with `pids.max`, and its path.
    pub(super) pids: Option<(OwnedFd, PathBuf)>,
    /// The directory with the freezer, and its path.
    pub(super) freezer: Option<(OwnedFd, PathBuf)>,
}

impl CgroupScope {
    /// Opens the node's root in each hierarchy that it has.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn open(roots: &CgroupDirs) -> Result<Self, String> {
        let CgroupDirs { id: _, memory, pids, freezer, unified } = roots;
        let open = |path: &Option<PathBuf>| path.as_deref().map(Root::open).transpose();
        Ok(Self {
            memory: Root::open(memory)?,
            pids: open(pids)?,
            freezer: open(freezer)?,
            unified: open(unified)?,
        })
    }

    /// Returns the cgroup id of the node's root.
    pub(super) fn id(&self) -> u64 {
        self.memory.stat.st_ino
    }

    /// Pins a cgroup. Only its directory in the hierarchy of the memory controller must exist. Returns `None` if it
    /// is removed.
    ///
    /// # Errors
    /// Why the directories are not those of the cgroup that the decision was about.
    pub(super) fn pin(&self, dirs: &CgroupDirs) -> Result<Option<PinnedCgroup>, String> {
        let CgroupDirs { id, memory, pids, freezer, unified } = dirs;
        let Some((dir, stat)) = self.memory.open_below(memory)? else { return Ok(None) };
        let found = stat.st_ino;
        if let Some(expected) = id.filter(|expected| *expected != found) {
            let path = memory.display();
            return Err(format!(
                "cgroup {path} was replaced after the decision: id {found} instead of {expected}"
            ));
        }
        let open_other = |root: &Option<Root>, path: &Option<PathBuf>| {
            let (Some(root), Some(path)) = (root, path) else { return Ok(None) };
            let opened = root.open_below(path)?;
            Ok::<_, String>(opened.map(|(dir, stat)| (dir, stat, path.clone())))
        };
        let is_same = |other: &Stat| other.st_dev == stat.st_dev && other.st_ino == found;
        let unified = open_other(&self.unified, unified)?;
        let is_unified = unified.as_ref().is_some_and(|(_, stat, _)| is_same(stat));
        let pids = open_other(&self.pids, pids)?;
        let freezer = open_other(&self.freezer, freezer)?;
        let unified_freezer = || {
            let (dir, _, path) = unified.as_ref()?;
            Some((dir.as_fd().try_clone_to_owned().ok()?, path.clone()))
        };
        Ok(Some(PinnedCgroup {
            path: memory.clone(),
            memory: dir,
            is_unified,
            pids: pids.map(|(dir, _, path)| (dir, path)),
            freezer: freezer.map(|(dir, _, path)| (dir, path)).or_else(unified_freezer),
        }))
    }
}

/// Opens a cgroup below `dir`; with an empty path, `dir` itself.
pub(super) fn open_group(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    openat(dir, path, DIR, Mode::empty())
}

/// Whether `cgroup.events` of a cgroup v2 cgroup has this line.
pub(super) fn has_event(group: impl AsFd, line: &[u8]) -> bool {
    let mut text = [0; 128];
    read_short_file(group, c"cgroup.events", &mut text).split(|byte| *byte == b'\n').any(|it| it == line)
}

/// Whether a short control file of a cgroup has this content.
pub(super) fn file_contains(group: &OwnedFd, name: &CStr, content: &[u8]) -> bool {
    read_short_file(group, name, &mut [0; 16]).trim_ascii() == content
}

/// Returns the content of a short file of a cgroup; empty if it cannot be read.
pub(super) fn read_short_file<'t>(group: impl AsFd, name: &CStr, text: &'t mut [u8]) -> &'t [u8] {
    let count = open_file(group, name).and_then(|file| read(&file, &mut *text)).unwrap_or(0);
    &text[..count]
}

/// Opens a file of a cgroup for reading.
pub(super) fn open_file(group: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    openat(group, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Writes a value to a control file of a cgroup.
pub(super) fn write_file(group: impl AsFd, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    let file = openat(group, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    write(&file, value).map(drop)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn below(root: &str, path: &str) -> bool {
        strictly_below(Path::new(root), Path::new(path)).is_some()
    }

    #[test]
    fn paths_are_compared_by_whole_components() {
        assert!(below("/sys/fs/cgroup", "/sys/fs/cgroup/kubepods/pod1"));
        assert!(below("/cg/pod1", "/cg/pod1/c"));
        assert!(!below("/cg/pod1", "/cg/pod10"));
        assert!(!below("/cg/pod1", "/cg/pod10/c"));
        assert!(!below("/cg/pod10", "/cg/pod1"));
        assert!(!below("/cg/pod1", "/cg/pod1"));
        assert!(!below("/cg/pod1", "/cg/pod1/"));
        assert!(!below("/cg/pod1", "/cg"));
        assert!(!below("/cg/pod1", "cg/pod1/c"));
        assert!(!below("/cg/pod1", "/cg/pod1/../pod2"));
        assert!(!below("/cg/pod1", "/cg/pod1/c/../../pod2"));
    }

    #[test]
    fn only_directories_in_scope_with_the_expected_id_are_pinned() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        for dir in ["root/pod1", "root/pod10", "elsewhere"] {
            std::fs::create_dir_all(folder.path().join(dir)).unwrap();
        }
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), root.join("link")).unwrap();
        let dirs = |path: PathBuf| CgroupDirs { memory: path, ..CgroupDirs::default() };
        let scope = CgroupScope::open(&dirs(root.clone())).unwrap();
        let pod = scope.pin(&dirs(root.join("pod1"))).unwrap().unwrap();
        assert!(!pod.is_unified);
        let id = fstat(&pod.memory).unwrap().st_ino;
        let pinned = |path: &str, id: Option<u64>| {
            let result = scope.pin(&CgroupDirs { id, ..dirs(folder.path().join(path)) });
            result.map(|pinned| pinned.is_some())
        };
        assert_eq!(pinned("root/pod1", Some(id)), Ok(true));
        let error = pinned("root/pod10", Some(id)).unwrap_err();
        assert!(error.contains("was replaced after the decision"), "{error}");
        for path in ["elsewhere", "root", "root/pod1/../../elsewhere"] {
            let error = pinned(path, None).unwrap_err();
            assert!(error.contains("does not lie below"), "{error}");
        }
        let error = pinned("root/link", None).unwrap_err();
        assert!(error.contains("open cgroup"), "{error}");
        assert_eq!(pinned("root/absent", None), Ok(false));
        let error = CgroupScope::open(&dirs(root.join("absent"))).unwrap_err();
        assert!(error.contains("absent: No such file"), "a root that is missing is no removed pod: {error}");
    }

    #[test]
    fn cgroup_events_shows_whether_a_cgroup_is_populated() {
        let folder = tempfile::tempdir().unwrap();
        let group = std::fs::File::open(folder.path()).unwrap();
        assert!(!has_event(&group, b"populated 1"), "version 1 does not tell");
        for (text, expected) in
            [("populated 1\nfrozen 0\n", true), ("populated 0\nfrozen 1\n", false), ("", false)]
        {
            std::fs::write(folder.path().join("cgroup.events"), text).unwrap();
            assert_eq!(has_event(&group, b"populated 1"), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn path_below_the_root_starts_with_all_its_components(
            root in prop::collection::vec("[a-c]{1,2}", 1..4),
            path in prop::collection::vec("[a-c]{1,2}|\\.\\.", 1..6),
        ) {
            let inside = path.len() > root.len()
                && path[..root.len()] == root
                && !path[root.len()..].iter().any(|part| part == "..");
            let absolute = |parts: &[String]| format!("/{}", parts.join("/"));
            prop_assert_eq!(below(&absolute(&root), &absolute(&path)), inside);
        }
    }
}
