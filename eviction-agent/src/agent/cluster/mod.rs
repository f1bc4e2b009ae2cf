//! A node of a cluster: what goes to the API server, and what comes from there.

mod evictions;
mod figures;
mod identity;
mod pods;
mod probe;
mod watching;

use std::path::Path;

use tokio::sync::mpsc;

use crate::action::api::{ApiHand, ApiHandConfig, Order};
use crate::action::{Outcome, PacingPolicy};
use crate::api::{Access, Client};

use super::failure::Failure;
use super::lane::Receiver;
pub(crate) use evictions::Evictions;
pub(crate) use figures::Exports;
pub(crate) use pods::WatchedPods;
pub(crate) use probe::probe;
pub use watching::ClusterOptions;
pub(crate) use watching::Membership;

/// The slow side's part, until it is started.
#[derive(Debug)]
pub(crate) struct Cluster {
    client: Client,
    config: ApiHandConfig,
    orders: Receiver<Order>,
    told: mpsc::Sender<Outcome>,
}

impl Cluster {
    /// Finds out how the API server is reached, and as whom; it is not asked yet. What came of
    /// evictions goes to `told`.
    ///
    /// # Errors
    /// What is wrong with the kubeconfig, or with the pod's service account.
    pub(crate) fn connect(
        kubeconfig: Option<&Path>,
        config: ApiHandConfig,
        pacing: PacingPolicy,
        told: mpsc::Sender<Outcome>,
    ) -> Result<(Self, Evictions), Failure> {
        let failed = |error: &dyn std::error::Error| Failure::because("reach the API server", error);
        let access = Access::find(kubeconfig).map_err(|error| failed(&error))?;
        tracing::info!(server = %access.server(), by = %access.origin(), "API server");
        let client = Client::new(access).map_err(|error| failed(&error))?;
        let (evictions, orders) = Evictions::new(pacing)?;
        Ok((Self { client, config, orders, told }, evictions))
    }

    /// Starts what asks the API server. Needs a tokio runtime.
    pub(crate) fn start(self) {
        let Self { client, config, orders, told } = self;
        let hand = ApiHand::new(client.clone(), config, told);
        tokio::spawn(async move {
            if let Err(failure) = evictions::carry(orders, hand).await {
                let why = failure.into_causes().join("; ");
                tracing::error!(why, "no eviction reaches the API server any more");
            }
        });
        tokio::spawn(async move { client.keep_warm().await });
    }
}
