//! Whether records are missing, told by their numbers.
#![forbid(unsafe_code)]

use super::event::Stamp;

/// More than any kernel is built for (`NR_CPUS`); a number beyond is no CPU's.
const MOST_CPUS: u32 = 1 << 13;

/// What came of one CPU.
#[derive(Clone, Copy, Debug, Default)]
struct CpuSequence {
    /// One more than the greatest number that came.
    next: u64,
    /// How many came.
    came: u64,
}

/// Counts the records of each CPU and holds their number against the greatest of their numbers.
///
/// It does not matter in which order they come: a program that ran in between another one's may have
/// taken its number later and its place earlier. What was lost behind the last record of
/// a CPU shows with the next one; until then only the kernel side's counters know of it.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    cpus: Vec<CpuSequence>,
    noticed: u64,
}

impl Sequence {
    /// With room for so many CPUs; others find theirs when they come.
    pub fn with_room(cpus: usize) -> Self {
        Self { cpus: vec![CpuSequence::default(); cpus.min(MOST_CPUS as usize)], noticed: 0 }
    }

    /// A record came.
    pub fn take(&mut self, stamp: Stamp) {
        let Stamp { cpu, seq, ktime_ns: _ } = stamp;
        if cpu >= MOST_CPUS {
            return;
        }
        let place = cpu as usize;
        if self.cpus.len() <= place {
            self.cpus.resize(place + 1, CpuSequence::default());
        }
        let cpu = &mut self.cpus[place];
        cpu.came += 1;
        cpu.next = cpu.next.max(seq.saturating_add(1));
    }

    /// How many records are missing in all.
    pub fn missing(&self) -> u64 {
        let missing = self.cpus.iter().map(|cpu| cpu.next.saturating_sub(cpu.came));
        missing.fold(0, u64::saturating_add)
    }

    /// How many more are missing than ever before.
    pub fn notice(&mut self) -> u64 {
        let missing = self.missing();
        let new = missing.saturating_sub(self.noticed);
        self.noticed = self.noticed.max(missing);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(numbers: &[(u32, u64)]) -> Sequence {
        let mut sequence = Sequence::default();
        numbers.iter().for_each(|(cpu, seq)| sequence.take(Stamp { cpu: *cpu, seq: *seq, ktime_ns: 0 }));
        sequence
    }

    #[test]
    fn nothing_is_missing_of_what_came_in_any_order() {
        assert_eq!(taken(&[]).missing(), 0);
        assert_eq!(taken(&[(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]).missing(), 0);
        assert_eq!(taken(&[(0, 1), (0, 0), (0, 3), (0, 2)]).missing(), 0);
    }

    #[test]
    fn a_gap_is_noticed_once_also_at_the_beginning() {
        let mut sequence = taken(&[(0, 0), (0, 3), (7, 2)]);
        assert_eq!(sequence.missing(), 2 + 2);
        assert_eq!((sequence.notice(), sequence.notice()), (4, 0));
        sequence.take(Stamp { cpu: 0, seq: 9, ktime_ns: 0 });
        assert_eq!((sequence.notice(), sequence.notice()), (5, 0));
    }

    #[test]
    fn one_that_comes_late_is_no_longer_missing_and_not_noticed_again() {
        let mut sequence = taken(&[(0, 1)]);
        assert_eq!(sequence.notice(), 1);
        sequence.take(Stamp { cpu: 0, seq: 0, ktime_ns: 0 });
        assert_eq!((sequence.missing(), sequence.notice()), (0, 0));
        sequence.take(Stamp { cpu: 0, seq: 3, ktime_ns: 0 });
        assert_eq!((sequence.missing(), sequence.notice()), (1, 0), "told already");
    }

    #[test]
    fn a_number_that_two_took_and_the_next_that_none_took_are_two_records() {
        assert_eq!(taken(&[(0, 0), (0, 1), (0, 1), (0, 3)]).missing(), 0);
    }

    #[test]
    fn absurd_numbers_take_no_memory_and_no_panic() {
        let mut sequence = taken(&[(u32::MAX, 0), (MOST_CPUS, 5)]);
        assert_eq!(sequence.missing(), 0);
        sequence.take(Stamp { cpu: 0, seq: u64::MAX, ktime_ns: 0 });
        sequence.take(Stamp { cpu: 1, seq: u64::MAX, ktime_ns: 0 });
        assert_eq!(sequence.notice(), u64::MAX);
    }
}
