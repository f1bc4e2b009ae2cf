//! Why a pod whose turn has come does not go.

use std::fmt;

use serde::Serialize;

use crate::policy::preferences::RateLimitScope;
use crate::time::Timestamp;
use crate::units::GoDuration;

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
    /// Its PodDisruptionBudget does not allow it.
    DisruptionBudget {
        /// How long ago it said so.
        age: GoDuration,
    },
    /// As many pods of its kind as may be evicted within a time were.
    Limit {
        /// What makes them of a kind.
        scope: RateLimitScope,
        /// How many may be.
        max_evictions: u32,
        /// Within which time.
        window: GoDuration,
    },
}

/// A sentence without its subject.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProtectedByRule { rule } => write!(f, "is protected by policy.protection[{rule}]"),
            Self::OptedOut => f.write_str("opted out by annotation"),
            Self::Bare => f.write_str("has no owner to bring it back, and the threshold is soft"),
            Self::FreesNothing => f.write_str("has nothing on the file system that is short"),
            Self::CoolingDown { since, remaining } => {
                write!(f, "is spared for {remaining} more: the kernel killed in it at {since}")
            }
            Self::DisruptionBudget { age } => {
                write!(f, "is spared: its PodDisruptionBudget said no {age} ago")
            }
            Self::Limit { scope, max_evictions, window } => {
                let whose = match scope {
                    RateLimitScope::Namespace => "namespace",
                    RateLimitScope::Owner => "owner",
                };
                let pods = if *max_evictions == 1 { "pod" } else { "pods" };
                write!(f, "is spared: {max_evictions} {pods} of its {whose} in {window} is the limit")
            }
        }
    }
}

/// A pod that does not go although its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPod {
    /// Its place among the pods of the pass.
    pub place: u32,
    /// Why it does not go.
    pub why: Refusal,
}
