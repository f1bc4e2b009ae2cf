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
use eviction_core::progress::{ApiOperation, ApiResult};
use eviction_core::time::{Timestamp, since};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::item;
use crate::metrics::MetricEvent;
use crate::node_patch::{
    NodeStatusUpdate, Patch, condition_difference, is_stale, read_node, send_patch, taint_difference,
};
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
pub const PATCH_KINDS: [&str; 2] = [ApiOperation::Taints.name(), ApiOperation::NodeConditions.name()];

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
    let start = |difference, taints| {
        let (done, written) = watch::channel(0);
        let reconciler = Reconciler {
            difference,
            client: client.clone(),
            desired: desired.clone(),
            observed: ObservedNode::new(nodes.clone()),
            taints,
            done,
            retry: Retry::default(),
        };
        tokio::spawn(reconciler.run());
        written
    };
    let taints = start(taint_difference as Difference, None);
    start(condition_difference, Some(taints.clone()));
    taints
}

/// Compares the desired state with the node. Returns the patch, how urgent it is, and when it must be written again
/// even without a difference.
type Difference = fn(&NodeStatusUpdate, &Node, Timestamp) -> (Patch, Due, Option<Timestamp>);

/// The reconciliation of one kind of patch.
struct Reconciler {
    difference: Difference,
    client: Client,
    desired: watch::Receiver<Option<Arc<NodeStatusUpdate>>>,
    observed: ObservedNode,
    /// For conditions: the number of the last update whose taints are written.
    taints: Option<watch::Receiver<u64>>,
    done: watch::Sender<u64>,
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
            changed = self.observed.nodes.changed() => changed.is_ok(),
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
        let wait = match self.observed.newest() {
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
        let (patch, due, heartbeat) = (self.difference)(desired, node, now);
        let kind = patch.operation().name();
        let observer = self.client.observer();
        observer.observe(MetricEvent::OutOfSync(kind, due >= Due::Detail));
        if due == Due::Not {
            return heartbeat.map_or(Wait::Change, |heartbeat| Wait::ChangeOr(time_until(heartbeat, now)));
        }
        if let Some(remaining) = self.retry.remaining(&patch, due, desired.number, node) {
            return Wait::ChangeOr(remaining);
        }
        let response = send_patch(&self.client, node, &patch, false).await;
        let result = match &response {
            Ok(_) => ApiResult::Accepted.name(),
            Err(result) if is_stale(result) => "conflict",
            Err(result) => result.name(),
        };
        observer.observe(MetricEvent::Patch(kind, result));
        match response {
            Err(result) if is_stale(&result) => self.read_again(kind, node, &result).await,
            Err(result) => {
                tracing::debug!(kind, ?result, "the node is not patched");
                self.retry.conflicts = 0;
                self.retry.after(&result)
            }
            Ok(patched) => {
                patch.log();
                self.observed.response = Some(Arc::new(patched));
                self.retry.accepted(desired.number, node)
            }
        }
    }

    /// Reads the node again, because another client has changed it.
    async fn read_again(&mut self, kind: &str, node: &Node, refusal: &ApiResult) -> Wait {
        match read_node(&self.client, &node.name).await {
            Ok(node) => self.observed.response = Some(Arc::new(node)),
            Err(result) => return self.retry.after(&result),
        }
        let is_same = |now: &Node| (&now.uid, &now.resource_version) == (&node.uid, &node.resource_version);
        if self.observed.newest().as_deref().is_some_and(is_same) {
            tracing::warn!(kind, ?refusal, "the API server rejects the patch of the node");
            return self.retry.after(refusal);
        }
        self.retry.conflict()
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
    /// Returns the wait after a patch of this update was accepted: none, since the node must be compared again.
    fn accepted(&mut self, number: u64, node: &Node) -> Wait {
        self.failures.reset();
        self.conflicts = 0;
        self.patched = Some((number, node.uid.clone(), Instant::now()));
        Wait::ChangeOr(Duration::ZERO)
    }

    /// Returns the wait after another result.
    fn after(&mut self, result: &ApiResult) -> Wait {
        match result {
            ApiResult::Accepted | ApiResult::Replaced => {
                self.failures.reset();
                Wait::Change
            }
            // The node is deleted, and the watch will report that. Changes of the desired state must not cause further
            // requests until then.
            ApiResult::Terminated => Wait::Only(self.failures.pause()),
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
    fn remaining(&self, patch: &Patch, due: Due, number: u64, node: &Node) -> Option<Duration> {
        let (before, uid, at) = self.patched.as_ref()?;
        if due == Due::Status && (*before, uid) != (number, &node.uid) {
            return None;
        }
        let min_interval = match patch {
            Patch::Taints(_) => Duration::from_secs(2),
            Patch::Conditions { .. } => Duration::from_secs(10),
        };
        min_interval.checked_sub(at.elapsed()).filter(|remaining| !remaining.is_zero())
    }
}

/// Returns the time until `then`; at least 100 ms.
fn time_until(then: Timestamp, now: Timestamp) -> Duration {
    let remaining = u64::try_from(since(then, now).as_nanos()).unwrap_or(0);
    Duration::from_nanos(remaining).max(Duration::from_millis(100))
}

/// The observed states of the node.
struct ObservedNode {
    nodes: watch::Receiver<Arc<StoreView<Node>>>,
    /// The last state from the watch.
    watched: Option<Arc<Node>>,
    /// The state in the last response, which may arrive before the watch reports the change.
    response: Option<Arc<Node>>,
}

impl ObservedNode {
    fn new(nodes: watch::Receiver<Arc<StoreView<Node>>>) -> Self {
        Self { nodes, watched: None, response: None }
    }

    /// Returns the newest state; `None` if the node does not exist or is not known yet.
    fn newest(&mut self) -> Option<Arc<Node>> {
        let watched = self.nodes.borrow_and_update().objects.first().cloned();
        let is_back = |now: &Node| self.watched.as_deref().is_some_and(|before| is_before(now, before));
        // A watch goes back to an older version only if the server's store was restored. All responses are then
        // from before the restore.
        if watched.as_deref().is_none_or(is_back) {
            self.response = None;
        }
        let watched = watched?;
        let response = self.response.clone().filter(|response| is_before(&watched, response));
        self.watched = Some(Arc::clone(&watched));
        Some(response.unwrap_or(watched))
    }
}

/// Returns whether a state is known to be older than another, also for two objects with the same name.
fn is_before(node: &Node, other: &Node) -> bool {
    item::is_before(&node.resource_version, &other.resource_version)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::node_patch::removals;

    fn node(uid: &str, version: &str) -> Arc<Node> {
        Arc::new(Node { uid: uid.into(), resource_version: version.into(), ..Node::default() })
    }

    #[test]
    fn newest_state_of_the_watch_and_responses_counts() {
        let (watch, nodes) = watch::channel(Arc::new(StoreView::default()));
        let observed = RefCell::new(ObservedNode::new(nodes));
        let newest = || {
            let node = observed.borrow_mut().newest();
            node.map(|node| format!("{}{}", node.uid, node.resource_version)).unwrap_or_default()
        };
        let watched = |node: Option<Arc<Node>>| {
            let objects = node.into_iter().collect();
            watch.send_replace(Arc::new(StoreView { synced: true, objects, ..StoreView::default() }));
            newest()
        };
        let responded = |node| {
            observed.borrow_mut().response = Some(node);
            newest()
        };
        assert_eq!(newest(), "");
        assert_eq!(watched(Some(node("a", "7"))), "a7");
        assert_eq!(responded(node("a", "5")), "a7");
        assert_eq!(responded(node("a", "10")), "a10");
        assert_eq!(watched(Some(node("a", "8"))), "a10", "its change was not reported yet");
        assert_eq!(watched(Some(node("b", "12"))), "b12");
        assert_eq!(watched(Some(node("b", "not a number"))), "bnot a number");
        assert_eq!(watched(Some(node("b", "20"))), "b20");
        assert_eq!(responded(node("b", "25")), "b25");
        assert_eq!(watched(Some(node("b", "6"))), "b6", "the store was restored");
        assert_eq!(responded(node("b", "30")), "b30");
        assert_eq!(watched(None), "", "it was deleted");
        assert_eq!(watched(Some(node("c", "29"))), "c29");
        assert_eq!(watched(Some(node("d", "31"))), "d31");
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
        let Wait::Only(pause) = retry.after(&ApiResult::Terminated) else { panic!() };
        assert!((PAUSES.1 / 2..=PAUSES.1).contains(&pause), "a deleted node is not patched at each change");
        assert_eq!(retry.accepted(1, &Node::default()), Wait::ChangeOr(Duration::ZERO));
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
        for patch in removals(&Node::default()) {
            let remaining = |retry: &Retry, due, number, node| retry.remaining(&patch, due, number, node);
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
