//! Which statistics belong to which pod: `helpers.go: cachedStatsFunc`.

use std::sync::Arc;

use crate::pods::PodSet;

use super::Snapshot;

/// Instead of a place: there are no statistics of this pod.
pub(crate) const NO_STATS: u32 = u32::MAX;

/// The places of statistics by place of the pod, for one set of pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Joined {
    pods: Option<Arc<PodSet>>,
    stats: Vec<u32>,
}

impl Joined {
    pub(super) fn clear(&mut self) {
        self.pods = None;
    }
}

impl Snapshot {
    /// Looks up whose statistics these are, once for all that is done with the snapshot. A
    /// pass that needs to know and finds another set of pods, or none, looks up for itself.
    pub fn index(&mut self, pods: &Arc<PodSet>) {
        let mut stats = std::mem::take(&mut self.joined.stats);
        self.join(pods, &mut stats);
        self.joined = Joined { pods: Some(Arc::clone(pods)), stats };
    }

    /// By place of the pod, the place of its statistics or `NO_STATS`.
    pub fn joined<'a>(&'a self, pods: &Arc<PodSet>, scratch: &'a mut Vec<u32>) -> &'a [u32] {
        match &self.joined.pods {
            Some(joined) if Arc::ptr_eq(joined, pods) => &self.joined.stats,
            _ => {
                self.join(pods, scratch);
                scratch
            }
        }
    }

    /// Of several statistics with the same uid the last one counts.
    fn join(&self, pods: &PodSet, stats: &mut Vec<u32>) {
        stats.clear();
        stats.resize(pods.len(), NO_STATS);
        for (at, pod) in (0..).zip(self.pods()) {
            if let Some(place) = pods.place(pod.uid()) {
                stats[place as usize] = at;
            }
        }
        for &(place, first) in pods.repeated() {
            stats[place as usize] = stats[first as usize];
        }
    }
}
