//! Pods that are spared for a while after the kernel killed one of their processes.

use std::collections::BTreeMap;

use crate::pods::PodEventTime;
use crate::time::Timestamp;
use crate::units::GoDuration;

use super::guard::apart;
use super::refusal::Refusal;

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
        self.last.retain(|_, last| apart(at, *last) < horizon);
        match self.last.get_mut(uid) {
            Some(last) => *last = at.max(*last),
            None => {
                self.make_room();
                self.last.insert(uid.into(), at);
            }
        }
    }

    pub(super) fn kills(&self) -> Vec<PodEventTime> {
        self.last.iter().map(|(uid, at)| PodEventTime { uid: uid.clone(), at: *at }).collect()
    }

    /// Forgets the oldest, if there are too many.
    fn make_room(&mut self) {
        if self.last.len() >= MOST_PODS
            && let Some((uid, _)) = self.last.iter().min_by_key(|(_, last)| **last)
        {
            let uid = uid.clone();
            self.last.remove(&uid);
        }
    }

    pub(super) fn refusal(&self, at: Timestamp, uid: &str) -> Option<Refusal> {
        let since = *self.last.get(uid)?;
        let remaining = self.period.as_nanos().saturating_sub(apart(at, since).as_nanos());
        (remaining > 0)
            .then_some(Refusal::CoolingDown { since, remaining: GoDuration::from_nanos(remaining) })
    }
}
