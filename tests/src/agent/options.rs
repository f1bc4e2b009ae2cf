//! The options of an agent in tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;
use serde_json::Value;

use super::{Agent, binary};
use crate::file_system::FileSystem;
use crate::interrupt::Interrupt;
use crate::node::Node;

/// The options with which an agent is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agent's binary.
    pub binary: PathBuf,
    /// `--kubelet-config`.
    pub kubelet_config: PathBuf,
    /// `--pods-file`; `None` if the agent gets the pods from an API server.
    pub pods: Option<PathBuf>,
    /// `--cgroup-root`.
    pub cgroup_root: String,
    /// `--memory-capacity`, bytes.
    pub memory_capacity: u64,
    /// `--pid-capacity`.
    pub pid_capacity: u64,
    /// `--action`.
    pub action: &'static str,
    /// `--config`, if any.
    pub config: Option<PathBuf>,
    /// Other arguments of the command line.
    pub more: Vec<String>,
}

impl Options {
    /// Returns options as [`Self::of`] does, with the binary that [`binary`] finds.
    ///
    /// # Errors
    /// As for [`Self::of`], or if there is no binary.
    pub fn new(node: &Node, kubelet: &Value) -> Result<Self> {
        Self::of(&binary()?, node, kubelet)
    }

    /// Returns the options with one more argument on the command line, which has a path as its value.
    #[must_use]
    pub fn with_path(mut self, option: &str, path: impl AsRef<Path>) -> Self {
        self.more.extend([option.to_owned(), path.as_ref().display().to_string()]);
        self
    }

    /// Returns the options with this file system as nodefs and the kubelet's root directory on it.
    #[must_use]
    pub fn on_disk(self, disk: &FileSystem) -> Self {
        self.with_path("--nodefs", disk.path()).with_path("--kubelet-root-dir", disk.kubelet_root())
    }

    /// Returns the options of an agent that gets the pods of that node from an API server.
    #[must_use]
    pub fn in_cluster(mut self, kubeconfig: impl AsRef<Path>, node_name: &str) -> Self {
        self.pods = None;
        self.more.extend(["--node-name", node_name].map(str::to_owned));
        self.with_path("--kubeconfig", kubeconfig)
    }

    /// Returns the command of an agent that listens on this address.
    pub fn command(&self, listen: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .arg("run")
            .arg("--kubelet-config")
            .arg(&self.kubelet_config)
            .args(["--cgroup-root", &self.cgroup_root])
            .args(["--memory-capacity", &self.memory_capacity.to_string()])
            .args(["--pid-capacity", &self.pid_capacity.to_string()])
            .args(["--action", self.action, "--output", "json", "--listen-address", listen])
            .args(&self.more)
            .stdin(Stdio::null());
        for (option, file) in [("--pods-file", &self.pods), ("--config", &self.config)] {
            if let Some(file) = file {
                command.arg(option).arg(file);
            }
        }
        command
    }

    /// Starts an agent that no signal to this program interrupts.
    ///
    /// # Errors
    /// As for [`Agent::start`].
    pub fn start(&self) -> Result<Agent> {
        Agent::start(self, &Interrupt::default())
    }

    /// Returns options for a node, with these fields of a kubelet's configuration and `--action kill`.
    ///
    /// # Errors
    /// If the files that describe the node cannot be written.
    pub fn of(binary: &Path, node: &Node, kubelet: &Value) -> Result<Self> {
        Ok(Self {
            binary: binary.to_owned(),
            kubelet_config: node.write_config(kubelet)?,
            pods: Some(node.write_pods()?),
            cgroup_root: node.cgroup_root(),
            memory_capacity: node.memory_capacity(),
            pid_capacity: node.pid_capacity(),
            action: "kill",
            config: None,
            more: Vec::new(),
        })
    }
}
