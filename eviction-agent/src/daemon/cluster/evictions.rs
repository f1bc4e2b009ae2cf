//! Evictions on their way to the API server: from the reaction thread over a lane to the hand.

use eviction_core::progress::KillRejection;
use eviction_kill::Admission;
use eviction_kill::CountedKill;
use eviction_kill::KillStarted;
use eviction_kill::KillTarget;
use eviction_kill::RateLimit;
use eviction_kill::RateLimitPolicy;
use eviction_kube::{EvictionRequest, Evictor};
use eviction_node::async_fd::{register, take_count};

use super::super::state::DurableRevision;
use crate::error::Failure;
use crate::spsc::{Next, Receiver, Sender, lane};

/// More than may be on their way at a time.
const ORDERS: usize = 64;

/// The reaction's end: the same bounds on the pace as for the kill hand, and the lane.
#[derive(Debug)]
pub(crate) struct Evictions {
    pacing: RateLimit,
    orders: Sender<Kept>,
}

/// An order that waits until it was written down.
#[derive(Debug)]
pub(crate) struct Kept {
    order: EvictionRequest,
    kept_as: u64,
}

impl Evictions {
    /// # Errors
    /// If there can be no lane.
    pub(crate) fn new(pacing: RateLimitPolicy) -> Result<(Self, Receiver<Kept>), Failure> {
        let (orders, receiver) =
            lane(ORDERS).map_err(|error| Failure::because("make the lane of evictions", &error))?;
        Ok((Self { pacing: RateLimit::new(pacing), orders }, receiver))
    }

    /// Hands an eviction over, if it may be begun. Never waits. It is asked for when the node's marks
    /// of the one number are written, and what was said under the number `kept_as` is kept.
    pub(crate) fn begin(
        &mut self,
        target: &KillTarget,
        ignores_budget: bool,
        after_marks: u64,
        kept_as: u64,
        now_ns: u64,
    ) -> Result<KillStarted, KillRejection> {
        let admitted = self.pacing.admit(target, now_ns)?;
        let decision = match admitted {
            Admission::Begin => target.decision,
            Admission::Hurry { decision } => decision,
        };
        let order = EvictionRequest {
            decision,
            at_ns: target.at_ns,
            pod: target.pod.clone(),
            grace_period_seconds: i64::try_from(target.grace.as_secs()).unwrap_or(i64::MAX),
            resource: target.resource,
            ignores_budget,
            after_marks,
            is_open: false,
        };
        let order = Kept { order, kept_as };
        if self.orders.send(order).is_err() {
            let in_flight = u32::try_from(self.pacing.in_flight().len()).unwrap_or(u32::MAX);
            return Err(KillRejection::Busy { in_flight });
        }
        Ok(match admitted {
            Admission::Begin => {
                self.pacing.begun(target, now_ns);
                KillStarted::Started
            }
            Admission::Hurry { decision } => {
                self.pacing.hurried(decision, now_ns);
                KillStarted::Hurried { decision }
            }
        })
    }

    /// Goes on with an eviction of a former agent: what came of its request is found out, also where
    /// that agent knew it, since nobody knows whether it has told anybody.
    pub(crate) fn resume(&mut self, target: &KillTarget, now_ns: u64) {
        self.pacing.begun(target, now_ns);
        let order = EvictionRequest {
            decision: target.decision,
            at_ns: target.at_ns,
            pod: target.pod.clone(),
            grace_period_seconds: 0,
            resource: target.resource,
            ignores_budget: false,
            after_marks: 0,
            is_open: true,
        };
        // Without room it is forgotten after a while, as what nobody answers.
        if self.orders.send(Kept { order, kept_as: 0 }).is_err() {
            tracing::warn!(pod = %target.pod.name, "what came of an eviction cannot be found out at present");
        }
    }

    /// The evictions that count against the limits of the pace.
    pub(crate) fn kills(&self) -> impl Iterator<Item = &CountedKill> {
        self.pacing.kills()
    }

    /// Follows another policy of the pace from now on.
    pub(crate) fn follow(&mut self, pacing: RateLimitPolicy) {
        self.pacing.follow(pacing);
    }

    /// Goes on with the pace of a former agent. Before all else.
    pub(crate) fn recall(&mut self, kills: Vec<CountedKill>) {
        self.pacing.recall(kills);
    }

    /// Nothing was done: it counts against no limit.
    pub(crate) fn not_done(&mut self, decision: u64) {
        self.pacing.taken_back(decision);
    }

    /// The pod is gone, or does not go.
    pub(crate) fn ended(&mut self, decision: u64, now_ns: u64) {
        self.pacing.ended(decision, now_ns);
    }
}

/// Hands orders on until there are no more. Needs the runtime of the slow side.
///
/// # Errors
/// If the lane cannot be watched.
pub(crate) async fn carry(
    mut orders: Receiver<Kept>,
    hand: Evictor,
    mut written: Option<DurableRevision>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::because("watch the lane of evictions", &error);
    let bell = orders.bell().and_then(register).map_err(failed)?;
    loop {
        match orders.next() {
            Next::Value(Kept { order, kept_as }) => {
                if let Some(written) = &mut written {
                    written.wait_for(kept_as).await;
                }
                hand.take(order).await;
            }
            Next::Ended => return Ok(()),
            Next::Empty => drop(take_count(&bell).await.map_err(failed)?),
        }
    }
}
