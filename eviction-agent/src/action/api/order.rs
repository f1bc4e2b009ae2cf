//! What the hand is asked to do.

use std::sync::Arc;

use eviction_core::api_result::ApiOperation;
use eviction_core::pod::PodName;
use eviction_core::signal::Resource;

/// The eviction of a pod, as it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Number of the decision; outcomes carry it.
    pub decision: u64,
    /// When it was decided: CLOCK_MONOTONIC in nanoseconds. Too old an order is not carried out.
    pub at_ns: u64,
    /// Which pod.
    pub pod: Arc<PodName>,
    /// How long it may take to end. Less than a second is a second: with 0 the API server takes
    /// the object away at once, and its containers run on.
    pub grace_period_seconds: i64,
    /// What the node is short of.
    pub resource: Resource,
    /// Its PodDisruptionBudget said no: it is deleted without asking again.
    pub ignores_budget: bool,
    /// What the node is to say first: the number of those marks, 0 if there are none to wait for.
    pub after_marks: u64,
    /// It was asked for before, and nobody knows what came of it: that is found out, and nothing
    /// asked for.
    pub is_open: bool,
}

impl Order {
    /// What the API server is asked for.
    pub(super) fn asks_for(&self) -> ApiOperation {
        if self.ignores_budget { ApiOperation::Deletion } else { ApiOperation::Eviction }
    }
}
