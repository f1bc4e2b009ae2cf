//! Who would go first, asked before anything is decided: theirs are the figures that are worth
//! reading once more.

use crate::disk_layout::DiskLayout;
use crate::rank::{Candidate, Measure, rank};
use crate::signal::Signal;
use crate::snapshot::Snapshot;

use super::Engine;

impl Engine {
    /// Ranks the pods for want of memory as a pass on this snapshot would, the first to go first.
    /// Nothing is decided or remembered by it.
    pub fn rank_ahead(&mut self, snapshot: &Snapshot, ranked: &mut Vec<Candidate>) {
        let joined = snapshot.joined(&self.pods, &mut self.joined);
        let measure = Measure::of(Signal::MemoryAvailable, DiskLayout::default());
        rank(measure, &self.pods, snapshot, joined, ranked);
    }
}
