//! The options that name the cluster and the node.

use std::path::PathBuf;

use clap::Args;

use crate::daemon::{Caller, ClusterOptions};
use eviction_config::{Origin, Setting};

/// Set in every pod; also where the service account is found.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";
const NODE_NAME: &str = "NODE_NAME";
const NODE_IP: &str = "NODE_IP";

/// Where the pods are asked for, and of which node.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// Kubeconfig file for the API server [default in a pod: the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Name of this node's Node object [default: $NODE_NAME]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
}

impl ClusterArgs {
    /// The kubeconfig, if one is given.
    pub(super) fn kubeconfig(&self) -> Option<PathBuf> {
        self.kubeconfig.clone()
    }

    /// Who asks the kubelet.
    pub(super) fn caller(&self) -> Caller {
        let Self { kubeconfig, node_name } = self;
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Caller {
            kubeconfig: kubeconfig.clone(),
            node_name: node_name.clone().or_else(|| variable(NODE_NAME)),
            node_ip: variable(NODE_IP),
        }
    }

    /// The options that are no part of an AgentConfiguration, each with who says so.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let Self { kubeconfig, node_name } = self;
        let setting = |path: &str, value: String, origin| Setting { path: path.to_owned(), value, origin };
        let kubeconfig = kubeconfig
            .as_ref()
            .map(|file| setting("--kubeconfig", file.display().to_string(), Origin::CommandLine));
        let of_environment = || {
            let name = std::env::var(NODE_NAME).ok()?;
            Some((name, Origin::Environment(NODE_NAME.to_owned())))
        };
        let name = node_name.clone().map(|name| (name, Origin::CommandLine)).or_else(of_environment);
        let name = name.map(|(name, origin)| setting("--node-name", name, origin));
        kubeconfig.into_iter().chain(name).collect()
    }

    /// The cluster to ask for pods, where no file of them is given: one is named, or this runs in a pod.
    pub(super) fn options(self, pods_given: bool) -> Option<ClusterOptions> {
        let Self { kubeconfig, node_name } = self;
        let named = kubeconfig.is_some() || node_name.is_some();
        let in_cluster = std::env::var_os(IN_CLUSTER).is_some();
        (!pods_given && (named || in_cluster)).then(|| ClusterOptions {
            kubeconfig,
            node_name: node_name.or_else(|| std::env::var(NODE_NAME).ok()),
        })
    }
}
