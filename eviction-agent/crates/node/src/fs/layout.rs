//! Finds nodefs and imagefs, and whether they are one file system.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use eviction_core::disk_layout::DiskLayout;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::FsStats;

use super::statistics::FileSystem;
use crate::backend::BackendInfo;
use crate::cgroup::hierarchy::Host;
use crate::file::reason_text;
use crate::mountinfo::MountInfo;

/// Where the kubelet keeps its files by default.
const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// Where the kubelet keeps the logs of pods by default.
const POD_LOGS: &str = "/var/log/pods";

/// Where container runtimes keep images and writable layers by default: containerd, CRI-O.
const RUNTIME_ROOTS: [&str; 2] = ["/var/lib/containerd", "/var/lib/containers/storage"];

/// How long file systems may take to respond at the start.
const DEADLINE: Duration = Duration::from_secs(2);

/// The configured paths of a node's disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsPaths {
    /// A path on nodefs.
    pub node_fs: Option<PathBuf>,
    /// A path on imagefs.
    pub image_fs: Option<PathBuf>,
    /// A path on containerfs, the file system of writable layers, if that is not imagefs.
    pub container_fs: Option<PathBuf>,
    /// The kubelet's root directory.
    pub kubelet_root: Option<PathBuf>,
    /// The directory of the pods' logs.
    pub pod_logs: Option<PathBuf>,
}

impl FsPaths {
    /// Returns only the two directories with the storage of pods: the configured ones, else the usual ones of a
    /// node.
    pub fn of_pod_storage(&self, host: &Host, whole_machine: bool) -> Self {
        let default_path = |path: &str| {
            let path = host.path(path);
            (whole_machine && path.is_dir()).then_some(path)
        };
        Self {
            kubelet_root: self.kubelet_root.clone().or_else(|| default_path(KUBELET_ROOT)),
            pod_logs: self.pod_logs.clone().or_else(|| default_path(POD_LOGS)),
            ..Self::default()
        }
    }
}

/// The file systems of the signals.
#[derive(Debug)]
pub struct NodeFileSystems {
    node: Result<FileSystem, NotFound>,
    /// `None` if it is on the same device as nodefs.
    image: Result<Option<FileSystem>, NotFound>,
    /// Whether writable layers are on nodefs although imagefs is elsewhere.
    is_split: bool,
    /// Receives the file systems that were not found within the deadline.
    late: Option<mpsc::Receiver<NodeFileSystems>>,
}

/// Why a file system was not found.
#[derive(Clone, Debug)]
struct NotFound {
    why: UnknownReason,
    text: String,
}

impl NotFound {
    /// Returns the reason for a file system that is neither configured nor found.
    fn absent(text: &str) -> Self {
        Self { why: UnknownReason::Absent, text: text.to_owned() }
    }
}

impl NodeFileSystems {
    /// Finds the file systems of a node that may be a part of the machine. A file system that is not configured
    /// is that of the machine. If one does not respond within two seconds, all of them are unknown until
    /// [`NodeFileSystems::take_late`] takes them over.
    pub fn find(host: &Host, paths: &FsPaths, whole_machine: bool) -> Self {
        if !whole_machine && paths.node_fs.is_none() && paths.kubelet_root.is_none() {
            return Self::unknown(NotFound::absent("--cgroup-root is given; --nodefs names a path on it"));
        }
        let (host, paths) = (host.clone(), paths.clone());
        let (sender, receiver) = mpsc::channel();
        let work = move || drop(sender.send(paths.find(&host)));
        // Opening a path may hang, as statfs may.
        let thread = std::thread::Builder::new().name("find-fs".to_owned()).spawn(work);
        let found = thread.ok().and_then(|_| receiver.recv_timeout(DEADLINE).ok());
        found.unwrap_or_else(|| {
            let text = format!("no answer within {} seconds", DEADLINE.as_secs());
            Self { late: Some(receiver), ..Self::unknown(NotFound { why: UnknownReason::Stale, text }) }
        })
    }

    /// Takes over the file systems that were found after the deadline. Returns whether there are any.
    pub fn take_late(&mut self) -> bool {
        let Some(found) = self.late.as_ref().and_then(|late| late.try_recv().ok()) else { return false };
        *self = found;
        true
    }

    fn unknown(why: NotFound) -> Self {
        Self { node: Err(why.clone()), image: Err(why), is_split: false, late: None }
    }

    /// Returns no file systems: disks are not watched.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self::unknown(NotFound::absent("disks are not watched"))
    }

    /// Returns the layout as the kubelet defines it. An unknown imagefs counts as dedicated: writable layers, which
    /// may not be on nodefs, then count for no limit, and nothing is reclaimed for nodefs.
    pub fn layout(&self) -> DiskLayout {
        let dedicated_image_fs = !matches!(self.image, Ok(None));
        DiskLayout { dedicated_image_fs, split_image_fs: self.is_split }
    }

    /// Returns whether both file systems were found.
    pub fn are_found(&self) -> bool {
        self.node.is_ok() && self.image.is_ok()
    }

    /// Returns whether it is known which parts of pods are on nodefs.
    pub fn is_layout_known(&self) -> bool {
        self.image.is_ok()
    }

    /// Returns nodefs and imagefs, which may be the same.
    fn both(&self) -> [Result<&FileSystem, &NotFound>; 2] {
        let node = self.node.as_ref();
        let image = self.image.as_ref().map_or_else(Err, |image| image.as_ref().map_or(node, Ok));
        [node, image]
    }

    /// Reads the stats of nodefs and imagefs. If both are one file system, it is read once.
    pub fn read(&self) -> [Reading<FsStats>; 2] {
        let read = |found: Result<&FileSystem, &NotFound>| match found {
            Ok(file_system) => file_system.read(),
            Err(NotFound { why, text: _ }) => Reading::Unknown(*why),
        };
        let [node, image] = self.both();
        let node = read(node);
        // Without imagefs the layout is unknown, and so is what can be reclaimed and what counts.
        [node, if matches!(self.image, Ok(None)) { node } else { read(image) }]
    }

    /// Returns the type and `st_dev` of each file system whose allocations BPF programs can see.
    pub fn devices(&self) -> [Option<(&str, u64)>; 2] {
        self.both().map(|found| found.ok().and_then(FileSystem::hooked_device))
    }

    /// Returns the types of these file systems.
    pub fn hooked_types(&self) -> Vec<String> {
        self.devices().into_iter().flatten().map(|(fs_type, _)| fs_type.to_owned()).collect()
    }

    /// Returns how each file system is read, for logs, metrics and `check`.
    pub fn info(&self) -> [BackendInfo; 2] {
        let info = |source, found: Result<&FileSystem, &NotFound>| match found {
            Ok(file_system) => BackendInfo::plain(source, "statfs", file_system.description()),
            Err(NotFound { why: _, text }) => BackendInfo::plain(source, "", text.clone()),
        };
        let [node, image] = self.both();
        let mut infos = [info("nodefs", node), info("imagefs", image)];
        if self.is_split {
            infos[1].reason.push_str("; writable layers are on nodefs");
        }
        infos
    }
}

impl FsPaths {
    fn find(&self, host: &Host) -> NodeFileSystems {
        let node = self.open_node_fs(host);
        let image = match (self.open_image_fs(&node, host), &node) {
            (Ok(None), Err(why)) => Err(why.clone()),
            (Ok(Some(image)), Ok(node)) if image.mount().device == node.mount().device => Ok(None),
            (image, _) => image,
        };
        match self.is_split(&node, &image, host) {
            Ok(is_split) => NodeFileSystems { node, image, is_split, late: None },
            Err(why) => NodeFileSystems { node, image: Err(why), is_split: false, late: None },
        }
    }

    /// Returns whether writable layers are on nodefs although imagefs is elsewhere, as CRI-O has it with its option
    /// `imagestore`: by the configured path, else in a pod whose imagefs is configured, by the overlay that is its
    /// `/`.
    fn is_split(
        &self,
        node: &Result<FileSystem, NotFound>,
        image: &Result<Option<FileSystem>, NotFound>,
        host: &Host,
    ) -> Result<bool, NotFound> {
        let (Ok(node), Ok(image)) = (node, image) else { return Ok(false) };
        let image = image.as_ref().unwrap_or(node);
        if let Some(path) = &self.container_fs {
            let device = open(path, &[], host)?.mount().device;
            return match (device == node.mount().device, device == image.mount().device) {
                (_, true) => Ok(false),
                (true, false) => Ok(true),
                (false, false) => Err(NotFound::absent(
                    "containerfs is on neither nodefs nor imagefs, which the kubelet does not support",
                )),
            };
        }
        if self.image_fs.is_none() || !is_pod(host) {
            return Ok(false);
        }
        let layers = open(&host.root, &[], host)?;
        let is_overlay = layers.mount().fs_type == "overlay";
        Ok(is_overlay && layers.is_as_large_as(node) && !layers.is_as_large_as(image))
    }

    /// Opens nodefs by the configured path, else by the file that the kubelet mounts into each pod, else by the
    /// kubelet's root directory.
    fn open_node_fs(&self, host: &Host) -> Result<FileSystem, NotFound> {
        if let Some(path) = self.node_fs.as_ref().or(self.kubelet_root.as_ref()) {
            return open(path, &[], host);
        }
        if is_pod(host) {
            let other_paths = ["/dev/termination-log", "/etc/hostname"].map(|path| host.path(path));
            return open(&host.path("/etc/hosts"), &other_paths.each_ref().map(PathBuf::as_path), host);
        }
        let root = host.path(KUBELET_ROOT);
        match root.is_dir() {
            true => open(&root, &[], host),
            false => {
                Err(NotFound::absent("there is no kubelet's root directory; --nodefs names a path on it"))
            }
        }
    }

    /// Opens imagefs; `None` if it is nodefs as far as is known.
    fn open_image_fs(
        &self,
        node: &Result<FileSystem, NotFound>,
        host: &Host,
    ) -> Result<Option<FileSystem>, NotFound> {
        if let Some(path) = &self.image_fs {
            return open(path, &[], host).map(Some);
        }
        if is_pod(host) {
            return image_fs_of_pod(node.as_ref().ok(), host);
        }
        if node.is_err() || self.node_fs.is_some() {
            return Ok(None);
        }
        let root = RUNTIME_ROOTS.map(|root| host.path(root)).into_iter().find(|root| root.is_dir());
        root.map(|root| open(&root, &[], host)).transpose()
    }
}

fn open(path: &Path, other_paths: &[&Path], host: &Host) -> Result<FileSystem, NotFound> {
    FileSystem::open(path, other_paths, host)
        .map_err(|why| NotFound { why, text: format!("{}: {}", path.display(), reason_text(why)) })
}

/// Finds the file system below the overlay that is the `/` of a pod. containerd keeps `/etc/hostname` on the same
/// device; CRI-O keeps it in memory, so the size shows whether it is nodefs.
fn image_fs_of_pod(node: Option<&FileSystem>, host: &Host) -> Result<Option<FileSystem>, NotFound> {
    let layers = open(&host.root, &[], host)?;
    if layers.mount().fs_type != "overlay" {
        return Err(NotFound::absent("/ is no overlay; --imagefs names a path on imagefs"));
    }
    match open(&host.path("/etc/hostname"), &[], host) {
        Ok(hostname) if hostname.is_as_large_as(&layers) => Ok(Some(hostname)),
        _ if node.is_some_and(|node| node.is_as_large_as(&layers)) => Ok(None),
        _ => Ok(Some(layers)),
    }
}

/// Returns whether `/etc/hosts` is what a kubelet mounts there: `pods/UID/etc-hosts` of its root directory.
fn is_pod(host: &Host) -> bool {
    let hosts = host.path("/etc/hosts");
    open(&hosts, &[], host).is_ok_and(|found| is_etc_hosts_of_pod(found.mount(), &hosts))
}

fn is_etc_hosts_of_pod(mount: &MountInfo, hosts: &Path) -> bool {
    let mut names = mount.root.iter().rev();
    let [file, _, pods] = [names.next(), names.next(), names.next()];
    mount.mount_point == hosts && file == Some("etc-hosts".as_ref()) && pods == Some("pods".as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(root: &Path) -> Host {
        Host { proc: "/proc".into(), root: root.to_owned() }
    }

    #[test]
    fn no_file_system_is_found_without_kubelet_directories() {
        let root = tempfile::tempdir().unwrap();
        let found = NodeFileSystems::find(&host(root.path()), &FsPaths::default(), true);
        assert_eq!(found.read(), [Reading::Unknown(UnknownReason::Absent); 2]);
        let [node, image] = found.info();
        assert_eq!((node.backend, image.backend), ("", ""));
        assert!(node.reason.contains("--nodefs"), "{}", node.reason);
        let part = NodeFileSystems::find(&Host::default(), &FsPaths::default(), false);
        assert_eq!(
            part.read(),
            [Reading::Unknown(UnknownReason::Absent); 2],
            "the machine's are not its own"
        );
    }

    #[test]
    fn configured_paths_are_used_and_one_device_counts_as_shared() {
        let root = tempfile::tempdir().unwrap();
        let configured = |image: &str| FsPaths {
            node_fs: Some(root.path().into()),
            image_fs: Some(image.into()),
            ..FsPaths::default()
        };
        let shared =
            NodeFileSystems::find(&host(root.path()), &configured(root.path().to_str().unwrap()), true);
        assert!(shared.is_layout_known() && shared.layout() == DiskLayout::default());
        let [node, image] = shared.read();
        assert!(node.known().is_some() && node == image);
        let missing = NodeFileSystems::find(&host(root.path()), &configured("/nonexistent/images"), true);
        assert_eq!(missing.read()[1], Reading::Unknown(UnknownReason::Unreadable(2)));
        assert!(missing.read()[0].known().is_some());
        assert!(!missing.is_layout_known() && missing.layout().dedicated_image_fs);
        let proc = NodeFileSystems::find(&host(root.path()), &configured("/proc"), true);
        assert!(proc.layout().dedicated_image_fs);
        assert_eq!(proc.read()[1], Reading::Unknown(UnknownReason::Implausible));
    }

    #[test]
    fn the_directories_of_a_node_are_found() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("var/lib/kubelet")).unwrap();
        let found = NodeFileSystems::find(&host(root.path()), &FsPaths::default(), true);
        assert!(found.read().iter().all(|stats| stats.known().is_some()));
        assert!(found.info()[0].reason.contains("/var/lib/kubelet on "), "{:?}", found.info());
    }

    #[test]
    fn file_systems_that_are_found_late_are_taken_over() {
        let root = tempfile::tempdir().unwrap();
        let (sender, receiver) = mpsc::channel();
        let mut file_systems = NodeFileSystems { late: Some(receiver), ..NodeFileSystems::none() };
        assert!(!file_systems.take_late());
        let paths = FsPaths { node_fs: Some(root.path().into()), ..FsPaths::default() };
        sender.send(NodeFileSystems::find(&host(root.path()), &paths, true)).unwrap();
        assert!(file_systems.take_late());
        assert!(file_systems.read().iter().all(|stats| stats.known().is_some()));
        assert!(!file_systems.take_late());
    }

    #[test]
    fn etc_hosts_of_a_pod_is_recognized() {
        let hosts = Path::new("/etc/hosts");
        let of = |root: &str, mount_point: &str| {
            let mount = MountInfo {
                id: 1,
                device: 7,
                root: root.into(),
                mount_point: mount_point.into(),
                fs_type: "ext4".to_owned(),
                source: "/dev/loop0".into(),
                options: [Vec::new(), Vec::new()],
            };
            is_etc_hosts_of_pod(&mount, hosts)
        };
        assert!(of("/kubelet/pods/0a1b/etc-hosts", "/etc/hosts"));
        assert!(!of("/docker/containers/0a1b/hosts", "/etc/hosts"));
        assert!(!of("/", "/"));
        assert!(!of("/kubelet/pods/0a1b/etc-hosts", "/etc"));
    }
}
