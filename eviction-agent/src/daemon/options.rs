//! Options of `run`.

use std::path::PathBuf;

use eviction_config::ActionSettings;
use eviction_node::backend_selection::BackendSelection;

use super::cluster::ClusterOptions;
use super::configuration::ConfigurationFiles;
use super::saved_config::SavedConfigFile;
use crate::telemetry::event_log::Output;

/// Options of `run`.
#[derive(Clone, Debug)]
pub struct Options {
    /// The files of the configuration.
    pub configuration: ConfigurationFiles,
    /// Directory for state that outlives the process: the state of this boot and the configuration in force.
    pub state_dir: Option<PathBuf>,
    /// Changes of the configuration take effect at once.
    pub apply_config_now: bool,
    /// PodList file.
    pub pods_file: Option<PathBuf>,
    /// The cluster that the pods come from, if there is no such file.
    pub cluster: Option<ClusterOptions>,
    /// The cgroup that stands for the node.
    pub cgroup_root: PathBuf,
    /// Memory that the node has, a quantity.
    pub memory_capacity: Option<String>,
    /// Process ids that the node has.
    pub pid_capacity: Option<u64>,
    /// How to reach the API server; without it, the service account of the agent's pod.
    pub kubeconfig: Option<PathBuf>,
    /// File in which decisions are recorded.
    pub record: Option<PathBuf>,
    /// How events are written.
    pub output: Output,
    /// Backends that are selected or disabled.
    pub choice: BackendSelection,
    /// Log the debug messages of the BPF programs.
    pub bpf_debug_log: bool,
}

/// The default state directory of an agent in a pod. It should be in memory: eviction requests wait until the state is
/// written.
const STATE_DIR: &str = "/run/eviction-agent";

impl Options {
    /// The state directory of an agent with this action; none if no state is kept.
    pub(super) fn state_dir(&self, action: ActionSettings) -> Option<PathBuf> {
        let in_pod = self.kubeconfig.is_none() && (self.cluster.is_some() || action.asks_server());
        self.state_dir.clone().or_else(|| (in_pod && !action.is_dry()).then(|| STATE_DIR.into()))
    }

    /// Where an earlier agent may have left the configuration that the kubelet reported. The action is part of the
    /// configuration, and so not known yet.
    pub(super) fn saved_kubelet_config(&self) -> Option<PathBuf> {
        let in_pod = self.kubeconfig.is_none() && self.cluster.is_some();
        let dir = self.state_dir.clone().or_else(|| in_pod.then(|| STATE_DIR.into()));
        dir.map(|dir| SavedConfigFile::within(&dir).said())
    }
}
