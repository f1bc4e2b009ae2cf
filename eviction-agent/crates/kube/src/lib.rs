//! The Kubernetes API: what the agent reads from the API server and what it writes there.
//!
//! This is the only crate that uses `kube`. Each watch has separate connections, so no other request waits
//! for it.
#![forbid(unsafe_code)]

mod access;
mod backoff;
mod cleanup;
mod client;
mod daemon_set;
mod error;
pub mod events;
mod evictor;
#[cfg(test)]
mod fake_server;
mod item;
mod metrics;
mod node;
mod node_patch;
mod node_status;
mod object_store;
pub mod pods;
mod reachability;
mod request;
mod response;
mod session;
mod stack;
mod watch_layer;
mod watcher;

pub use access::Access;
pub use cleanup::{Leftovers, clean_node, find_leftovers, list_nodes};
pub use client::{Client, read_kubelet};
pub use daemon_set::{DaemonSetName, wait_ready};
pub use error::{OperationError, RequestError};
pub use evictor::{EvictionRequest, Evictor, EvictorConfig};
pub use metrics::{MetricEvent, Observer, WatchEvent};
pub use node::{NodeName, check_access};
pub use node_patch::NodeStatusUpdate;
pub use node_status::{PATCH_KINDS, PATCH_RESULTS};
pub use object_store::StoreView;
pub use session::KubeSession;
