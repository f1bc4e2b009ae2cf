//! The rule that decides whether the armed kill order is carried out at a memory charge. It has no side
//! effects. The charge programs are built with it, and the tests below cover each reason.

use crate::{BATCH_PAGES, HUGE_PAGES, KillOrder, Suppressed};

/// A charge near the threshold, as a program sees it; memory values are in pages. Each fact is read only when
/// it is needed, since most of them cost a call.
pub trait Charge {
    /// The cgroup that has the threshold.
    fn level_id(&self) -> u64;
    /// The usage of that cgroup.
    fn usage(&self) -> u64;
    /// The limit of that cgroup.
    fn max(&self) -> u64;
    /// The usage of that cgroup when a program first saw it after this sample epoch.
    fn usage_at_epoch(&self, epoch: u64) -> Option<u64>;
    /// Whether the charged cgroup is this one or below it.
    fn is_within(&self, cgroup_id: u64) -> bool;
    /// The process that charges.
    fn tgid(&self) -> u32;
    /// Whether the process has memory. Kernel threads have none, and an exiting process has released it.
    fn has_memory(&self) -> bool;
    /// The growth of the process's anonymous pages since this sample epoch; 0 if not known.
    fn grown(&self, epoch: u64) -> u64;
    /// Whether the process is in exactly the cgroup that is charged.
    fn is_in_charged_cgroup(&self) -> bool;
    /// The current time in nanoseconds.
    fn now_ns(&self) -> u64;
}

/// The decision on a charge or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillDecision {
    /// No action: the threshold does not seem to be crossed, or no kill order is armed for it.
    Pass,
    /// The threshold seems to be crossed, but the process is not killed, for this reason.
    Suppress(Suppressed),
    /// The process is to be killed by the program that removes the kill order's token. The value is
    /// [`KernelKill::grown`](crate::KernelKill::grown).
    Kill(u64),
}

impl KillOrder {
    /// Returns the decision on this charge.
    #[inline(always)]
    pub fn decide(&self, charge: &impl Charge) -> KillDecision {
        if self.generation == 0 {
            return KillDecision::Pass;
        }
        if self.check != self.checked() {
            return KillDecision::Suppress(Suppressed::Torn);
        }
        let usage = charge.usage();
        if self.level_id != charge.level_id() || usage < self.usage_least {
            return KillDecision::Pass;
        }
        let grown = charge.grown(self.epoch);
        let baseline = charge.usage_at_epoch(self.epoch);
        let has_risen = match baseline {
            Some(baseline) => usage.saturating_sub(baseline) >= self.growth,
            None => false,
        };
        if !has_risen && grown < self.growth {
            return KillDecision::Pass;
        }
        if !charge.has_memory() {
            return KillDecision::Suppress(Suppressed::KernelThread);
        }
        if !charge.is_within(self.victim_id) {
            return KillDecision::Suppress(Suppressed::NotTheVictim);
        }
        if charge.tgid() == 1 {
            return KillDecision::Suppress(Suppressed::FirstProcess);
        }
        if !charge.is_in_charged_cgroup() {
            return KillDecision::Suppress(Suppressed::Remote);
        }
        let now_ns = charge.now_ns();
        if now_ns >= self.expires_ns {
            return KillDecision::Suppress(Suppressed::Expired);
        }
        if grown < self.growth {
            return KillDecision::Suppress(Suppressed::NotGrown);
        }
        let makes_room = now_ns < self.still_until_ns && self.is_full(usage, charge.max(), baseline);
        if !(has_risen || makes_room) {
            return KillDecision::Suppress(Suppressed::UsageStill);
        }
        KillDecision::Kill(grown)
    }

    /// Whether page cache must be reclaimed at this usage. Reclaim for a huge page may leave another huge
    /// page's worth of memory free.
    #[inline(always)]
    fn is_full(&self, usage: u64, max: u64, baseline: Option<u64>) -> bool {
        let seen = usage.saturating_add(2 * BATCH_PAGES + HUGE_PAGES);
        let room_is_used_up = match baseline {
            Some(baseline) => seen >= baseline.saturating_add(self.room),
            None => false,
        };
        seen >= max || room_is_used_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of the victim that crossed the threshold by its own growth.
    #[derive(Clone, Copy)]
    struct Facts {
        level_id: u64,
        usage: u64,
        max: u64,
        baseline: Option<u64>,
        is_within_victim: bool,
        tgid: u32,
        has_memory: bool,
        grown: u64,
        is_own: bool,
        now_ns: u64,
    }

    const RUNAWAY: Facts = Facts {
        level_id: 7,
        usage: 200_000,
        max: 1_000_000,
        baseline: Some(150_000),
        is_within_victim: true,
        tgid: 4711,
        has_memory: true,
        grown: 50_000,
        is_own: true,
        now_ns: 1_000,
    };

    impl Charge for Facts {
        fn level_id(&self) -> u64 {
            self.level_id
        }
        fn usage(&self) -> u64 {
            self.usage
        }
        fn max(&self) -> u64 {
            self.max
        }
        fn usage_at_epoch(&self, epoch: u64) -> Option<u64> {
            assert_eq!(epoch, 3);
            self.baseline
        }
        fn is_within(&self, cgroup_id: u64) -> bool {
            assert_eq!(cgroup_id, 9);
            self.is_within_victim
        }
        fn tgid(&self) -> u32 {
            self.tgid
        }
        fn has_memory(&self) -> bool {
            self.has_memory
        }
        fn grown(&self, epoch: u64) -> u64 {
            assert_eq!(epoch, 3);
            self.grown
        }
        fn is_in_charged_cgroup(&self) -> bool {
            self.is_own
        }
        fn now_ns(&self) -> u64 {
            self.now_ns
        }
    }

    fn order_with(change: impl FnOnce(&mut KillOrder)) -> KillOrder {
        let mut order = KillOrder {
            generation: 5,
            epoch: 3,
            victim_id: 9,
            level_id: 7,
            expires_ns: 2_000,
            usage_least: 199_000,
            growth: 49_000,
            room: u64::MAX,
            still_until_ns: 1_500,
            check: 0,
        };
        change(&mut order);
        order.check = order.checked();
        order
    }

    fn decide_with(change: impl FnOnce(&mut Facts)) -> KillDecision {
        let mut facts = RUNAWAY;
        change(&mut facts);
        order_with(|_| ()).decide(&facts)
    }

    #[test]
    fn runaway_process_of_the_victim_is_killed() {
        assert_eq!(decide_with(|_| ()), KillDecision::Kill(50_000));
    }

    #[test]
    fn each_condition_alone_suppresses_the_kill() {
        use Suppressed::*;
        let suppressed = [
            (decide_with(|it| it.has_memory = false), KernelThread),
            (decide_with(|it| it.is_within_victim = false), NotTheVictim),
            (decide_with(|it| it.tgid = 1), FirstProcess),
            (decide_with(|it| it.is_own = false), Remote),
            (decide_with(|it| it.now_ns = 2_000), Expired),
            (decide_with(|it| it.grown = 48_999), NotGrown),
            (decide_with(|it| it.baseline = None), UsageStill),
            (decide_with(|it| it.baseline = Some(151_001)), UsageStill),
        ];
        for (decision, why) in suppressed {
            assert_eq!(decision, KillDecision::Suppress(why));
        }
    }

    #[test]
    fn a_threshold_that_is_not_crossed_kills_no_process() {
        let below = decide_with(|it| it.usage = 198_999);
        let elsewhere = decide_with(|it| it.level_id = 8);
        let not_grown = decide_with(|it| (it.baseline, it.grown) = (Some(199_000), 10));
        assert_eq!([below, elsewhere, not_grown], [KillDecision::Pass; 3]);
        assert_eq!(KillOrder::default().decide(&RUNAWAY), KillDecision::Pass);
    }

    /// User space writes the value word by word.
    const WORDS: [fn(&mut KillOrder, &KillOrder); 10] = [
        |old, new| old.generation = new.generation,
        |old, new| old.epoch = new.epoch,
        |old, new| old.victim_id = new.victim_id,
        |old, new| old.level_id = new.level_id,
        |old, new| old.expires_ns = new.expires_ns,
        |old, new| old.usage_least = new.usage_least,
        |old, new| old.growth = new.growth,
        |old, new| old.room = new.room,
        |old, new| old.still_until_ns = new.still_until_ns,
        |old, new| old.check = new.check,
    ];

    #[test]
    fn a_kill_order_that_is_half_written_kills_no_process() {
        let old = order_with(|_| ());
        let new = order_with(|it| (it.generation, it.victim_id, it.growth) = (6, 10, 1));
        for from in 0..WORDS.len() {
            for to in from..=WORDS.len() {
                let mut mixed = old;
                WORDS[from..to].iter().for_each(|word| word(&mut mixed, &new));
                if mixed != old && mixed != new {
                    let decision = mixed.decide(&RUNAWAY);
                    assert_eq!(decision, KillDecision::Suppress(Suppressed::Torn), "{from}..{to}");
                }
            }
        }
    }

    #[test]
    fn constant_usage_allows_a_kill_only_while_page_cache_is_reclaimed() {
        // At the level's own limit, minus a huge page and the pages that CPUs hold in their charge caches.
        let at = |max| decide_with(|it| (it.max, it.baseline) = (max, Some(200_000)));
        let slack = 2 * BATCH_PAGES + HUGE_PAGES;
        assert_eq!(at(200_000 + slack), KillDecision::Kill(50_000));
        assert_eq!(at(200_001 + slack), KillDecision::Suppress(Suppressed::UsageStill));
        // At the point where the free memory is used up.
        let with_room =
            |room| order_with(|it| it.room = room).decide(&Facts { baseline: Some(200_000), ..RUNAWAY });
        assert_eq!(with_room(slack), KillDecision::Kill(50_000));
        assert_eq!(with_room(slack + 1), KillDecision::Suppress(Suppressed::UsageStill));
        // Later, other memory may have been freed.
        let late = decide_with(|it| (it.max, it.baseline, it.now_ns) = (200_000, Some(200_000), 1_500));
        assert_eq!(late, KillDecision::Suppress(Suppressed::UsageStill));
    }

    #[test]
    fn process_without_memory_is_suppressed_before_other_checks() {
        assert_eq!(
            decide_with(|it| (it.has_memory, it.is_within_victim, it.grown) = (false, false, 0)),
            KillDecision::Suppress(Suppressed::KernelThread)
        );
    }
}
