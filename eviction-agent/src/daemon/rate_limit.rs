//! The rate limit of evictions by the API server or by signals. Pure: time is an argument.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use eviction_core::in_flight::InFlightEviction;
use eviction_core::pod::PodName;
use eviction_core::progress::KillRejection;
use eviction_core::time::nanos;
use eviction_kill::KillTarget;

/// How long a pod that was evicted is not evicted again, so that one that is restarted at once is not evicted
/// in a loop. Within a minute of a restart a pod has usually not grown again.
const COOL_DOWN: Duration = Duration::from_secs(60);

/// The limit of evictions of one pod within a window. A pod that returns a fourth time will always return, and
/// needs an operator.
const POD_LIMIT: usize = 3;
const POD_WINDOW: Duration = Duration::from_secs(600);

/// The limit of evictions on the node within a window. Ten per minute empty a full node of 110 pods in eleven
/// minutes: slow enough to be noticed, fast enough for any real shortage.
const NODE_LIMIT: usize = 10;
const NODE_WINDOW: Duration = Duration::from_secs(60);

/// The limit of evictions in flight at the same time, for all pressures.
const IN_FLIGHT_LIMIT: u32 = 16;

/// A decision older than this is not begun.
const STALE_AFTER: Duration = Duration::from_secs(5);

/// An eviction that counts against the limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RateLimitEntry {
    /// The evicted pod.
    pub(crate) pod: Arc<PodName>,
    /// When the eviction began or, once it has ended, when it ended.
    pub(crate) at_ns: u64,
    /// The decision of the eviction.
    pub(crate) decision: u64,
}

/// The result of admission for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The pod may be evicted.
    Begin,
    /// The pod is terminating for a soft threshold, and now a hard one is met: its grace period is shortened.
    Shorten {
        /// The decision that terminates the pod.
        decision: u64,
    },
}

/// Decides whether an eviction may begin. One instance serves all executors.
#[derive(Clone, Debug, Default)]
pub(crate) struct RateLimit {
    /// The counted evictions, ordered by begin. None is older than both windows and the cool-down.
    pub(crate) evictions: Vec<RateLimitEntry>,
}

impl RateLimit {
    /// Returns whether the target may be evicted now, given the evictions in flight. `shortens` means that the
    /// engine has decided to shorten the grace period of one of them, which it has already marked as hard. Changes
    /// nothing.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(crate) fn admit<'a>(
        &self,
        target: &KillTarget,
        shortens: bool,
        in_flight: impl Iterator<Item = &'a InFlightEviction> + Clone,
        now_ns: u64,
    ) -> Result<Admission, KillRejection> {
        let age_ns = now_ns.saturating_sub(target.at_ns);
        if age_ns > nanos(STALE_AFTER) {
            return Err(KillRejection::Stale { age_ns });
        }
        let numbered = in_flight.filter_map(|it| Some((it.decision?, it)));
        if let Some((decision, it)) = numbered.clone().find(|(_, it)| is_same_pod(&it.pod, &target.pod)) {
            let is_chosen = shortens && it.pod.uid == target.pod.uid;
            return if target.hard && (is_chosen || !it.hard) {
                Ok(Admission::Shorten { decision })
            } else {
                Err(KillRejection::AlreadyTerminating { decision })
            };
        }
        // An eviction that has expired may never end, and must not keep others from beginning.
        let in_flight = numbered.filter(|(_, it)| it.is_terminating()).count();
        let in_flight = u32::try_from(in_flight).unwrap_or(u32::MAX);
        if in_flight >= IN_FLIGHT_LIMIT {
            return Err(KillRejection::Busy { in_flight });
        }
        self.admit_by_history(target, now_ns)?;
        Ok(Admission::Begin)
    }

    /// Checks the target against the counted evictions. An eviction of the previous agent that is continued
    /// does not count twice.
    fn admit_by_history(&self, target: &KillTarget, now_ns: u64) -> Result<(), KillRejection> {
        let others = self.evictions.iter().filter(|it| it.decision != target.decision);
        let of_pod = others.clone().filter(|it| is_same_pod(&it.pod, &target.pod));
        if let Some((_, until_ns)) = limit(of_pod.clone(), 1, COOL_DOWN, now_ns) {
            return Err(KillRejection::CoolDown { until_ns });
        }
        if let Some((kills, until_ns)) = limit(of_pod, POD_LIMIT, POD_WINDOW, now_ns) {
            return Err(KillRejection::PodLimit { kills, until_ns });
        }
        if let Some((kills, until_ns)) = limit(others, NODE_LIMIT, NODE_WINDOW, now_ns) {
            return Err(KillRejection::NodeLimit { kills, until_ns });
        }
        Ok(())
    }

    /// Counts the target's eviction from now on. It has begun, or is continued after a restart.
    pub(crate) fn record_begin(&mut self, target: &KillTarget, now_ns: u64) {
        self.remove_expired(now_ns);
        self.evictions.retain(|it| it.decision != target.decision);
        self.evictions.push(RateLimitEntry {
            pod: Arc::clone(&target.pod),
            at_ns: now_ns,
            decision: target.decision,
        });
    }

    /// Notes that the eviction of `decision` has ended, successfully or not. The cool-down begins now.
    pub(crate) fn record_end(&mut self, decision: u64, now_ns: u64) {
        for it in self.evictions.iter_mut().filter(|it| it.decision == decision) {
            it.at_ns = it.at_ns.max(now_ns);
        }
        self.remove_expired(now_ns);
    }

    /// Removes the eviction of `decision`, of which nothing was done: it does not count.
    pub(crate) fn discard(&mut self, decision: u64) {
        self.evictions.retain(|it| it.decision != decision);
    }

    fn remove_expired(&mut self, now_ns: u64) {
        let kept = nanos(POD_WINDOW.max(NODE_WINDOW).max(COOL_DOWN));
        self.evictions.retain(|it| now_ns.saturating_sub(it.at_ns) <= kept);
    }
}

/// Returns whether both names mean one pod, or a pod that was recreated under the same name.
fn is_same_pod(one: &PodName, other: &PodName) -> bool {
    let same_name = one.namespace == other.namespace && one.name == other.name;
    one.uid == other.uid || (same_name && !one.name.is_empty())
}

/// Returns the number of evictions in the window, and when one more fits, if they are `limit` or more.
fn limit<'a>(
    evictions: impl Iterator<Item = &'a RateLimitEntry>,
    limit: usize,
    window: Duration,
    now_ns: u64,
) -> Option<(u32, u64)> {
    let window_ns = nanos(window);
    let mut times: Vec<u64> =
        evictions.map(|it| it.at_ns).filter(|at_ns| now_ns.saturating_sub(*at_ns) < window_ns).collect();
    times.sort_unstable();
    // The time when enough have left the window that one more fits.
    let last_to_leave = *times.get(times.len().checked_sub(limit)?)?;
    Some((u32::try_from(times.len()).unwrap_or(u32::MAX), last_to_leave.saturating_add(window_ns)))
}

#[cfg(test)]
mod tests;
