//! Evictions on their way to the API server: from the reaction thread over a lane to the hand.

use crate::action::api::{ApiHand, Order};
use crate::action::{Admitted, Begun, KillTarget, Pacing, PacingPolicy, Refused};
use crate::source::wait::{register, take_count};

use super::super::failure::Failure;
use super::super::lane::{Next, Receiver, Sender, lane};

/// More than may be on their way at a time.
const ORDERS: usize = 64;

/// The reaction's end: the same bounds on the pace as for the kill hand, and the lane.
#[derive(Debug)]
pub(crate) struct Evictions {
    pacing: Pacing,
    orders: Sender<Order>,
}

impl Evictions {
    /// # Errors
    /// If there can be no lane.
    pub(crate) fn new(pacing: PacingPolicy) -> Result<(Self, Receiver<Order>), Failure> {
        let (orders, receiver) =
            lane(ORDERS).map_err(|error| Failure::because("make the lane of evictions", &error))?;
        Ok((Self { pacing: Pacing::new(pacing), orders }, receiver))
    }

    /// Hands an eviction over, if it may be begun; the node's marks of that number go first. Never
    /// waits.
    pub(crate) fn begin(
        &mut self,
        target: &KillTarget,
        ignores_budget: bool,
        after_marks: u64,
        now_ns: u64,
    ) -> Result<Begun, Refused> {
        let admitted = self.pacing.admit(target, now_ns)?;
        let decision = match admitted {
            Admitted::Begin => target.decision,
            Admitted::Hurry { decision } => decision,
        };
        let order = Order {
            decision,
            at_ns: target.at_ns,
            pod: target.pod.clone(),
            grace_period_seconds: i64::try_from(target.grace.as_secs()).unwrap_or(i64::MAX),
            resource: target.resource,
            ignores_budget,
            after_marks,
        };
        if self.orders.send(order).is_err() {
            let in_flight = u32::try_from(self.pacing.in_flight().len()).unwrap_or(u32::MAX);
            return Err(Refused::Busy { in_flight });
        }
        Ok(match admitted {
            Admitted::Begin => {
                self.pacing.begun(target, now_ns);
                Begun::Started
            }
            Admitted::Hurry { decision } => {
                self.pacing.hurried(decision, now_ns);
                Begun::Hurried { decision }
            }
        })
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
pub(crate) async fn carry(mut orders: Receiver<Order>, hand: ApiHand) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::because("watch the lane of evictions", &error);
    let bell = orders.bell().and_then(register).map_err(failed)?;
    loop {
        match orders.next() {
            Next::Value(order) => hand.take(order).await,
            Next::Ended => return Ok(()),
            Next::Empty => drop(take_count(&bell).await.map_err(failed)?),
        }
    }
}
