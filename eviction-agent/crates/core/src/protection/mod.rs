//! Which pods are spared, for how long, and which go first or last: what pods ask for by
//! annotation, the operator's table, the cool-down after an OOM kill, limits within a time, and
//! pods that nothing would bring back.
//!
//! What follows from a pod and the policy alone is its [`PodProtection`](crate::pods::PodProtection), worked out once. What
//! depends on what happened is the state of the [`EvictionGuard`], of which the engine asks
//! [`EvictionGuard::refusal`] for each pod whose turn has come. In the kubelet's profile nobody is
//! protected and nothing refused.

mod limits;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use limits::PdbRefusals;
pub use limits::{CountedEviction, MOST_COUNTED};
use limits::{CountedEvictions, OomKilledPods};
use serde::Serialize;

use crate::pods::{EvictionOrder, KnownPod, PodEventTime};
use crate::policy::Rules;
use crate::policy::preferences::RateLimitScope;
use crate::progress::EvictionResult;
use crate::signal::{Resource, Signal};
use crate::time::Timestamp;
use crate::units::GoDuration;

/// For what a pod would go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionMotive {
    /// A threshold of the node.
    Threshold {
        /// Of which signal.
        signal: Signal,
        /// Whether it is a hard one.
        hard: bool,
    },
    /// Its own limits of local storage, which it exceeds.
    OwnLimits,
}

/// The question whether a pod may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionRequest {
    /// When: the time of the input.
    pub at: Timestamp,
    /// For what.
    pub motive: EvictionMotive,
    /// Nobody else goes for this: all whose turn was before were refused, and nobody is on his
    /// way.
    pub is_last_resort: bool,
}

/// Remembers evictions and OOM kills, and refuses by them and by what protects a pod. By the kubelet's
/// rules it refuses no pod and remembers nothing.
#[derive(Clone, Debug, Default)]
pub struct EvictionGuard {
    evictions: CountedEvictions,
    oom_killed: OomKilledPods,
}

impl EvictionGuard {
    /// Forgets what other rules do not ask for.
    pub fn adopt(&mut self, rules: &Rules) {
        if rules.rate_limits().is_empty() {
            self.evictions.clear();
        }
        if rules.are_kubelets() {
            self.oom_killed.clear();
        }
    }

    /// Why a pod may not be evicted, if it may not. Critical pods are not asked about.
    pub fn refusal(&self, rules: &Rules, request: EvictionRequest, known: &KnownPod) -> Option<Refusal> {
        let preferences = rules.preferences.as_ref()?;
        let EvictionRequest { at, motive, is_last_resort } = request;
        let protection = &known.protection;
        let overrides = preferences.hard.override_opt_out && is_last_resort && is_hard_memory(motive);
        match protection.order {
            EvictionOrder::Never => {
                return Some(Refusal::ProtectedByRule { rule: protection.rule.unwrap_or(0) });
            }
            EvictionOrder::OptedOut if !overrides => return Some(Refusal::OptedOut),
            EvictionOrder::First | EvictionOrder::Normal | EvictionOrder::Last | EvictionOrder::OptedOut => {}
        }
        let soft = matches!(motive, EvictionMotive::Threshold { hard: false, .. });
        if soft && protection.without_controller && !preferences.soft.evict_pods_without_controller {
            return Some(Refusal::WithoutController);
        }
        let cool_down = preferences.cool_down_after_oom_kill;
        let cools_down = self.oom_killed.refusal(cool_down, at, &known.pod.uid);
        cools_down.or_else(|| self.evictions.refusal(&preferences.rate_limits, at, known))
    }

    /// Takes note that a pod is evicted. Of a pod that was evicted before, it is the later time that counts.
    pub fn record_eviction(&mut self, rules: &Rules, at: Timestamp, known: &KnownPod) {
        self.evictions.record(rules.rate_limits(), at, known);
    }

    /// Takes note of the result of an eviction: one that failed does not count.
    pub fn record_result(&mut self, outcome: &EvictionResult) {
        if outcome.result.is_err() {
            self.evictions.take_back(&outcome.uid);
        }
    }

    /// Takes note that the kernel killed a process of a pod for lack of memory.
    pub fn record_oom_kill(&mut self, rules: &Rules, at: Timestamp, uid: &str) {
        if let Some(preferences) = &rules.preferences {
            self.oom_killed.record(preferences.cool_down_after_oom_kill, at, uid);
        }
    }

    /// The evictions that count against limits, the latest of them.
    pub fn counted(&self) -> Vec<CountedEviction> {
        self.evictions.counted()
    }

    /// The OOM kills by which pods are not evicted.
    pub fn oom_killed(&self) -> Vec<PodEventTime> {
        self.oom_killed.all()
    }

    /// Takes over what another guard knew, where the rules ask for it.
    pub fn restore(&mut self, rules: &Rules, counted: Vec<CountedEviction>, oom_killed: Vec<PodEventTime>) {
        if !rules.rate_limits().is_empty() {
            self.evictions.restore(counted);
        }
        for PodEventTime { uid, at } in oom_killed {
            self.record_oom_kill(rules, at, &uid);
        }
    }
}

/// Allocatable memory counts: its threshold is a copy of the hard one of memory.
fn is_hard_memory(motive: EvictionMotive) -> bool {
    matches!(motive, EvictionMotive::Threshold { signal, hard: true } if signal.resource() == Resource::Memory)
}

/// How far two instants are apart, whichever is the later one.
///
/// So a clock that goes back makes nobody wait longer than the time that it went back by, and
/// records that come in out of order count as what they are.
fn difference(a: Timestamp, b: Timestamp) -> GoDuration {
    crate::time::since(a.max(b), a.min(b))
}

/// Why a pod does not go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Refusal {
    /// A rule of `policy.protection` says `never`.
    ProtectedByRule {
        /// Its index in the list.
        rule: usize,
    },
    /// Its annotation `eviction-agent.io/evict` says `"false"`.
    OptedOut,
    /// The threshold is soft, and no controller would bring the pod back.
    #[serde(rename = "bare")]
    WithoutController,
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
            Self::WithoutController => {
                f.write_str("has no owner to bring it back, and the threshold is soft")
            }
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
    /// Its index among the pods of the evaluation.
    pub pod: u32,
    /// Why it does not go.
    pub why: Refusal,
}
