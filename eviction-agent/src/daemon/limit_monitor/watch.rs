//! One group with a limit: how near it is, and what to arm on it.

use eviction_bpf::ThresholdCrossed;
use eviction_core::oom::LimitScope;

use eviction_node::sampler::MemoryUsage;

use super::super::memory_notifier::{GrowthSource, MinRearm, ThresholdPlan, plan_thresholds};

/// How often a cgroup is sampled whose usage does not show that its limit comes near.
const UNSEEN_NS: u64 = 1_000_000_000;

/// A cgroup that comes near its limit again and again is reported at most so often; all of it is counted.
const PUBLISHED_AGAIN_NS: u64 = 10_000_000_000;

/// The working sets at which a limit becomes near, and below which it no longer is.
fn near_and_away(limit: u64, near_percent: u8) -> (u64, u64) {
    let left = (u128::from(limit) * u128::from(near_percent) / 100) as u64;
    (limit - left, limit - left - left / 2)
}

/// What has changed about a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitChange {
    /// Its limit is near now.
    Near {
        /// Whether to report it.
        publish: bool,
    },
    /// It is no longer near.
    Away {
        /// Nanoseconds since it came near.
        near_ns: u64,
        /// Whether to report it.
        publish: bool,
    },
}

/// A cgroup with a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitWatch {
    /// Its cgroup id.
    pub(crate) id: u64,
    /// What it is.
    pub(crate) owner: LimitScope,
    /// The limit, bytes.
    pub(crate) limit: u64,
    /// How near it is reported, in percent of the limit.
    near_percent: u8,
    /// Since when the limit is near.
    pub(crate) near_since_ns: Option<u64>,
    /// The kernel threshold and its number; `None` where it fired or could not be set.
    armed: Option<(u64, ThresholdPlan)>,
    /// The cgroup is to be sampled: its threshold fired, or it is new.
    fired: bool,
    /// Usage does not show that the limit comes near: it is there all the time.
    pub(super) is_blind: bool,
    sampled_ns: u64,
    /// The kernel's timestamp of the crossing.
    crossed_ns: Option<u64>,
    published_ns: Option<u64>,
    is_published: bool,
}

impl LimitWatch {
    /// A cgroup of which nothing is known but its limit.
    pub(crate) fn new(id: u64, owner: LimitScope, limit: u64, near_percent: u8) -> Self {
        Self {
            id,
            owner,
            limit,
            near_percent,
            near_since_ns: None,
            armed: None,
            fired: true,
            is_blind: false,
            sampled_ns: 0,
            crossed_ns: None,
            published_ns: None,
            is_published: false,
        }
    }

    /// Takes a sample. A threshold that was set for another limit is of no use.
    pub(crate) fn judge(&mut self, limit: u64, working_set: u64, at_ns: u64) -> Option<LimitChange> {
        if self.limit != limit {
            self.limit = limit;
            self.armed = None;
        }
        let (near, away) = near_and_away(limit, self.near_percent);
        match self.near_since_ns {
            None if working_set >= near => {
                self.near_since_ns = Some(at_ns);
                self.armed = None;
                let again = |published: u64| at_ns.saturating_sub(published) >= PUBLISHED_AGAIN_NS;
                self.is_published = self.published_ns.is_none_or(again);
                if self.is_published {
                    self.published_ns = Some(at_ns);
                }
                Some(LimitChange::Near { publish: self.is_published })
            }
            Some(since_ns) if working_set < away => {
                self.near_since_ns = None;
                self.armed = None;
                let publish = std::mem::take(&mut self.is_published);
                Some(LimitChange::Away { near_ns: at_ns.saturating_sub(since_ns), publish })
            }
            _ => None,
        }
    }

    /// That the limit is near was not reported: then neither is the end of that.
    pub(crate) fn was_not_published(&mut self) {
        self.is_published = false;
        self.published_ns = None;
    }

    /// The working set at which its state changes.
    pub(crate) fn line(&self) -> u64 {
        let (near, away) = near_and_away(self.limit, self.near_percent);
        if self.near_since_ns.is_some() { away } else { near }
    }

    /// The kernel threshold to set, unless the present one serves.
    pub(crate) fn wants(&self, growth: GrowthSource, seen: MemoryUsage) -> Option<ThresholdPlan> {
        let wanted = plan_thresholds(growth, MinRearm::of_limit(self.limit), seen, [self.line()]);
        match self.armed {
            Some((_, armed)) if serves(&armed, &wanted, self.limit) => None,
            _ => Some(wanted),
        }
    }

    /// Its threshold is set, by this number.
    pub(crate) fn is_armed_by(&mut self, number: u64, arming: ThresholdPlan) {
        self.armed = Some((number, arming));
    }

    /// Its threshold is gone, with the programs in which it was set.
    pub(crate) fn is_disarmed(&mut self) {
        self.armed = None;
    }

    /// Whether a threshold is set.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// The kernel reported a crossing. False if it is of an earlier threshold, or of another cgroup that had this id.
    pub(crate) fn fire(&mut self, crossed: &ThresholdCrossed) -> bool {
        let is_own = self.armed.is_some_and(|(own, _)| own == crossed.generation);
        if is_own {
            self.armed = None;
            self.fired = true;
            self.crossed_ns = Some(crossed.stamp.ktime_ns);
        }
        is_own
    }

    /// Whether its threshold fired, and it was not sampled since.
    pub(crate) fn has_fired(&self) -> bool {
        self.fired
    }

    /// When it is to be sampled, if nothing else would report a change.
    pub(super) fn due_ns(&self) -> Option<u64> {
        match (self.fired, self.is_blind) {
            (true, _) => Some(0),
            (false, true) => Some(self.sampled_ns.saturating_add(UNSEEN_NS)),
            (false, false) => None,
        }
    }

    /// Notes that it is sampled now. Returns the kernel's timestamp of the crossing.
    pub(crate) fn note_sample(&mut self, now_ns: u64) -> Option<u64> {
        self.fired = false;
        self.sampled_ns = now_ns;
        self.crossed_ns.take()
    }

    /// Notes whether a probe will report that the limit is near: one that sees usage does not where page cache fills the
    /// cgroup and makes room for the rest.
    pub(crate) fn note_visibility(&mut self, growth: Option<GrowthSource>, seen: MemoryUsage) {
        let reported_up_to = match growth {
            Some(growth) if growth.sees_every_charge => u64::MAX,
            Some(_) => near_and_away(self.limit, self.near_percent).1,
            None => self.limit / 2,
        };
        self.is_blind = self.near_since_ns.is_none() && seen.usage >= reported_up_to;
    }
}

/// Whether the present threshold does what the wanted one would. A sum of charges never fires too late, since the
/// headroom cannot have shrunk by more than was charged; a usage does where page cache went meanwhile.
fn serves(armed: &ThresholdPlan, wanted: &ThresholdPlan, limit: u64) -> bool {
    let slack = limit / 128;
    let above = match (armed.usage_above, wanted.usage_above) {
        (Some(_), Some(_)) if armed.gross.is_some() && wanted.gross.is_some() => true,
        (Some(armed), Some(wanted)) => {
            armed <= wanted.saturating_add(slack) && wanted <= armed.saturating_add(4 * slack)
        }
        (None, None) => true,
        _ => false,
    };
    let below = match (armed.usage_below, wanted.usage_below) {
        (Some(armed), Some(wanted)) => armed.abs_diff(wanted) <= slack,
        (None, None) => true,
        _ => false,
    };
    above && below && armed.gross.is_some() == wanted.gross.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;
    const TOLD_OF_ALL: GrowthSource = GrowthSource { sees_every_charge: true, granularity_bytes: MIB };
    const BLIND: GrowthSource = GrowthSource { sees_every_charge: false, granularity_bytes: 2 * MIB };

    fn watch() -> LimitWatch {
        LimitWatch::new(7, LimitScope::Container, 1000 * MIB, 10)
    }

    fn crossed(generation: u64) -> ThresholdCrossed {
        ThresholdCrossed::upwards(7, generation)
    }

    fn seen(usage: u64, working_set: u64) -> MemoryUsage {
        MemoryUsage { usage: usage * MIB, working_set: working_set * MIB }
    }

    #[test]
    fn near_within_a_tenth_and_away_again_some_way_below() {
        let mut watch = watch();
        let mut judge = |at: u64, working_set: u64| watch.judge(1000 * MIB, working_set * MIB, at * SECOND);
        assert_eq!(judge(1, 899), None);
        assert_eq!(judge(2, 900), Some(LimitChange::Near { publish: true }));
        assert_eq!(judge(3, 1000), None);
        assert_eq!(judge(4, 850), None, "what swings around the line is one nearness");
        assert_eq!(judge(5, 849), Some(LimitChange::Away { near_ns: 3 * SECOND, publish: true }));
        assert_eq!(judge(6, 849), None);
    }

    #[test]
    fn what_goes_to_and_fro_is_told_now_and_then() {
        let mut watch = watch();
        let mut published = 0;
        for at in 0..40 {
            let working_set = if at % 2 == 0 { 950 } else { 500 };
            match watch.judge(1000 * MIB, working_set * MIB, at * SECOND) {
                Some(LimitChange::Near { publish } | LimitChange::Away { publish, .. }) => {
                    published += u32::from(publish)
                }
                None => panic!("each is counted"),
            }
        }
        assert_eq!(published, 8, "both ways, each ten seconds");
    }

    #[test]
    fn a_limit_that_is_changed_is_judged_at_once_and_armed_anew() {
        let mut watch = watch();
        let far = seen(500, 500);
        watch.judge(1000 * MIB, far.working_set, SECOND);
        watch.is_armed_by(1, watch.wants(TOLD_OF_ALL, far).unwrap());
        assert_eq!(watch.wants(TOLD_OF_ALL, far), None);
        assert_eq!(watch.judge(2000 * MIB, far.working_set, SECOND), None);
        let armed = watch.wants(TOLD_OF_ALL, far).unwrap();
        assert_eq!(armed.gross, Some(1299 * MIB));
        watch.is_armed_by(2, armed);
        assert_eq!(
            watch.judge(520 * MIB, far.working_set, SECOND),
            Some(LimitChange::Near { publish: true })
        );
        let armed = watch.wants(TOLD_OF_ALL, far).unwrap();
        assert_eq!((armed.gross, armed.usage_below), (None, Some(442 * MIB)));
        assert!(!watch.fire(&crossed(2)), "that arming is of no use any more");
        assert!(matches!(watch.judge(1000 * MIB, far.working_set, SECOND), Some(LimitChange::Away { .. })));
    }

    #[test]
    fn only_what_is_armed_now_fires_and_once() {
        let mut watch = watch();
        watch.is_armed_by(5, watch.wants(TOLD_OF_ALL, seen(100, 100)).unwrap());
        assert!(!watch.fire(&crossed(4)), "an earlier arming, perhaps of another group with this id");
        assert!(watch.is_armed());
        watch.note_sample(SECOND);
        assert_eq!(watch.due_ns(), None);
        assert!(watch.fire(&crossed(5)) && watch.has_fired() && !watch.is_armed());
        assert!(!watch.fire(&crossed(5)));
        assert_eq!(watch.due_ns(), Some(0));
    }

    #[test]
    fn a_sum_of_charges_serves_until_it_fires_and_a_usage_while_it_is_not_late() {
        let mut watch = watch();
        watch.is_armed_by(1, watch.wants(TOLD_OF_ALL, seen(500, 300)).unwrap());
        assert_eq!(watch.wants(TOLD_OF_ALL, seen(900, 600)), None);
        assert!(watch.wants(BLIND, seen(900, 600)).is_some(), "another growth");

        let armed = watch.wants(BLIND, seen(500, 300)).unwrap();
        assert_eq!(armed.kernel_threshold().usage_above, Some(1098 * MIB));
        watch.is_armed_by(2, armed);
        assert_eq!(watch.wants(BLIND, seen(600, 400)), None);
        assert_eq!(watch.wants(BLIND, seen(600, 390)), None, "a little early");
        assert!(watch.wants(BLIND, seen(600, 420)).is_some(), "it would be late");
        assert!(watch.wants(BLIND, seen(700, 400)).is_some(), "it would be far too early");
    }

    #[test]
    fn where_page_cache_fills_a_group_usage_does_not_tell() {
        let mut watch = watch();
        watch.note_sample(SECOND);
        let mut is_blind = |growth, seen| {
            watch.note_visibility(growth, seen);
            watch.due_ns() == Some(2 * SECOND)
        };
        assert!(is_blind(Some(BLIND), seen(990, 400)));
        assert!(!is_blind(Some(BLIND), seen(800, 400)));
        assert!(!is_blind(Some(TOLD_OF_ALL), seen(990, 400)));
        assert!(is_blind(None, seen(800, 400)), "nothing tells of anything");
        watch.judge(1000 * MIB, 950 * MIB, SECOND);
        watch.note_visibility(Some(BLIND), seen(990, 950));
        assert_eq!(watch.due_ns(), None, "it is known already");
    }

    #[test]
    fn a_limit_of_nothing_is_survived() {
        let mut watch = LimitWatch::new(7, LimitScope::Pod, 0, 10);
        assert_eq!(watch.judge(0, 0, SECOND), Some(LimitChange::Near { publish: true }));
        assert!(watch.wants(BLIND, seen(0, 0)).is_some());
    }
}
