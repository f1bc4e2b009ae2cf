//! Why a pod whose turn has come does not go.

use serde::Serialize;

use crate::core::preferences::LimitScope;
use crate::core::time::Timestamp;
use crate::core::units::GoDuration;

/// Why a pod does not go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Refusal {
    /// A rule of `policy.protection` says `never`.
    ProtectedByRule {
        /// Its place in the list.
        rule: usize,
    },
    /// Its annotation `eviction-agent.io/evict` says `"false"`.
    OptedOut,
    /// The threshold is soft, and no controller would bring the pod back.
    Bare,
    /// Nothing of it lies on the file system that is short.
    FreesNothing,
    /// The kernel killed one of its processes for want of memory, not long ago.
    CoolingDown {
        /// When it did.
        since: Timestamp,
        /// How much longer the pod is spared.
        remaining: GoDuration,
    },
    /// As many pods of its kind as may be evicted within a time were.
    Limit {
        /// What makes them of a kind.
        scope: LimitScope,
        /// How many may be.
        max_evictions: u32,
        /// Within which time.
        window: GoDuration,
    },
}

/// A pod that does not go although its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPod {
    /// Its place among the pods of the pass.
    pub place: u32,
    /// Why it does not go.
    pub why: Refusal,
}
