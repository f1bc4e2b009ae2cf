//! The node's pods as they are watched, as rosters.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use eviction_core::pods::{KnownPod, from_api};
use eviction_core::policy::Policy;
use eviction_kube::pods::parse_pod;
use eviction_kube::{Decode, StoreView};
use eviction_node::pod_index::PodIndex;

/// Changes come in groups: a pod that starts is told three times within moments.
const SETTLE: Duration = Duration::from_millis(20);

/// A pod with what follows from it; as long as the pod is the same, so is the rest.
#[derive(Clone, Debug)]
pub(crate) struct Watched(Arc<KnownPod>);

impl PartialEq for Watched {
    fn eq(&self, other: &Self) -> bool {
        self.0.pod == other.0.pod
    }
}

/// Makes pods of JSON. What follows from a policy that comes later is worked out anew where the
/// roster is taken in.
pub(super) fn decoder(policy: &Policy) -> Decode<Watched> {
    let policy = policy.clone();
    Box::new(move |json| {
        let pod = parse_pod(json).map_err(|error| format!("{}: {}", error.path, error.cause))?;
        Ok(Watched(Arc::new(KnownPod::new(from_api(pod), &policy))))
    })
}

/// The pods of the node, whenever they change.
#[derive(Debug)]
pub(crate) struct WatchedPods {
    seen: Receiver<Arc<StoreView<Watched>>>,
    /// Something is new that was not told yet.
    pending: bool,
    /// Whether the next roster is to be told of, even if it is as before.
    announce: bool,
}

impl WatchedPods {
    pub(super) fn new(seen: Receiver<Arc<StoreView<Watched>>>) -> Self {
        Self { seen, pending: false, announce: true }
    }

    /// Waits for the first list, for a while.
    pub(super) async fn wait(&mut self, patience: Duration) {
        // If it does not come, its absence is seen in the roster.
        drop(timeout(patience, self.seen.wait_for(|seen| seen.synced)).await);
    }

    /// Whether the pods are known.
    pub(crate) fn are_known(&self) -> bool {
        self.seen.borrow().synced
    }

    /// The pods as they are known now.
    pub(crate) fn now(&mut self) -> PodIndex {
        let seen = Arc::clone(&self.seen.borrow_and_update());
        self.pending = false;
        roster(&seen)
    }

    /// Waits for the next change: another roster, or why the server is not heard. May be cancelled
    /// at any time. For ever when the watch has ended, which the agent does not survive.
    pub(crate) async fn changed(&mut self) -> Result<PodIndex, String> {
        if !self.pending {
            if self.seen.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            self.pending = true;
        }
        sleep(SETTLE).await;
        let seen = Arc::clone(&self.seen.borrow_and_update());
        self.pending = false;
        if let Some(error) = &seen.error {
            self.announce = true;
            return Err(error.clone());
        }
        let roster = roster(&seen);
        let announce = std::mem::take(&mut self.announce);
        Ok(if announce { roster } else { roster.quietly() })
    }
}

fn roster(seen: &StoreView<Watched>) -> PodIndex {
    let pods = seen.objects.iter().map(|pod| Arc::clone(&pod.0)).collect();
    let unreadable = seen.unreadable.iter().map(|pod| format!("{}: {}", pod.key, pod.why));
    PodIndex::new(pods).with_unreadable(unreadable.collect())
}
