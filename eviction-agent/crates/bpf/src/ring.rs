//! The ring buffer's reader, and what did not get through: events that are missing by their numbers, what the programs
//! counted, and runs of them that the kernel left out.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use aya::maps::{MapData, MapError, RingBuf};
use eviction_common::{Counter, Kind};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    attach_methods::EventClass,
    decode::{DecodeError, decode},
    event::{Event, Stamp},
    handle::BpfHandle,
    on_demand::OnDemandProbe,
};

/// What one drain of the ring gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Records that were handed on.
    pub events: u64,
    /// Records that were none: the reader and the programs disagree.
    pub malformed: u64,
    /// Why the first of those was none.
    pub why: Option<DecodeError>,
    /// Records that are missing by the numbers of those that came, beside those noticed before.
    pub missed: u64,
}

/// The reading end of the ring buffer. Its descriptor is readable (poll, epoll) when a record
/// that must not wait was pushed; routine records wait for the next drain.
pub struct Ring {
    ring: RingBuf<MapData>,
    page_bytes: u64,
    sequence: Sequence,
}

impl Ring {
    pub(super) fn new(ring: RingBuf<MapData>) -> Self {
        let sequence = Sequence::with_room(aya::util::nr_cpus().unwrap_or(1));
        Self { ring, page_bytes: rustix::param::page_size() as u64, sequence }
    }

    /// Hands on every record that is there, in the order in which they were pushed. Never waits.
    pub fn drain(&mut self, mut each: impl FnMut(Event)) -> Drained {
        let mut drained = Drained::default();
        while let Some(record) = self.ring.next() {
            match decode(&record, self.page_bytes) {
                Ok(event) => {
                    drained.events += 1;
                    self.sequence.take(event.stamp());
                    each(event);
                }
                Err(why) => {
                    drained.malformed += 1;
                    drained.why.get_or_insert(why);
                }
            }
        }
        drained.missed = self.sequence.notice();
        drained
    }

    /// Records that are missing by the numbers of those that came, in all. What was lost behind the
    /// last record of a CPU shows with the next one.
    pub fn missing(&self) -> u64 {
        self.sequence.missing()
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

/// A [`Ring`] on tokio's reactor.
pub struct AsyncRing(AsyncFd<Ring>);

impl AsyncRing {
    /// Registers the ring with the runtime that this is called in.
    pub fn new(ring: Ring) -> io::Result<Self> {
        // SAFETY: the descriptor is the map's; it is the same at every call, open as long as
        // the ring lives, and the ring is dropped after it was deregistered.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }?;
        Ok(Self(ring))
    }

    /// Waits until a record that must not wait is there, then hands on all. Cancel-safe: a
    /// record is taken out only in the call that hands it on.
    pub async fn drain_ready(&mut self, each: impl FnMut(Event)) -> io::Result<Drained> {
        let mut guard = self.0.readable_mut().await?;
        // Before the drain: a record that is pushed while it goes on wakes the next call.
        guard.clear_ready();
        Ok(guard.get_inner_mut().drain(each))
    }

    /// Hands on what is there without waiting: for routine records, at each sample.
    pub fn drain(&mut self, each: impl FnMut(Event)) -> Drained {
        self.0.get_mut().drain(each)
    }
}

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
struct Sequence {
    cpus: Vec<CpuSequence>,
    noticed: u64,
}

impl Sequence {
    /// With room for so many CPUs; others find theirs when they come.
    fn with_room(cpus: usize) -> Self {
        Self { cpus: vec![CpuSequence::default(); cpus.min(MOST_CPUS as usize)], noticed: 0 }
    }

    /// A record came.
    fn take(&mut self, stamp: Stamp) {
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
    fn missing(&self) -> u64 {
        let missing = self.cpus.iter().map(|cpu| cpu.next.saturating_sub(cpu.came));
        missing.fold(0, u64::saturating_add)
    }

    /// How many more are missing than ever before.
    fn notice(&mut self) -> u64 {
        let missing = self.missing();
        let new = missing.saturating_sub(self.noticed);
        self.noticed = self.noticed.max(missing);
        new
    }
}

/// What the programs counted since they were loaded: what they lost, and what they saw in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCounters([u64; Counter::COUNT as usize]);

impl LossCounters {
    /// One of the counts.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Records of any kind that did not fit into the ring.
    pub fn records_lost(&self) -> u64 {
        self.by_record().iter().map(|(_, lost)| lost).sum()
    }

    /// Records that did not fit, by what they tell.
    pub fn by_record(&self) -> [(&'static str, u64); 6] {
        [
            (Kind::ThresholdCrossed, Counter::LostThresholdCrossed),
            (Kind::OomKill, Counter::LostOomKill),
            (Kind::CgroupCreated, Counter::LostCgroupCreated),
            (Kind::CgroupRemoved, Counter::LostCgroupRemoved),
            (Kind::TaskAlarm, Counter::LostTaskAlarm),
            (Kind::DiskThresholdCrossed, Counter::LostDiskThresholdCrossed),
        ]
        .map(|(kind, counter)| (kind.name(), self.get(counter)))
    }

    /// What found no room, by the map.
    pub fn by_map(&self) -> [(&'static str, u64); 7] {
        [
            ("charged_cgroups", Counter::ChargedCgroupsFull),
            ("oom_counts", Counter::OomCountsFull),
            ("task_stats", Counter::TaskStatsFull),
            ("alarms_sent", Counter::AlarmsSentFull),
            ("reclaim_time", Counter::ReclaimTimeFull),
            ("reclaim_start", Counter::ReclaimStartFull),
            ("disk_usage", Counter::DiskUsageFull),
        ]
        .map(|(map, counter)| (map, self.get(counter)))
    }
}

impl BpfHandle {
    /// How often the programs of each class were not run although their place was reached: the kernel runs no
    /// program while it is at work on the same CPU. Where it preempts tasks in the kernel (from 7.0 on it does), that
    /// happens on a busy node. Counts of tasks are too small by as much, and a crossing shows at the next charge
    /// or sample. What cannot be asked is 0, and so are kernels before 5.12.
    pub fn runs_missed(&self) -> [(EventClass, u64); EventClass::ALL.len()] {
        EventClass::ALL.map(|class| {
            let links = self.links.iter().filter(|(its, _)| *its == class);
            let always: u64 = links.filter_map(|(_, link)| link.program.runs_missed().ok()).sum();
            let near = self.near.iter().filter(|near| near.class == class);
            (class, always.saturating_add(near.map(OnDemandProbe::runs_missed).sum()))
        })
    }

    /// What the programs counted and lost.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn lost(&self) -> Result<LossCounters, MapError> {
        let mut counters = LossCounters::default();
        for (index, count) in (0..).zip(&mut counters.0) {
            *count = self.maps.counters.get(&index, 0)?.iter().sum();
        }
        Ok(counters)
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
