//! What earlier evictions and OOM kills forbid: rate limits, the cool-down after an OOM kill, and refusals by
//! a PodDisruptionBudget.
//!
//! Only the executor asks a budget, because what the budget allows changes with every pod that becomes ready.
//! A refusal holds for [`RETRY_AFTER`]. A soft threshold then evicts the next candidate. A hard threshold
//! evicts the next one of the same class; if there is none, it evicts the pod without asking the budget,
//! unless that is disabled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::in_flight::RETRY_AFTER;
use crate::pods::{KnownPod, PodEventTime, PodSet, RateLimitKey};
use crate::policy::preferences::EvictionLimit;
use crate::protection::{Refusal, difference};
use crate::time::Timestamp;
use crate::units::GoDuration;

/// The number of evictions that are stored: one a second for more than four hours.
const MAX_ENTRIES: usize = 16_384;

/// The evictions that still count, in the order in which they were decided.
#[derive(Clone, Debug)]
pub(super) struct CountedEvictions(VecDeque<CountedEviction>);

impl Default for CountedEvictions {
    /// Reserves some space, because a pod is evicted when memory is short.
    fn default() -> Self {
        Self(VecDeque::with_capacity(64))
    }
}

impl CountedEvictions {
    /// Returns the first limit that the eviction would exceed. The pod's own earlier eviction does not count:
    /// a second decision about the same pod evicts no other.
    pub(super) fn refusal(
        &self,
        limits: &[EvictionLimit],
        at: Timestamp,
        known: &KnownPod,
    ) -> Option<Refusal> {
        let is_reached = |limit: &&EvictionLimit| {
            let own = &known.protection.rate_limit_key;
            let counts = |entry: &&CountedEviction| {
                difference(at, entry.at) < limit.window
                    && entry.key.counts_with(own, limit.scope)
                    && entry.key.uid != own.uid
            };
            let most = usize::try_from(limit.max_evictions).unwrap_or(usize::MAX);
            self.0.iter().filter(counts).take(most).count() >= most
        };
        let EvictionLimit { scope, max_evictions, window } = *limits.iter().find(is_reached)?;
        Some(Refusal::Limit { scope, max_evictions, window })
    }

    /// Adds an eviction. Entries are kept for twice the longest window, so that they count again after the
    /// clock was set back by up to one window.
    pub(super) fn record(&mut self, limits: &[EvictionLimit], at: Timestamp, known: &KnownPod) {
        let Some(longest) = limits.iter().map(|limit| limit.window).max() else { return };
        self.remove(&known.pod.uid);
        self.0.retain(|entry| difference(at, entry.at) < twice(longest));
        while self.0.len() >= MAX_ENTRIES {
            self.0.pop_front();
        }
        self.0.push_back(CountedEviction { at, key: Arc::clone(&known.protection.rate_limit_key) });
    }

    pub(super) fn remove(&mut self, uid: &str) {
        self.0.retain(|entry| &*entry.key.uid != uid);
    }

    /// Returns the latest [`MAX_COUNTED`] evictions.
    pub(super) fn counted(&self) -> Vec<CountedEviction> {
        self.0.iter().skip(self.0.len().saturating_sub(MAX_COUNTED)).cloned().collect()
    }

    /// Continues with the evictions of another engine. Must be called before any other method.
    pub(super) fn restore(&mut self, counted: Vec<CountedEviction>) {
        let surplus = counted.len().saturating_sub(MAX_COUNTED);
        self.0.extend(counted.into_iter().skip(surplus));
    }
}

/// The number of evictions that count against limits and are persisted: one in five seconds for more than five hours.
pub const MAX_COUNTED: usize = 4096;

/// An eviction that counts against limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CountedEviction {
    /// When the eviction was decided.
    pub at: Timestamp,
    /// The keys under which the eviction counts.
    #[serde(rename = "account")]
    pub key: Arc<RateLimitKey>,
}

/// The number of pods that are stored. A node runs some hundreds.
const MAX_PODS: usize = 4096;

/// The last OOM kill of each pod, while it matters.
#[derive(Clone, Debug, Default)]
pub(super) struct OomKilledPods(BTreeMap<Box<str>, Timestamp>);

impl OomKilledPods {
    /// Records an OOM kill. Kills may be reported in any order: the latest counts, unless it is far in the future.
    pub(super) fn record(&mut self, cool_down: GoDuration, at: Timestamp, uid: &str) {
        if cool_down <= GoDuration::ZERO {
            return;
        }
        // Twice the time, so that a kill counts again after the clock was set back by up to the cool-down.
        self.0.retain(|_, last| difference(at, *last) < twice(cool_down));
        if self.0.len() >= MAX_PODS
            && !self.0.contains_key(uid)
            && let Some((oldest, _)) = self.0.iter().min_by_key(|(_, last)| **last)
        {
            let oldest = oldest.clone();
            self.0.remove(&oldest);
        }
        let last = self.0.entry(uid.into()).or_insert(at);
        *last = at.max(*last);
    }

    pub(super) fn all(&self) -> Vec<PodEventTime> {
        self.0.iter().map(|(uid, at)| PodEventTime { uid: uid.clone(), at: *at }).collect()
    }

    pub(super) fn refusal(&self, cool_down: GoDuration, at: Timestamp, uid: &str) -> Option<Refusal> {
        let since = *self.0.get(uid)?;
        let remaining = cool_down.as_nanos().saturating_sub(difference(at, since).as_nanos());
        (remaining > 0)
            .then_some(Refusal::CoolingDown { since, remaining: GoDuration::from_nanos(remaining) })
    }
}

fn twice(duration: GoDuration) -> GoDuration {
    GoDuration::from_nanos(duration.as_nanos().saturating_mul(2))
}

/// The pods whose PodDisruptionBudgets have refused an eviction lately, and when.
#[derive(Clone, Debug, Default)]
pub(crate) struct PdbRefusals(Vec<PodEventTime>);

impl PdbRefusals {
    pub(crate) fn record(&mut self, at: Timestamp, uid: &str) {
        self.0.retain(|refused| difference(at, refused.at) < RETRY_AFTER && *refused.uid != *uid);
        self.0.push(PodEventTime { uid: uid.into(), at });
    }

    /// Returns all refusals.
    pub(crate) fn all(&self) -> &[PodEventTime] {
        &self.0
    }

    /// Takes over the refusals of another engine.
    pub(crate) fn restore(&mut self, refused: Vec<PodEventTime>) {
        self.0 = refused;
    }

    /// Removes pods that are no longer active.
    pub(crate) fn update_pods(&mut self, pods: &PodSet) {
        self.0.retain(|refused| pods.index_of(&refused.uid).is_some());
    }

    /// Returns how long ago the eviction of a pod was refused, if that still counts.
    pub(crate) fn refusal_age(&self, at: Timestamp, uid: &str) -> Option<GoDuration> {
        let refused = self.0.iter().find(|refused| *refused.uid == *uid)?;
        Some(difference(at, refused.at)).filter(|age| *age < RETRY_AFTER)
    }
}
