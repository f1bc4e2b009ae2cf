//! The source of the pods: a file or the API server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::sleep;

use crate::error::{Failure, chain};
use crate::source::pods::parse_pod_list;
use crate::telemetry::metrics::Metrics;
use eviction_core::pod::Pod;
use eviction_core::pods::KnownPod;
use eviction_core::policy::Policy;
use eviction_kube::StoreView;
use eviction_node::pods_file::PodsFile;

use eviction_node::pod_index::PodIndex;

/// The source of the node's pods.
pub(crate) enum PodSource {
    /// No source: pods are not known.
    Nothing,
    /// A file, and the policy that applies to its pods.
    File { file: Box<PodsFile<Vec<Pod>>>, policy: Box<Policy> },
    /// The API server.
    Watch {
        pods: Receiver<Arc<StoreView<KnownPod>>>,
        /// The error that was returned last, empty before the first; `None` if the API server has responded since.
        error: Option<String>,
    },
}

impl PodSource {
    /// Reads the file, if there is one, for the first time. It must be valid.
    pub(crate) fn open(path: Option<&Path>, policy: &Policy) -> Result<(Self, PodIndex), Failure> {
        let Some(path) = path else { return Ok((Self::Nothing, PodIndex::default())) };
        let (file, pods) =
            PodsFile::open(path, parse_pod_list).map_err(|error| Failure::because("read pods", &error))?;
        let index = pod_index(pods, policy);
        Ok((Self::File { file: Box::new(file), policy: Box::new(policy.clone()) }, index))
    }

    /// Returns the pods that the API server has sent so far.
    pub(crate) fn watched(mut pods: Receiver<Arc<StoreView<KnownPod>>>) -> (Self, PodIndex) {
        let index = index(&pods.borrow_and_update());
        (Self::Watch { pods, error: Some(String::new()) }, index)
    }

    /// Waits for the next change. Returns a new index, or why there is none, which is counted and logged. Waits
    /// forever without a source.
    pub(crate) async fn changed(&mut self, metrics: &Metrics) -> Result<PodIndex, String> {
        match self {
            Self::Nothing => std::future::pending().await,
            Self::File { file, policy } => match file.changed().await {
                Ok(pods) => Ok(pod_index(pods, policy)),
                Err(error) => {
                    let error = chain(&error);
                    metrics.pods_file_errors.inc();
                    tracing::error!(error, "the pods file cannot be used; the last good one stays");
                    Err(error)
                }
            },
            // The watch has logged and counted the error.
            Self::Watch { pods, error } => watched_change(pods, error).await,
        }
    }

    /// Returns whether the pods are known.
    pub(crate) fn are_known(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::File { .. } => true,
            Self::Watch { pods, .. } => pods.borrow().synced,
        }
    }
}

fn pod_index(pods: Vec<Pod>, policy: &Policy) -> PodIndex {
    PodIndex::new(pods.into_iter().map(|pod| Arc::new(KnownPod::new(pod, policy))).collect())
}

/// How long to wait for further changes: a pod that starts is updated three times within moments.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Waits for the next change of the watched pods. Returns another index, or why the API server does not respond; the
/// index as it is then follows. When the server responds again, an index is published even if it is the same. May be
/// cancelled at any time. Waits forever when the watch has ended; the agent ends then.
async fn watched_change(
    pods: &mut Receiver<Arc<StoreView<KnownPod>>>,
    error: &mut Option<String>,
) -> Result<PodIndex, String> {
    if pods.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
    // The change must not be lost if the wait is cancelled.
    pods.mark_changed();
    sleep(DEBOUNCE).await;
    let view = Arc::clone(&pods.borrow_and_update());
    let before = std::mem::replace(error, view.error.clone());
    if let Some(error) = view.error.clone().filter(|_| before != view.error) {
        // The pods that arrived before the error are returned next.
        pods.mark_changed();
        return Err(error);
    }
    let has_responded = before.is_some() && view.error.is_none();
    let index = index(&view);
    Ok(if has_responded { index } else { index.reported_on_change() })
}

fn index(view: &StoreView<KnownPod>) -> PodIndex {
    PodIndex::new(view.objects.clone()).with_unreadable(view.unreadable.clone())
}

#[cfg(test)]
mod tests {
    use eviction_core::fixture::{pod, policy};
    use tokio::sync::watch;

    use super::*;

    #[tokio::test]
    async fn pods_that_arrived_before_an_error_follow_it() {
        let (views, receiver) = watch::channel(Arc::new(StoreView::default()));
        let (mut source, _) = PodSource::watched(receiver);
        let metrics = Metrics::new("0", "0");
        let view = |error: Option<&str>| {
            let objects = vec![Arc::new(KnownPod::new(pod("a", "10"), &policy(Vec::new())))];
            let error = error.map(str::to_owned);
            Arc::new(StoreView { synced: true, objects, error, ..StoreView::default() })
        };
        views.send_replace(view(Some("refused")));
        assert_eq!(source.changed(&metrics).await.unwrap_err(), "refused");
        let index = source.changed(&metrics).await.unwrap();
        assert_eq!((index.known().len(), index.is_quiet()), (1, true));
        views.send_replace(view(None));
        let index = source.changed(&metrics).await.unwrap();
        assert_eq!((index.known().len(), index.is_quiet()), (1, false), "the end of the error is published");
    }
}
