//! How fast the memory of pods grows: of those that use most.

use std::hash::{DefaultHasher, Hasher};

use crate::snapshot::Snapshot;
use crate::time::{Timestamp, since};
use crate::trend::{Slope, Trend};

/// Pods that are followed.
const FOLLOWED: usize = 32;
/// Pods that are told of.
const TOLD: usize = 8;
/// Looks at the node may be a thousandth of a second apart; pods are worth a second.
const SPACING_NANOS: i64 = 1_000_000_000;

/// A pod whose memory grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PodGrowth {
    /// The place of its statistics in the look.
    pub stats: u32,
    /// How fast its working set changes, in bytes.
    pub slope: Slope,
}

/// The pods whose memory grows fastest, the fastest first, if the look saw pods.
pub type Growing = [Option<PodGrowth>; TOLD];

/// The trends of the pods that use most memory.
#[derive(Clone, Debug, Default)]
pub(super) struct PodTrends {
    followed: Vec<TrackedPod>,
    next: Vec<TrackedPod>,
    looked: Option<Timestamp>,
    /// The look shows other pods than are followed.
    stale: bool,
}

#[derive(Clone, Copy, Debug)]
struct TrackedPod {
    /// Two pods with the same hash of their uid would share a trend that is shown, no more.
    uid: u64,
    stats: u32,
    trend: Trend,
}

impl PodTrends {
    /// Makes room for as many as are followed.
    pub(super) fn make_room(&mut self) {
        self.followed.reserve(FOLLOWED);
        self.next.reserve(FOLLOWED);
    }

    /// Takes in a look; one that saw no pods says nothing about them.
    pub(super) fn observe(&mut self, at: Timestamp, snapshot: &Snapshot) {
        self.stale = true;
        let too_soon = |looked: Timestamp| (0..SPACING_NANOS).contains(&since(at, looked).as_nanos());
        if snapshot.is_empty() || self.looked.is_some_and(too_soon) {
            return;
        }
        self.stale = false;
        self.looked = Some(at);
        let mut most = [(0, 0); FOLLOWED];
        let mut count = 0;
        for (stats, pod) in (0..).zip(snapshot.pods()) {
            let Some(used) = pod.figures().memory_working_set.filter(|used| *used > 0) else { continue };
            let full = count == FOLLOWED;
            if full && most[FOLLOWED - 1].0 >= used {
                continue;
            }
            let place = most[..count].partition_point(|(more, _)| *more >= used);
            count += usize::from(!full);
            most[place..count].rotate_right(1);
            most[place] = (used, stats);
        }
        self.next.clear();
        for (used, stats) in &most[..count] {
            let Some(pod) = snapshot.pod(*stats) else { continue };
            let mut hasher = DefaultHasher::new();
            hasher.write(pod.uid().as_bytes());
            let uid = hasher.finish();
            let before = self.followed.iter().find(|followed| followed.uid == uid);
            let mut trend = before.map_or_else(Trend::default, |followed| followed.trend);
            trend.observe(at, i64::try_from(*used).unwrap_or(i64::MAX));
            self.next.push(TrackedPod { uid, stats: *stats, trend });
        }
        std::mem::swap(&mut self.followed, &mut self.next);
    }

    /// Those that grow fastest; nobody if the last look saw no pods.
    pub(super) fn fastest(&self) -> Growing {
        let mut growing = Growing::default();
        let mut count = 0;
        if self.stale {
            return growing;
        }
        for followed in &self.followed {
            let Some(slope) = followed.trend.slope().filter(|slope| slope.per_second > 0.0) else { continue };
            let faster =
                |other: &Option<PodGrowth>| other.is_some_and(|it| it.slope.per_second >= slope.per_second);
            let place = growing[..count].partition_point(faster);
            if place == TOLD {
                continue;
            }
            count = (count + 1).min(TOLD);
            growing[place..count].rotate_right(1);
            growing[place] = Some(PodGrowth { stats: followed.stats, slope });
        }
        growing
    }
}
