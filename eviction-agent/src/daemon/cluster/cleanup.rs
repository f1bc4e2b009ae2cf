//! Takes away what the agent has written into nodes, one after the other.

use std::path::PathBuf;

use eviction_config::DryRun;
use eviction_kube::{Clean, NodePatcher, clean_node};

use super::identity::NodeName;
use super::watching::connect;
use crate::error::Failure;

/// What `cleanup` was asked for.
#[derive(Clone, Debug)]
pub struct CleanOptions {
    /// The kubeconfig; without one, the service account of the pod that this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// The names of the nodes.
    pub nodes: Vec<String>,
    /// How much of it is left out.
    pub dry_run: DryRun,
}

/// What came of one node.
#[derive(Debug)]
pub struct Cleaned {
    /// Its name.
    pub node: String,
    /// What was taken away, or why that failed.
    pub result: Result<Clean, Failure>,
}

/// Takes the agent's conditions and taints from nodes, one after the other.
///
/// # Errors
/// What keeps it from asking the API server at all, and names that are none.
pub fn clean_nodes(options: &CleanOptions) -> Result<Vec<Cleaned>, Failure> {
    let CleanOptions { kubeconfig, nodes, dry_run } = options;
    let names = nodes.iter().map(|name| NodeName::of(Some(name.as_str()))).collect::<Result<Vec<_>, _>>()?;
    let client = connect(kubeconfig.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because("start the runtime", &error))?;
    let patcher = NodePatcher::new(client, *dry_run != DryRun::None);
    let cleaned = runtime.block_on(async {
        let mut cleaned = Vec::new();
        for name in names {
            let node = name.to_string();
            let result = clean_node(&patcher, &node, *dry_run == DryRun::Client).await;
            let result = result.map_err(|error| match error.help() {
                Some(help) => Failure::failed(error.to_string()).help(help),
                None => Failure::failed(error.to_string()),
            });
            cleaned.push(Cleaned { node, result });
        }
        cleaned
    });
    runtime.shutdown_background();
    Ok(cleaned)
}
