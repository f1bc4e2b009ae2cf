//! The kernel's own usage threshold beside the charge hook, on cgroup v1.
//!
//! Registering one waits for an RCU grace period, milliseconds: it is done on a thread for
//! blocking work, and seldom.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinHandle;

use eviction_bpf::{BackendInfo, EventClass, attach_methods};
use eviction_node::backend_selection::BackendSelection;
use eviction_node::cgroup::files::Version;
use eviction_node::cgroup::node_root::NodeRoot;
use eviction_node::memcg_v1_threshold::{self, GRAIN, ThresholdError, UsageThreshold};

use super::failover::BackendFailure;
use super::notify_plan::{self, ThresholdPlan};
use crate::error::chain;

/// Working sets and usage drift apart all the time; more often is not worth its cost.
const SELDOM: Duration = Duration::from_secs(1);

type Registration = Result<UsageThreshold, ThresholdError>;

/// A threshold on the usage of the node's group, where there is such a thing.
#[derive(Debug, Default)]
pub(crate) struct MemcgV1Threshold {
    group: Option<PathBuf>,
    current: Option<UsageThreshold>,
    pending: Option<JoinHandle<Registration>>,
    at: Option<u64>,
    last_ns: u64,
}

impl MemcgV1Threshold {
    /// The threshold of this group, and what is said of it; on cgroup v2 there is neither.
    pub(crate) fn new(root: &NodeRoot, choice: &BackendSelection) -> (Self, Option<BackendInfo>) {
        if root.version != Version::V1 {
            return (Self::default(), None);
        }
        let denied = choice
            .refusal(memcg_v1_threshold::RUNG, attach_methods::ladder(EventClass::Charge))
            .map(str::to_owned);
        let forbidden = || memcg_v1_threshold::is_allowed(&root.memory).err().map(|error| chain(&error));
        if let Some(why) = denied.or_else(forbidden) {
            let info = UsageThreshold::info(format!("{}: {why}", memcg_v1_threshold::RUNG));
            return (Self::default(), Some(BackendInfo { rung: "", ..info }));
        }
        let reason = "beside the charge hook, on the node's own group".to_owned();
        let this = Self { group: Some(root.memory.clone()), ..Self::default() };
        (this, Some(UsageThreshold::info(reason)))
    }

    /// Has the line moved so far that the threshold must be registered anew, that is begun.
    pub(crate) fn arm(&mut self, arming: &ThresholdPlan, now_ns: u64) {
        let (Some(group), None) = (&self.group, &self.pending) else { return };
        let (Some(line), Some(distance)) = (arming.v1_threshold, arming.distance) else { return };
        let serves = self.at.is_some_and(|at| notify_plan::still_serves(at, line, distance));
        let soon = u128::from(now_ns.saturating_sub(self.last_ns)) < SELDOM.as_nanos();
        if serves || (soon && self.current.is_some()) {
            return;
        }
        self.at = Some(line);
        self.last_ns = now_ns;
        let group = group.clone();
        self.pending = Some(tokio::task::spawn_blocking(move || {
            UsageThreshold::register(&group, &[line.saturating_sub(GRAIN), line])
        }));
    }

    /// Takes the threshold off: charges are seen by better means.
    pub(crate) fn disarm(&mut self) {
        self.current = None;
        self.at = None;
    }

    /// Waits until usage crosses the line. For ever, where there is no such threshold.
    ///
    /// # Errors
    /// If it is of no use any more; it is given up then.
    pub(crate) async fn crossed(&mut self) -> Result<(), BackendFailure> {
        loop {
            let failure = tokio::select! {
                registered = registration(&mut self.pending) => match self.adopt(registered) {
                    Ok(()) => continue,
                    Err(error) => chain(&error),
                },
                signal = signal(self.current.as_ref()) => match signal {
                    Ok(()) => return Ok(()),
                    Err(error) => chain(&error),
                },
            };
            return Err(self.give_up(failure));
        }
    }

    fn adopt(&mut self, registered: Option<Registration>) -> Result<(), ThresholdError> {
        self.pending = None;
        match registered.transpose()? {
            Some(threshold) => self.current = Some(threshold),
            None => self.at = None,
        }
        Ok(())
    }

    fn give_up(&mut self, why: String) -> BackendFailure {
        *self = Self::default();
        BackendFailure::of(UsageThreshold::info(why))
    }
}

async fn registration(pending: &mut Option<JoinHandle<Registration>>) -> Option<Registration> {
    match pending {
        Some(handle) => handle.await.ok(),
        None => std::future::pending().await,
    }
}

async fn signal(current: Option<&UsageThreshold>) -> io::Result<()> {
    match current {
        Some(threshold) => threshold.crossed().await.map(drop),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_threshold_that_cannot_be_registered_is_lost_once() {
        let group = Some(PathBuf::from("/nowhere"));
        let mut threshold = MemcgV1Threshold { group, ..MemcgV1Threshold::default() };
        let arming =
            ThresholdPlan { v1_threshold: Some(GRAIN), distance: Some(GRAIN), ..ThresholdPlan::default() };
        threshold.arm(&arming, 1);
        let BackendFailure { source, rung, why } = threshold.crossed().await.unwrap_err();
        assert_eq!((source, rung), ("usage", memcg_v1_threshold::RUNG));
        assert!(why.contains("/nowhere/memory.usage_in_bytes"), "{why}");
        threshold.arm(&arming, u64::MAX);
        assert!(threshold.pending.is_none(), "it was given up");
    }
}
