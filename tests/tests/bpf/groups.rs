//! Cgroups of the memory controller and of the pids controller, for one test each.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tests::cgroup::Group;
use tests::mounts::{Hierarchy, Mounts};

use crate::fixture::Stepper;

/// Returns the mount point of the memory controller.
pub(crate) fn mount() -> PathBuf {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    match v1.is_dir() {
        true => v1.to_owned(),
        false => PathBuf::from("/sys/fs/cgroup"),
    }
}

/// A cgroup in the hierarchy of one controller. Dropping it kills its processes and removes it with all cgroups below
/// it.
pub(crate) struct Cgroup(Group);

impl Cgroup {
    /// Creates a memory cgroup.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("eviction-bpf-{}-{serial}", std::process::id());
        assert!(!mount().join(&name).exists(), "{name} is left over");
        Self::create(Hierarchy::Memory, Path::new(&name))
    }

    fn create(controller: Hierarchy, path: &Path) -> Self {
        let mounts = Mounts::discover().unwrap().of_controller(controller);
        Self(Group::create(mounts, path).unwrap())
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        Self(self.0.group(name).unwrap())
    }

    /// Returns the same cgroup in the hierarchy of the pids controller: another directory on v1.
    pub(crate) fn of_pids(&self) -> Self {
        Self::create(Hierarchy::Pids, self.0.path())
    }

    pub(crate) fn id(&self) -> u64 {
        fs::metadata(self.folder()).unwrap().ino()
    }

    /// Returns the directory of the cgroup.
    pub(crate) fn folder(&self) -> PathBuf {
        self.0.dirs().remove(0)
    }

    /// Returns the path below the mount, as records have it.
    pub(crate) fn path(&self) -> String {
        format!("/{}", self.0.path().display())
    }

    /// Moves a process into the cgroup.
    pub(crate) fn add(&self, process: &Stepper) {
        self.add_pid(process.pid());
    }

    /// Moves a process into the cgroup.
    pub(crate) fn add_pid(&self, pid: u32) {
        self.0.add(pid).unwrap();
    }

    pub(crate) fn limit(&self, bytes: u64) {
        self.0.limit_memory(bytes).unwrap();
    }

    pub(crate) fn usage(&self) -> u64 {
        self.0.memory().unwrap()
    }

    fn peak_file(&self) -> PathBuf {
        self.0.file(Hierarchy::Memory, ("memory.max_usage_in_bytes", "memory.peak")).unwrap()
    }

    /// Returns the highest usage since the last reset; cgroup v2 reports it from 5.19 on.
    pub(crate) fn peak(&self) -> Option<u64> {
        let file = self.peak_file();
        file.exists().then(|| fs::read_to_string(file).unwrap().trim().parse().unwrap())
    }

    /// Resets the peak where the kernel can (cgroup v1).
    pub(crate) fn reset_peak(&self) {
        let file = self.peak_file();
        if file.ends_with("memory.max_usage_in_bytes") {
            fs::write(file, "0").unwrap();
        }
    }

    /// Returns how many of the cgroup's processes the kernel killed, by the kernel's own count.
    pub(crate) fn oom_kills(&self) -> u64 {
        self.0.oom_kills().unwrap()
    }

    pub(crate) fn limit_pids(&self, tasks: u64) {
        self.0.limit_pids(tasks).unwrap();
    }

    /// Returns the number of tasks in the cgroup and below it.
    pub(crate) fn pids(&self) -> u64 {
        self.0.pids().unwrap()
    }

    /// Removes the cgroup.
    pub(crate) fn remove(&self) {
        self.0.destroy().unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.remove();
    }
}
