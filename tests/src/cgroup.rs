//! A private cgroup subtree that stands for a node, with groups named as the kubelet names them.
//!
//! On v1 the same relative path exists in the memory, pids and freezer hierarchies and, on a
//! hybrid machine, in the unified one, as container runtimes lay it out.

mod names;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::Signal;

pub use self::names::{Driver, Qos, container_id, pod_uid};
use crate::mounts::{Hierarchy, Mounts};
use crate::process;

const PREFIX: &str = "eviction-test";

/// Subtrees that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Controllers that groups below the subtree need, where the unified hierarchy has them.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];

/// The subtree. Everything in it is killed and removed when it is dropped.
#[derive(Debug)]
pub struct Subtree {
    root: Group,
}

impl Subtree {
    /// Makes one, after removing what crashed runs have left behind. The name carries the owner's
    /// process id and start time, so a live run is never touched.
    pub fn new(label: &str) -> Result<Self> {
        Self::sweep()?;
        let mounts = Mounts::discover()?;
        let pid = std::process::id();
        let (_, start) = process::stat(pid).context("read own start time")?;
        // Tests of one program make subtrees with the same label at the same moment.
        let serial = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{label}-{serial}-{pid}-{start}");
        let root = Group::create(mounts, Path::new(&name))?;
        root.never_swap()?;
        Ok(Self { root })
    }

    /// Removes the subtrees of processes that are gone.
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

    /// Relative to the mount point of each hierarchy, with a leading slash: what the agent calls
    /// the cgroup root.
    pub fn path(&self) -> PathBuf {
        Path::new("/").join(&self.root.path)
    }

    /// The group at the top.
    pub fn root(&self) -> &Group {
        &self.root
    }

    /// Makes a group and those above it, in every hierarchy.
    pub fn group(&self, path: impl AsRef<Path>) -> Result<Group> {
        self.root.group(path)
    }

    /// The group of a pod, as the kubelet's cgroup driver names it.
    pub fn pod(&self, driver: Driver, qos: Qos, uid: &str) -> Result<Group> {
        self.root.group(driver.pod(qos, uid))
    }

    /// Kills and removes everything; an error names what would not go.
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

/// One group, present at the same path in every hierarchy.
#[derive(Clone, Debug)]
pub struct Group {
    mounts: Mounts,
    path: PathBuf,
}

impl Group {
    fn open(mounts: Mounts, path: &Path) -> Self {
        Self { mounts, path: path.to_owned() }
    }

    /// One that is there already, by its path relative to the mount points.
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

    fn create(mounts: Mounts, path: &Path) -> Result<Self> {
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

    /// Makes a group below this one, and those between.
    pub fn group(&self, path: impl AsRef<Path>) -> Result<Self> {
        Self::create(self.mounts.clone(), &self.path.join(path))
    }

    /// Relative to the mount points, without a leading slash.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory in one hierarchy, if that is mounted.
    pub fn dir(&self, hierarchy: Hierarchy) -> Option<PathBuf> {
        Some(self.mounts.get(hierarchy)?.join(&self.path))
    }

    /// The directory in each hierarchy.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let points = self.mounts.iter();
        points.map(|(_, point)| point.join(&self.path)).collect()
    }

    /// The directory where a controller's files are, and whether it is a v1 one.
    fn controller(&self, v1: Hierarchy) -> Result<(PathBuf, bool)> {
        if let Some(dir) = self.dir(v1) {
            return Ok((dir, true));
        }
        let unified = self.dir(Hierarchy::Unified);
        Ok((unified.with_context(|| format!("no hierarchy has {v1:?}"))?, false))
    }

    /// A file of the controller that version 1 has in a hierarchy of its own, by its names there and in version 2.
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

    /// Moves a process into the group, in every hierarchy.
    pub fn add(&self, pid: u32) -> Result<()> {
        for dir in self.dirs() {
            write(&dir.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// What is charged here stays in memory, where the machine has swap: so it is on nodes, and a limit kills. Groups
    /// that are made below are as this one.
    fn never_swap(&self) -> Result<()> {
        let file = self.file(Hierarchy::Memory, ("memory.swappiness", "memory.swap.max"))?;
        // A kernel without swap has no such file.
        if file.exists() { write(&file, "0") } else { Ok(()) }
    }

    /// Bounds the memory in bytes.
    pub fn limit_memory(&self, bytes: u64) -> Result<()> {
        let files = ("memory.limit_in_bytes", "memory.max");
        self.write(Hierarchy::Memory, files, &bytes.to_string())
    }

    /// Bounds the number of tasks.
    pub fn limit_pids(&self, tasks: u64) -> Result<()> {
        let files = ("pids.max", "pids.max");
        self.write(Hierarchy::Pids, files, &tasks.to_string())
    }

    /// The bound on the number of tasks as the file says it, a number or `max`.
    pub fn pids_limit(&self) -> Result<String> {
        let text = self.read(Hierarchy::Pids, ("pids.max", "pids.max"))?;
        Ok(text.trim().to_owned())
    }

    /// Tasks in the group and below it, zombies included.
    pub fn pids(&self) -> Result<u64> {
        self.read_number(Hierarchy::Pids, ("pids.current", "pids.current"))
    }

    /// Charged memory of the group and those below it, in bytes.
    pub fn memory(&self) -> Result<u64> {
        let files = ("memory.usage_in_bytes", "memory.current");
        self.read_number(Hierarchy::Memory, files)
    }

    /// One line of memory.stat, for the group and those below it, in bytes. `name` is the v2 one.
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

    /// How many times the kernel has killed in this group for want of memory.
    pub fn oom_kills(&self) -> Result<u64> {
        let text = self.read(Hierarchy::Memory, ("memory.oom_control", "memory.events"))?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("oom_kill "));
        let value = lines.next().context("no oom_kill count")?;
        value.parse().with_context(|| format!("oom_kill {value:?}"))
    }

    /// Stops or resumes all tasks in the group and waits until the kernel says so.
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

    /// Whether the group is to be frozen.
    pub fn is_frozen(&self) -> Result<bool> {
        let text = self.read(Hierarchy::Freezer, ("freezer.state", "cgroup.freeze"))?;
        Ok(["FROZEN", "FREEZING", "1"].contains(&text.trim()))
    }

    /// Processes in the group itself or below it, in any hierarchy.
    pub fn processes(&self) -> Vec<u32> {
        let mut pids = BTreeSet::new();
        for dir in self.dirs() {
            for group in below(&dir) {
                pids.extend(read_procs(&group));
            }
        }
        pids.into_iter().collect()
    }

    /// Kills everything in the group and below it and removes it from every hierarchy.
    pub fn destroy(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut last = None;
            for dir in self.dirs() {
                for group in below(&dir).into_iter().rev() {
                    empty(&group);
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
            if start.elapsed() > Duration::from_secs(20) {
                return Err(error).with_context(|| {
                    format!("remove cgroup {} with processes {:?}", group.display(), read_procs(&group))
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn enable_controllers(dir: &Path) -> Result<()> {
    let file = dir.join("cgroup.controllers");
    let have = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    for controller in have.split_ascii_whitespace() {
        if CONTROLLERS.contains(&controller) {
            write(&dir.join("cgroup.subtree_control"), &format!("+{controller}"))?;
        }
    }
    Ok(())
}

fn write(file: &Path, value: &str) -> Result<()> {
    fs::write(file, value).with_context(|| format!("write {value:?} to {}", file.display()))
}

/// The directory and all below it, parents first; nothing if it is gone.
fn below(dir: &Path) -> Vec<PathBuf> {
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

fn read_procs(dir: &Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|&pid| pid != 0).collect()
}

/// Stops forking, thaws and kills: whichever of these the hierarchy knows.
fn empty(dir: &Path) {
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
