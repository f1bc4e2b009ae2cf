//! The pods' disk usage from the kubelet's stats summary, for an agent that sees no directories of pods, and the
//! node's file systems, if the agent does not find them.

use std::time::Duration;

use eviction_kube::KubeletEndpoint;
use eviction_node::clock::mono_ns;
use eviction_node::fs::{StorageReader, StorageRequest, StorageSample, SummaryFileSystems};
use tokio::sync::mpsc::Sender;

use super::kubelet_api::KubeletClient;
use crate::error::{Failure, chain};
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
        let answer = runtime.block_on(request(&kubelet));
        let ended_ns = mono_ns();
        let sample = match answer {
            Ok(summary) => StorageSample {
                file_systems: Some(summary.file_systems(ended_ns)),
                ..summary.pod_storage(&pods)
            },
            Err(failure) => {
                tracing::warn!(error = causes(failure), "the disk usage of pods is unknown");
                StorageSample::unknown()
            }
        };
        StorageSample { began_ns, took_ns: ended_ns.saturating_sub(began_ns), ..sample }
    };
    StorageReader::start(read, samples)
}

/// Returns whether the kubelet answers, as a source of `check`, and the node's file systems in its answer.
pub(crate) async fn probe(kubelet: &KubeletClient) -> (Backend, Option<SummaryFileSystems>) {
    let backend = |backend: &str, reason| Backend {
        source: "pod storage".to_owned(),
        backend: backend.to_owned(),
        reason,
    };
    match request(kubelet).await {
        Ok(summary) => {
            let reason = "of the kubelet, when a threshold is met".to_owned();
            (backend("stats summary", reason), Some(summary.file_systems(mono_ns())))
        }
        Err(failure) => (backend(NO_BACKEND, causes(failure)), None),
    }
}

/// Returns the causes on one line.
fn causes(failure: Failure) -> String {
    failure.into_causes().join("; ")
}

async fn request(kubelet: &KubeletClient) -> Result<Summary, Failure> {
    let parse = |body: &[u8], _: &str| Summary::parse(body).map_err(|error| chain(&error));
    kubelet.get(KubeletEndpoint::StatsSummary, parse).await
}
