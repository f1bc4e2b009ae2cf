//! Keeps the agent's conditions in the node's object.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use eviction_core::node::Node;
use eviction_core::node_conditions::pressure::CONDITIONS;
use eviction_core::node_conditions::{self, Due, condition_type};
use eviction_core::progress::ApiResult;
use eviction_core::time::{Timestamp, since};

use super::observed_node::ObservedNode;
use super::retry::{Inputs, RetryPace, Wait};
use super::{NodeStatusUpdate, PatchCounter};
use crate::node_patch::{NodePatcher, NodeResponse};

/// The taints of the same update go first: they test the version, which a condition changes.
const TAINTS_WITHIN: Duration = Duration::from_secs(1);

/// What is written for people waits for the eviction that the same pressure causes: a server that has
/// both to do at once takes milliseconds longer for either.
const EVICTIONS_FIRST: Duration = Duration::from_millis(50);

/// What is said beside a status may change with each look, and what others undo at any time: either
/// is written after this time, at the earliest.
const DETAIL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct ConditionReconciler {
    patcher: Arc<NodePatcher>,
    inputs: Inputs,
    observed: ObservedNode,
    taints: watch::Receiver<u64>,
    counter: PatchCounter,
    pace: RetryPace,
}

impl ConditionReconciler {
    pub(super) fn new(
        patcher: Arc<NodePatcher>,
        update: watch::Receiver<Option<Arc<NodeStatusUpdate>>>,
        observed: ObservedNode,
        taints: watch::Receiver<u64>,
        counter: PatchCounter,
    ) -> Self {
        let inputs = Inputs { update, node: observed.subscribe() };
        Self { patcher, inputs, observed, taints, counter, pace: RetryPace::new() }
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
        let (Some(update), _) = self.inputs.now() else { return Wait::Change };
        // Late, or nobody writes them any more: conditions do not depend on them.
        drop(timeout(TAINTS_WITHIN, self.taints.wait_for(|written| *written >= update.number)).await);
        sleep(EVICTIONS_FIRST).await;
        let (Some(update), Some(node)) = self.inputs.now() else { return Wait::Change };
        if !update.marks.conditions {
            return self.take_away(&node, &update).await;
        }
        let now = Timestamp::now();
        let node_conditions::Conditions { all, due, heartbeat } =
            node_conditions::conditions(&node, update.inputs(), now);
        self.counter.is_due(due >= Due::Detail);
        let left = match due {
            Due::Not => return Wait::ChangeOr(until(heartbeat, now)),
            Due::Status => self.pace.again_after(update.number, &node, DETAIL),
            Due::Detail | Due::Heartbeat => self.pace.since_write(DETAIL),
        };
        if let Some(left) = left {
            return Wait::ChangeOr(left);
        }
        let answer = self.patcher.write_conditions(&node, &all, &[]).await;
        self.finish(&update, &node, &answer).await
    }

    /// Conditions that are not wanted any more.
    async fn take_away(&mut self, node: &Node, update: &NodeStatusUpdate) -> Wait {
        let kinds = own_conditions(node);
        self.counter.is_due(!kinds.is_empty());
        if kinds.is_empty() {
            return Wait::Change;
        }
        if let Some(left) = self.pace.again_after(update.number, node, DETAIL) {
            return Wait::ChangeOr(left);
        }
        let answer = self.patcher.write_conditions(node, &[], &kinds).await;
        self.finish(update, node, &answer).await
    }

    async fn finish(&mut self, update: &NodeStatusUpdate, node: &Node, answer: &NodeResponse) -> Wait {
        self.counter.answer(&answer.answered, answer.is_stale());
        match (&answer.answered, &answer.node) {
            (ApiResult::Accepted, json) => {
                self.pace.wrote(update.number, node);
                json.iter().for_each(|json| self.observed.offer_json(json));
            }
            (ApiResult::Gone, _) => self.observed.forget_if(node),
            (_, _) if answer.is_stale() => return self.look_again(node, answer).await,
            (answered, _) => tracing::debug!(?answered, "the node's conditions are not written"),
        }
        self.pace.after(&answer.answered)
    }

    /// It is another node, or a version of it that cannot be patched at present.
    async fn look_again(&mut self, node: &Node, refused: &NodeResponse) -> Wait {
        let seen = self.patcher.look(&node.name).await;
        match (&seen.answered, &seen.node) {
            (ApiResult::Gone, _) => self.observed.forget_if(node),
            (_, Some(json)) => self.observed.offer_json(json),
            (_, None) => return self.pace.after(&seen.answered),
        }
        match self.inputs.node.borrow().as_ref().is_some_and(|now| now.uid == node.uid) {
            true => self.pace.after(&refused.answered),
            false => Wait::Only(Duration::ZERO),
        }
    }
}

/// The agent's conditions that a node has.
pub(crate) fn own_conditions(node: &Node) -> Vec<&'static str> {
    let is_there = |kind: &&str| node.conditions.iter().any(|condition| *condition.kind == **kind);
    CONDITIONS.map(condition_type).into_iter().filter(is_there).collect()
}

/// How long it is until then; at least a moment.
fn until(then: Timestamp, now: Timestamp) -> Duration {
    let left = u64::try_from(since(then, now).as_nanos()).unwrap_or(0);
    Duration::from_nanos(left).max(Duration::from_millis(100))
}
