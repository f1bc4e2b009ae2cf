//! The memory of decisions that nobody needs any more, for the next ones.

use crate::core::condition::Raised;
use crate::core::decision::{Action, Decision, Pass, Subject};
use crate::core::deficit::Deficit;
use crate::core::flight::Flight;
use crate::core::protection::RefusedPod;
use crate::core::rank::Candidate;
use crate::core::sight::{Refused, Seen};
use crate::core::threshold::Met;

use super::Engine;

/// Lists, all of them empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Spare {
    pub(super) actions: Vec<Action>,
    pub(super) conditions: Vec<Raised>,
    pub(super) met: Vec<Met>,
    pub(super) ranked: Vec<Candidate>,
    pub(super) spared: Vec<u32>,
    pub(super) refused: Vec<Refused>,
    pub(super) refused_pods: Vec<RefusedPod>,
    pub(super) imminent: Vec<u8>,
    pub(super) flights: Vec<Flight>,
    pub(super) deficits: Vec<Deficit>,
}

impl Engine {
    /// Takes back a decision that is no longer needed, for the sake of its memory; to drop one
    /// instead does no harm. While all decisions come back, a pass allocates nothing that does
    /// not ask for node-level reclaim, unless there is more to list than there ever was.
    pub fn recycle(&mut self, decision: Decision) {
        let Decision { at: _, actions, conditions, blind: _, proposal: _, subject, ended: _ } = decision;
        keep(&mut self.spare.actions, actions);
        keep(&mut self.spare.conditions, conditions);
        let Subject::Pass(pass) = subject else {
            return;
        };
        // In full: a list that is added to a pass has to come back as well.
        let Pass {
            met,
            ranked,
            spared,
            refused_pods,
            sight,
            flights,
            deficits,
            end: _,
            seen: _,
            handled: _,
            seen_after_reclaim: _,
            unknown_volumes: _,
            layout: _,
            lines: _,
            visible: _,
            pods: _,
            snapshot: _,
        } = pass;
        let Seen { refused, imminent, gate: _, blind: _, slopes: _, growing: _ } = sight;
        keep(&mut self.spare.refused, refused);
        keep(&mut self.spare.imminent, imminent);
        keep(&mut self.spare.met, met);
        keep(&mut self.spare.ranked, ranked);
        keep(&mut self.spare.spared, spared);
        keep(&mut self.spare.flights, flights);
        keep(&mut self.spare.deficits, deficits);
        keep(&mut self.spare.refused_pods, refused_pods);
    }
}

/// Keeps the larger one.
fn keep<T>(spare: &mut Vec<T>, mut list: Vec<T>) {
    if list.capacity() > spare.capacity() {
        list.clear();
        *spare = list;
    }
}
