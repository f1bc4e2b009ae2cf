//! What earlier evictions and kills forbid: rate limits, the cool-down after an OOM kill, and refusals
//! by a PodDisruptionBudget.
//!
//! A budget is asked by the executor, and only then: what it allows changes with every pod that becomes
//! ready. Its refusal holds for [`RETRY_AFTER`]. A soft threshold takes the next candidate instead; a hard one
//! the next of the same class, and when there is none, it evicts without asking, unless configured not to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::in_flight::RETRY_AFTER;
use crate::pods::{KnownPod, PodEventTime, PodSet, RateLimitKey};
use crate::policy::preferences::EvictionLimit;
use crate::protection::{Refusal, difference};
use crate::time::{Timestamp, since};
use crate::units::GoDuration;

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
            let own = &known.protection.rate_limit_key;
            let counts = |entry: &&CountedEviction| {
                difference(at, entry.at) < limit.window
                    && entry.key.is_with(own, limit.scope)
                    && entry.key.uid != own.uid
            };
            let most = usize::try_from(limit.max_evictions).unwrap_or(usize::MAX);
            self.entries.iter().filter(counts).take(most).count() >= most
        };
        let EvictionLimit { scope, max_evictions, window } = *self.limits.iter().find(is_reached)?;
        Some(Refusal::Limit { scope, max_evictions, window })
    }

    pub(super) fn record(&mut self, at: Timestamp, known: &KnownPod) {
        if self.limits.is_empty() {
            return;
        }
        self.take_back(&known.pod.uid);
        self.prune(at);
        self.entries.push_back(CountedEviction { at, key: Arc::clone(&known.protection.rate_limit_key) });
    }

    pub(super) fn counted(&self) -> Vec<CountedEviction> {
        self.entries.iter().skip(self.entries.len().saturating_sub(MOST_COUNTED)).cloned().collect()
    }

    /// Goes on with those of a rate limiter before this one. Before all else.
    pub(super) fn restore(&mut self, counted: Vec<CountedEviction>) {
        if self.limits.is_empty() {
            return;
        }
        let latest = counted.len().saturating_sub(MOST_COUNTED);
        self.entries.extend(counted.into_iter().skip(latest));
    }

    pub(super) fn take_back(&mut self, uid: &str) {
        self.entries.retain(|entry| &*entry.key.uid != uid);
    }

    /// Keeps entries for twice the longest window, so that they count again after the clock
    /// went back by up to one.
    fn prune(&mut self, at: Timestamp) {
        let longest = self.limits.iter().map(|limit| limit.window).max().unwrap_or(GoDuration::ZERO);
        let horizon = GoDuration::from_nanos(longest.as_nanos().saturating_mul(2));
        self.entries.retain(|entry| difference(at, entry.at) < horizon);
        while self.entries.len() >= MOST_ENTRIES {
            self.entries.pop_front();
        }
    }
}

/// So many evictions that count against limits are remembered: one in five seconds for more than five hours.
pub const MOST_COUNTED: usize = 4096;

/// An eviction that counts against limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CountedEviction {
    /// When it was decided.
    pub at: Timestamp,
    /// Under what it is entered.
    #[serde(rename = "account")]
    pub key: Arc<RateLimitKey>,
}

/// How many pods are remembered. A node runs some hundreds.
const MOST_PODS: usize = 4096;

/// The last kill of each pod, for as long as it matters.
#[derive(Clone, Debug, Default)]
pub(super) struct CoolDown {
    period: GoDuration,
    last: BTreeMap<Box<str>, Timestamp>,
}

impl CoolDown {
    pub(super) fn adopt(&mut self, period: GoDuration) {
        self.period = period;
    }

    /// Records may come in any order: the latest counts, unless it is far in the future.
    pub(super) fn killed(&mut self, at: Timestamp, uid: &str) {
        if self.period <= GoDuration::ZERO {
            return;
        }
        // Twice the period, so that a kill counts again after the clock went back by up to one.
        let horizon = GoDuration::from_nanos(self.period.as_nanos().saturating_mul(2));
        self.last.retain(|_, last| difference(at, *last) < horizon);
        match self.last.get_mut(uid) {
            Some(last) => *last = at.max(*last),
            None => {
                self.forget_oldest();
                self.last.insert(uid.into(), at);
            }
        }
    }

    pub(super) fn kills(&self) -> Vec<PodEventTime> {
        self.last.iter().map(|(uid, at)| PodEventTime { uid: uid.clone(), at: *at }).collect()
    }

    /// Forgets the oldest, if there are too many.
    fn forget_oldest(&mut self) {
        if self.last.len() >= MOST_PODS
            && let Some((uid, _)) = self.last.iter().min_by_key(|(_, last)| **last)
        {
            let uid = uid.clone();
            self.last.remove(&uid);
        }
    }

    pub(super) fn refusal(&self, at: Timestamp, uid: &str) -> Option<Refusal> {
        let since = *self.last.get(uid)?;
        let remaining = self.period.as_nanos().saturating_sub(difference(at, since).as_nanos());
        (remaining > 0)
            .then_some(Refusal::CoolingDown { since, remaining: GoDuration::from_nanos(remaining) })
    }
}

/// The pods that were refused lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct PdbRefusals {
    refused: Vec<PdbRefusal>,
    last: Option<Timestamp>,
}

#[derive(Clone, Debug)]
struct PdbRefusal {
    uid: Box<str>,
    age: GoDuration,
}

impl PdbRefusals {
    /// Takes note of the time, and forgets what is over.
    pub(crate) fn advance(&mut self, at: Timestamp) {
        let passed = self.last.map_or(0, |last| since(at, last).as_nanos().max(0));
        self.last = Some(at);
        for refused in &mut self.refused {
            refused.age = GoDuration::from_nanos(refused.age.as_nanos().saturating_add(passed));
        }
        self.refused.retain(|refused| refused.age < RETRY_AFTER);
    }

    /// A pod may not go.
    pub(crate) fn refuse(&mut self, uid: &str) {
        self.refused.retain(|refused| *refused.uid != *uid);
        self.refused.push(PdbRefusal { uid: uid.into(), age: GoDuration::ZERO });
    }

    /// The pods that were refused, and when.
    pub(crate) fn refused(&self) -> impl Iterator<Item = PodEventTime> {
        let last = self.last.unwrap_or_default();
        self.refused.iter().map(move |PdbRefusal { uid, age }| {
            let at = last.checked_sub(SignedDuration::from_nanos(age.as_nanos())).unwrap_or(last);
            PodEventTime { uid: uid.clone(), at }
        })
    }

    /// Takes over what was refused to somebody before.
    pub(crate) fn restore(&mut self, at: Timestamp, forbidden: Vec<PodEventTime>) {
        for PodEventTime { uid, at: said } in forbidden {
            let age = since(at, said).max(GoDuration::ZERO);
            if age < RETRY_AFTER {
                self.refused.push(PdbRefusal { uid, age });
            }
        }
    }

    /// Forgets pods that are not there any more.
    pub(crate) fn update_pods(&mut self, pods: &PodSet) {
        self.refused.retain(|refused| pods.index_of(&refused.uid).is_some());
    }

    /// How long ago a pod was refused, if that still counts.
    pub(crate) fn refused_for(&self, uid: &str) -> Option<GoDuration> {
        self.refused.iter().find(|refused| *refused.uid == *uid).map(|refused| refused.age)
    }
}
