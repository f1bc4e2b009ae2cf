//! Keeps the agent's conditions in the node's object.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Count;
use super::known::Known;
use super::news::NodeNews;
use super::pace::{Followed, Pace, Wait};
use crate::daemon::clock::Clock;
use eviction_core::api_result::ApiResult;
use eviction_core::node::Node;
use eviction_core::node_conditions::{self, Due, condition_type};
use eviction_core::pressure::CONDITIONS;
use eviction_core::time::{Timestamp, since};
use eviction_kube::{NodePatcher, NodeResponse};

/// The taints of the same news go first: they test the version, which a condition changes.
const TAINTS_WITHIN: Duration = Duration::from_secs(1);

/// What is written for people waits for the eviction that the same pressure causes: a server that has
/// both to do at once takes milliseconds longer for either.
const EVICTIONS_FIRST: Duration = Duration::from_millis(50);

/// What is said beside a status may change with each look, and what others undo at any time: either
/// is written after this time, at the earliest.
const DETAIL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Conditions {
    hand: Arc<NodePatcher>,
    followed: Followed,
    known: Known,
    taints: watch::Receiver<u64>,
    count: Count,
    pace: Pace,
    clock: Clock,
}

impl Conditions {
    pub(super) fn new(
        hand: Arc<NodePatcher>,
        news: watch::Receiver<Option<Arc<NodeNews>>>,
        known: Known,
        taints: watch::Receiver<u64>,
        count: Count,
    ) -> Self {
        let followed = Followed { news, node: known.subscribe() };
        Self { hand, followed, known, taints, count, pace: Pace::new(), clock: Clock::start() }
    }

    /// Until nobody says any more what they ought to be.
    pub(super) async fn keep(mut self) {
        loop {
            let wait = self.turn().await;
            if !self.followed.wait(wait).await {
                return;
            }
        }
    }

    async fn turn(&mut self) -> Wait {
        let (Some(news), _) = self.followed.now() else { return Wait::Change };
        // Late, or nobody writes them any more: conditions do not depend on them.
        drop(timeout(TAINTS_WITHIN, self.taints.wait_for(|written| *written >= news.number)).await);
        sleep(EVICTIONS_FIRST).await;
        let (Some(news), Some(node)) = self.followed.now() else { return Wait::Change };
        if !news.marks.conditions {
            return self.take_away(&node, &news).await;
        }
        let now = self.clock.shown(self.clock.now().wall);
        let node_conditions::Conditions { all, due, heartbeat } =
            node_conditions::conditions(&node, news.grounds(), now);
        self.count.is_due(due >= Due::Detail);
        let left = match due {
            Due::Not => return Wait::ChangeOr(until(heartbeat, now)),
            Due::Status => self.pace.again_after(news.number, &node, DETAIL),
            Due::Detail | Due::Heartbeat => self.pace.since_write(DETAIL),
        };
        if let Some(left) = left {
            return Wait::ChangeOr(left);
        }
        let answer = self.hand.write_conditions(&node, &all, &[]).await;
        self.finish(&news, &node, &answer).await
    }

    /// Conditions that are not wanted any more.
    async fn take_away(&mut self, node: &Node, news: &NodeNews) -> Wait {
        let kinds = own(node);
        self.count.is_due(!kinds.is_empty());
        if kinds.is_empty() {
            return Wait::Change;
        }
        if let Some(left) = self.pace.again_after(news.number, node, DETAIL) {
            return Wait::ChangeOr(left);
        }
        let answer = self.hand.write_conditions(node, &[], &kinds).await;
        self.finish(news, node, &answer).await
    }

    async fn finish(&mut self, news: &NodeNews, node: &Node, answer: &NodeResponse) -> Wait {
        self.count.answer(&answer.answered, answer.is_stale());
        match (&answer.answered, &answer.node) {
            (ApiResult::Accepted, json) => {
                self.pace.wrote(news.number, node);
                json.iter().for_each(|json| self.known.offer_json(json));
            }
            (ApiResult::Gone, _) => self.known.forget_if(node),
            (_, _) if answer.is_stale() => return self.look_again(node, answer).await,
            (answered, _) => tracing::debug!(?answered, "the node's conditions are not written"),
        }
        self.pace.after(&answer.answered)
    }

    /// It is another node, or a version of it that cannot be patched at present.
    async fn look_again(&mut self, node: &Node, refused: &NodeResponse) -> Wait {
        let seen = self.hand.look(&node.name).await;
        match (&seen.answered, &seen.node) {
            (ApiResult::Gone, _) => self.known.forget_if(node),
            (_, Some(json)) => self.known.offer_json(json),
            (_, None) => return self.pace.after(&seen.answered),
        }
        match self.followed.node.borrow().as_ref().is_some_and(|now| now.uid == node.uid) {
            true => self.pace.after(&refused.answered),
            false => Wait::Only(Duration::ZERO),
        }
    }
}

/// The agent's conditions that a node has.
pub(super) fn own(node: &Node) -> Vec<&'static str> {
    let is_there = |kind: &&str| node.conditions.iter().any(|condition| *condition.kind == **kind);
    CONDITIONS.map(condition_type).into_iter().filter(is_there).collect()
}

/// How long it is until then; at least a moment.
fn until(then: Timestamp, now: Timestamp) -> Duration {
    let left = u64::try_from(since(then, now).as_nanos()).unwrap_or(0);
    Duration::from_nanos(left).max(Duration::from_millis(100))
}
