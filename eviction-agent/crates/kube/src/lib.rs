//! The Kubernetes API: what the agent reads from the API server and what it writes there.
//!
//! The only crate that uses `kube`. Each watch has connections of its own, so no other request waits
//! behind it.
#![forbid(unsafe_code)]

mod access;
mod backoff;
mod cleanup;
mod client;
mod clock;
mod configz;
mod counts;
mod error;
pub mod events;
mod eviction_request;
mod evictor;
#[cfg(test)]
mod fake_server;
mod identity;
mod item;
mod node_patch;
mod node_status;
mod nodes;
pub mod nullable;
mod object_store;
pub mod pods;
mod rbac;
mod reachability;
mod request;
mod response;
mod stack;
mod token;
mod watch_layer;
mod watch_metrics;
mod watcher;

pub use access::{Access, KubeletAddress};
pub use backoff::{Backoff, part_of};
pub use cleanup::{Clean, CleanupError, clean_node, own_marks};
pub use client::Client;
pub use configz::{CONFIGZ_PATH, fetch_configz};
pub use counts::{Code, RequestCounts};
pub use error::{AccessError, RequestError};
pub use eviction_request::EvictionRequest;
pub use evictor::{Evictor, EvictorConfig};
pub use identity::Key;
pub use node_patch::NodePatcher;
pub use node_patch::NodeStatusUpdate;
pub use node_status::{PATCH_KINDS, PATCH_RESULTS, PatchEvent, PatchObserver, reconcile};
pub use nodes::parse_node;
pub use object_store::{StoreView, UnreadableObject};
pub use reachability::{FAILURES, LASTS};
pub use request::{Method, Request, Response};
pub use response::judge;
pub use watch_metrics::{WatchEvent, WatchMetrics};
pub use watcher::{Decode, Resource, Watcher};
