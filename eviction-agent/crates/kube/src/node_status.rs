//! Keeps the agent's conditions and taints in the node's own object: compares the desired state with the
//! observed one, and patches the difference.
//!
//! Only the newest desired state counts; there is no queue of changes. After an outage the node's object is
//! brought to that state at once. Conditions and taints have one task each, so that a patch of conditions
//! that hangs does not delay a taint.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::node::Node;
use eviction_core::node_conditions::Due;
use eviction_core::progress::ApiResult;
use eviction_core::time::{Timestamp, since};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::item;
use crate::metrics::{MetricEvent, Observer};
use crate::node_patch::{NodePatcher, NodeResponse, NodeStatusUpdate, PatchKind};
use crate::object_store::StoreView;

/// How long conditions wait for the taints of the same update. Patches of taints test the version, which a
/// patch of conditions changes.
const TAINTS_WITHIN: Duration = Duration::from_secs(1);

/// How long conditions wait for the eviction that the same pressure causes. A server that handles both at the
/// same time takes milliseconds longer for each.
const EVICTIONS_FIRST: Duration = Duration::from_millis(50);

/// The pauses while requests fail, first and longest. A difference is patched within 5 s after the server has
/// recovered.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// The pause after a rejection, which lasts until someone changes the configuration or permissions.
const REJECTION_PAUSE: Duration = Duration::from_secs(30);

/// The number of conflicts in a row after which other patches no longer wait for this one, and the pauses
/// grow.
const CONFLICTS: u32 = 4;

/// The kinds of patches.
pub const PATCH_KINDS: [&str; 2] = [PatchKind::Taints.name(), PatchKind::Conditions.name()];

/// The results of patches: those of [`ApiResult::name`] except results of evictions only, and a conflict.
pub const PATCH_RESULTS: [&str; 9] = [
    "accepted",
    "conflict",
    "forbidden",
    "throttled",
    "terminated",
    "rejected",
    "unauthorized",
    "unknown",
    "not_sent",
];

/// Starts to patch the node of `nodes` to the state in `desired`. Returns the number of the last update whose
/// taints are written or need not be waited for. Needs a tokio runtime.
pub(crate) fn reconcile(
    client: &Client,
    desired: &watch::Receiver<Option<Arc<NodeStatusUpdate>>>,
    nodes: watch::Receiver<Arc<StoreView<Node>>>,
) -> watch::Receiver<u64> {
    let observed = ObservedNode::default();
    let start = |kind, taints| {
        let (done, written) = watch::channel(0);
        let reconciler = Reconciler {
            kind,
            patcher: NodePatcher::new(client.clone(), false),
            desired: desired.clone(),
            node: observed.0.subscribe(),
            observed: observed.clone(),
            taints,
            done,
            observer: client.observer().clone(),
            retry: Retry::default(),
        };
        tokio::spawn(reconciler.run());
        written
    };
    let taints = start(PatchKind::Taints, None);
    start(PatchKind::Conditions, Some(taints.clone()));
    tokio::spawn(observed.clone().update_from_watch(nodes));
    taints
}

/// The reconciliation of one kind of patch.
struct Reconciler {
    kind: PatchKind,
    patcher: NodePatcher,
    desired: watch::Receiver<Option<Arc<NodeStatusUpdate>>>,
    node: watch::Receiver<Option<Arc<Node>>>,
    observed: ObservedNode,
    /// For conditions: the number of the last update whose taints are written.
    taints: Option<watch::Receiver<u64>>,
    done: watch::Sender<u64>,
    observer: Observer,
    retry: Retry,
}

impl Reconciler {
    /// Runs until the sender of the desired state is dropped.
    async fn run(mut self) {
        loop {
            let wait = self.sync().await;
            if !self.wait(wait).await {
                return;
            }
        }
    }

    /// Waits. Returns false if the sender of the desired state was dropped.
    async fn wait(&mut self, wait: Wait) -> bool {
        let pause = match wait {
            Wait::Only(pause) => {
                sleep(pause).await;
                return self.desired.has_changed().is_ok();
            }
            Wait::Change => Duration::MAX,
            Wait::ChangeOr(pause) => pause,
        };
        tokio::select! {
            changed = self.desired.changed() => changed.is_ok(),
            changed = self.node.changed() => changed.is_ok(),
            () = sleep(pause) => true,
        }
    }

    /// Compares desired and observed state once, and sends a patch if they differ.
    async fn sync(&mut self) -> Wait {
        let Some(number) = self.desired.borrow().as_ref().map(|it| it.number) else { return Wait::Change };
        if let Some(taints) = &mut self.taints {
            // Continues if the taints are late or failed: conditions do not depend on them.
            drop(timeout(TAINTS_WITHIN, taints.wait_for(|written| *written >= number)).await);
            sleep(EVICTIONS_FIRST).await;
        }
        let Some(desired) = self.desired.borrow_and_update().clone() else { return Wait::Change };
        let node = self.node.borrow_and_update().clone();
        let wait = match node {
            Some(node) => self.patch(&desired, &node).await,
            None => Wait::Change,
        };
        // If a retry follows at once, tasks that depend on this kind continue to wait.
        if wait != Wait::Only(Duration::ZERO) {
            self.mark_done(desired.number);
        }
        wait
    }

    async fn patch(&mut self, desired: &NodeStatusUpdate, node: &Node) -> Wait {
        let now = Timestamp::now();
        let (patch, due, heartbeat) = self.kind.difference(desired, node, now);
        self.observer.observe(MetricEvent::OutOfSync(self.kind.name(), due >= Due::Detail));
        if due == Due::Not {
            return heartbeat.map_or(Wait::Change, |heartbeat| Wait::ChangeOr(time_until(heartbeat, now)));
        }
        if let Some(remaining) = self.retry.remaining(self.kind, due, desired.number, node) {
            return Wait::ChangeOr(remaining);
        }
        let response = self.patcher.send_patch(node, &patch).await;
        let is_stale = response.is_stale();
        let result = if is_stale { "conflict" } else { response.result.name() };
        self.observer.observe(MetricEvent::Patch(self.kind.name(), result));
        if is_stale {
            return self.read_again(node, &response.result).await;
        }
        self.retry.conflicts = 0;
        match &response.result {
            ApiResult::Accepted => {
                self.retry.patched = Some((desired.number, node.uid.clone(), Instant::now()));
                patch.log();
            }
            result => tracing::debug!(kind = self.kind.name(), ?result, "the node is not patched"),
        }
        self.observe(node, &response);
        self.retry.after(&response.result)
    }

    /// Reads the node again, because another client has changed it.
    async fn read_again(&mut self, node: &Node, refusal: &ApiResult) -> Wait {
        let response = self.patcher.read(&node.name).await;
        self.observe(node, &response);
        if response.result != ApiResult::Accepted {
            return self.retry.after(&response.result);
        }
        let is_same = |now: &Node| (&now.uid, &now.resource_version) == (&node.uid, &node.resource_version);
        if self.node.borrow().as_deref().is_some_and(is_same) {
            tracing::warn!(kind = self.kind.name(), ?refusal, "the API server rejects the patch of the node");
            return self.retry.after(refusal);
        }
        self.retry.conflict()
    }

    fn observe(&self, node: &Node, response: &NodeResponse) {
        match (&response.result, &response.node) {
            (ApiResult::Terminated, _) => self.observed.clear(Some(node)),
            (_, Some(Ok(node))) => self.observed.set_if_newer(Arc::new(node.clone())),
            // The watch reports the error as well.
            (_, Some(Err(why))) => tracing::debug!(why, "the node in a response cannot be decoded"),
            (_, None) => {}
        }
    }

    /// Lets tasks continue that wait for this update.
    fn mark_done(&self, number: u64) {
        self.done.send_if_modified(|done| std::mem::replace(done, number) < number);
    }
}

/// What ends the wait for the next comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// A change of the desired or the observed state.
    Change,
    /// A change, or this time.
    ChangeOr(Duration),
    /// Only this time, regardless of changes.
    Only(Duration),
}

/// When a patch may be sent again.
#[derive(Debug)]
struct Retry {
    failures: Backoff,
    conflicts: u32,
    /// The last accepted patch: the number of the update, the uid of the node, and the time.
    patched: Option<(u64, Box<str>, Instant)>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { failures: Backoff::new(PAUSES.0, PAUSES.1), conflicts: 0, patched: None }
    }
}

impl Retry {
    /// Returns the wait after a response.
    fn after(&mut self, result: &ApiResult) -> Wait {
        match result {
            ApiResult::Accepted | ApiResult::Terminated | ApiResult::Replaced => {
                self.failures.reset();
                Wait::Change
            }
            ApiResult::Throttled { pause } => Wait::Only(*pause),
            ApiResult::Forbidden { .. } | ApiResult::Rejected { .. } | ApiResult::PdbDenied { .. } => {
                Wait::Only(REJECTION_PAUSE)
            }
            ApiResult::Unauthorized { .. } | ApiResult::Unknown { .. } | ApiResult::NotSent { .. } => {
                Wait::ChangeOr(self.failures.pause())
            }
        }
    }

    /// Returns the wait after a conflict with another client.
    fn conflict(&mut self) -> Wait {
        self.conflicts += 1;
        match self.conflicts < CONFLICTS {
            true => Wait::Only(Duration::ZERO),
            false => Wait::Only(self.failures.pause() / 10),
        }
    }

    /// Returns the remaining time until this may be patched; `None` if it may be patched now. This limits the
    /// rate of patches if other clients undo them, and for messages of conditions, which may change with each
    /// sample.
    fn remaining(&self, kind: PatchKind, due: Due, number: u64, node: &Node) -> Option<Duration> {
        let (before, uid, at) = self.patched.as_ref()?;
        if due == Due::Status && (*before, uid) != (number, &node.uid) {
            return None;
        }
        let min_interval = match kind {
            PatchKind::Taints => Duration::from_secs(2),
            PatchKind::Conditions => Duration::from_secs(10),
        };
        min_interval.checked_sub(at.elapsed()).filter(|remaining| !remaining.is_zero())
    }
}

/// Returns the time until `then`; at least 100 ms.
fn time_until(then: Timestamp, now: Timestamp) -> Duration {
    let remaining = u64::try_from(since(then, now).as_nanos()).unwrap_or(0);
    Duration::from_nanos(remaining).max(Duration::from_millis(100))
}

/// The newest observed state from the watch and from responses. Clones share it.
#[derive(Clone, Debug, Default)]
struct ObservedNode(Arc<watch::Sender<Option<Arc<Node>>>>);

impl ObservedNode {
    /// Updates the state from the watch.
    async fn update_from_watch(self, mut nodes: watch::Receiver<Arc<StoreView<Node>>>) {
        let mut before: Option<Arc<Node>> = None;
        while nodes.changed().await.is_ok() {
            let view = Arc::clone(&nodes.borrow_and_update());
            match view.objects.first() {
                _ if !view.synced => {}
                None => self.clear(None),
                Some(node) => {
                    // A watch goes back to an older version only if the server's store was restored. All
                    // responses are then from before the restore.
                    if before.replace(Arc::clone(node)).is_some_and(|before| is_before(node, &before)) {
                        self.clear(None);
                    }
                    self.set_if_newer(Arc::clone(node));
                }
            }
        }
    }

    /// Removes the state after a deletion. With `node`, only if the state is of that node and not of a newer
    /// one.
    fn clear(&self, node: Option<&Node>) {
        self.0.send_if_modified(|known| {
            let is_removed = known.as_ref().is_some_and(|known| node.is_none_or(|it| it.uid == known.uid));
            if is_removed {
                *known = None;
            }
            is_removed
        });
    }

    /// Sets the state, unless a newer one is known. A response may arrive before the watch reports its
    /// change.
    fn set_if_newer(&self, node: Arc<Node>) {
        self.0.send_if_modified(|known| {
            let is_newer = known.as_ref().is_none_or(|known| !is_before(&node, known) && *known != node);
            if is_newer {
                *known = Some(node);
            }
            is_newer
        });
    }
}

/// Returns whether a state is known to be older than another, also for two objects with the same name.
fn is_before(node: &Node, other: &Node) -> bool {
    item::is_before(&node.resource_version, &other.resource_version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(uid: &str, version: &str) -> Arc<Node> {
        Arc::new(Node { uid: uid.into(), resource_version: version.into(), ..Node::default() })
    }

    #[test]
    fn observed_node_keeps_the_newest_version() {
        let observed = ObservedNode::default();
        let receiver = observed.0.subscribe();
        let now = || receiver.borrow().as_ref().map(|node| format!("{}{}", node.uid, node.resource_version));
        observed.set_if_newer(node("a", "7"));
        observed.set_if_newer(node("a", "5"));
        assert_eq!(now().as_deref(), Some("a7"));
        observed.set_if_newer(node("a", "10"));
        observed.set_if_newer(node("b", "12"));
        assert_eq!(now().as_deref(), Some("b12"));
        observed.set_if_newer(node("b", "not a number"));
        assert_eq!(now().as_deref(), Some("bnot a number"));
        observed.clear(Some(&node("a", "10")));
        assert_eq!(now().as_deref(), Some("bnot a number"), "another node is gone");
        observed.clear(Some(&node("b", "12")));
        assert_eq!(now(), None);
        observed.set_if_newer(node("b", "20"));
        observed.clear(None);
        assert_eq!(now(), None);
    }

    #[test]
    fn older_version_from_the_watch_replaces_the_observed_node() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let view =
                |node| Arc::new(StoreView { synced: true, objects: vec![node], ..StoreView::default() });
            let (sender, nodes) = watch::channel(Arc::new(StoreView::default()));
            let observed = ObservedNode::default();
            let mut receiver = observed.0.subscribe();
            tokio::spawn(observed.clone().update_from_watch(nodes));
            for version in ["20", "6"] {
                sender.send_replace(view(node("a", version)));
                let is_it = |node: &Option<Arc<Node>>| {
                    node.as_ref().is_some_and(|node| &*node.resource_version == version)
                };
                receiver.wait_for(is_it).await.unwrap();
            }
        });
    }

    #[test]
    fn rejections_pause_longer_than_failures() {
        let mut retry = Retry::default();
        let why = || "because".into();
        let pause = Duration::from_secs(7);
        assert_eq!(retry.after(&ApiResult::Throttled { pause }), Wait::Only(pause));
        assert_eq!(retry.after(&ApiResult::Forbidden { why: why() }), Wait::Only(REJECTION_PAUSE));
        for _ in 0..20 {
            let Wait::ChangeOr(pause) = retry.after(&ApiResult::Unknown { why: why() }) else { panic!() };
            assert!(pause <= PAUSES.1);
        }
        assert_eq!(retry.after(&ApiResult::Accepted), Wait::Change);
        let Wait::ChangeOr(pause) = retry.after(&ApiResult::NotSent { why: why() }) else { panic!() };
        assert!(pause <= PAUSES.0);
        let waits = [(); CONFLICTS as usize].map(|()| retry.conflict());
        assert_eq!(waits[..3], [Wait::Only(Duration::ZERO); 3]);
        assert!(matches!(waits[3], Wait::Only(pause) if !pause.is_zero()));
    }

    #[test]
    fn repeated_patches_of_the_same_update_are_rate_limited() {
        let (a, b) = (node("a", "1"), node("b", "1"));
        let mut retry = Retry::default();
        for kind in PatchKind::ALL {
            let remaining = |retry: &Retry, due, number, node| retry.remaining(kind, due, number, node);
            retry.patched = None;
            assert_eq!(remaining(&retry, Due::Status, 1, &a), None);
            retry.patched = Some((1, "a".into(), Instant::now()));
            assert!(remaining(&retry, Due::Status, 1, &a).is_some());
            assert_eq!(remaining(&retry, Due::Status, 2, &a), None, "another update");
            assert_eq!(remaining(&retry, Due::Status, 1, &b), None, "another node");
            assert!(remaining(&retry, Due::Detail, 2, &b).is_some());
            let before = Instant::now().checked_sub(Duration::from_secs(11)).unwrap();
            retry.patched = Some((1, "a".into(), before));
            assert_eq!(remaining(&retry, Due::Status, 1, &a), None);
        }
    }
}
