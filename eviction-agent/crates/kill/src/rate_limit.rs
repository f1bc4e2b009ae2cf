//! How fast pods may be killed one after the other. Pure: time is an argument.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::target::KillTarget;
use eviction_core::pod::PodName;
use eviction_core::progress::KillRejection;
use eviction_core::signal::Resource;
use eviction_core::time::nanos;

/// Bounds on the pace of kills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitPolicy {
    /// How long the next victim for the same pressure waits for the last one to go. The kubelet
    /// waits as long for a pod's resources to come back (`eviction_manager.go:
    /// podCleanupTimeout`).
    pub victim_wait: Duration,
    /// A pod that was killed is let be for so long, so that one that is restarted at once is
    /// not killed in a loop. A restart within a minute has most often not yet grown again.
    pub cool_down: Duration,
    /// Kills of one pod within `pod_window`: one that comes back a fourth time will come back
    /// always, and needs a person.
    pub pod_limit: u32,
    /// See `pod_limit`.
    pub pod_window: Duration,
    /// Kills on the node within `node_window`. Ten a minute empty a full node of 110 pods in
    /// eleven minutes: slow enough to be noticed, fast enough for any real shortage.
    pub node_limit: u32,
    /// See `node_limit`.
    pub node_window: Duration,
    /// Pods on their way out at the same time, for all pressures.
    pub in_flight_limit: u32,
    /// A decision older than this is not begun.
    pub stale_after: Duration,
}

impl Default for RateLimitPolicy {
    fn default() -> Self {
        Self {
            victim_wait: Duration::from_secs(30),
            cool_down: Duration::from_secs(60),
            pod_limit: 3,
            pod_window: Duration::from_secs(600),
            node_limit: 10,
            node_window: Duration::from_secs(60),
            in_flight_limit: 16,
            stale_after: Duration::from_secs(5),
        }
    }
}

/// A pod on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminatingPod {
    /// By which decision.
    pub decision: u64,
    /// Which pod.
    pub pod: Arc<PodName>,
    /// For want of what.
    pub resource: Resource,
    /// Whether for a hard threshold.
    pub hard: bool,
    /// Since when.
    pub since_ns: u64,
}

/// A kill that counts against the limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CountedKill {
    /// Of which pod.
    pub pod: Arc<PodName>,
    /// When it began or, once the pod is gone, when that was.
    pub at_ns: u64,
    /// By which decision.
    pub decision: u64,
}

/// What may be done with a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Kill it.
    Begin,
    /// The pod is on its way out for a soft threshold, and now a hard one is met: hurry.
    Hurry {
        /// The decision that it goes by.
        decision: u64,
    },
}

/// The state of pacing.
#[derive(Clone, Debug)]
pub struct RateLimit {
    policy: RateLimitPolicy,
    flights: Vec<TerminatingPod>,
    /// In order of beginning, none older than both windows and the cool-down.
    kills: VecDeque<CountedKill>,
}

impl RateLimit {
    /// Nothing killed so far.
    pub fn new(policy: RateLimitPolicy) -> Self {
        let flights = Vec::with_capacity(policy.in_flight_limit as usize);
        Self { policy, flights, kills: VecDeque::with_capacity(64) }
    }

    /// Pods on their way out, in the order of their beginning.
    pub fn in_flight(&self) -> &[TerminatingPod] {
        &self.flights
    }

    /// The kills that count, in order of beginning.
    pub fn kills(&self) -> impl Iterator<Item = &CountedKill> {
        self.kills.iter()
    }

    /// Follows another policy from now on.
    pub fn follow(&mut self, policy: RateLimitPolicy) {
        self.policy = policy;
    }

    /// Goes on with the kills of an agent before this one. Before all others.
    pub fn recall(&mut self, kills: Vec<CountedKill>) {
        self.kills.extend(kills);
    }

    /// Whether the target may be killed now. An answer of yes changes nothing yet.
    pub fn admit(&self, target: &KillTarget, now_ns: u64) -> Result<Admission, KillRejection> {
        let policy = &self.policy;
        let age_ns = now_ns.saturating_sub(target.at_ns);
        if age_ns > nanos(policy.stale_after) {
            return Err(KillRejection::Stale { age_ns });
        }
        if let Some(flight) = self.flight_of(&target.pod) {
            let decision = flight.decision;
            return if target.hard && !flight.hard {
                Ok(Admission::Hurry { decision })
            } else {
                Err(KillRejection::AlreadyTerminating { decision })
            };
        }
        // A soft victim with a long grace period must not hold up a hard one.
        let pending = self
            .flights
            .iter()
            .filter(|flight| flight.resource == target.resource && (flight.hard || !target.hard));
        for flight in pending {
            let until_ns = flight.since_ns.saturating_add(nanos(policy.victim_wait));
            if now_ns < until_ns {
                return Err(KillRejection::VictimPending { decision: flight.decision, until_ns });
            }
        }
        let in_flight = u32::try_from(self.flights.len()).unwrap_or(u32::MAX);
        if in_flight >= policy.in_flight_limit {
            return Err(KillRejection::Busy { in_flight });
        }
        self.admit_by_history(target, now_ns)?;
        Ok(Admission::Begin)
    }

    /// What an agent before this one has begun is no other kill when it goes on.
    fn admit_by_history(&self, target: &KillTarget, now_ns: u64) -> Result<(), KillRejection> {
        let policy = &self.policy;
        let others = || self.kills.iter().filter(|kill| kill.decision != target.decision);
        let own = |kill: &&CountedKill| is_same(&kill.pod, &target.pod);
        if let Some(last) = others().filter(own).map(|kill| kill.at_ns).max() {
            let until_ns = last.saturating_add(nanos(policy.cool_down));
            if now_ns < until_ns {
                return Err(KillRejection::CoolDown { until_ns });
            }
        }
        let recent = |window: Duration| {
            let window = nanos(window);
            let recent = move |kill: &&CountedKill| now_ns.saturating_sub(kill.at_ns) < window;
            others().filter(recent)
        };
        let of_pod = recent(policy.pod_window).filter(own);
        if let Some((kills, until_ns)) = limit(of_pod, policy.pod_limit, policy.pod_window) {
            return Err(KillRejection::PodLimit { kills, until_ns });
        }
        let all = recent(policy.node_window);
        if let Some((kills, until_ns)) = limit(all, policy.node_limit, policy.node_window) {
            return Err(KillRejection::NodeLimit { kills, until_ns });
        }
        Ok(())
    }

    /// The target's kill has begun. It counts from now on.
    pub fn begun(&mut self, target: &KillTarget, now_ns: u64) {
        self.forget(now_ns);
        self.flights.push(TerminatingPod {
            decision: target.decision,
            pod: Arc::clone(&target.pod),
            resource: target.resource,
            hard: target.hard,
            since_ns: now_ns,
        });
        self.kills.retain(|kill| kill.decision != target.decision);
        self.kills.push_back(CountedKill {
            pod: Arc::clone(&target.pod),
            at_ns: now_ns,
            decision: target.decision,
        });
    }

    /// The pod of `decision` now goes for a hard threshold.
    pub fn hurried(&mut self, decision: u64, now_ns: u64) {
        for flight in &mut self.flights {
            if flight.decision == decision {
                flight.hard = true;
                flight.since_ns = now_ns;
            }
        }
    }

    /// The kill of `decision` has ended, well or not. The cool-down begins now.
    pub fn ended(&mut self, decision: u64, now_ns: u64) {
        self.flights.retain(|flight| flight.decision != decision);
        for kill in &mut self.kills {
            if kill.decision == decision {
                kill.at_ns = kill.at_ns.max(now_ns);
            }
        }
        self.forget(now_ns);
    }

    /// The kill of `decision` was not done, nor anything of it.
    pub fn taken_back(&mut self, decision: u64) {
        self.flights.retain(|flight| flight.decision != decision);
        self.kills.retain(|kill| kill.decision != decision);
    }

    fn flight_of(&self, pod: &PodName) -> Option<&TerminatingPod> {
        self.flights.iter().find(|flight| is_same(&flight.pod, pod))
    }

    fn forget(&mut self, now_ns: u64) {
        let policy = &self.policy;
        let windows = [policy.pod_window, policy.node_window, policy.cool_down];
        let kept = windows.into_iter().max().map_or(0, nanos);
        self.kills.retain(|kill| now_ns.saturating_sub(kill.at_ns) <= kept);
    }
}

/// Whether this is one pod, or one that was made anew under the same name.
fn is_same(one: &PodName, other: &PodName) -> bool {
    let same_name = one.namespace == other.namespace && one.name == other.name;
    one.uid == other.uid || (same_name && !one.name.is_empty())
}

/// The number of kills and when the oldest that counts leaves the window, if the limit is reached.
fn limit<'a>(
    kills: impl Iterator<Item = &'a CountedKill> + Clone,
    limit: u32,
    window: Duration,
) -> Option<(u32, u64)> {
    let count = u32::try_from(kills.clone().count()).unwrap_or(u32::MAX);
    if count < limit {
        return None;
    }
    // When so many have left that one more fits.
    let excess = (count - limit) as usize;
    let mut times: Vec<u64> = kills.map(|kill| kill.at_ns).collect();
    times.sort_unstable();
    let last = times.get(excess).or(times.last()).copied().unwrap_or(0);
    Some((count, last.saturating_add(nanos(window))))
}

#[cfg(test)]
mod tests;
