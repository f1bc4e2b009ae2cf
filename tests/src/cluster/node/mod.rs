//! A real node: containerd and a kubelet that has joined the cluster, on this machine's own cgroups.
//!
//! There can be one at a time, and none on a machine that is a node already. Pods use images that are built
//! here from a static program; no registry is used.

mod cleanup;
mod image;
mod programs;
mod settings;

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use cleanup::NodeCleanup;
pub(crate) use cleanup::{hierarchies, remove_groups, unmount_all};
pub use image::Image;
pub(crate) use image::list_images;
pub use programs::{FOLDER, Programs, Runtime};
use settings::Settings;
pub(crate) use settings::containerd_config;

use super::Cluster;
use super::program::{Program, free_ports};
use crate::folder::Folder;
use crate::process::run;

/// A folder on a disk, so that images and the file systems of containers do not use the node's memory.
const PARENT: &str = "/var/tmp";
/// The prefix of the folders and cgroups of nodes.
const PREFIX: &str = "eviction-node";

/// A running node.
#[derive(Debug)]
pub struct RealNode {
    // Ended in this order.
    kubelet: Option<Program>,
    containerd: Program,
    cleanup: NodeCleanup,
    settings: Settings,
    name: String,
    folder: Folder,
}

impl RealNode {
    /// Starts a node with these fields of the kubelet's configuration, and waits until it is Ready. A directory
    /// of the node that `disks` names (`kubelet`, `pod-logs` or `containerd`) is this one, and else on the
    /// machine's own disk.
    ///
    /// # Errors
    /// If this machine is a node already, or a program ends or does not come up.
    pub fn start(
        cluster: &mut Cluster,
        programs: &Programs,
        name: &str,
        config: &Value,
        disks: &[(&str, &Path)],
    ) -> Result<Self> {
        NodeCleanup::clear_abandoned(Path::new(PARENT), PREFIX)?;
        let folder = Folder::below(Path::new(PARENT), PREFIX)?;
        let cleanup = NodeCleanup::prepare(folder.path())?;
        let [port] = free_ports()?;
        let settings = Settings::write(cluster, programs, folder.path(), name, port, config)?;
        for (name, disk) in disks {
            let directory = folder.path().join(name);
            std::fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
            run(Command::new("mount").args(["--bind", "--make-private"]).arg(disk).arg(directory))?;
        }
        let mut command = settings.containerd(&cleanup.runtime_group());
        let containerd = Program::start("containerd", &mut command, folder.path())?;
        let mut node = Self { kubelet: None, containerd, cleanup, settings, name: name.to_owned(), folder };
        cluster.until("containerd serves", |_| {
            node.containerd.check()?;
            Ok(node.settings.ctr(&["version"]).output().is_ok_and(|it| it.status.success()).then_some(()))
        })?;
        node.import(&Image::pause(programs.busybox()))?;
        node.start_kubelet(cluster)?;
        Ok(node)
    }

    /// Starts the kubelet after it was killed, and waits until the node is Ready.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start_kubelet(&mut self, cluster: &mut Cluster) -> Result<()> {
        let mut command = self.settings.kubelet();
        self.kubelet = Some(Program::start("kubelet", &mut command, self.folder.path())?);
        let path = format!("/api/v1/nodes/{}", self.name);
        let kubelet = &mut self.kubelet;
        cluster.until("the node is Ready", |cluster| {
            if let Some(kubelet) = kubelet {
                kubelet.check()?;
            }
            let node = cluster.admin().get(&path)?.body;
            let conditions = node["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
            Ok(conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True").then_some(()))
        })
    }

    /// Kills the kubelet; its pods stay.
    ///
    /// # Errors
    /// If it does not end.
    pub fn kill_kubelet(&mut self) -> Result<()> {
        self.kubelet.take().context("the kubelet was ended")?.kill()
    }

    /// Imports an image, so that pods can use it with `imagePullPolicy: Never`.
    ///
    /// # Errors
    /// If it cannot be packed, or containerd refuses it.
    pub fn import(&self, image: &Image) -> Result<()> {
        self.import_archive(&image.pack(self.folder.path())?)
    }

    /// Imports the images of an archive.
    ///
    /// # Errors
    /// If containerd refuses it.
    pub fn import_archive(&self, archive: &Path) -> Result<()> {
        run(self.settings.ctr(&["--namespace=k8s.io", "images", "import"]).arg(archive))
    }

    /// Returns the names of its images, as `ctr` lists them.
    ///
    /// # Errors
    /// If containerd does not answer.
    pub fn images(&self) -> Result<Vec<String>> {
        list_images(|arguments| self.settings.ctr(arguments))
    }

    /// Returns containerd's socket.
    pub fn containerd_socket(&self) -> std::path::PathBuf {
        self.settings.containerd_socket()
    }

    /// Returns the kubelet's port on 127.0.0.1: `/stats/summary`, `/configz`.
    pub fn kubelet_port(&self) -> u16 {
        self.settings.port
    }

    /// Returns the directory for manifests of static pods.
    pub fn static_pods(&self) -> std::path::PathBuf {
        self.settings.static_pods()
    }

    /// Returns the kubelet's root directory.
    pub fn kubelet_root(&self) -> std::path::PathBuf {
        self.settings.kubelet_root()
    }

    /// Returns containerd's root directory.
    pub fn containerd_root(&self) -> std::path::PathBuf {
        self.settings.containerd_root()
    }

    /// Returns the directory of the pods' logs.
    pub fn pod_logs(&self) -> std::path::PathBuf {
        self.settings.pod_logs()
    }

    /// Returns the folder with logs and settings.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        // The kubelet is ended first: it would restart what is killed below.
        self.kubelet.take();
        if let Err(error) = self.cleanup.clear() {
            eprintln!("clear away a node: {error:#}");
        }
    }
}
