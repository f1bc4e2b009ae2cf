//! Memory cgroups and groups of the pids controller, for one test each.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tests::process::HANG;

use crate::fixture::Stepper;

/// Returns the mount point of the memory controller.
pub(crate) fn mount() -> PathBuf {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    match v1.is_dir() {
        true => v1.to_owned(),
        false => PathBuf::from("/sys/fs/cgroup"),
    }
}

fn serial() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A memory cgroup. Dropping it kills its processes and removes it with all cgroups below it.
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    pub(crate) fn new() -> Self {
        let name = format!("eviction-bpf-{}-{}", std::process::id(), serial());
        let group = Self { path: mount().join(name) };
        group.create();
        group
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        let group = Self { path: self.path.join(name) };
        group.create();
        group
    }

    fn create(&self) {
        let control = self.path.parent().unwrap().join("cgroup.subtree_control");
        if control.exists() {
            let _ = fs::write(&control, "+memory");
            let _ = fs::write(control, "+pids");
        }
        fs::create_dir(&self.path).unwrap();
    }

    pub(crate) fn id(&self) -> u64 {
        fs::metadata(&self.path).unwrap().ino()
    }

    /// Returns the directory of the cgroup.
    pub(crate) fn folder(&self) -> &Path {
        &self.path
    }

    /// Moves a process into the cgroup.
    pub(crate) fn add(&self, process: &Stepper) {
        self.add_pid(process.pid());
    }

    /// Returns the path below the mount, as records have it.
    pub(crate) fn path(&self) -> String {
        format!("/{}", self.path.strip_prefix(mount()).unwrap().display())
    }

    pub(crate) fn limit(&self, bytes: u64) {
        let v1 = self.path.join("memory.limit_in_bytes");
        let file = if v1.exists() { v1 } else { self.path.join("memory.max") };
        fs::write(file, bytes.to_string()).unwrap();
    }

    pub(crate) fn usage(&self) -> u64 {
        let v1 = self.path.join("memory.usage_in_bytes");
        let file = if v1.exists() { v1 } else { self.path.join("memory.current") };
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// Returns the highest usage since the last reset; cgroup v2 reports it from 5.19 on.
    pub(crate) fn peak(&self) -> Option<u64> {
        let files = ["memory.max_usage_in_bytes", "memory.peak"].map(|name| self.path.join(name));
        let text = fs::read_to_string(files.iter().find(|file| file.exists())?).unwrap();
        Some(text.trim().parse().unwrap())
    }

    /// Resets the peak where the kernel can (cgroup v1).
    pub(crate) fn reset_peak(&self) {
        let v1 = self.path.join("memory.max_usage_in_bytes");
        if v1.exists() {
            fs::write(v1, "0").unwrap();
        }
    }

    /// Moves a process into the cgroup.
    pub(crate) fn add_pid(&self, pid: u32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Returns how many of the cgroup's processes the kernel killed, by the kernel's own count.
    pub(crate) fn oom_kills(&self) -> u64 {
        let v1 = self.path.join("memory.oom_control");
        let file = if v1.exists() { v1 } else { self.path.join("memory.events") };
        let text = fs::read_to_string(file).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap().parse().unwrap()
    }

    /// Removes the cgroup, which the kernel refuses for a moment after its last process ended.
    pub(crate) fn remove(&self) {
        let start = Instant::now();
        while let Err(error) = remove_tree(&self.path) {
            assert!(start.elapsed() < HANG, "remove {}: {error}", self.path.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The same cgroup in the hierarchy of the pids controller: another directory on v1.
pub(crate) struct Pids {
    path: PathBuf,
    is_separate: bool,
}

impl Pids {
    pub(crate) fn of(group: &Cgroup) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/pids");
        let is_separate = v1.is_dir();
        let path = match is_separate {
            true => v1.join(group.path.strip_prefix(mount()).unwrap()),
            false => group.path.clone(),
        };
        if is_separate {
            fs::create_dir_all(&path).unwrap();
        }
        Self { path, is_separate }
    }

    pub(crate) fn id(&self) -> u64 {
        fs::metadata(&self.path).unwrap().ino()
    }

    pub(crate) fn limit(&self, tasks: u64) {
        fs::write(self.path.join("pids.max"), tasks.to_string()).unwrap();
    }

    pub(crate) fn add(&self, process: &Stepper) {
        fs::write(self.path.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }

    pub(crate) fn current(&self) -> i64 {
        fs::read_to_string(self.path.join("pids.current")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        let start = Instant::now();
        while self.is_separate && remove_tree(&self.path).is_err() && start.elapsed() < HANG {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if self.path.exists() {
            self.remove();
        }
    }
}

fn remove_tree(path: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    for pid in fs::read_to_string(path.join("cgroup.procs"))?.lines() {
        if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    fs::remove_dir(path)
}
