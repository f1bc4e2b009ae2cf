//! Whether a armed kill order is carried out at a charge: a rule about facts alone. The charge programs are built with it,
//! and the tests below ask it for every reason.

use crate::{BATCH_PAGES, HUGE_PAGES, KillOrder, Suppressed};

/// A charge near the threshold, as a program finds it; figures of memory in pages. Each fact is asked for only where it decides,
/// since most cost a call.
pub trait Charge {
    /// The cgroup whose threshold is near.
    fn level_id(&self) -> u64;
    /// Its usage.
    fn usage(&self) -> u64;
    /// Its limit.
    fn max(&self) -> u64;
    /// Its usage when it was first seen after the mark of this sample.
    fn usage_then(&self, epoch: u64) -> Option<u64>;
    /// Whether the cgroup that is charged is this one or below it.
    fn is_within(&self, cgroup_id: u64) -> bool;
    /// The process that charges.
    fn tgid(&self) -> u32;
    /// Whether it has memory: a task of the kernel has none, and one that is at its end none any more.
    fn has_memory(&self) -> bool;
    /// By how much its anonymous pages have grown since the mark of this sample; 0 if that was not seen.
    fn grown(&self, epoch: u64) -> u64;
    /// Whether it is in the very cgroup that is charged.
    fn is_in_what_is_charged(&self) -> bool;
    /// The time.
    fn now_ns(&self) -> u64;
}

/// What is done about a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing: the threshold does not seem to be crossed, or no kill order is armed for it.
    Pass,
    /// It seems to be, and the process is not killed for this reason.
    Suppress(Suppressed),
    /// The process is to be killed, by whoever takes the kill order's token; by how many pages it has grown.
    Kill(u64),
}

impl KillOrder {
    /// What is to be done about this charge.
    #[inline(always)]
    pub fn judge(&self, charge: &impl Charge) -> Judgement {
        if self.generation == 0 {
            return Judgement::Pass;
        }
        if self.check != self.checked() {
            return Judgement::Suppress(Suppressed::Torn);
        }
        let usage = charge.usage();
        if self.level_id != charge.level_id() || usage < self.usage_least {
            return Judgement::Pass;
        }
        let grown = charge.grown(self.epoch);
        let then = charge.usage_then(self.epoch);
        let has_risen = match then {
            Some(then) => usage.saturating_sub(then) >= self.growth,
            None => false,
        };
        if !has_risen && grown < self.growth {
            return Judgement::Pass;
        }
        if !charge.has_memory() {
            return Judgement::Suppress(Suppressed::KernelThread);
        }
        if !charge.is_within(self.victim_id) {
            return Judgement::Suppress(Suppressed::NotTheVictim);
        }
        if charge.tgid() == 1 {
            return Judgement::Suppress(Suppressed::FirstProcess);
        }
        if !charge.is_in_what_is_charged() {
            return Judgement::Suppress(Suppressed::Remote);
        }
        let now_ns = charge.now_ns();
        if now_ns >= self.expires_ns {
            return Judgement::Suppress(Suppressed::Expired);
        }
        if grown < self.growth {
            return Judgement::Suppress(Suppressed::NotGrown);
        }
        let makes_room = now_ns < self.still_until_ns && self.is_full(usage, charge.max(), then);
        if !(has_risen || makes_room) {
            return Judgement::Suppress(Suppressed::UsageStill);
        }
        Judgement::Kill(grown)
    }

    /// Whether page cache must make room at this usage. Where a huge page was to find room, reclaim may have left as much
    /// free besides.
    #[inline(always)]
    fn is_full(&self, usage: u64, max: u64, then: Option<u64>) -> bool {
        let seen = usage.saturating_add(2 * BATCH_PAGES + HUGE_PAGES);
        let room_is_used_up = match then {
            Some(then) => seen >= then.saturating_add(self.room),
            None => false,
        };
        seen >= max || room_is_used_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of the victim that has crossed the line by its own growth.
    #[derive(Clone, Copy)]
    struct Facts {
        level_id: u64,
        usage: u64,
        max: u64,
        then: Option<u64>,
        of_victim: bool,
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
        then: Some(150_000),
        of_victim: true,
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
        fn usage_then(&self, epoch: u64) -> Option<u64> {
            assert_eq!(epoch, 3);
            self.then
        }
        fn is_within(&self, cgroup_id: u64) -> bool {
            assert_eq!(cgroup_id, 9);
            self.of_victim
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
        fn is_in_what_is_charged(&self) -> bool {
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

    fn judged(change: impl FnOnce(&mut Facts)) -> Judgement {
        let mut facts = RUNAWAY;
        change(&mut facts);
        order_with(|_| ()).judge(&facts)
    }

    #[test]
    fn a_runaway_of_the_victim_is_killed() {
        assert_eq!(judged(|_| ()), Judgement::Kill(50_000));
    }

    #[test]
    fn each_condition_alone_keeps_it_from_being_killed() {
        use Suppressed::*;
        let suppressed = [
            (judged(|it| it.has_memory = false), KernelThread),
            (judged(|it| it.of_victim = false), NotTheVictim),
            (judged(|it| it.tgid = 1), FirstProcess),
            (judged(|it| it.is_own = false), Remote),
            (judged(|it| it.now_ns = 2_000), Expired),
            (judged(|it| it.grown = 48_999), NotGrown),
            (judged(|it| it.then = None), UsageStill),
            (judged(|it| it.then = Some(151_001)), UsageStill),
        ];
        for (judged, why) in suppressed {
            assert_eq!(judged, Judgement::Suppress(why));
        }
    }

    #[test]
    fn a_threshold_that_is_not_crossed_kills_no_process() {
        let below = judged(|it| it.usage = 198_999);
        let elsewhere = judged(|it| it.level_id = 8);
        let nobody_grew = judged(|it| (it.then, it.grown) = (Some(199_000), 10));
        assert_eq!([below, elsewhere, nobody_grew], [Judgement::Pass; 3]);
        assert_eq!(KillOrder::NONE.judge(&RUNAWAY), Judgement::Pass);
    }

    /// User space writes word after word.
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
                    let judged = mixed.judge(&RUNAWAY);
                    assert_eq!(judged, Judgement::Suppress(Suppressed::Torn), "{from}..{to}");
                }
            }
        }
    }

    #[test]
    fn usage_that_stands_is_page_cache_only_where_it_has_to_make_room_and_only_for_a_while() {
        // At the level's own limit, a huge page and what CPUs hold back below it.
        let at = |max| judged(|it| (it.max, it.then) = (max, Some(200_000)));
        let slack = 2 * BATCH_PAGES + HUGE_PAGES;
        assert_eq!(at(200_000 + slack), Judgement::Kill(50_000));
        assert_eq!(at(200_001 + slack), Judgement::Suppress(Suppressed::UsageStill));
        // Where what was free is used up.
        let with_room =
            |room| order_with(|it| it.room = room).judge(&Facts { then: Some(200_000), ..RUNAWAY });
        assert_eq!(with_room(slack), Judgement::Kill(50_000));
        assert_eq!(with_room(slack + 1), Judgement::Suppress(Suppressed::UsageStill));
        // Later something else may have been freed.
        let late = judged(|it| (it.max, it.then, it.now_ns) = (200_000, Some(200_000), 1_500));
        assert_eq!(late, Judgement::Suppress(Suppressed::UsageStill));
    }

    #[test]
    fn a_process_at_its_end_is_told_apart_before_anything_is_asked_of_its_group() {
        assert_eq!(
            judged(|it| (it.has_memory, it.of_victim, it.grown) = (false, false, 0)),
            Judgement::Suppress(Suppressed::KernelThread)
        );
    }
}
