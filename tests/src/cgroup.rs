//! A private cgroup subtree that represents a node, with cgroups named as the kubelet names them.
//!
//! On v1 the same relative path exists in the memory, pids and freezer hierarchies and, on a hybrid machine, in
//! the unified one, as container runtimes create it.

mod names;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::process::Signal;

pub use self::names::{Driver, Qos, container_id, pod_uid};
use crate::mounts::{Hierarchy, Mounts};
use crate::process;

const PREFIX: &str = "eviction-test";

/// The number of subtrees that this process has created.
static CREATED: AtomicU64 = AtomicU64::new(0);

/// The controllers that cgroups below the subtree need, where the unified hierarchy has them.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];

/// A subtree. Dropping it kills everything in it and removes it.
#[derive(Debug)]
pub struct Subtree {
    root: Group,
}

impl Subtree {
    /// Creates a subtree, after removing those that crashed runs have left behind. The name contains the
    /// owner's process ID and start time, so that the subtree of a live run is never removed.
    pub fn new(label: &str) -> Result<Self> {
        Self::sweep()?;
        let mounts = Mounts::discover()?;
        let pid = std::process::id();
        let (_, start) = process::stat(pid).context("read own start time")?;
        // Tests of one program create subtrees with the same label at the same moment.
        let serial = CREATED.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{label}-{serial}-{pid}-{start}");
        let root = Group::create(mounts, Path::new(&name))?;
        // An error if the memory controller could not be enabled.
        root.memory()?;
        root.disable_swap()?;
        Ok(Self { root })
    }

    /// Removes the subtrees of processes that have ended.
    pub fn sweep() -> Result<()> {
        let mounts = Mounts::discover()?;
        let mut abandoned = BTreeSet::new();
        for (_, point) in mounts.iter() {
            for entry in fs::read_dir(point).with_context(|| format!("list {}", point.display()))? {
                let name = entry.context("list cgroups")?.file_name();
                let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
                    continue;
                };
                let mut parts = name.rsplit('-');
                let start = parts.next().and_then(|part| part.parse::<u64>().ok());
                let pid = parts.next().and_then(|part| part.parse::<u32>().ok());
                let (Some(start), Some(pid)) = (start, pid) else {
                    continue;
                };
                if process::stat(pid).is_none_or(|(_, now)| now != start) {
                    abandoned.insert(name.to_owned());
                }
            }
        }
        for name in abandoned {
            Group::open(mounts.clone(), Path::new(&name)).destroy()?;
        }
        Ok(())
    }

    /// Returns the path relative to the mount point of each hierarchy, with a leading slash, as the agent's
    /// cgroup root.
    pub fn path(&self) -> PathBuf {
        Path::new("/").join(&self.root.path)
    }

    /// Returns the cgroup at the top.
    pub fn root(&self) -> &Group {
        &self.root
    }

    /// Creates a cgroup and its parents, in every hierarchy.
    pub fn group(&self, path: impl AsRef<Path>) -> Result<Group> {
        self.root.group(path)
    }

    /// Creates the cgroup of a pod, as the kubelet's cgroup driver names it.
    pub fn pod(&self, driver: Driver, qos: Qos, uid: &str) -> Result<Group> {
        self.root.group(driver.pod(qos, uid))
    }

    /// Kills and removes everything; an error names what could not be removed.
    pub fn remove(self) -> Result<()> {
        self.root.destroy()
    }
}

impl Drop for Subtree {
    fn drop(&mut self) {
        if let Err(error) = self.root.destroy() {
            eprintln!("remove cgroup subtree {}: {error:#}", self.root.path.display());
        }
    }
}

/// A cgroup, which has the same path in every hierarchy.
#[derive(Clone, Debug)]
pub struct Group {
    mounts: Mounts,
    path: PathBuf,
}

impl Group {
    fn open(mounts: Mounts, path: &Path) -> Self {
        Self { mounts, path: path.to_owned() }
    }

    /// Returns an existing cgroup, by its path relative to the mount points.
    ///
    /// # Errors
    /// If cgroups are not mounted, or there is no such group.
    pub fn existing(path: &Path) -> Result<Self> {
        let group = Self::open(Mounts::discover()?, path);
        for dir in group.dirs() {
            fs::metadata(&dir).with_context(|| format!("find cgroup {}", dir.display()))?;
        }
        Ok(group)
    }

    /// Creates a cgroup and its parents in these hierarchies, by its path relative to the mount points.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn create(mounts: Mounts, path: &Path) -> Result<Self> {
        for (hierarchy, point) in mounts.iter() {
            let mut directory = point.to_owned();
            for component in path.components() {
                if hierarchy == Hierarchy::Unified {
                    enable_controllers(&directory)?;
                }
                directory.push(component);
                match fs::create_dir(&directory) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                        return Err(error).with_context(|| format!("make cgroup {}", directory.display()));
                    }
                    _ => {}
                }
            }
        }
        Ok(Self::open(mounts, path))
    }

    /// Creates a cgroup below this one, and those between.
    pub fn group(&self, path: impl AsRef<Path>) -> Result<Self> {
        Self::create(self.mounts.clone(), &self.path.join(path))
    }

    /// Returns the path relative to the mount points, without a leading slash.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory in one hierarchy, if that is mounted.
    pub fn dir(&self, hierarchy: Hierarchy) -> Option<PathBuf> {
        Some(self.mounts.get(hierarchy)?.join(&self.path))
    }

    /// Returns the directory in each hierarchy.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let points = self.mounts.iter();
        points.map(|(_, point)| point.join(&self.path)).collect()
    }

    /// Returns the directory of a controller's files, and whether it is a v1 one.
    fn controller(&self, v1: Hierarchy) -> Result<(PathBuf, bool)> {
        if let Some(dir) = self.dir(v1) {
            return Ok((dir, true));
        }
        let unified = self.dir(Hierarchy::Unified);
        Ok((unified.with_context(|| format!("no hierarchy has {v1:?}"))?, false))
    }

    /// Returns a file of a controller, which has its own hierarchy in version 1, by its names in version 1 and
    /// version 2.
    pub fn file(&self, v1: Hierarchy, files: (&str, &str)) -> Result<PathBuf> {
        let (dir, is_v1) = self.controller(v1)?;
        Ok(dir.join(if is_v1 { files.0 } else { files.1 }))
    }

    fn read(&self, v1: Hierarchy, files: (&str, &str)) -> Result<String> {
        let file = self.file(v1, files)?;
        fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
    }

    fn read_number(&self, v1: Hierarchy, files: (&str, &str)) -> Result<u64> {
        let text = self.read(v1, files)?;
        let number = text.trim().parse();
        number.with_context(|| format!("{} of {}: {text:?}", files.0, self.path.display()))
    }

    fn write(&self, v1: Hierarchy, files: (&str, &str), value: &str) -> Result<()> {
        write(&self.file(v1, files)?, value)
    }

    /// Moves a process into the cgroup, in every hierarchy.
    pub fn add(&self, pid: u32) -> Result<()> {
        for dir in self.dirs() {
            write(&dir.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Keeps charged memory out of swap: as on nodes, a limit then leads to kills. Cgroups that are created
    /// below inherit this.
    fn disable_swap(&self) -> Result<()> {
        let file = self.file(Hierarchy::Memory, ("memory.swappiness", "memory.swap.max"))?;
        // A kernel without swap does not have this file.
        if file.exists() { write(&file, "0") } else { Ok(()) }
    }

    /// Limits the memory, bytes.
    pub fn limit_memory(&self, bytes: u64) -> Result<()> {
        let files = ("memory.limit_in_bytes", "memory.max");
        self.write(Hierarchy::Memory, files, &bytes.to_string())
    }

    /// Limits the number of tasks.
    pub fn limit_pids(&self, tasks: u64) -> Result<()> {
        let files = ("pids.max", "pids.max");
        self.write(Hierarchy::Pids, files, &tasks.to_string())
    }

    /// Returns the limit of the number of tasks as the file contains it: a number or `max`.
    pub fn pids_limit(&self) -> Result<String> {
        let text = self.read(Hierarchy::Pids, ("pids.max", "pids.max"))?;
        Ok(text.trim().to_owned())
    }

    /// Returns the number of tasks in the cgroup and below it, zombies included.
    pub fn pids(&self) -> Result<u64> {
        self.read_number(Hierarchy::Pids, ("pids.current", "pids.current"))
    }

    /// Returns the charged memory of the cgroup and those below it, bytes.
    pub fn memory(&self) -> Result<u64> {
        let files = ("memory.usage_in_bytes", "memory.current");
        self.read_number(Hierarchy::Memory, files)
    }

    /// Returns one value of memory.stat, for the cgroup and those below it, bytes. `name` is the v2 name.
    pub fn memory_stat(&self, name: &str) -> Result<u64> {
        let text = self.read(Hierarchy::Memory, ("memory.stat", "memory.stat"))?;
        let (_, is_v1) = self.controller(Hierarchy::Memory)?;
        let key = match name {
            "anon" if is_v1 => "total_rss".to_owned(),
            "file" if is_v1 => "total_cache".to_owned(),
            name if is_v1 => format!("total_{name}"),
            name => name.to_owned(),
        };
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let (_, value) = lines
            .find(|(found, _)| *found == key)
            .with_context(|| format!("memory.stat of {} has no {key}", self.path.display()))?;
        value.parse().with_context(|| format!("memory.stat {key}: {value:?}"))
    }

    /// Returns the number of OOM kills in this cgroup.
    pub fn oom_kills(&self) -> Result<u64> {
        let text = self.read(Hierarchy::Memory, ("memory.oom_control", "memory.events"))?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("oom_kill "));
        let value = lines.next().context("no oom_kill count")?;
        value.parse().with_context(|| format!("oom_kill {value:?}"))
    }

    /// Freezes or thaws all tasks in the cgroup, and waits until the kernel reports it.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        let (dir, is_v1) = self.controller(Hierarchy::Freezer)?;
        if is_v1 {
            let (word, file) = (if frozen { "FROZEN" } else { "THAWED" }, dir.join("freezer.state"));
            write(&file, word)?;
            return process::wait_until("freezer", || {
                fs::read_to_string(&file).is_ok_and(|text| text.trim() == word)
            });
        }
        write(&dir.join("cgroup.freeze"), if frozen { "1" } else { "0" })?;
        let line = if frozen { "frozen 1" } else { "frozen 0" };
        process::wait_until("cgroup.freeze", || {
            fs::read_to_string(dir.join("cgroup.events"))
                .is_ok_and(|text| text.lines().any(|found| found == line))
        })
    }

    /// Returns whether the cgroup is frozen or being frozen.
    pub fn is_frozen(&self) -> Result<bool> {
        let text = self.read(Hierarchy::Freezer, ("freezer.state", "cgroup.freeze"))?;
        Ok(["FROZEN", "FREEZING", "1"].contains(&text.trim()))
    }

    /// Returns the processes in the cgroup and below it, in any hierarchy.
    pub fn processes(&self) -> Vec<u32> {
        let mut pids = BTreeSet::new();
        for dir in self.dirs() {
            for group in descendants(&dir) {
                pids.extend(read_procs(&group));
            }
        }
        pids.into_iter().collect()
    }

    /// Kills everything in the cgroup and below it, and removes it from every hierarchy.
    pub fn destroy(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut last = None;
            for dir in self.dirs() {
                for group in descendants(&dir).into_iter().rev() {
                    kill_processes(&group);
                    match fs::remove_dir(&group) {
                        Err(error) if error.kind() != ErrorKind::NotFound => {
                            last = Some((group, error));
                        }
                        _ => {}
                    }
                }
            }
            let Some((group, error)) = last else {
                return Ok(());
            };
            if start.elapsed() > process::HANG {
                return Err(error).with_context(|| {
                    format!("remove cgroup {} with processes {:?}", group.display(), read_procs(&group))
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Enables the controllers for cgroups below that one. A cgroup with processes of its own can have none.
fn enable_controllers(dir: &Path) -> Result<()> {
    let file = dir.join("cgroup.controllers");
    let available = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    for controller in available.split_ascii_whitespace().filter(|it| CONTROLLERS.contains(it)) {
        match fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}")) {
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::BUSY | Errno::OPNOTSUPP)) => {}
            written => written.with_context(|| format!("enable {controller} below {}", dir.display()))?,
        }
    }
    Ok(())
}

fn write(file: &Path, value: &str) -> Result<()> {
    fs::write(file, value).with_context(|| format!("write {value:?} to {}", file.display()))
}

/// Returns the directory and all below it, parents first; empty if the directory does not exist.
pub(crate) fn descendants(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut queue = vec![dir.to_owned()];
    while let Some(dir) = queue.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                queue.push(entry.path());
            }
        }
        found.push(dir);
    }
    found.sort();
    found
}

/// Returns the processes in the cgroup of a directory.
pub(crate) fn read_procs(dir: &Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|&pid| pid != 0).collect()
}

/// Prevents forks, thaws and kills, as far as the hierarchy supports it.
fn kill_processes(dir: &Path) {
    let file = |name: &str| Some(dir.join(name)).filter(|file| file.exists());
    for (name, value) in
        [("pids.max", "0"), ("freezer.state", "THAWED"), ("cgroup.freeze", "0"), ("cgroup.kill", "1")]
    {
        if let Some(file) = file(name) {
            let _ = fs::write(file, value);
        }
    }
    for pid in read_procs(dir) {
        if pid != std::process::id() {
            let _ = process::signal(pid, Signal::KILL);
        }
    }
}
