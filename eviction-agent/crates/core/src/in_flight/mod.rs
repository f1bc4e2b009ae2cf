//! Evictions in flight: each from the decision until it is over, in one list for both profiles.
//!
//! A pod that was chosen is an [`InFlightEviction`]. The engine keeps them, executors tell how far
//! they have come ([`Event::Executing`]), and the next agent goes on with them as they are.
//!
//! With the kubelet's rules the list decides nothing in an evaluation. It says only how long the control
//! loop waits for its victims: see [`Engine::is_waiting`].
//!
//! Where evictions are sized, what a pod will free is taken off the deficit, so that nobody else
//! goes for the same shortage, and the pod is not chosen again.
//!
//! - It ends well when the pod leaves the active pods or [`Event::Evicted`] says that it is
//!   gone. One whose object alone is gone ([`Event::Terminating`]) is still terminating, for what holds the
//!   memory is there. Values that are older than that still show what it held: for those its release goes
//!   on counting.
//! - It fails when [`Event::Evicted`] says so: from then on nothing is expected of it. The pod
//!   is let be for [`RETRY_AFTER`], and goes after all others for [`FAILURE_REMEMBERED`].
//! - It never was one when [`Event::Evicted`] says that nobody took the request, or that a
//!   PodDisruptionBudget forbids it.
//! - It expires, which is a failure, when the pod is still there [`TERMINATION_TIMEOUT`] after its grace
//!   period, and nobody said why.
//!
//! A clock that is set back neither prolongs nor shortens anything by more than what passed: the
//! times in the list go back with it.
//!
//! [`Engine::is_waiting`]: super::engine::Engine::is_waiting
//! [`Event::Evicted`]: super::input::Event::Evicted
//! [`Event::Executing`]: super::input::Event::Executing
//! [`Event::Terminating`]: super::input::Event::Terminating

mod list;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use list::{Eligibility, InFlightEvictions};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::eviction::{ExpectedRelease, LABELS};
use crate::pod::PodName;
use crate::signal::{Resource, Signal};
use crate::time::{Timestamp, is_unset, since};
use crate::units::GoDuration;

/// How long after its grace period a pod may take to go: `podCleanupTimeout` of the kubelet.
pub const TERMINATION_TIMEOUT: GoDuration = GoDuration::from_secs(30);

/// How long a pod that did not go is let be: `monitoringInterval` of the kubelet.
pub const RETRY_AFTER: GoDuration = GoDuration::from_secs(10);

/// How long a pod that did not go is taken after all others.
pub const FAILURE_REMEMBERED: GoDuration = GoDuration::from_secs(300);

/// One of the names of what a pod goes for.
pub type Label = &'static str;

/// The label of that name, if there is one.
fn label_of(name: &str) -> Option<Label> {
    LABELS.into_iter().chain(Signal::ALL.map(Signal::name)).find(|known| *known == name)
}

/// The eviction of a pod, from the decision on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InFlightEviction {
    /// Whose.
    #[serde(flatten)]
    pub pod: Arc<PodName>,
    /// What for, as [`Evaluation::label_of`](super::decision::Evaluation::label_of) has it: the last cause,
    /// if it was taken over.
    #[serde(rename = "label", deserialize_with = "deserialize_label")]
    pub signal: Label,
    /// Whether that was a hard threshold or a limit of the pod's own.
    pub hard: bool,
    /// When it was chosen.
    pub decided_at: Timestamp,
    /// From when on its grace period counts; when it ended, if it has.
    pub since: Timestamp,
    /// How long it may take to end.
    pub grace_period_seconds: i64,
    /// What it frees, by signal: as of the decision, or more if it grew.
    #[serde(with = "expected")]
    pub expected: [ExpectedRelease; Signal::COUNT],
    /// How it ended; nothing while the pod is terminating.
    #[serde(default)]
    pub ended: Option<Ended>,
    /// The number of the decision that executors carry out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<u64>,
    /// The API server's part, until it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiPhase>,
    /// Its processes are being signalled, and that is not over.
    #[serde(default)]
    pub killing: bool,
    /// That the pod is gone was said.
    #[serde(default)]
    pub reported_gone: bool,
    /// Of a former agent, and its pod is not known yet.
    #[serde(skip)]
    pub restored: bool,
}

/// How far the API server has come with an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApiPhase {
    /// It is asked, or is about to be.
    Asked,
    /// Nobody knows what came of it: until somebody does, it takes as long as it takes.
    Unconfirmed,
    /// It has said yes.
    Accepted,
}

/// How an eviction ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The pod is gone.
    #[serde(rename = "gone")]
    Terminated,
    /// The pod did not go.
    Failed(Failure),
}

/// Why a pod did not go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// Whoever was to evict it said why.
    Reported(Box<str>),
    /// Its time is over, and it is still there.
    Expired,
}

/// How far executors have come with an eviction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ExecutorUpdate {
    /// They have begun with it.
    Started(Box<InFlightEviction>),
    /// They hurry now, for a hard threshold.
    Shortened {
        /// The new grace period.
        grace_period_seconds: i64,
        /// Whether the processes are being signalled.
        killing: bool,
    },
    /// The API server has been asked, and nobody knows what came of it.
    ApiUnconfirmed,
    /// The API server has said yes: if that was not known, its grace period begins now.
    ApiAccepted,
    /// The API server's part is over.
    ApiEnded,
    /// The processes are being signalled.
    KillStarted,
    /// No more signals are sent.
    KillEnded {
        /// Whether nobody is left.
        gone: bool,
    },
    /// The pod is gone, and with it what it held.
    PodGone,
}

impl InFlightEviction {
    /// One that was just decided. It is not known what it will free.
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
            reported_gone: false,
            restored: false,
        }
    }

    /// Whether the pod is terminating.
    pub fn is_terminating(&self) -> bool {
        self.ended.is_none()
    }

    /// Whether the pod did not go.
    pub fn has_failed(&self) -> bool {
        matches!(self.ended, Some(Ended::Failed(_)))
    }

    /// Whether an executor is at it.
    pub fn is_executing(&self) -> bool {
        self.api.is_some() || self.killing
    }

    /// What the node is short of. Limits of local storage are the only causes without a signal.
    pub fn resource(&self) -> Resource {
        self.signal().map_or(Resource::EphemeralStorage, Signal::resource)
    }

    /// The signal that it goes for, if that is one.
    pub fn signal(&self) -> Option<Signal> {
        Signal::ALL.into_iter().find(|signal| signal.name() == self.signal)
    }

    /// What it will free by its end, for values of a time: nothing if it failed, or if they
    /// were made without it.
    pub fn expected(&self, signal: Signal, values: Option<Timestamp>) -> i64 {
        let counts = match self.ended {
            None => true,
            Some(Ended::Terminated) => !is_unset(values) && values < Some(self.since),
            Some(Ended::Failed(_)) => false,
        };
        if counts { self.release(signal).amount } else { 0 }
    }

    /// What it frees, whether it counts or not.
    pub fn release(&self, signal: Signal) -> ExpectedRelease {
        self.expected[signal as usize]
    }

    /// How long ago its grace period began, or it ended.
    pub fn age(&self, now: Timestamp) -> GoDuration {
        since(now, self.since).max(GoDuration::ZERO)
    }

    /// How much of its grace period is left, if it is under way.
    pub fn remaining_grace(&self, now: Timestamp) -> Option<GoDuration> {
        self.is_terminating().then(|| {
            let left = self.grace().as_nanos().saturating_sub(self.age(now).as_nanos());
            GoDuration::from_nanos(left.max(0))
        })
    }

    /// Whether a hard threshold can hurry it.
    pub(crate) fn can_shorten(&self, now: Timestamp, grace: GoDuration) -> bool {
        !self.hard && self.remaining_grace(now).is_some_and(|left| left > grace)
    }

    /// How long it may take to go.
    fn may_take(&self) -> GoDuration {
        GoDuration::from_nanos(self.grace().as_nanos().saturating_add(TERMINATION_TIMEOUT.as_nanos()))
    }

    fn grace(&self) -> GoDuration {
        GoDuration::from_secs(self.grace_period_seconds.max(0))
    }

    fn is_of(&self, uid: &str) -> bool {
        *self.pod.uid == *uid
    }

    fn is_unconfirmed(&self) -> bool {
        self.is_terminating() && self.api == Some(ApiPhase::Unconfirmed)
    }

    fn end(&mut self, ended: Ended, at: Timestamp) {
        (self.ended, self.since) = (Some(ended), at);
    }
}

/// What a pod goes for: one of those that there are.
fn deserialize_label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Label, D::Error> {
    let text = Box::<str>::deserialize(deserializer)?;
    label_of(&text).ok_or_else(|| D::Error::custom(format_args!("nobody goes for {text:?}")))
}

/// What comes free, by signal, without those of which nothing is known.
mod expected {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::eviction::{Basis, ExpectedRelease};
    use crate::signal::Signal;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Expected {
        signal: Signal,
        amount: i64,
        basis: Basis,
    }

    /// Writes those that are known.
    pub(crate) fn serialize<S: Serializer>(
        releases: &[ExpectedRelease; Signal::COUNT],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let known = Signal::ALL
            .into_iter()
            .zip(releases)
            .filter(|(_, release)| **release != ExpectedRelease::UNKNOWN);
        serializer.collect_seq(known.map(|(signal, &ExpectedRelease { amount, basis })| Expected {
            signal,
            amount,
            basis,
        }))
    }

    /// Reads them; what is not named is unknown.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[ExpectedRelease; Signal::COUNT], D::Error> {
        let mut releases = [ExpectedRelease::UNKNOWN; Signal::COUNT];
        for Expected { signal, amount, basis } in Vec::deserialize(deserializer)? {
            releases[signal as usize] = ExpectedRelease { amount: amount.max(0), basis };
        }
        Ok(releases)
    }
}
