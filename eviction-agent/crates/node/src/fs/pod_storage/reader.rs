//! Reads the storage usage of pods on a thread of its own.
//!
//! The control loop never accesses a directory. It requests a reading when a threshold is met and pods are to
//! be ranked, and every few seconds for pods with limits of their own.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::sync::mpsc::Sender;

use eviction_core::time::nanos;

use super::{ContainerStorage, LayerSource, PodStorage, StorageRequest, StorageSample};
use crate::cgroup::hierarchy::Host;
use crate::clock::mono_ns;
use crate::file::{is_removed, open_path, read_once};
use crate::fs::disk_usage::{DiskUsage, WalkBudget, read_disk_usage};
use crate::fs::layout::FsPaths;
use crate::mountinfo::upper_directory;
use crate::thread::{Priority, set_priority, touch_stack};

/// The limits of a reading: time, and number of inodes. A decision waits for it.
const DEADLINE: Duration = Duration::from_millis(200);
const INODES: u64 = 200_000;

/// A pod of which fewer inodes were read within the limits is read once more.
const FEW_INODES: u64 = 1000;

/// As much of the stack as a reading uses: mostly the buffer for the names in a directory.
const STACK: usize = 64 << 10;

const PROCS_LIMIT: usize = 1 << 20;
const MOUNTS_LIMIT: usize = 1 << 20;

/// Reads the storage of pods on a thread of its own. If a directory hangs, it returns no more readings; then no
/// pod is evicted because of a disk.
#[derive(Debug)]
pub struct StorageReader {
    requests: SyncSender<(Vec<StorageRequest>, Priority)>,
}

impl StorageReader {
    /// Starts the thread. The results of `read` are sent to `samples`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        mut read: impl FnMut(Vec<StorageRequest>, Priority) -> StorageSample + Send + 'static,
        samples: Sender<StorageSample>,
    ) -> std::io::Result<Self> {
        let (requests, receiver) = sync_channel(1);
        let work = move || {
            touch_stack::<STACK>();
            while let Ok((pods, priority)) = receiver.recv() {
                if samples.blocking_send(read(pods, priority)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("pod-storage".to_owned()).spawn(work)?;
        Ok(Self { requests })
    }

    /// Starts a reader of the directories.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn of_directories(
        host: Host,
        paths: FsPaths,
        samples: Sender<StorageSample>,
    ) -> std::io::Result<Self> {
        let read = move |pods: Vec<StorageRequest>, priority| {
            set_priority(priority);
            read_pod_storage(&host, &paths, &pods)
        };
        Self::start(read, samples)
    }

    /// Requests a reading of these pods. Returns false if the thread is busy.
    pub fn request(&self, pods: Vec<StorageRequest>, priority: Priority) -> bool {
        self.requests.try_send((pods, priority)).is_ok()
    }
}

/// Reads the storage of these pods, within limits of time and of inodes.
pub fn read_pod_storage(host: &Host, paths: &FsPaths, pods: &[StorageRequest]) -> StorageSample {
    let budget = || WalkBudget { deadline_ns: mono_ns().saturating_add(nanos(DEADLINE)), inodes: INODES };
    read_twice(budget, host, paths, pods)
}

/// Reads the storage of these pods. Those of which little was read are read once more: the thread may have waited
/// for a CPU or for the disk, and other pods would rank before them.
fn read_twice(
    mut budget: impl FnMut() -> WalkBudget,
    host: &Host,
    paths: &FsPaths,
    pods: &[StorageRequest],
) -> StorageSample {
    let mut sample = read_within(budget(), host, paths, pods);
    let is_cut_off = |pod: &&StorageRequest| {
        let total = sample.pods.get(&pod.uid).map(PodStorage::total);
        total.is_some_and(|total| total.is_lower_bound && total.inodes < FEW_INODES)
    };
    let cut_off: Vec<_> = pods.iter().filter(is_cut_off).cloned().collect();
    if !cut_off.is_empty() {
        sample.pods.extend(read_within(budget(), host, paths, &cut_off).pods);
        sample.took_ns = mono_ns().saturating_sub(sample.began_ns);
    }
    sample
}

/// Reads the storage of these pods once, those with few expected inodes first. Each gets an equal share of the time
/// and the inodes that are left, so pods with many inodes get what the others leave over.
fn read_within(budget: WalkBudget, host: &Host, paths: &FsPaths, pods: &[StorageRequest]) -> StorageSample {
    let began_ns = mono_ns();
    let WalkBudget { deadline_ns, mut inodes } = budget;
    let open = |path: &Option<PathBuf>| path.as_deref().and_then(open);
    let (kubelet, logs) = (open(&paths.kubelet_root), open(&paths.pod_logs));
    let mut sample = StorageSample { began_ns, ..StorageSample::unknown() };
    let mut pods: Vec<_> = pods.iter().collect();
    pods.sort_unstable_by_key(|pod| (pod.expected_inodes, &*pod.uid));
    for (done, pod) in pods.iter().enumerate() {
        let left = u64::try_from(pods.len() - done).unwrap_or(u64::MAX);
        let now_ns = mono_ns();
        let share = WalkBudget {
            deadline_ns: now_ns.saturating_add(deadline_ns.saturating_sub(now_ns) / left),
            inodes: inodes / left,
        };
        let mut budget = share;
        let storage = read_pod(pod, host, kubelet.as_ref(), logs.as_ref(), &mut budget);
        inodes -= share.inodes - budget.inodes;
        let unmeasured = &mut sample.unmeasured;
        unmeasured.volumes &= storage.volumes.is_empty();
        unmeasured.logs &= storage.containers.iter().all(|container| container.logs.is_none());
        unmeasured.rootfs &= storage.containers.iter().all(|container| container.rootfs.is_none());
        sample.pods.insert(pod.uid.clone(), storage);
    }
    if !pods.is_empty() {
        // Where there is nothing to read, nothing is missing.
        let unmeasured = &mut sample.unmeasured;
        unmeasured.volumes &= kubelet.is_none() || pods.iter().any(|pod| !pod.volumes.is_empty());
        unmeasured.logs &= logs.is_none() || pods.iter().any(|pod| !pod.containers.is_empty());
    }
    sample.took_ns = mono_ns().saturating_sub(began_ns);
    sample
}

fn open(path: &Path) -> Option<OwnedFd> {
    open_path(path, OFlags::PATH | OFlags::DIRECTORY).ok()
}

/// Reads the storage of a pod in the kubelet's root directory and in the directory of logs.
fn read_pod(
    pod: &StorageRequest,
    host: &Host,
    kubelet: Option<&OwnedFd>,
    logs: Option<&OwnedFd>,
    budget: &mut WalkBudget,
) -> PodStorage {
    let mut storage = PodStorage::default();
    for (name, plugin) in &pod.volumes {
        let path = ["pods", &pod.kubelet_uid, "volumes", plugin, name];
        match read_below(kubelet, &path, budget) {
            Some(usage) => storage.volumes.push((name.clone(), usage)),
            None => storage.has_unknown_volume = true,
        }
    }
    for (name, source) in &pod.containers {
        let logs = read_below(logs, &[&pod.logs, name], budget);
        let layer = match source {
            LayerSource::Processes(procs) => find_layer(host, procs),
            LayerSource::Directory(path) => Some(path.clone()),
            LayerSource::Unknown => None,
        };
        let rootfs = layer.as_deref().and_then(|layer| read_layer(layer, budget));
        storage.containers.push(ContainerStorage { name: name.clone(), rootfs, layer, logs });
    }
    storage
}

/// Reads the usage of a directory, given by the names on the path to it. A directory that does not exist uses
/// nothing. Returns `None` if it cannot be read.
fn read_below(base: Option<&OwnedFd>, names: &[&str], budget: &mut WalkBudget) -> Option<DiskUsage> {
    let is_name = |name: &&str| {
        let mut parts = Path::new(name).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == OsStr::new(name))
    };
    // Names come from the API and must not lead out of the directory of the pod.
    if !names.iter().all(is_name) {
        return None;
    }
    let path: PathBuf = names.iter().collect();
    match read_disk_usage(base?.as_fd(), &path, budget) {
        Err(why) if is_removed(why) => Some(DiskUsage::default()),
        usage => usage.ok(),
    }
}

/// Returns the writable layer of a container: the upper directory of the overlay that is the root of one of its
/// processes.
fn find_layer(host: &Host, procs: &Path) -> Option<PathBuf> {
    let text = read_once(procs, PROCS_LIMIT).ok()?;
    let first = std::str::from_utf8(text.split(|byte| *byte == b'\n').next()?).ok()?;
    let pid: u32 = first.parse().ok()?;
    let mounts = read_once(&host.proc.join(pid.to_string()).join("mountinfo"), MOUNTS_LIMIT).ok()?;
    Some(host.path(upper_directory(&mounts)?))
}

fn read_layer(layer: &Path, budget: &mut WalkBudget) -> Option<DiskUsage> {
    read_disk_usage(open(layer.parent()?)?.as_fd(), Path::new(layer.file_name()?), budget).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::fixture::{pod, policy};
    use eviction_core::pod::{EmptyDir, Pod, Volume};
    use eviction_core::pods::KnownPod;

    fn request(uid: &str, expected_inodes: u64) -> StorageRequest {
        let empty_dir = Some(EmptyDir::default());
        let volumes = vec![Volume { name: "cache".into(), empty_dir, ..Volume::default() }];
        let known = KnownPod::new(Pod { volumes, ..pod(uid, "10") }, &policy(Vec::new()));
        StorageRequest::new(&known, Vec::new(), expected_inodes)
    }

    fn fill(root: &Path, uid: &str, files: u64) {
        let volume = root.join("pods").join(uid).join("volumes/kubernetes.io~empty-dir/cache");
        std::fs::create_dir_all(&volume).unwrap();
        (0..files).for_each(|file| std::fs::write(volume.join(file.to_string()), "").unwrap());
    }

    #[test]
    fn large_pod_gets_the_inodes_that_small_pods_leave() {
        let root = tempfile::tempdir().unwrap();
        let uids: Vec<_> = (0..10).map(|pod| format!("uid-{pod}")).collect();
        uids.iter()
            .zip([500].into_iter().chain([4; 9]))
            .for_each(|(uid, files)| fill(root.path(), uid, files));
        let paths = FsPaths { kubelet_root: Some(root.path().to_owned()), ..FsPaths::default() };
        let read = |expected: u64, inodes| {
            let mut pods: Vec<_> = uids.iter().map(|uid| request(uid, 5)).collect();
            pods[0] = request("uid-0", expected);
            let budget = WalkBudget { deadline_ns: u64::MAX, inodes };
            let sample = read_within(budget, &Host::default(), &paths, &pods);
            let exact = sample.pods.values().filter(|it| it.ephemeral_storage().is_some()).count();
            (sample.pods["uid-0"].inodes(), exact)
        };
        assert_eq!(read(0, 600), (60, 9), "nothing is known of it: it comes first, with a share of its own");
        assert_eq!(read(60, 600), (501, 10), "the others come first");
        assert_eq!(read(60, 300), (255, 9), "they are exact where not all can be");
    }

    #[test]
    fn a_pod_of_which_little_was_read_is_read_once_more() {
        let root = tempfile::tempdir().unwrap();
        fill(root.path(), "uid-0", 4);
        let paths = FsPaths { kubelet_root: Some(root.path().to_owned()), ..FsPaths::default() };
        let read = |deadlines: [u64; 2]| {
            let mut deadlines = deadlines.into_iter();
            let budget = || WalkBudget { deadline_ns: deadlines.next().unwrap(), inodes: 100 };
            let sample = read_twice(budget, &Host::default(), &paths, &[request("uid-0", 0)]);
            (sample.pods["uid-0"].total().is_lower_bound, deadlines.count())
        };
        assert_eq!(read([0, u64::MAX]), (false, 0), "the first reading was cut off");
        assert_eq!(read([u64::MAX, 0]), (false, 1), "one reading is enough");
        assert_eq!(read([0, 0]), (true, 0));
    }

    #[test]
    fn names_cannot_escape_the_directory_of_the_pod() {
        let root = tempfile::tempdir().unwrap();
        let secret = root.path().join("kubelet/secret");
        std::fs::create_dir(secret.parent().unwrap()).unwrap();
        std::fs::write(secret, vec![1; 1 << 20]).unwrap();
        let kubelet = open(&root.path().join("kubelet"));
        let read = |name: &str| {
            let mut budget = WalkBudget { deadline_ns: u64::MAX, inodes: 9 };
            read_below(kubelet.as_ref(), &["pods", name], &mut budget)
        };
        for name in ["..", ".", "../..", "a/../..", "a/b", "/", "", "a/"] {
            assert_eq!(read(name), None, "{name}");
        }
        assert_eq!(read("absent"), Some(DiskUsage::default()));
    }

    #[test]
    fn exhausted_inode_budget_gives_a_lower_bound() {
        let root = tempfile::tempdir().unwrap();
        let base = open(root.path());
        std::fs::create_dir(root.path().join("a")).unwrap();
        std::fs::write(root.path().join("a/file"), "x").unwrap();
        let mut budget = WalkBudget { deadline_ns: u64::MAX, inodes: 1 };
        assert!(read_below(base.as_ref(), &["a"], &mut budget).unwrap().is_lower_bound);
        assert_eq!(budget.inodes, 0);
    }
}
