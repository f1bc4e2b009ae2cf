//! A real node: containerd and a kubelet that has joined the cluster, on this machine's own cgroups.
//!
//! There can be one at a time, and none on a machine that is a node already. Pods take an image that
//! is made of a static program here; no registry is asked.

mod image;
mod programs;
mod remains;
mod settings;

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

pub use image::Image;
pub use programs::{FOLDER, Programs, Runtime};
use remains::Remains;
pub(crate) use remains::{hierarchies, remove_groups};
use settings::Settings;

use super::Cluster;
use super::program::{Program, free_ports};
use crate::folder::Folder;

/// On a disk: images and the file systems of containers are no memory of the node.
const PARENT: &str = "/var/tmp";
/// How the folders of nodes begin, and their cgroups.
const PREFIX: &str = "eviction-node";

/// A running node.
#[derive(Debug)]
pub struct RealNode {
    // Ended in this order.
    kubelet: Option<Program>,
    containerd: Program,
    remains: Remains,
    settings: Settings,
    name: String,
    folder: Folder,
}

impl RealNode {
    /// Starts one, with these fields of the kubelet's configuration, and waits until it is Ready. The kubelet's
    /// root directory is on `disk`, if there is one, and else with everything else on the machine's own.
    ///
    /// # Errors
    /// If this machine is a node already, or a program ends or does not come up.
    pub fn start(
        cluster: &mut Cluster,
        programs: &Programs,
        name: &str,
        config: &Value,
        disk: Option<&Path>,
    ) -> Result<Self> {
        Remains::clear_abandoned(Path::new(PARENT), PREFIX)?;
        let folder = Folder::below(Path::new(PARENT), PREFIX)?;
        let remains = Remains::of(folder.path())?;
        let [port] = free_ports()?;
        let settings = Settings::write(cluster, programs, folder.path(), name, port, config)?;
        if let Some(disk) = disk {
            let root = settings.kubelet_root();
            std::fs::create_dir(&root).with_context(|| format!("make {}", root.display()))?;
            run(Command::new("mount").args(["--bind", "--make-private"]).arg(disk).arg(root))?;
        }
        let mut command = settings.containerd(&remains.runtime_group());
        let containerd = Program::start("containerd", &mut command, folder.path())?;
        let mut node = Self { kubelet: None, containerd, remains, settings, name: name.to_owned(), folder };
        cluster.until("containerd serves", |_| {
            node.containerd.check()?;
            Ok(node.settings.ctr(&["version"]).output().is_ok_and(|it| it.status.success()).then_some(()))
        })?;
        node.import(&Image::pause(programs.busybox()))?;
        node.start_kubelet(cluster)?;
        Ok(node)
    }

    /// Starts the kubelet, if it was ended, and waits until the node is Ready.
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

    /// Makes an image known, so that pods can name it with `imagePullPolicy: Never`.
    ///
    /// # Errors
    /// If it cannot be packed or is refused.
    pub fn import(&self, image: &Image) -> Result<()> {
        self.import_archive(&image.pack(self.folder.path())?)
    }

    /// Makes the images of an archive known.
    ///
    /// # Errors
    /// If containerd refuses it.
    pub fn import_archive(&self, archive: &Path) -> Result<()> {
        run(self.settings.ctr(&["--namespace=k8s.io", "images", "import"]).arg(archive))
    }

    /// The kubelet's port on 127.0.0.1: `/stats/summary`, `/configz`.
    pub fn kubelet_port(&self) -> u16 {
        self.settings.port
    }

    /// Where a manifest makes a static pod.
    pub fn static_pods(&self) -> std::path::PathBuf {
        self.settings.static_pods()
    }

    /// The kubelet's root directory.
    pub fn kubelet_root(&self) -> std::path::PathBuf {
        self.settings.kubelet_root()
    }

    /// The directory of the pods' logs.
    pub fn pod_logs(&self) -> std::path::PathBuf {
        self.settings.pod_logs()
    }

    /// The folder with logs and settings.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        // The kubelet first: it would start again what is killed below.
        self.kubelet.take();
        if let Err(error) = self.remains.clear() {
            eprintln!("clear away a node: {error:#}");
        }
    }
}

/// Runs a program to its end; an error has what it said.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_owned();
    let output = command.output().with_context(|| format!("run {}", name.display()))?;
    if !output.status.success() {
        bail!("{} failed: {}", name.display(), String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}
