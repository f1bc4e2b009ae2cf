//! Reclaim through the container runtime interface (CRI): removes unused images and dead containers when a file
//! system of the node is short, so that fewer pods must be evicted.
//!
//! [`removable`] decides what may be removed and in what order; it does no IO. [`Reclaimer`] calls the runtime,
//! checks again right before each removal, and measures the file system after each, since the sizes that a
//! runtime reports are of compressed content. With [`proxy`] the agent needs no access to the runtime's own
//! socket.

#[allow(missing_docs, reason = "k8s.io/cri-api documents the messages")]
pub mod api;
#[cfg(test)]
mod api_tests;
mod client;
#[cfg(test)]
mod containerd_tests;
#[cfg(test)]
mod fake_runtime;
pub mod proxy;
#[cfg(test)]
mod proxy_tests;
mod reclaim;
#[cfg(test)]
mod reclaim_tests;
pub mod removable;

pub use client::{Client, CriError, Endpoint, RuntimeInfo, read_runtime};
pub use reclaim::{
    NodePods, NodeView, ReclaimConfig, ReclaimEnd, ReclaimOrder, ReclaimReport, Reclaimer, RemovedImage,
    Space,
};
pub use removable::ImageHistory;
