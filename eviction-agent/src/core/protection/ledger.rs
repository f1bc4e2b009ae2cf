//! How many pods of an owner or a namespace went lately.

use std::collections::VecDeque;

use crate::core::pods::KnownPod;
use crate::core::preferences::{EvictionLimit, LimitScope};
use crate::core::time::Timestamp;
use crate::core::units::GoDuration;

use super::guard::apart;
use super::refusal::Refusal;

/// How many evictions are remembered: one a second for more than four hours.
const MOST_ENTRIES: usize = 16_384;

/// The evictions that still count, in the order in which they were decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    limits: Vec<EvictionLimit>,
    entries: VecDeque<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    at: Timestamp,
    uid: Box<str>,
    namespace: Box<str>,
    owner: Option<Box<str>>,
}

impl Entry {
    fn is_of(&self, scope: LimitScope, known: &KnownPod) -> bool {
        match scope {
            LimitScope::Namespace => self.namespace == known.pod.namespace,
            LimitScope::Owner => self.owner.is_some() && self.owner == known.shelter.owner,
        }
    }
}

impl Ledger {
    pub(super) fn adopt(&mut self, limits: &[EvictionLimit]) {
        self.limits = limits.to_vec();
        if limits.is_empty() {
            self.entries.clear();
        }
    }

    /// The first limit that the eviction would go beyond. The pod's own earlier eviction does
    /// not count: a second decision about the same pod evicts nobody else.
    pub(super) fn refusal(&self, at: Timestamp, known: &KnownPod) -> Option<Refusal> {
        let is_reached = |limit: &&EvictionLimit| {
            let counts = |entry: &&Entry| {
                apart(at, entry.at) < limit.window
                    && entry.is_of(limit.scope, known)
                    && entry.uid != known.pod.uid
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
        self.entries.push_back(Entry {
            at,
            uid: known.pod.uid.clone(),
            namespace: known.pod.namespace.clone(),
            owner: known.shelter.owner.clone(),
        });
    }

    pub(super) fn take_back(&mut self, uid: &str) {
        self.entries.retain(|entry| &*entry.uid != uid);
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
