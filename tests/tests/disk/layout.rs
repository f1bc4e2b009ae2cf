//! Detection of nodefs and imagefs in a pod: the mounts of a pod, made in a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use eviction_core::disk_layout::DiskLayout;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_node::cgroup::hierarchy::Host;
use eviction_node::fs::{FileSystem, FsPaths, NodeFileSystems};
use rustix::mount::{UnmountFlags, unmount};
use tests::file_system::Kind;
use tests::process::run;

use crate::mount;

const UID: &str = "5f1c3a52-7d0e-4b7e-9a4b-0c2d8e1f6a90";

/// The root directory of a container: an overlay on the snapshotter's file system, and the files that the kubelet
/// and containerd mount into it.
pub(crate) struct Container {
    pub(crate) root: PathBuf,
    /// The mount points in the order in which they were mounted.
    mounted: Vec<PathBuf>,
}

impl Container {
    pub(crate) fn new(kubelet: &Path, containerd: &Path, hostname: &Path) -> Result<Self> {
        let layers = ["lower/etc", "upper", "work", "root"].map(|path| containerd.join(path));
        layers.iter().try_for_each(fs::create_dir_all)?;
        let [_, upper, work, root] = layers;
        for file in ["hosts", "hostname"] {
            fs::write(containerd.join("lower/etc").join(file), "")?;
        }
        let mut container = Self { root, mounted: Vec::new() };
        let lower = containerd.join("lower");
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        container.mount(Command::new("mount").args(["-t", "overlay", "-o", &options, "overlay"]), "")?;
        let pod = kubelet.join("pods").join(UID);
        fs::create_dir_all(&pod)?;
        fs::write(pod.join("etc-hosts"), "127.0.0.1 localhost\n")?;
        fs::write(hostname.join("hostname"), "pod\n")?;
        container.mount(Command::new("mount").arg("--bind").arg(pod.join("etc-hosts")), "etc/hosts")?;
        container
            .mount(Command::new("mount").arg("--bind").arg(hostname.join("hostname")), "etc/hostname")?;
        Ok(container)
    }

    pub(crate) fn mount(&mut self, command: &mut Command, below: &str) -> Result<()> {
        let point = if below.is_empty() { self.root.clone() } else { self.root.join(below) };
        run(command.arg(&point))?;
        self.mounted.push(point);
        Ok(())
    }

    fn find(&self) -> NodeFileSystems {
        self.find_with(&FsPaths::default())
    }

    fn find_with(&self, paths: &FsPaths) -> NodeFileSystems {
        let host = Host { proc: "/proc".into(), root: self.root.clone() };
        NodeFileSystems::find(&host, paths, true)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        for point in self.mounted.iter().rev() {
            unmount(point, UnmountFlags::DETACH).unwrap();
        }
    }
}

fn assert_same_file_systems(found: &NodeFileSystems, paths: [&Path; 2]) {
    let expected = paths.map(|path| FileSystem::open(path, &[], &Host::default()).unwrap().read());
    assert!(expected.iter().all(|stats| matches!(stats, Reading::Known(_))));
    assert_eq!(found.read(), expected, "{:?}", found.info());
}

#[test]
fn a_dedicated_imagefs_is_detected_from_a_pod() {
    let (nodefs, imagefs) = (mount!(Kind::Ext4), mount!(Kind::Xfs));
    let container = Container::new(nodefs.path(), imagefs.path(), imagefs.path()).unwrap();
    let found = container.find();
    assert!(found.layout().dedicated_image_fs);
    assert_same_file_systems(&found, [nodefs.path(), imagefs.path()]);
}

#[test]
fn a_shared_nodefs_and_imagefs_are_detected_from_a_pod() {
    let all = mount!(Kind::Ext4);
    let [kubelet, containerd] = ["kubelet", "containerd"].map(|name| all.path().join(name));
    fs::create_dir(&containerd).unwrap();
    let container = Container::new(&kubelet, &containerd, &containerd).unwrap();
    let found = container.find();
    assert!(!found.layout().dedicated_image_fs);
    assert_same_file_systems(&found, [all.path(), all.path()]);
}

/// CRI-O keeps `/etc/hostname` in memory.
#[test]
fn imagefs_is_detected_with_the_hostname_file_in_memory() {
    let (all, memory) = (mount!(Kind::Ext4), mount!(Kind::Tmpfs));
    let [kubelet, layers] = ["kubelet", "layers"].map(|name| all.path().join(name));
    fs::create_dir(&layers).unwrap();
    let container = Container::new(&kubelet, &layers, memory.path()).unwrap();
    assert!(!container.find().layout().dedicated_image_fs);
    drop(container);
    let imagefs = mount!(Kind::Xfs);
    let container = Container::new(&kubelet, imagefs.path(), memory.path()).unwrap();
    let found = container.find();
    assert!(found.layout().dedicated_image_fs);
    assert_same_file_systems(&found, [all.path(), imagefs.path()]);
}

/// CRI-O keeps writable layers with its other files if its option `imagestore` names another disk for images.
#[test]
fn a_split_layout_is_detected_from_a_pod_with_a_path_on_imagefs() {
    let (all, memory, imagefs) = (mount!(Kind::Ext4), mount!(Kind::Tmpfs), mount!(Kind::Xfs));
    let [kubelet, layers] = ["kubelet", "layers"].map(|name| all.path().join(name));
    fs::create_dir(&layers).unwrap();
    let container = Container::new(&kubelet, &layers, memory.path()).unwrap();
    let paths = FsPaths { image_fs: Some(imagefs.path().into()), ..FsPaths::default() };
    let found = container.find_with(&paths);
    assert_eq!(found.layout(), DiskLayout { dedicated_image_fs: true, split_image_fs: true });
    assert_same_file_systems(&found, [all.path(), imagefs.path()]);
    let container = Container::new(&kubelet, imagefs.path(), memory.path()).unwrap();
    assert!(!container.find_with(&paths).layout().split_image_fs);
}

#[test]
fn a_split_layout_is_detected_by_a_path_on_containerfs() {
    let (nodefs, imagefs, third) = (mount!(Kind::Ext4), mount!(Kind::Xfs), mount!(Kind::Tmpfs));
    let find = |container_fs: &Path| {
        let [node_fs, image_fs, container_fs] =
            [nodefs.path(), imagefs.path(), container_fs].map(|path| Some(path.to_owned()));
        let paths = FsPaths { node_fs, image_fs, container_fs, ..FsPaths::default() };
        NodeFileSystems::find(&Host::default(), &paths, true)
    };
    let split = find(nodefs.path());
    assert_eq!(split.layout(), DiskLayout { dedicated_image_fs: true, split_image_fs: true });
    assert!(split.info()[1].reason.ends_with("; writable layers are on nodefs"), "{:?}", split.info());
    assert_eq!(find(imagefs.path()).layout(), DiskLayout { dedicated_image_fs: true, split_image_fs: false });
    let unsupported = find(third.path());
    assert!(!unsupported.is_layout_known());
    assert!(unsupported.info()[1].reason.contains("neither nodefs nor imagefs"), "{:?}", unsupported.info());
}

/// Under the native or devmapper snapshotter the container's root tells nothing about imagefs.
#[test]
fn imagefs_is_unknown_in_a_pod_without_overlay() {
    let all = mount!(Kind::Ext4);
    let root = all.path().join("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(root.join("etc/hosts"), "").unwrap();
    let hosts = all.path().join("pods").join(UID).join("etc-hosts");
    fs::create_dir_all(hosts.parent().unwrap()).unwrap();
    fs::write(&hosts, "").unwrap();
    let mut container = Container { root, mounted: Vec::new() };
    container.mount(Command::new("mount").arg("--bind").arg(&hosts), "etc/hosts").unwrap();
    let found = container.find();
    assert!(!found.is_layout_known());
    let [node, image] = found.read();
    assert!(matches!((node, image), (Reading::Known(_), Reading::Unknown(_))), "{node:?} {image:?}");
}

#[test]
fn subvolumes_of_a_btrfs_are_one_file_system() {
    let btrfs = mount!(Kind::Btrfs);
    let [kubelet, containerd] = ["kubelet", "containerd"].map(|name| btrfs.path().join(name));
    for path in [&kubelet, &containerd] {
        run(Command::new("btrfs").args(["subvolume", "create"]).arg(path)).unwrap();
    }
    let paths = FsPaths { node_fs: Some(kubelet), image_fs: Some(containerd), ..FsPaths::default() };
    let found = NodeFileSystems::find(&Host::default(), &paths, true);
    assert!(!found.layout().dedicated_image_fs);
    assert!(matches!(found.read(), [Reading::Known(_), Reading::Known(_)]));
}

#[test]
fn a_detected_file_system_can_be_unmounted() {
    let mounted = mount!(Kind::Ext4);
    let paths = FsPaths { node_fs: Some(mounted.path().into()), ..FsPaths::default() };
    let found = NodeFileSystems::find(&Host::default(), &paths, true);
    mounted.unmount().unwrap();
    assert_eq!(found.read(), [Reading::Unknown(UnknownReason::Replaced); 2]);
    mounted.mount().unwrap();
    assert!(found.read()[0].known().is_some());
}
