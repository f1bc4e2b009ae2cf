//! The programs of a node: Debian's containerd, runc and network plugins, unpacked by `cargo xtask e2e`, and
//! the kubelet beside Kubernetes' other programs.

use std::path::{Path, PathBuf};

use crate::cluster::Binaries;
use crate::folder::cache;

/// The environment variable with the folder, if it is not the usual one.
pub const FOLDER: &str = "EVICTION_AGENT_NODE_PROGRAMS";

/// The programs of a node.
#[derive(Clone, Debug)]
pub struct Programs {
    pub(super) kubelet: PathBuf,
    pub(super) runtime: Runtime,
}

/// containerd and the programs that it needs.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// A folder that is laid out like `/`.
    root: PathBuf,
    busybox: PathBuf,
}

impl Programs {
    /// Finds the programs, and checks that they can be used here.
    ///
    /// # Errors
    /// Why they cannot be used, as a sentence.
    pub fn find() -> Result<Self, String> {
        let kubelet = Binaries::find()?.program("kubelet");
        if !kubelet.is_file() {
            return Err(format!("there is no {}: `cargo xtask e2e` installs it", kubelet.display()));
        }
        Ok(Self { kubelet, runtime: Runtime::find()? })
    }

    /// Returns busybox, linked statically, for the image of a pod.
    pub fn busybox(&self) -> &Path {
        self.runtime.busybox()
    }
}

impl Runtime {
    /// Finds the programs, and checks that they can be used here.
    ///
    /// # Errors
    /// Why they cannot be used, as a sentence.
    pub fn find() -> Result<Self, String> {
        let root = match std::env::var_os(FOLDER) {
            Some(folder) => PathBuf::from(folder),
            None => cache().ok_or("there is no home folder, and so no cache of programs")?.join("tools/node"),
        };
        let found = Self { root, busybox: PathBuf::from("/bin/busybox") };
        for file in [&found.containerd(), &found.root.join("usr/sbin/runc"), &found.busybox] {
            if !file.is_file() {
                return Err(format!("there is no {}: `cargo xtask e2e` installs it", file.display()));
            }
        }
        if !rustix::process::geteuid().is_root() {
            return Err("a container runtime takes root".to_owned());
        }
        Ok(found)
    }

    /// Returns busybox, linked statically, for the image of a pod.
    pub fn busybox(&self) -> &Path {
        &self.busybox
    }

    pub(crate) fn containerd(&self) -> PathBuf {
        self.root.join("usr/bin/containerd")
    }

    pub(crate) fn ctr(&self) -> PathBuf {
        self.root.join("usr/bin/ctr")
    }

    /// Returns the folder of the network plugins.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.root.join("usr/lib/cni")
    }

    /// Returns the `PATH` on which containerd finds its shim and runc, before the machine's own.
    pub(crate) fn path(&self) -> String {
        let root = self.root.display();
        format!("{root}/usr/bin:{root}/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin")
    }
}
