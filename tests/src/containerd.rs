//! A containerd for a test: its root, state, socket and runtime are below a folder of the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use crate::cluster::node::{
    Image, Runtime, containerd_config, hierarchies, list_images, remove_groups, unmount_all,
};
use crate::cluster::program::Program;
use crate::folder::Folder;
use crate::process::{self, run};

/// The parent of the cgroups of containers, if their pod names none.
const GROUP: &str = "k8s.io";

/// The folder of the shims' sockets, whatever containerd's settings are.
const SHIM_SOCKETS: &str = "/run/containerd";

/// A running containerd. Dropping it kills it and its shims.
#[derive(Debug)]
pub struct Containerd {
    // Ended in this order.
    program: Program,
    runtime: Runtime,
    root: PathBuf,
    folder: Folder,
    created_sockets: bool,
    created_groups: Vec<PathBuf>,
}

impl Containerd {
    /// Starts a containerd that keeps its images in `root`.
    ///
    /// # Errors
    /// If its programs are missing, or it does not come up.
    pub fn start(root: &Path) -> Result<Self> {
        let runtime = Runtime::find().map_err(anyhow::Error::msg)?;
        let folder = Folder::below(Path::new("/var/tmp"), "eviction-containerd")?;
        let config = config(root, folder.path());
        fs::write(folder.path().join("containerd.toml"), config).context("write containerd.toml")?;
        let groups = hierarchies()?.into_iter().map(|it| it.join(GROUP));
        let created_groups = groups.filter(|group| !group.exists()).collect();
        let created_sockets = !Path::new(SHIM_SOCKETS).exists();
        let mut command = Command::new(runtime.containerd());
        command.arg("--config=containerd.toml").env("PATH", runtime.path());
        let program = Program::start("containerd", &mut command, folder.path())?;
        let mut containerd =
            Self { program, runtime, root: root.to_owned(), folder, created_sockets, created_groups };
        let mut serves = Ok(());
        process::wait_until("containerd serves", || {
            serves = containerd.program.check();
            serves.is_err() || containerd.ctr(&["version"]).output().is_ok_and(|it| it.status.success())
        })
        .with_context(|| containerd.program.tail())?;
        serves.map(|()| containerd)
    }

    /// Returns its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("containerd.sock")
    }

    /// Imports an image.
    ///
    /// # Errors
    /// If it cannot be packed, or containerd refuses it.
    pub fn import(&self, image: &Image) -> Result<()> {
        let folder = Folder::below(Path::new("/var/tmp"), "eviction-image")?;
        let archive = image.pack(folder.path())?;
        run(self.ctr(&["--namespace=k8s.io", "images", "import"]).arg(archive))
    }

    /// Returns the names of its images, as `ctr` lists them.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn images(&self) -> Result<Vec<String>> {
        list_images(|arguments| self.ctr(arguments))
    }

    /// Sends it a signal, to stop, continue or kill it.
    ///
    /// # Errors
    /// If it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.program.signal(signal)
    }

    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.runtime.ctr());
        command.arg("--address").arg(self.socket()).args(arguments);
        command
    }

    /// Returns its shims, and the processes with the root of one of its containers.
    fn remaining_processes(&self) -> Vec<u32> {
        let (socket, root) = (self.socket().display().to_string(), self.root.display().to_string());
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_remaining = |pid: &u32| {
            let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let command = String::from_utf8_lossy(&read("cmdline")).into_owned();
            let mounts = String::from_utf8_lossy(&read("mountinfo")).into_owned();
            let own_root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/"));
            command.contains("containerd-shim") && command.contains(&socket)
                || own_root.is_some_and(|line| line.contains(&root))
        };
        pids.filter(is_remaining).collect()
    }

    fn clear(&mut self) -> Result<()> {
        self.program.kill()?;
        // Shims outlive containerd, and containers outlive shims.
        process::wait_until("shims and containers end", || {
            let remaining = self.remaining_processes();
            remaining.iter().for_each(|pid| drop(process::signal(*pid, Signal::KILL)));
            remaining.is_empty()
        })?;
        let (root, folder) = (self.root.as_path(), self.folder.path());
        unmount_all(|point| (point.starts_with(root) && point != root) || point.starts_with(folder))?;
        self.created_groups.iter().for_each(|group| remove_groups(group));
        if self.created_sockets && Path::new(SHIM_SOCKETS).exists() {
            fs::remove_dir_all(SHIM_SOCKETS).context("remove the sockets of shims")?;
        }
        Ok(())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("clear away containerd: {error:#}");
        }
    }
}

fn config(root: &Path, folder: &Path) -> String {
    let runc = format!(
        "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nRoot = \"{}/runc\"\n",
        folder.display()
    );
    containerd_config(root, folder, &runc)
}
