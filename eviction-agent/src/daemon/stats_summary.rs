//! The pods' disk usage from the kubelet's stats summary, for an agent that sees no directories of pods.

use std::time::Duration;

use eviction_kube::KubeletEndpoint;
use eviction_node::clock::mono_ns;
use eviction_node::fs::{StorageReader, StorageRequest, StorageSample};
use tokio::sync::mpsc::Sender;

use super::kubelet_api::{KubeletClient, KubeletResponse};
use crate::error::Failure;
use crate::source::summary::Summary;
use crate::telemetry::event_log::{Backend, NO_BACKEND};

/// The minimum interval between requests: for each, the kubelet asks the container runtime for all containers
/// and reads all logs.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_secs(60);

/// Starts the thread that requests the summary.
///
/// # Errors
/// If the thread cannot be created.
pub(crate) fn start(
    kubelet: KubeletClient,
    samples: Sender<StorageSample>,
) -> std::io::Result<StorageReader> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let read = move |pods: Vec<StorageRequest>, _priority| {
        let began_ns = mono_ns();
        let sample = runtime.block_on(request(&kubelet)).map(|summary| summary.pod_storage(&pods));
        let sample = sample.unwrap_or_else(|failure| {
            tracing::warn!(error = causes(failure), "the disk usage of pods is unknown");
            StorageSample::unknown()
        });
        StorageSample { began_ns, took_ns: mono_ns().saturating_sub(began_ns), ..sample }
    };
    StorageReader::start(read, samples)
}

/// Returns whether the kubelet answers, as a source of `check`.
pub(crate) async fn probe(kubelet: &KubeletClient) -> Backend {
    let (backend, reason) = match request(kubelet).await {
        Ok(_) => ("stats summary".to_owned(), "of the kubelet, when a threshold is met".to_owned()),
        Err(failure) => (NO_BACKEND.to_owned(), causes(failure)),
    };
    Backend { source: "pod storage".to_owned(), backend, reason }
}

/// Returns the causes on one line.
fn causes(failure: Failure) -> String {
    failure.into_causes().join("; ")
}

async fn request(kubelet: &KubeletClient) -> Result<Summary, Failure> {
    let KubeletResponse { operation, url: _, body } = kubelet.get(KubeletEndpoint::StatsSummary).await?;
    Summary::parse(&body).map_err(|error| Failure::because(operation, &error))
}
