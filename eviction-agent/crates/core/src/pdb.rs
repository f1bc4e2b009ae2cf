//! Pods that a PodDisruptionBudget does not let go for now.
//!
//! It is asked by whoever evicts, and only then: what a budget allows changes with every pod that
//! becomes ready. Its no holds for [`RETRY`]. A soft threshold takes the next candidate instead;
//! a hard one the next of the same class, and when there is none, it goes without asking,
//! unless it was told not to.
//!
//! Ages are sums of what the clock went forward, as those of [flights](super::in_flight).

use jiff::SignedDuration;

use super::in_flight::RETRY;
use super::pods::PodSet;
use super::time::{Timestamp, since};
use super::units::GoDuration;
use crate::pods::PodEventTime;

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
        self.refused.retain(|refused| refused.age < RETRY);
    }

    /// A pod may not go.
    pub(crate) fn refuse(&mut self, uid: &str) {
        self.refused.retain(|refused| *refused.uid != *uid);
        self.refused.push(PdbRefusal { uid: uid.into(), age: GoDuration::ZERO });
    }

    /// The pods that were refused, and when.
    pub(crate) fn forbidden(&self) -> impl Iterator<Item = PodEventTime> {
        let last = self.last.unwrap_or_default();
        self.refused.iter().map(move |PdbRefusal { uid, age }| {
            let at = last.checked_sub(SignedDuration::from_nanos(age.as_nanos())).unwrap_or(last);
            PodEventTime { uid: uid.clone(), at }
        })
    }

    /// Takes over what was refused to somebody before.
    pub(crate) fn recall(&mut self, at: Timestamp, forbidden: Vec<PodEventTime>) {
        for PodEventTime { uid, at: said } in forbidden {
            let age = since(at, said).max(GoDuration::ZERO);
            if age < RETRY {
                self.refused.push(PdbRefusal { uid, age });
            }
        }
    }

    /// Forgets pods that are not there any more.
    pub(crate) fn note_pods(&mut self, pods: &PodSet) {
        self.refused.retain(|refused| pods.place(&refused.uid).is_some());
    }

    /// How long ago a pod was refused, if that still counts.
    pub(crate) fn refused_for(&self, uid: &str) -> Option<GoDuration> {
        self.refused.iter().find(|refused| *refused.uid == *uid).map(|refused| refused.age)
    }
}
