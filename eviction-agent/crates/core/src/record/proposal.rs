//! The record of a proposed policy.

use serde::Serialize;

use crate::decision::{Decision, ProposalState};
use crate::disk_layout::Reclaim;
use crate::pod::PodName;
use crate::record::reclaims;
use crate::time::Timestamp;

/// The state of a proposed policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProposalRecord {
    /// The proposed policy equals the one in force.
    Unchanged,
    /// The policy is in force from now on.
    #[serde(rename = "took_effect")]
    Applied,
    /// The policy would do more than the one in force.
    #[serde(rename = "waits")]
    Pending {
        /// When it was proposed.
        since: Timestamp,
        /// When it takes effect in any case. Absent if it must be applied manually.
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// The pods that it would evict now, if it was tried on a sample already.
        would_evict: Vec<PodName>,
        /// The garbage that it would collect first.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        would_reclaim: Vec<Reclaim>,
    },
}

impl ProposalRecord {
    pub(super) fn of(state: &ProposalState) -> Self {
        match state {
            ProposalState::Unchanged => Self::Unchanged,
            ProposalState::Applied => Self::Applied,
            ProposalState::Pending { since, until, trial } => {
                let trial = trial.as_deref();
                let evicted = trial.into_iter().flat_map(Decision::evicted_pods);
                Self::Pending {
                    since: *since,
                    until: *until,
                    would_evict: evicted.map(PodName::of).collect(),
                    would_reclaim: trial.into_iter().flat_map(reclaims).collect(),
                }
            }
        }
    }
}
