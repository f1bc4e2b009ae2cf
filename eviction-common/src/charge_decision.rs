//! The rules that decide whether the armed kill order is carried out at a memory charge, and which processes no
//! order may kill. They have no side effects. The programs are built with them, and the tests below cover each
//! reason.

use crate::{BATCH_PAGES, HUGE_PAGES, KillOrder, Suppressed};

/// A charge near the threshold: how much the cgroup that has it and the charging process have grown. Memory
/// values are in pages.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    /// The cgroup that has the threshold.
    pub level_id: u64,
    /// The usage of that cgroup.
    pub usage: u64,
    /// The limit of that cgroup.
    pub max: u64,
    /// The usage of that cgroup when a program first saw it after the sample epoch of the order.
    pub baseline: Option<u64>,
    /// The growth of the process's anonymous pages since the sample epoch of the order; 0 if not known.
    pub grown: u64,
}

/// The process that charges or writes, and the time.
#[derive(Clone, Copy, Debug)]
pub struct ChargingProcess {
    /// Whether the charged cgroup is the victim or below it.
    pub is_within_victim: bool,
    /// The process id.
    pub tgid: u32,
    /// Whether the process has memory. Kernel threads have none, and an exiting process has released it.
    pub has_memory: bool,
    /// Whether the process is in exactly the cgroup that is charged. A write is always charged to the writer's.
    pub is_in_charged_cgroup: bool,
    /// The current time in nanoseconds.
    pub now_ns: u64,
}

impl ChargingProcess {
    /// Returns why an order that expires at this time must not kill the process.
    #[inline(always)]
    pub(crate) fn suppressed(&self, expires_ns: u64) -> Option<Suppressed> {
        if !self.has_memory {
            return Some(Suppressed::KernelThread);
        }
        if !self.is_within_victim {
            return Some(Suppressed::NotTheVictim);
        }
        if self.tgid == 1 {
            return Some(Suppressed::FirstProcess);
        }
        if !self.is_in_charged_cgroup {
            return Some(Suppressed::Remote);
        }
        if self.now_ns >= expires_ns {
            return Some(Suppressed::Expired);
        }
        None
    }
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
    /// Returns the decision on this charge. `process` is called only if the threshold seems to be crossed: what
    /// it returns costs several calls, and most charges near a threshold do not cross it.
    #[inline(always)]
    pub fn decide(&self, charge: &Charge, process: impl FnOnce() -> ChargingProcess) -> KillDecision {
        if self.generation == 0 {
            return KillDecision::Pass;
        }
        if self.check != self.checked() {
            return KillDecision::Suppress(Suppressed::Torn);
        }
        let Charge { level_id, usage, max, baseline, grown } = *charge;
        if self.level_id != level_id || usage < self.usage_least {
            return KillDecision::Pass;
        }
        let has_risen = match baseline {
            Some(baseline) => usage.saturating_sub(baseline) >= self.growth,
            None => false,
        };
        if !has_risen && grown < self.growth {
            return KillDecision::Pass;
        }
        let process = process();
        if let Some(why) = process.suppressed(self.expires_ns) {
            return KillDecision::Suppress(why);
        }
        if grown < self.growth {
            return KillDecision::Suppress(Suppressed::NotGrown);
        }
        let makes_room = process.now_ns < self.still_until_ns && self.is_full(usage, max, baseline);
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

    /// A charge that crossed the threshold by the process's own growth.
    const CROSSING: Charge =
        Charge { level_id: 7, usage: 200_000, max: 1_000_000, baseline: Some(150_000), grown: 50_000 };

    /// A process of the victim.
    const RUNAWAY: ChargingProcess = ChargingProcess {
        is_within_victim: true,
        tgid: 4711,
        has_memory: true,
        is_in_charged_cgroup: true,
        now_ns: 1_000,
    };

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

    fn decide_on(change: impl FnOnce(&mut Charge)) -> KillDecision {
        let mut charge = CROSSING;
        change(&mut charge);
        order_with(|_| ()).decide(&charge, || RUNAWAY)
    }

    fn decide_for(change: impl FnOnce(&mut ChargingProcess)) -> KillDecision {
        let mut process = RUNAWAY;
        change(&mut process);
        order_with(|_| ()).decide(&CROSSING, || process)
    }

    #[test]
    fn runaway_process_of_the_victim_is_killed() {
        assert_eq!(decide_on(|_| ()), KillDecision::Kill(50_000));
    }

    #[test]
    fn each_condition_alone_suppresses_the_kill() {
        use Suppressed::*;
        let suppressed = [
            (decide_for(|it| it.has_memory = false), KernelThread),
            (decide_for(|it| it.is_within_victim = false), NotTheVictim),
            (decide_for(|it| it.tgid = 1), FirstProcess),
            (decide_for(|it| it.is_in_charged_cgroup = false), Remote),
            (decide_for(|it| it.now_ns = 2_000), Expired),
            (decide_on(|it| it.grown = 48_999), NotGrown),
            (decide_on(|it| it.baseline = None), UsageStill),
            (decide_on(|it| it.baseline = Some(151_001)), UsageStill),
        ];
        for (decision, why) in suppressed {
            assert_eq!(decision, KillDecision::Suppress(why));
        }
    }

    #[test]
    fn the_process_is_not_read_before_the_threshold_seems_to_be_crossed() {
        let order = order_with(|_| ());
        let not_crossed = [
            (order, Charge { usage: 198_999, ..CROSSING }),
            (order, Charge { level_id: 8, ..CROSSING }),
            (order, Charge { baseline: Some(199_000), grown: 10, ..CROSSING }),
            (KillOrder::default(), CROSSING),
        ];
        for (order, charge) in not_crossed {
            let decision = order.decide(&charge, || panic!("read for {charge:?}"));
            assert_eq!(decision, KillDecision::Pass);
        }
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
                    let decision = mixed.decide(&CROSSING, || RUNAWAY);
                    assert_eq!(decision, KillDecision::Suppress(Suppressed::Torn), "{from}..{to}");
                }
            }
        }
    }

    #[test]
    fn constant_usage_allows_a_kill_only_while_page_cache_is_reclaimed() {
        // At the level's own limit, minus a huge page and the pages that CPUs hold in their charge caches.
        let at = |max| decide_on(|it| (it.max, it.baseline) = (max, Some(200_000)));
        let slack = 2 * BATCH_PAGES + HUGE_PAGES;
        assert_eq!(at(200_000 + slack), KillDecision::Kill(50_000));
        assert_eq!(at(200_001 + slack), KillDecision::Suppress(Suppressed::UsageStill));
        // At the point where the free memory is used up.
        let full = Charge { baseline: Some(200_000), ..CROSSING };
        let with_room = |room| order_with(|it| it.room = room).decide(&full, || RUNAWAY);
        assert_eq!(with_room(slack), KillDecision::Kill(50_000));
        assert_eq!(with_room(slack + 1), KillDecision::Suppress(Suppressed::UsageStill));
        // Later, other memory may have been freed.
        let at_limit = Charge { max: 200_000, ..full };
        let late = order_with(|_| ()).decide(&at_limit, || ChargingProcess { now_ns: 1_500, ..RUNAWAY });
        assert_eq!(late, KillDecision::Suppress(Suppressed::UsageStill));
    }

    #[test]
    fn process_without_memory_is_suppressed_before_other_checks() {
        let charge = Charge { grown: 0, ..CROSSING };
        let thread = ChargingProcess { has_memory: false, is_within_victim: false, ..RUNAWAY };
        assert_eq!(
            order_with(|_| ()).decide(&charge, || thread),
            KillDecision::Suppress(Suppressed::KernelThread)
        );
    }
}
