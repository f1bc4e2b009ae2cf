//! When the next write may be tried.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use eviction_core::node::Node;
use eviction_core::progress::ApiResult;

use super::NodeStatusUpdate;
use crate::backoff::Backoff;

/// While nobody answers. What is wrong is put right within 5 s after the server is back.
const LEAST_PAUSE: Duration = Duration::from_millis(250);
const MOST_PAUSE: Duration = Duration::from_secs(2);

/// A refusal does not go away by being asked again: somebody has to do something first.
const REFUSED: Duration = Duration::from_secs(30);

/// What comes before the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Something else is to be said, or the node's object changes.
    Change,
    /// That, or this time.
    ChangeOr(Duration),
    /// This time, whatever changes.
    Only(Duration),
}

/// How the tries of one kind follow each other.
#[derive(Debug)]
pub(super) struct RetryPace {
    failures: Backoff,
    /// The last write that was carried out: for which update, into which object.
    written: Option<(u64, Box<str>, Instant)>,
}

impl RetryPace {
    pub(super) fn new() -> Self {
        Self { failures: Backoff::new(LEAST_PAUSE, MOST_PAUSE), written: None }
    }

    /// What comes after an answer.
    pub(super) fn after(&mut self, answered: &ApiResult) -> Wait {
        match answered {
            ApiResult::Accepted | ApiResult::Gone | ApiResult::Another => {
                self.failures.reset();
                Wait::Change
            }
            ApiResult::Throttled { pause } => Wait::Only(*pause),
            ApiResult::Forbidden { .. } | ApiResult::Rejected { .. } | ApiResult::Budget { .. } => {
                Wait::Only(REFUSED)
            }
            ApiResult::Unauthorized { .. } | ApiResult::Unknown { .. } | ApiResult::NotSent { .. } => {
                Wait::ChangeOr(self.failures.pause())
            }
        }
    }

    /// A pause before the next try of what was wanted by others as well.
    pub(super) fn contended(&mut self) -> Wait {
        Wait::Only(self.failures.pause() / 10)
    }

    /// Something was written.
    pub(super) fn wrote(&mut self, number: u64, node: &Node) {
        self.written = Some((number, node.uid.clone(), Instant::now()));
    }

    /// How much is left of `least` since the same was written into the same object: others undo it,
    /// and are not to be answered at their pace. Nothing if it may be written now.
    pub(super) fn again_after(&self, number: u64, node: &Node, least: Duration) -> Option<Duration> {
        let (before, uid, _) = self.written.as_ref()?;
        if (*before, uid) == (number, &node.uid) { self.since_write(least) } else { None }
    }

    /// How much is left of `least` since the last write.
    pub(super) fn since_write(&self, least: Duration) -> Option<Duration> {
        let (_, _, at) = self.written.as_ref()?;
        least.checked_sub(at.elapsed()).filter(|left| !left.is_zero())
    }
}

/// What both kinds follow.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) update: watch::Receiver<Option<Arc<NodeStatusUpdate>>>,
    pub(super) node: watch::Receiver<Option<Arc<Node>>>,
}

impl Inputs {
    /// What is so now: what the node ought to say, and its object.
    pub(super) fn now(&mut self) -> (Option<Arc<NodeStatusUpdate>>, Option<Arc<Node>>) {
        (self.update.borrow_and_update().clone(), self.node.borrow_and_update().clone())
    }

    /// Waits; false if there is nobody any more who says anything.
    pub(super) async fn wait(&mut self, wait: Wait) -> bool {
        let pause = match wait {
            Wait::Only(pause) => {
                sleep(pause).await;
                return self.update.has_changed().is_ok();
            }
            Wait::Change => None,
            Wait::ChangeOr(pause) => Some(pause),
        };
        let timer = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.update.changed() => changed.is_ok(),
            changed = self.node.changed() => changed.is_ok(),
            () = timer => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_not_hurried_and_a_failure_is_tried_again_soon() {
        let mut pace = RetryPace::new();
        let why = || "because".into();
        let pause = Duration::from_secs(7);
        assert_eq!(pace.after(&ApiResult::Throttled { pause }), Wait::Only(pause));
        assert_eq!(pace.after(&ApiResult::Forbidden { why: why() }), Wait::Only(REFUSED));
        for _ in 0..20 {
            let Wait::ChangeOr(pause) = pace.after(&ApiResult::Unknown { why: why() }) else { panic!() };
            assert!(pause <= MOST_PAUSE);
        }
        assert_eq!(pace.after(&ApiResult::Accepted), Wait::Change);
        let Wait::ChangeOr(pause) = pace.after(&ApiResult::NotSent { why: why() }) else { panic!() };
        assert!(pause <= LEAST_PAUSE);
    }

    #[test]
    fn what_others_undo_is_written_again_later() {
        let node = Node { uid: "a".into(), ..Node::default() };
        let mut pace = RetryPace::new();
        let long = Duration::from_secs(3600);
        assert_eq!((pace.again_after(1, &node, long), pace.since_write(long)), (None, None));
        pace.wrote(1, &node);
        assert!(pace.again_after(1, &node, long).is_some_and(|left| left <= long));
        assert_eq!(pace.again_after(2, &node, long), None, "that is something else");
        let other = Node { uid: "b".into(), ..Node::default() };
        assert_eq!(pace.again_after(1, &other, long), None, "the node was made again");
        assert!(pace.since_write(long).is_some());
        let none = Duration::ZERO;
        assert_eq!((pace.again_after(1, &node, none), pace.since_write(none)), (None, None));
    }
}
