//! Kills, evictions and the API kept apart: where a container's own status and the verdict on its
//! end differ, and why.
//!
//! The verdict ([`crate::oom`]) joins the kernel's kills, our evictions and what the pod's
//! status says, and waits for each of them up to ten seconds. A status that comes later than that
//! changes no verdict; it is compared with it here all the same, for ten minutes.

mod difference;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::oom::{ContainerEnded, EndSeen, EndedContainer, Evidence, Explanation, TerminationCause};
use super::time::{Timestamp, since};
pub use difference::MismatchKind;
use difference::{CauseBasis, TerminatedStatus};

/// Verdicts that wait for a status; one more drops the oldest.
const OPEN: usize = 256;

/// How long they do: after that the pod's object is gone, or nobody asks any more.
const WAIT_NANOS: i64 = 600_000_000_000;

/// Verdicts of which no status has told yet.
#[derive(Clone, Debug, Default)]
pub struct StatusMismatch {
    open: VecDeque<AwaitedStatus>,
    unmatched: u64,
}

#[derive(Clone, Debug)]
struct AwaitedStatus {
    at: Timestamp,
    ended_at: Timestamp,
    known: CauseBasis,
    namespace: Box<str>,
    name: Box<str>,
    uid: Box<str>,
    container: Box<str>,
    instance: Option<Box<str>>,
    verdict: TerminationCause,
}

/// An end on which the status and the verdict differ, known late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parted {
    /// `metadata.namespace` of the pod; empty if the engine was never told of it.
    pub namespace: Box<str>,
    /// `metadata.name`, likewise.
    pub name: Box<str>,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// Name of the container, else the start of its id.
    pub container: Box<str>,
    /// The runtime's id of it.
    pub instance: Option<Box<str>>,
    /// The verdict that was given.
    pub verdict: TerminationCause,
    /// By what the status differs.
    pub difference: MismatchKind,
}

impl StatusMismatch {
    /// Takes in a verdict. By what the status differs from it, if that is known already.
    pub fn ended(&mut self, now: Timestamp, ended: &EndedContainer) -> Option<MismatchKind> {
        self.forget(now);
        let known = known(ended);
        if ended.evidence.iter().any(|it| matches!(it, Evidence::Ended { seen: EndSeen::Status })) {
            return known.compare(&TerminatedStatus::of(&ended.reason, ended.exit_code, ended.signal));
        }
        if self.open.len() >= OPEN {
            self.open.pop_front();
            self.unmatched = self.unmatched.saturating_add(1);
        }
        self.open.push_back(AwaitedStatus {
            at: now,
            ended_at: ended.ended_at,
            known,
            namespace: ended.namespace.clone(),
            name: ended.name.clone(),
            uid: ended.uid.clone(),
            container: ended.container.clone(),
            instance: ended.instance.clone(),
            verdict: ended.verdict(),
        });
        None
    }

    /// Takes in a status that came after the verdict. What there is to say if it differs; of each
    /// end once.
    pub fn status(&mut self, now: Timestamp, end: &ContainerEnded) -> Option<Parted> {
        self.forget(now);
        if end.seen != EndSeen::Status {
            return None;
        }
        let place = self.open.iter().position(|open| open.is_of(end))?;
        let AwaitedStatus { at: _, ended_at: _, known, namespace, name, uid, container, instance, verdict } =
            self.open.remove(place)?;
        let difference = known.compare(&TerminatedStatus::of(&end.reason, end.exit_code, end.signal))?;
        Some(Parted { namespace, name, uid, container, instance, verdict, difference })
    }

    /// Verdicts to which no status ever came.
    pub fn unmatched(&self) -> u64 {
        self.unmatched
    }

    /// Verdicts that wait for a status.
    pub fn waiting(&self) -> usize {
        self.open.len()
    }

    fn forget(&mut self, now: Timestamp) {
        let before = self.open.len();
        self.open.retain(|open| since(now, open.at).as_nanos() < WAIT_NANOS);
        self.unmatched = self.unmatched.saturating_add((before - self.open.len()) as u64);
    }
}

impl AwaitedStatus {
    /// Records of a container without an id are of the same end if they are no further apart than
    /// two seconds, as for the verdict itself.
    fn is_of(&self, end: &ContainerEnded) -> bool {
        const SAME_NANOS: i128 = 2_000_000_000;
        let same_end = match (&self.instance, &end.instance) {
            (Some(known), Some(told)) => known == told,
            _ => {
                let apart = end.at.map(|at| at.as_nanosecond() - self.ended_at.as_nanosecond());
                self.container == end.container && apart.is_none_or(|apart| apart.abs() <= SAME_NANOS)
            }
        };
        self.uid == end.pod && same_end
    }
}

/// What the verdict stands on.
fn known(ended: &EndedContainer) -> CauseBasis {
    let by_kernel =
        |verdict, ground| verdict == TerminationCause::OomKilled && ground != Explanation::RuntimeSays;
    CauseBasis {
        evicted: ended.causes.iter().any(|it| {
            matches!(it.verdict, TerminationCause::EvictedByAgent | TerminationCause::EvictedByKubelet)
        }),
        oom_killed: ended.causes.iter().any(|it| by_kernel(it.verdict, it.ground)),
        any_kill: ended.evidence.iter().any(|it| matches!(it, Evidence::KernelKills(_))),
    }
}
