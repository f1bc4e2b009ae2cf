//! What a node leaves on a machine, and its removal: processes, mounts, cgroups, files outside its folder, and
//! the kernel settings that a kubelet changes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use crate::cgroup::{descendants, read_procs};
use crate::folder::abandoned;
use crate::process;

/// The settings below /proc/sys that the kubelet (`setupKernelTunables`) and the network plugins change.
const SETTINGS: [&str; 7] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
];
/// The file in the node's folder with their previous values.
const SAVED_SETTINGS: &str = "settings-before";

/// The folders that a node creates outside its own, the inner ones first. They are removed if they are empty.
const FOLDERS: [&str; 5] = [
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet",
    "/var/lib/cni/results",
    "/var/lib/cni",
    "/var/log/containers",
];

/// The pods' cgroup, as the kubelet names it.
const PODS: &str = "kubepods";
const CGROUPS: &str = "/sys/fs/cgroup";
/// The timeout for processes that do not end.
const GUARD: Duration = Duration::from_secs(30);

/// What has to be removed after a node.
#[derive(Debug)]
pub(super) struct NodeCleanup {
    folder: PathBuf,
}

impl NodeCleanup {
    /// Prepares the machine for a node with that folder, and records the previous kernel settings.
    pub(super) fn prepare(folder: &Path) -> Result<Self> {
        if let Some(pods) = hierarchies()?.into_iter().map(|it| it.join(PODS)).find(|it| it.exists()) {
            bail!("{} exists: this machine is a node already", pods.display());
        }
        let mut saved = String::new();
        for name in SETTINGS {
            if let Ok(value) = fs::read_to_string(Path::new("/proc/sys").join(name)) {
                saved.push_str(&format!("{name} {}\n", value.trim_end()));
            }
        }
        fs::write(folder.join(SAVED_SETTINGS), saved).context("note the kernel's settings")?;
        let cleanup = Self { folder: folder.to_owned() };
        let group = cleanup.runtime_group();
        fs::create_dir(&group).with_context(|| format!("make {}", group.display()))?;
        Ok(cleanup)
    }

    /// Returns the cgroup of containerd and its shims, by which they are found whatever their parents are.
    pub(super) fn runtime_group(&self) -> PathBuf {
        let memory = Path::new(CGROUPS).join("memory");
        let hierarchy = if memory.is_dir() { memory } else { PathBuf::from(CGROUPS) };
        hierarchy.join(self.folder.file_name().unwrap_or_default())
    }

    /// Removes the remains of nodes of processes that have ended.
    pub(super) fn clear_abandoned(parent: &Path, prefix: &str) -> Result<()> {
        abandoned(parent, prefix)?.into_iter().try_for_each(|folder| Self { folder }.clear())
    }

    /// Removes everything except the folder itself.
    pub(super) fn clear(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let pids = self.processes()?;
            if pids.is_empty() {
                break;
            }
            for &pid in &pids {
                process::signal(pid, Signal::KILL)?;
            }
            if start.elapsed() > GUARD {
                bail!("processes {pids:?} do not end");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        unmount_all(|point| point.starts_with(&self.folder))?;
        let runtime = self.runtime_group();
        for hierarchy in hierarchies()? {
            remove_groups(&hierarchy.join(PODS));
            remove_groups(&hierarchy.join(runtime.file_name().unwrap_or_default()));
        }
        if let Some(left) = hierarchies()?.into_iter().map(|it| it.join(PODS)).find(|it| it.exists()) {
            bail!("{} does not go", left.display());
        }
        self.remove_outside_files();
        self.restore_settings()
    }

    /// Returns containerd, its shims, and every process with the root of one of its containers.
    fn processes(&self) -> Result<Vec<u32>> {
        let mut pids: BTreeSet<u32> = read_procs(&self.runtime_group()).into_iter().collect();
        let folder = self.folder.display().to_string();
        for hierarchy in hierarchies()? {
            for group in descendants(&hierarchy.join(PODS)) {
                pids.extend(read_procs(&group).into_iter().filter(|pid| {
                    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
                    mounts.contains(&folder)
                }));
            }
        }
        Ok(pids.into_iter().filter(|&pid| process::is_alive(pid)).collect())
    }

    /// Removes files outside the folder, and ignores errors.
    fn remove_outside_files(&self) {
        let entries = |folder: &str| fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path());
        for link in entries("/var/log/containers") {
            if fs::read_link(&link).is_ok_and(|target| target.starts_with(&self.folder)) {
                let _ = fs::remove_file(link);
            }
        }
        for result in entries("/var/lib/cni/results") {
            // The result of a plugin contains the path of the network namespace, which is in the folder.
            let text = fs::read_to_string(&result).unwrap_or_default();
            if text.contains(&*self.folder.to_string_lossy()) {
                let _ = fs::remove_file(result);
            }
        }
        for name in ["kubelet.sock", "DEPRECATION"] {
            let _ = fs::remove_file(Path::new(FOLDERS[0]).join(name));
        }
        for folder in FOLDERS {
            let _ = fs::remove_dir(folder);
        }
    }

    fn restore_settings(&self) -> Result<()> {
        let saved = fs::read_to_string(self.folder.join(SAVED_SETTINGS)).unwrap_or_default();
        for (name, value) in saved.lines().filter_map(|line| line.split_once(' ')) {
            let path = Path::new("/proc/sys").join(name);
            if fs::read_to_string(&path).is_ok_and(|now| now.trim_end() != value) {
                fs::write(&path, value).with_context(|| format!("write {}", path.display()))?;
            }
        }
        Ok(())
    }
}

/// Returns the mount points of all cgroup hierarchies.
pub(crate) fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = PathBuf::from(CGROUPS);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root]);
    }
    let entries = fs::read_dir(&root).with_context(|| format!("list {CGROUPS}"))?;
    Ok(entries.flatten().map(|it| it.path()).filter(|it| it.is_dir()).collect())
}

/// Unmounts each mount point for which `is_own` holds, the last one first.
pub(crate) fn unmount_all(is_own: impl Fn(&Path) -> bool) -> Result<()> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    let points = text.lines().rev().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    let mut own = points.filter(|point| is_own(point));
    own.try_for_each(|point| process::run(Command::new("umount").arg("--lazy").arg(point)))
}

/// Removes a cgroup and those below it. A cgroup that still has processes stays: it belongs to others.
pub(crate) fn remove_groups(group: &Path) {
    for group in descendants(group).iter().rev() {
        let _ = fs::remove_dir(group);
    }
}
