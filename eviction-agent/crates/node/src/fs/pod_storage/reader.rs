//! Reads what pods use, on a thread of its own.
//!
//! The control loop never touches a directory. It asks for a reading when a threshold is met and pods are to be
//! ranked, and every few seconds for pods with limits of their own.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::sync::mpsc::Sender;

use eviction_core::time::nanos;

use super::{ContainerStorage, PodStorage, StoragePaths, StorageRequest, StorageSample};
use crate::clock::mono_ns;
use crate::file::{is_gone, read_once, retry};
use crate::fs::disk_usage::{DiskUsage, WalkBudget, read_disk_usage};
use crate::fs::mountinfo::upper_directory;
use crate::io_priority::{IoPriority, set_io_priority};

/// How long a reading may take, and how many inodes it may count: a decision waits for it.
const DEADLINE: Duration = Duration::from_millis(200);
const INODES: u64 = 200_000;

const PROCS_LIMIT: usize = 1 << 20;
const MOUNTS_LIMIT: usize = 1 << 20;

/// Reads the storage of pods on a thread of its own. A directory that hangs makes it answer no more: nobody is
/// evicted for a disk then.
#[derive(Debug)]
pub struct StorageReader {
    requests: SyncSender<(Vec<StorageRequest>, Urgency)>,
}

/// Whether a decision waits for a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// It does.
    Decision,
    /// Nobody does: the disk serves it when nobody else wants anything.
    Routine,
}

impl StorageReader {
    /// Starts the thread; what `read` returns goes to `samples`.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(
        mut read: impl FnMut(Vec<StorageRequest>, Urgency) -> StorageSample + Send + 'static,
        samples: Sender<StorageSample>,
    ) -> std::io::Result<Self> {
        let (requests, receiver) = sync_channel(1);
        let work = move || {
            while let Ok((pods, urgency)) = receiver.recv() {
                if samples.blocking_send(read(pods, urgency)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("pod-storage".to_owned()).spawn(work)?;
        Ok(Self { requests })
    }

    /// One that reads the directories.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn of_directories(paths: StoragePaths, samples: Sender<StorageSample>) -> std::io::Result<Self> {
        let mut last: BTreeMap<Box<str>, u64> = BTreeMap::new();
        let read = move |mut pods: Vec<StorageRequest>, urgency| {
            set_io_priority(match urgency {
                Urgency::Decision => IoPriority::Normal,
                Urgency::Routine => IoPriority::Idle,
            });
            pods.sort_by_key(|pod| (std::cmp::Reverse(last.get(&pod.uid).copied()), pod.uid.clone()));
            let sample = read_pod_storage(&paths, &pods);
            if sample.pods.len() >= last.len() {
                last.clear();
            }
            last.extend(sample.pods.iter().map(|(uid, storage)| (uid.clone(), storage.bytes())));
            sample
        };
        Self::start(read, samples)
    }

    /// Asks for these pods, the largest first as far as that is known. False if it is busy.
    pub fn ask(&self, pods: Vec<StorageRequest>, urgency: Urgency) -> bool {
        self.requests.try_send((pods, urgency)).is_ok()
    }
}

/// Reads the storage of these pods. Each gets an equal share of what is left of the time and the inodes.
pub fn read_pod_storage(paths: &StoragePaths, pods: &[StorageRequest]) -> StorageSample {
    let began_ns = mono_ns();
    let deadline_ns = began_ns.saturating_add(nanos(DEADLINE));
    let open = |path: &Option<PathBuf>| path.as_deref().and_then(open);
    let directories = Directories { kubelet: open(&paths.kubelet_root), logs: open(&paths.pod_logs) };
    let mut inodes = INODES;
    let mut sample = StorageSample { began_ns, ..StorageSample::unknown() };
    for (done, pod) in pods.iter().enumerate() {
        let left = u64::try_from(pods.len() - done).unwrap_or(u64::MAX);
        let now_ns = mono_ns();
        let share = WalkBudget {
            deadline_ns: now_ns.saturating_add(deadline_ns.saturating_sub(now_ns) / left),
            inodes: inodes / left,
        };
        let mut budget = share;
        let storage = directories.read(pod, &mut budget);
        inodes -= share.inodes - budget.inodes;
        let unmeasured = &mut sample.unmeasured;
        unmeasured.volumes &= directories.kubelet.is_none();
        unmeasured.logs &= directories.logs.is_none();
        unmeasured.rootfs &= storage.containers.iter().all(|container| container.rootfs.is_none());
        sample.pods.insert(pod.uid.clone(), storage);
    }
    sample.took_ns = mono_ns().saturating_sub(began_ns);
    sample
}

/// Opened for one reading.
struct Directories {
    kubelet: Option<OwnedFd>,
    logs: Option<OwnedFd>,
}

pub(super) fn open(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(|| rustix::fs::open(path, flags, Mode::empty())).ok()
}

impl Directories {
    fn read(&self, pod: &StorageRequest, budget: &mut WalkBudget) -> PodStorage {
        let mut storage = PodStorage::default();
        for (name, plugin) in &pod.volumes {
            let path = ["pods", &pod.directory, "volumes", plugin, name];
            match read_below(self.kubelet.as_ref(), &path, budget) {
                Some(usage) => storage.volumes.push((name.clone(), usage)),
                None => storage.is_lower_bound = true,
            }
        }
        for (name, procs) in &pod.containers {
            let logs = read_below(self.logs.as_ref(), &[&pod.logs, name], budget);
            let rootfs = read_rootfs(procs, budget);
            storage.is_lower_bound |= logs.is_none() || rootfs.is_none();
            storage.containers.push(ContainerStorage { name: name.clone(), rootfs, logs });
        }
        storage
    }
}

/// The usage of a directory by the names on the way to it. A directory that is not there uses nothing; nothing is
/// known of one that cannot be read.
pub(super) fn read_below(
    base: Option<&OwnedFd>,
    names: &[&str],
    budget: &mut WalkBudget,
) -> Option<DiskUsage> {
    let is_name = |name: &&str| {
        let mut parts = Path::new(name).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == OsStr::new(name))
    };
    // Names are the API's: they must not lead out of the directory of the pod.
    if !names.iter().all(is_name) {
        return None;
    }
    let path: PathBuf = names.iter().collect();
    match read_disk_usage(base?.as_fd(), &path, budget) {
        Err(why) if is_gone(why) => Some(DiskUsage::default()),
        usage => usage.ok(),
    }
}

/// The writable layer of a container: the upper directory of the overlay that one of its processes has as its root.
fn read_rootfs(procs: &Path, budget: &mut WalkBudget) -> Option<DiskUsage> {
    let text = read_once(procs, PROCS_LIMIT).ok()?;
    let first = std::str::from_utf8(text.split(|byte| *byte == b'\n').next()?).ok()?;
    let pid: u32 = first.parse().ok()?;
    let upper = upper_directory(
        &read_once(&Path::new("/proc").join(pid.to_string()).join("mountinfo"), MOUNTS_LIMIT).ok()?,
    )?;
    read_disk_usage(open(upper.parent()?)?.as_fd(), Path::new(upper.file_name()?), budget).ok()
}
