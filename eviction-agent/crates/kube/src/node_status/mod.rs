//! Keeps the agent's conditions and taints in the node's own object: what the control loop wants there
//! against what is observed there.
//!
//! Only the newest wanted state counts, there is no queue of changes: after an outage the node's object
//! is brought to it at once, whatever happened meanwhile. Conditions and taints have a task each, so
//! that a condition that hangs holds up no taint.

mod conditions;
mod observed_node;
mod retry;
mod taints;

use std::fmt;
use std::sync::Arc;

use eviction_core::node::Node;
use eviction_core::node_conditions::ConditionInputs;
use eviction_core::node_conditions::pressure::Pressure;
use eviction_core::policy::eviction_settings::NodeStatusSettings;
use eviction_core::progress::ApiResult;
use eviction_core::signal::NodeCondition;
use eviction_core::threshold::ResolvedThreshold;
use eviction_core::units::GoDuration;
use tokio::sync::watch;

use crate::client::Client;
use crate::node_patch::NodePatcher;
use crate::object_store::StoreView;
use conditions::ConditionReconciler;
pub(crate) use conditions::own_conditions;
use observed_node::{ObservedNode, is_before};
use taints::TaintReconciler;

/// What the node's object ought to say from now on.
#[derive(Clone, Debug)]
pub struct NodeStatusUpdate {
    /// From 1 on.
    pub number: u64,
    /// Of each condition.
    pub pressures: [Pressure; NodeCondition::COUNT],
    /// What texts of conditions name.
    pub lines: Arc<[ResolvedThreshold]>,
    /// For how long a condition stays after the pressure.
    pub period: GoDuration,
    /// What is written at all.
    pub marks: NodeStatusSettings,
}

impl NodeStatusUpdate {
    /// Whether nothing but the number differs.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let Self { number: _, pressures, lines, period, marks } = self;
        (pressures, period, marks) == (&other.pressures, &other.period, &other.marks)
            && Arc::ptr_eq(lines, &other.lines)
    }

    /// What texts of conditions are made from.
    fn inputs(&self) -> ConditionInputs<'_> {
        ConditionInputs { pressures: &self.pressures, lines: &self.lines, period: self.period }
    }
}

/// What is written.
pub const PATCH_KINDS: [&str; 2] = ["taints", "conditions"];

/// What can come of a patch: [`ApiResult::name`] without those of evictions alone, and a conflict.
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

/// What is reported of the writes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchEvent {
    /// What came of a patch: one of [`PATCH_RESULTS`].
    Result(&'static str),
    /// Whether the node's object differs from what is wanted.
    OutOfSync(bool),
}

/// Where it is reported, with the kind of [`PATCH_KINDS`].
pub type PatchObserver = Arc<dyn Fn(&'static str, PatchEvent) + Send + Sync>;

/// Begins to write what `updates` wants into the node of `nodes`; hands back the number of the update
/// whose taints are written, or have not to be waited for. Needs a tokio runtime.
pub fn reconcile(
    client: Client,
    updates: watch::Receiver<Option<Arc<NodeStatusUpdate>>>,
    nodes: watch::Receiver<Arc<StoreView<Node>>>,
    observer: &PatchObserver,
) -> watch::Receiver<u64> {
    let patcher = Arc::new(NodePatcher::new(client, false));
    let observed = ObservedNode::new();
    let (settled, written) = watch::channel(0);
    let counter = |kind| PatchCounter { observer: Arc::clone(observer), kind };
    let [taints, conditions] = PATCH_KINDS.map(counter);
    let taints =
        TaintReconciler::new(Arc::clone(&patcher), updates.clone(), observed.clone(), settled, taints);
    let conditions =
        ConditionReconciler::new(patcher, updates, observed.clone(), written.clone(), conditions);
    tokio::spawn(taints.keep());
    tokio::spawn(conditions.keep());
    tokio::spawn(observe(nodes, observed));
    written
}

/// Follows the node's object.
async fn observe(mut nodes: watch::Receiver<Arc<StoreView<Node>>>, observed: ObservedNode) {
    let mut before: Option<Arc<Node>> = None;
    while nodes.changed().await.is_ok() {
        let now = Arc::clone(&nodes.borrow_and_update());
        if !now.synced {
            continue;
        }
        let Some(node) = now.objects.first() else {
            observed.forget();
            continue;
        };
        match before.replace(Arc::clone(node)) {
            // A watch goes back only where the server's store was restored: no answer is of that time.
            Some(before) if is_before(node, &before) => observed.replace(Arc::clone(node)),
            _ => observed.offer(Arc::clone(node)),
        }
    }
}

/// Reports what came of writes of one kind.
struct PatchCounter {
    observer: PatchObserver,
    kind: &'static str,
}

impl PatchCounter {
    fn answer(&self, answered: &ApiResult, is_stale: bool) {
        let result = if is_stale { "conflict" } else { answered.name() };
        (self.observer)(self.kind, PatchEvent::Result(result));
    }

    /// Whether the node says something else than it should.
    fn is_due(&self, is_due: bool) {
        (self.observer)(self.kind, PatchEvent::OutOfSync(is_due));
    }
}

impl fmt::Debug for PatchCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PatchCounter({})", self.kind)
    }
}
