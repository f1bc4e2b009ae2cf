//! A node of a cluster: what goes to the API server, and what comes from there.

mod cleanup;
mod evictions;
mod figures;
mod identity;
mod node_status;
mod node_status_sender;
mod pods;
mod probe;
mod watching;

use tokio::sync::{mpsc, watch};

use eviction_core::progress::KillUpdate;
use eviction_kill::RateLimitPolicy;
use eviction_kube::Client;
use eviction_kube::{Evictor, EvictorConfig};

use super::state::DurableRevision;
use crate::error::Failure;
use crate::spsc::Receiver;
pub use cleanup::{CleanOptions, Cleaned, clean_nodes};
pub(crate) use evictions::Evictions;
pub(crate) use figures::Exports;
pub(crate) use identity::{BOOT_ID, NodeName, read_boot_id};
pub(crate) use node_status_sender::{NodeStatusSender, PendingUpdate};
pub(crate) use pods::WatchedPods;
pub(crate) use probe::probe;
pub use watching::ClusterOptions;
pub(crate) use watching::{Membership, connect};

/// Asked for where the node's name is not known: it says no as well when the store is gone.
const READY: &str = "/readyz";

/// The slow side's part, until it is started.
#[derive(Debug)]
pub(crate) struct Cluster {
    client: Client,
    config: EvictorConfig,
    orders: Receiver<evictions::Kept>,
    told: mpsc::Sender<KillUpdate>,
}

impl Cluster {
    /// Evictions that will be asked for by this client; it is not used yet. What came of them goes
    /// to `told`.
    ///
    /// # Errors
    /// If there can be no lane.
    pub(crate) fn new(
        client: Client,
        config: EvictorConfig,
        pacing: RateLimitPolicy,
        told: mpsc::Sender<KillUpdate>,
    ) -> Result<(Self, Evictions), Failure> {
        let (evictions, orders) = Evictions::new(pacing)?;
        Ok((Self { client, config, orders, told }, evictions))
    }

    /// Whether the API server can be asked.
    pub(crate) fn reachable(&self) -> watch::Receiver<bool> {
        self.client.reachable()
    }

    /// Starts what asks the API server, for each eviction when it was written down; `marks` has the
    /// number of those of the node's that need not be waited for. Needs a tokio runtime.
    pub(crate) fn start(
        self,
        marks: Option<watch::Receiver<u64>>,
        written: Option<DurableRevision>,
        node: Option<&NodeName>,
    ) {
        let Self { client, config, orders, told } = self;
        // Its own node where that is known: for that the server has to ask its store.
        let probe_path = node.map_or_else(|| READY.to_owned(), |name| format!("/api/v1/nodes/{name}"));
        let hand = Evictor::new(client.clone(), config, told);
        let hand = match marks {
            Some(marks) => hand.behind(marks),
            None => hand,
        };
        tokio::spawn(async move {
            if let Err(failure) = evictions::carry(orders, hand, written).await {
                let why = failure.into_causes().join("; ");
                tracing::error!(why, "no eviction reaches the API server any more");
            }
        });
        tokio::spawn(async move { client.probe(probe_path).await });
    }
}
