//! How many pods of an owner or a namespace went lately.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::pods::KnownPod;
use crate::policy::preferences::EvictionLimit;
use crate::protection::{CountedEviction, MOST_COUNTED};
use crate::time::Timestamp;
use crate::units::GoDuration;

use super::guard::apart;
use super::refusal::Refusal;

/// How many evictions are remembered: one a second for more than four hours.
const MOST_ENTRIES: usize = 16_384;

/// Entries that there is room for from the start.
const ROOM: usize = 64;

/// The evictions that still count, in the order in which they were decided.
#[derive(Clone, Debug, Default)]
pub(super) struct RateLimiter {
    limits: Vec<EvictionLimit>,
    entries: VecDeque<CountedEviction>,
}

impl RateLimiter {
    pub(super) fn adopt(&mut self, limits: &[EvictionLimit]) {
        self.limits = limits.to_vec();
        if limits.is_empty() {
            self.entries.clear();
        } else {
            self.entries.reserve(ROOM);
        }
    }

    /// The first limit that the eviction would go beyond. The pod's own earlier eviction does
    /// not count: a second decision about the same pod evicts nobody else.
    pub(super) fn refusal(&self, at: Timestamp, known: &KnownPod) -> Option<Refusal> {
        let is_reached = |limit: &&EvictionLimit| {
            let own = &known.shelter.account;
            let counts = |entry: &&CountedEviction| {
                apart(at, entry.at) < limit.window
                    && entry.account.is_with(own, limit.scope)
                    && entry.account.uid != own.uid
            };
            let most = usize::try_from(limit.max_evictions).unwrap_or(usize::MAX);
            self.entries.iter().filter(counts).take(most).count() >= most
        };
        let EvictionLimit { scope, max_evictions, window } = *self.limits.iter().find(is_reached)?;
        Some(Refusal::Limit { scope, max_evictions, window })
    }

    pub(super) fn enter(&mut self, at: Timestamp, known: &KnownPod) {
        if self.limits.is_empty() {
            return;
        }
        self.take_back(&known.pod.uid);
        self.prune(at);
        self.entries.push_back(CountedEviction { at, account: Arc::clone(&known.shelter.account) });
    }

    pub(super) fn counted(&self) -> Vec<CountedEviction> {
        self.entries.iter().skip(self.entries.len().saturating_sub(MOST_COUNTED)).cloned().collect()
    }

    /// Goes on with those of a ledger before this one. Before all else.
    pub(super) fn recall(&mut self, counted: Vec<CountedEviction>) {
        if self.limits.is_empty() {
            return;
        }
        let latest = counted.len().saturating_sub(MOST_COUNTED);
        self.entries.extend(counted.into_iter().skip(latest));
    }

    pub(super) fn take_back(&mut self, uid: &str) {
        self.entries.retain(|entry| &*entry.account.uid != uid);
    }

    /// Keeps entries for twice the longest window, so that they count again after the clock
    /// went back by up to one.
    fn prune(&mut self, at: Timestamp) {
        let longest = self.limits.iter().map(|limit| limit.window).max().unwrap_or(GoDuration::ZERO);
        let horizon = GoDuration::from_nanos(longest.as_nanos().saturating_mul(2));
        self.entries.retain(|entry| apart(at, entry.at) < horizon);
        while self.entries.len() >= MOST_ENTRIES {
            self.entries.pop_front();
        }
    }
}
