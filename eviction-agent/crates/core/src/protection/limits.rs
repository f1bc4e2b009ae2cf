//! What earlier evictions and OOM kills forbid: rate limits, the cool-down after an OOM kill, and refusals by
//! a PodDisruptionBudget.
//!
//! Only the executor asks a budget, because what the budget allows changes with every pod that becomes ready.
//! A refusal holds for [`RETRY_AFTER`]. A soft threshold then evicts the next candidate. A hard threshold
//! evicts the next one of the same class; if there is none, it evicts the pod without asking the budget,
//! unless that is disabled.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::in_flight::RETRY_AFTER;
use crate::pods::{KnownPod, PodSet, RateLimitKey};
use crate::policy::Rules;
use crate::policy::preferences::EvictionLimit;
use crate::protection::{EvictionGuard, Refusal, difference};
use crate::time::Timestamp;
use crate::units::GoDuration;

/// The number of evictions that are stored: one a second for more than four hours.
const MAX_ENTRIES: usize = 16_384;

impl EvictionGuard {
    /// Returns the first limit that the eviction would exceed. The pod's own earlier eviction does not count:
    /// a second decision about the same pod evicts no other.
    pub(super) fn rate_limit_refusal(
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
            self.evictions.iter().filter(counts).take(most).count() >= most
        };
        let EvictionLimit { scope, max_evictions, window } = *limits.iter().find(is_reached)?;
        Some(Refusal::RateLimit { scope, max_evictions, window })
    }

    /// Records the eviction of a pod. If the pod was evicted before, the later time counts. Entries are kept
    /// for twice the longest window, so that they count again after the clock was set back by up to one window.
    pub fn record_eviction(&mut self, rules: &Rules, at: Timestamp, known: &KnownPod) {
        let Some(longest) = rules.rate_limits().iter().map(|limit| limit.window).max() else { return };
        self.remove_eviction(&known.pod.uid);
        self.evictions.retain(|entry| difference(at, entry.at) < twice(longest));
        while self.evictions.len() >= MAX_ENTRIES {
            self.evictions.pop_front();
        }
        self.evictions.push_back(CountedEviction { at, key: Arc::clone(&known.protection.rate_limit_key) });
    }

    pub(super) fn remove_eviction(&mut self, uid: &str) {
        self.evictions.retain(|entry| &*entry.key.uid != uid);
    }

    /// Returns the latest [`MAX_COUNTED`] evictions that count against limits.
    pub fn counted(&self) -> Vec<CountedEviction> {
        self.evictions.iter().skip(self.evictions.len().saturating_sub(MAX_COUNTED)).cloned().collect()
    }

    /// Continues with the evictions of another engine. Must be called before any other method.
    pub(super) fn restore_evictions(&mut self, counted: Vec<CountedEviction>) {
        let surplus = counted.len().saturating_sub(MAX_COUNTED);
        self.evictions.extend(counted.into_iter().skip(surplus));
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
    pub key: Arc<RateLimitKey>,
}

/// The number of pods that are stored. A node runs some hundreds.
const MAX_PODS: usize = 4096;

impl EvictionGuard {
    /// Records that the kernel killed a process of a pod for lack of memory. Kills may be reported in any order:
    /// the latest counts, unless it is far in the future.
    pub fn record_oom_kill(&mut self, rules: &Rules, at: Timestamp, uid: &str) {
        let Some(preferences) = &rules.preferences else { return };
        let cool_down = preferences.cool_down_after_oom_kill;
        if cool_down <= GoDuration::ZERO {
            return;
        }
        // Twice the time, so that a kill counts again after the clock was set back by up to the cool-down.
        self.oom_killed.retain(|_, last| difference(at, *last) < twice(cool_down));
        if self.oom_killed.len() >= MAX_PODS
            && !self.oom_killed.contains_key(uid)
            && let Some((oldest, _)) = self.oom_killed.iter().min_by_key(|(uid, last)| (**last, *uid))
        {
            let oldest = oldest.clone();
            self.oom_killed.remove(&oldest);
        }
        let last = self.oom_killed.entry(uid.into()).or_insert(at);
        *last = at.max(*last);
    }

    /// Returns the OOM kills because of which pods are not evicted.
    pub fn oom_killed(&self) -> &BTreeMap<Box<str>, Timestamp> {
        &self.oom_killed
    }

    pub(super) fn cool_down_refusal(
        &self,
        cool_down: GoDuration,
        at: Timestamp,
        uid: &str,
    ) -> Option<Refusal> {
        let since = *self.oom_killed.get(uid)?;
        let remaining = cool_down.as_nanos().saturating_sub(difference(at, since).as_nanos());
        (remaining > 0)
            .then_some(Refusal::CoolingDown { since, remaining: GoDuration::from_nanos(remaining) })
    }
}

fn twice(duration: GoDuration) -> GoDuration {
    GoDuration::from_nanos(duration.as_nanos().saturating_mul(2))
}

impl EvictionGuard {
    pub(super) fn record_pdb_refusal(&mut self, at: Timestamp, uid: &str) {
        self.pdb_refused.retain(|_, refused| difference(at, *refused) < RETRY_AFTER);
        self.pdb_refused.insert(uid.into(), at);
    }

    /// Returns all refusals by a PodDisruptionBudget.
    pub fn pdb_refused(&self) -> &BTreeMap<Box<str>, Timestamp> {
        &self.pdb_refused
    }

    /// Removes the refusals of pods that are no longer active.
    pub fn update_pods(&mut self, pods: &PodSet) {
        self.pdb_refused.retain(|uid, _| pods.index_of(uid).is_some());
    }

    /// Returns the refusal of a pod's eviction by its PodDisruptionBudget, if that still counts.
    pub fn pdb_refusal(&self, at: Timestamp, uid: &str) -> Option<Refusal> {
        let age = difference(at, *self.pdb_refused.get(uid)?);
        (age < RETRY_AFTER).then_some(Refusal::DisruptionBudget { age })
    }
}
