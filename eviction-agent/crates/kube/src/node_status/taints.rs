//! Keeps the agent's taints in the node's object.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use eviction_core::node::Node;
use eviction_core::node_conditions::pressure::CONDITIONS;
use eviction_core::node_conditions::{TaintChange, taints, wanted};
use eviction_core::progress::ApiResult;

use super::observed_node::ObservedNode;
use super::retry::{Inputs, RetryPace, Wait};
use super::{NodeStatusUpdate, PatchCounter};
use crate::node_patch::{NodePatcher, NodeResponse};

/// After so many conflicts in a row nobody waits any more, and the pauses grow.
const CONFLICTS: u32 = 4;

/// What others undo is done again after this time, at the earliest.
const REPAIR: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct TaintReconciler {
    patcher: Arc<NodePatcher>,
    inputs: Inputs,
    observed: ObservedNode,
    settled: watch::Sender<u64>,
    counter: PatchCounter,
    pace: RetryPace,
    conflicts: u32,
}

impl TaintReconciler {
    pub(super) fn new(
        patcher: Arc<NodePatcher>,
        update: watch::Receiver<Option<Arc<NodeStatusUpdate>>>,
        observed: ObservedNode,
        settled: watch::Sender<u64>,
        counter: PatchCounter,
    ) -> Self {
        let inputs = Inputs { update, node: observed.subscribe() };
        Self { patcher, inputs, observed, settled, counter, pace: RetryPace::new(), conflicts: 0 }
    }

    /// Until nobody says any more what they ought to be.
    pub(super) async fn keep(mut self) {
        loop {
            let wait = self.turn().await;
            if !self.inputs.wait(wait).await {
                return;
            }
        }
    }

    async fn turn(&mut self) -> Wait {
        let (Some(update), node) = self.inputs.now() else { return Wait::Change };
        let Some(node) = node else {
            self.settle(update.number);
            return Wait::Change;
        };
        let wanted = CONDITIONS.map(|condition| wanted(&update.pressures[condition as usize], update.marks));
        let changes = taints(&node, &wanted);
        self.counter.is_due(!changes.is_empty());
        if changes.is_empty() {
            self.settle(update.number);
            return Wait::Change;
        }
        if let Some(left) = self.pace.again_after(update.number, &node, REPAIR) {
            self.settle(update.number);
            return Wait::ChangeOr(left);
        }
        let answer = self.patcher.write_taints(&node, &changes).await;
        self.counter.answer(&answer.answered, answer.is_stale());
        if answer.is_stale() {
            return self.look_again(&update, &node, &answer).await;
        }
        self.conflicts = 0;
        if answer.answered == ApiResult::Accepted {
            self.pace.wrote(update.number, &node);
            changes.iter().for_each(say);
        } else {
            tracing::debug!(answered = ?answer.answered, "the node's taints are not written");
        }
        self.take(&node, &answer);
        self.settle(update.number);
        self.pace.after(&answer.answered)
    }

    /// Somebody else has written: what is to change is worked out anew from what is there now.
    async fn look_again(&mut self, update: &NodeStatusUpdate, node: &Node, refused: &NodeResponse) -> Wait {
        let seen = self.patcher.look(&node.name).await;
        self.take(node, &seen);
        if seen.answered != ApiResult::Accepted {
            self.settle(update.number);
            return self.pace.after(&seen.answered);
        }
        let (_, now) = self.inputs.now();
        if now.is_some_and(|now| (&now.uid, &now.resource_version) == (&node.uid, &node.resource_version)) {
            tracing::warn!(answered = ?refused.answered, "the API server refuses the node's taints");
            self.settle(update.number);
            return self.pace.after(&refused.answered);
        }
        self.conflicts += 1;
        if self.conflicts < CONFLICTS {
            return Wait::Only(Duration::ZERO);
        }
        self.settle(update.number);
        self.pace.contended()
    }

    fn take(&self, node: &Node, answer: &NodeResponse) {
        match (&answer.answered, &answer.node) {
            (ApiResult::Gone, _) => self.observed.forget_if(node),
            (_, Some(json)) => self.observed.offer_json(json),
            (_, None) => {}
        }
    }

    /// Evictions that wait for these taints go on.
    fn settle(&self, number: u64) {
        self.settled.send_if_modified(|settled| {
            let is_later = *settled < number;
            *settled = number.max(*settled);
            is_later
        });
    }
}

fn say(change: &TaintChange) {
    match change {
        TaintChange::Add { key, effect } | TaintChange::Replace { key, effect, .. } => {
            tracing::info!(key, effect = effect.name(), "the node is tainted");
        }
        TaintChange::Remove { key, effect, .. } => {
            tracing::info!(key, effect = effect.name(), "the node's taint is taken away");
        }
    }
}
