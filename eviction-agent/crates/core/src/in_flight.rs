//! In-flight evictions: each from the decision until it is over, in one list for both profiles.
//!
//! The engine keeps an [`InFlightEviction`] for each selected pod. Executors report their progress
//! ([`Event::Executing`]), and the next agent resumes the evictions as they are.
//!
//! Under the kubelet's rules the list does not affect evaluations. It only determines how long the control
//! loop waits for its victims: see [`Engine::is_waiting`].
//!
//! Under the other rules, what a pod will free is subtracted from the deficit, so that no other pod is
//! evicted for the same shortage, and the pod is not selected again.
//!
//! - An eviction succeeds when the pod leaves the active pods or [`Event::Evicted`] reports that it has
//!   terminated. A pod of which only the object is deleted ([`Event::Terminating`]) is still terminating,
//!   because it still holds memory. Values of the node that are older than the termination still include the
//!   pod: for those its release still counts.
//! - It fails when [`Event::Evicted`] reports a failure: nothing is expected of it any more. The pod is not
//!   selected again for [`RETRY_AFTER`], and is considered after all others for [`FAILURE_REMEMBERED`].
//! - It is removed when [`Event::Evicted`] reports that no executor accepted the request, or that a
//!   PodDisruptionBudget denied it.
//! - It expires, which is a failure, when the pod is still present [`TERMINATION_TIMEOUT`] after its grace
//!   period and no reason was reported.
//!
//! If the clock is set back, the times in the list are set back as well. No wait becomes longer or shorter by
//! more than the time that passed.
//!
//! [`Engine::is_waiting`]: super::engine::Engine::is_waiting
//! [`Event::Evicted`]: super::input::Event::Evicted
//! [`Event::Executing`]: super::input::Event::Executing
//! [`Event::Terminating`]: super::input::Event::Terminating

mod list;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use list::InFlightEvictions;
use serde::{Deserialize, Serialize};

use crate::eviction::{ExpectedRelease, deserialize_label};
use crate::pod::PodName;
use crate::signal::{Resource, Signal};
use crate::time::{Timestamp, is_unset, since};
use crate::units::GoDuration;

/// How long a pod may take to terminate after its grace period: `podCleanupTimeout` of the kubelet.
pub const TERMINATION_TIMEOUT: GoDuration = GoDuration::from_secs(30);

/// How long a pod is not selected again after its eviction failed: `monitoringInterval` of the kubelet.
pub const RETRY_AFTER: GoDuration = GoDuration::from_secs(10);

/// How long a pod is considered after all others after its eviction failed.
pub const FAILURE_REMEMBERED: GoDuration = GoDuration::from_secs(300);

/// The name of an eviction's cause: a signal or a local storage limit. An alias, because serde would borrow a
/// reference from its input.
pub type Label = &'static str;

/// The eviction of a pod, from the decision on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InFlightEviction {
    /// The pod.
    #[serde(flatten)]
    pub pod: Arc<PodName>,
    /// The cause, as returned by [`Evaluation::label_of`](super::decision::Evaluation::label_of). If a hard
    /// threshold shortened the grace period, its signal.
    #[serde(deserialize_with = "deserialize_label")]
    pub signal: Label,
    /// Whether the cause is a hard threshold or a limit of the pod.
    pub hard: bool,
    /// When the pod was selected.
    pub decided_at: Timestamp,
    /// When the grace period began; if the eviction has ended, when it ended.
    pub since: Timestamp,
    /// The grace period in seconds.
    pub grace_period_seconds: i64,
    /// What the pod frees, in the order of [`Signal`]: as of the decision, or more if the pod has grown since.
    pub expected: [ExpectedRelease; Signal::COUNT],
    /// How the eviction ended. None while the pod is terminating.
    #[serde(default)]
    pub ended: Option<EvictionEnd>,
    /// The number of the decision that executors carry out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<u64>,
    /// The progress of the API request. None when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiPhase>,
    /// Whether the pod's processes are being signalled.
    #[serde(default)]
    pub killing: bool,
    /// Whether the termination of the pod was reported.
    #[serde(default)]
    pub termination_reported: bool,
    /// Whether the eviction is of a former agent and its pod is not known yet.
    #[serde(skip)]
    pub restored: bool,
}

/// The progress of the API request of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApiPhase {
    /// The request is in progress, or is about to be sent.
    Requested,
    /// The result of the request is unknown. The grace period does not run until it is known.
    Unconfirmed,
    /// The API server has accepted the request.
    Accepted,
}

/// How an eviction ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictionEnd {
    /// The pod has terminated.
    Terminated,
    /// The eviction failed for this reason, which the executor reported.
    Failed(Box<str>),
    /// The eviction failed because the pod did not terminate in time.
    Expired,
}

/// The progress of executors with an eviction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ExecutorUpdate {
    /// The execution has started.
    Started(Box<InFlightEviction>),
    /// The grace period is shortened for a hard threshold.
    Shortened {
        /// The new grace period in seconds.
        grace_period_seconds: i64,
        /// Whether the processes are being signalled.
        killing: bool,
    },
    /// The progress of the API request. None when it is over. If the server has accepted a request that was
    /// unconfirmed, the grace period begins now.
    Api(Option<ApiPhase>),
    /// The pod's processes are being signalled.
    KillStarted,
    /// No more signals are sent.
    KillEnded {
        /// Whether no process is left.
        gone: bool,
    },
    /// The pod has terminated, and its resources are freed.
    PodGone,
}

impl InFlightEviction {
    /// Creates an eviction that was just decided. Its expected release is unknown.
    pub fn new(
        pod: Arc<PodName>,
        signal: Label,
        hard: bool,
        decided_at: Timestamp,
        grace_period_seconds: i64,
    ) -> Self {
        Self {
            pod,
            signal,
            hard,
            decided_at,
            since: decided_at,
            grace_period_seconds,
            expected: [ExpectedRelease::UNKNOWN; Signal::COUNT],
            ended: None,
            decision: None,
            api: None,
            killing: false,
            termination_reported: false,
            restored: false,
        }
    }

    /// Returns whether the pod is terminating.
    pub fn is_terminating(&self) -> bool {
        self.ended.is_none()
    }

    /// Returns whether the eviction failed.
    pub fn has_failed(&self) -> bool {
        matches!(self.ended, Some(EvictionEnd::Failed(_) | EvictionEnd::Expired))
    }

    /// Returns whether an executor carries out the eviction.
    pub fn is_executing(&self) -> bool {
        self.api.is_some() || self.killing
    }

    /// Returns the resource that the node is short of. Limits of local storage are the only causes without a signal.
    pub fn resource(&self) -> Resource {
        self.signal().map_or(Resource::EphemeralStorage, Signal::resource)
    }

    /// Returns the signal that caused the eviction, if a signal did.
    pub fn signal(&self) -> Option<Signal> {
        Signal::from_name(self.signal)
    }

    /// Returns what the pod will have freed by its end, for values of a given time. Zero if the eviction
    /// failed, or if the values were sampled after the pod had terminated.
    pub fn expected(&self, signal: Signal, values: Option<Timestamp>) -> i64 {
        let counts = match self.ended {
            None => true,
            Some(EvictionEnd::Terminated) => !is_unset(values) && values < Some(self.since),
            Some(EvictionEnd::Failed(_) | EvictionEnd::Expired) => false,
        };
        if counts { self.release(signal).amount } else { 0 }
    }

    /// Returns what the pod frees, whether or not it counts.
    pub fn release(&self, signal: Signal) -> ExpectedRelease {
        self.expected[signal as usize]
    }

    /// Returns the time since the grace period began, or since the eviction ended.
    pub fn age(&self, now: Timestamp) -> GoDuration {
        since(now, self.since).max(GoDuration::ZERO)
    }

    /// Returns how much of the grace period is left, if the pod is terminating.
    pub fn remaining_grace(&self, now: Timestamp) -> Option<GoDuration> {
        self.is_terminating().then(|| {
            let remaining = self.grace().as_nanos().saturating_sub(self.age(now).as_nanos());
            GoDuration::from_nanos(remaining.max(0))
        })
    }

    /// Returns whether a hard threshold can shorten the grace period.
    pub(crate) fn can_shorten(&self, now: Timestamp, grace: GoDuration) -> bool {
        !self.hard && self.remaining_grace(now).is_some_and(|remaining| remaining > grace)
    }

    /// Returns whether the pod did not terminate in time.
    fn has_expired(&self, now: Timestamp) -> bool {
        self.is_terminating() && self.age(now) >= self.max_duration()
    }

    /// Returns how long the pod may take to terminate.
    fn max_duration(&self) -> GoDuration {
        GoDuration::from_nanos(self.grace().as_nanos().saturating_add(TERMINATION_TIMEOUT.as_nanos()))
    }

    /// Returns the age below which the eviction stays in the list.
    fn retention(&self) -> GoDuration {
        match self.ended {
            None => self.max_duration(),
            Some(EvictionEnd::Terminated) => TERMINATION_TIMEOUT,
            Some(EvictionEnd::Failed(_) | EvictionEnd::Expired) => FAILURE_REMEMBERED,
        }
    }

    fn grace(&self) -> GoDuration {
        GoDuration::from_secs(self.grace_period_seconds.max(0))
    }

    pub(crate) fn has_uid(&self, uid: &str) -> bool {
        *self.pod.uid == *uid
    }

    fn is_unconfirmed(&self) -> bool {
        self.is_terminating() && self.api == Some(ApiPhase::Unconfirmed)
    }

    fn end(&mut self, ended: EvictionEnd, at: Timestamp) {
        (self.ended, self.since) = (Some(ended), at);
    }
}
