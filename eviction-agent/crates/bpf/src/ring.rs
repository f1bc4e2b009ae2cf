//! The reader of the ring buffer, and what was lost: events whose numbers are missing, losses that the programs
//! counted, and runs of programs that the kernel skipped.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use aya::maps::{MapData, MapError, RingBuf};
use eviction_common::{Counter, Header, Kind};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    attach_methods::EventClass,
    decode::{DecodeError, decode},
    event::Event,
    handle::BpfHandle,
    on_demand::OnDemandProbe,
    sys::read_entry,
};

/// The result of one drain of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Records that were passed on.
    pub events: u64,
    /// Records that could not be decoded: the reader and the programs disagree.
    pub malformed: u64,
    /// Why the first of those could not be decoded.
    pub why: Option<DecodeError>,
    /// Records that are missing according to the numbers of those received, without those noticed before.
    pub missed: u64,
}

/// The reading end of the ring buffer. Its descriptor is readable (poll, epoll) when an urgent record was
/// pushed; routine records wait for the next drain.
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

    /// Passes on every record that is there, in the order in which they were pushed. Never waits.
    pub fn drain(&mut self, mut each: impl FnMut(Event)) -> Drained {
        let mut drained = Drained::default();
        while let Some(record) = self.ring.next() {
            match decode(&record, self.page_bytes) {
                Ok(event) => {
                    drained.events += 1;
                    let Header { cpu, seq, .. } = read_entry(&record);
                    self.sequence.take(cpu, seq);
                    each(event);
                }
                Err(why) => {
                    drained.malformed += 1;
                    drained.why.get_or_insert(why);
                }
            }
        }
        drained.missed = self.sequence.take_newly_missing();
        drained
    }

    /// Returns how many records are missing in total, according to the numbers of those received. Records that
    /// were lost after the last one of a CPU are noticed with the next one.
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

/// Registers the ring with the tokio runtime that this is called in.
///
/// # Errors
/// If it cannot be registered.
pub fn watch(ring: Ring) -> io::Result<AsyncFd<Ring>> {
    // SAFETY: the descriptor is the map's. It is the same at every call, open as long as the ring exists,
    // and the ring is dropped after it was deregistered.
    Ok(unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }?)
}

/// Waits until an urgent record is there, then passes on all records. Cancel-safe: a record is taken out only
/// in the call that passes it on.
///
/// # Errors
/// If the ring cannot be waited for.
pub async fn drain_ready(ring: &mut AsyncFd<Ring>, each: impl FnMut(Event)) -> io::Result<Drained> {
    let mut guard = ring.readable_mut().await?;
    // Before the drain: a record that is pushed during the drain wakes the next call.
    guard.clear_ready();
    Ok(guard.get_inner_mut().drain(each))
}

/// More CPUs than any kernel is built for (`NR_CPUS`); a greater number is not a CPU's.
const MOST_CPUS: u32 = 1 << 13;

/// The records of one CPU.
#[derive(Clone, Copy, Debug, Default)]
struct CpuSequence {
    /// One more than the greatest number that was received.
    next: u64,
    /// How many records were received.
    received: u64,
}

/// Counts the records of each CPU and compares the count with the greatest of their numbers. The CPUs are
/// compared one by one: a program in an interrupt may take the number that the interrupted one has just taken,
/// and the number after it is skipped. The record that is too many must not hide one that another CPU misses.
///
/// The order in which they arrive does not matter: a program that ran in the middle of another one may have
/// taken its number later and its place in the ring earlier. Records that were lost after the last one of a CPU
/// are noticed with the next one; until then only the counters of the BPF programs include them.
#[derive(Clone, Debug, Default)]
struct Sequence {
    cpus: Vec<CpuSequence>,
    reported: u64,
}

impl Sequence {
    /// Creates a sequence with room for so many CPUs; it grows for others when they occur.
    fn with_room(cpus: usize) -> Self {
        Self { cpus: vec![CpuSequence::default(); cpus.min(MOST_CPUS as usize)], reported: 0 }
    }

    /// Counts a record.
    fn take(&mut self, cpu: u32, seq: u64) {
        if cpu >= MOST_CPUS {
            return;
        }
        let index = cpu as usize;
        if self.cpus.len() <= index {
            self.cpus.resize(index + 1, CpuSequence::default());
        }
        let cpu = &mut self.cpus[index];
        cpu.received += 1;
        cpu.next = cpu.next.max(seq.saturating_add(1));
    }

    /// Returns how many records are missing in total.
    fn missing(&self) -> u64 {
        let missing = self.cpus.iter().map(|cpu| cpu.next.saturating_sub(cpu.received));
        missing.fold(0, u64::saturating_add)
    }

    /// Returns how many more records are missing than at any earlier call.
    fn take_newly_missing(&mut self) -> u64 {
        let missing = self.missing();
        let new = missing.saturating_sub(self.reported);
        self.reported = self.reported.max(missing);
        new
    }
}

/// The counters of the programs since they were loaded: what they lost, and what they saw in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCounters([u64; Counter::ALL.len()]);

impl LossCounters {
    /// Returns one of the counters.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Returns the number of records of any kind that did not fit into the ring.
    pub fn records_lost(&self) -> u64 {
        self.by_record().iter().map(|(_, lost)| lost).sum()
    }

    /// Returns the number of records that did not fit, by kind.
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

    /// Returns the number of entries that found no room, by map.
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
    /// Returns how often the programs of each class were not run although their hook was reached: the kernel
    /// does not run a program while it is running on the same CPU. Where the kernel preempts tasks in the
    /// kernel (from 7.0 on it does), that happens on a busy node. Task counts are too small by as much, and a
    /// crossing is noticed at the next charge or sample. The number is 0 where it cannot be read, and on
    /// kernels before 5.12.
    pub fn runs_missed(&self) -> [(EventClass, u64); EventClass::ALL.len()] {
        EventClass::ALL.map(|class| {
            let links = self.links.iter().filter(|(link_class, _)| *link_class == class);
            let always: u64 = links.filter_map(|(_, link)| link.program.runs_missed().ok()).sum();
            let near = self.near.iter().filter(|near| near.class == class);
            (class, always.saturating_add(near.map(OnDemandProbe::runs_missed).sum()))
        })
    }

    /// Returns what the programs counted and lost.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn lost(&self) -> Result<LossCounters, MapError> {
        let mut counters = LossCounters::default();
        for (index, count) in (0..).zip(&mut counters.0) {
            *count = self.counters.get(&index, 0)?.iter().sum();
        }
        Ok(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence_of(numbers: &[(u32, u64)]) -> Sequence {
        let mut sequence = Sequence::default();
        numbers.iter().for_each(|(cpu, seq)| sequence.take(*cpu, *seq));
        sequence
    }

    #[test]
    fn records_received_in_any_order_are_not_missing() {
        assert_eq!(sequence_of(&[]).missing(), 0);
        assert_eq!(sequence_of(&[(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]).missing(), 0);
        assert_eq!(sequence_of(&[(0, 1), (0, 0), (0, 3), (0, 2)]).missing(), 0);
    }

    #[test]
    fn gap_is_counted_once_also_at_the_beginning() {
        let mut sequence = sequence_of(&[(0, 0), (0, 3), (7, 2)]);
        assert_eq!(sequence.missing(), 2 + 2);
        assert_eq!((sequence.take_newly_missing(), sequence.take_newly_missing()), (4, 0));
        sequence.take(0, 9);
        assert_eq!((sequence.take_newly_missing(), sequence.take_newly_missing()), (5, 0));
    }

    #[test]
    fn late_record_is_no_longer_missing_and_not_counted_again() {
        let mut sequence = sequence_of(&[(0, 1)]);
        assert_eq!(sequence.take_newly_missing(), 1);
        sequence.take(0, 0);
        assert_eq!((sequence.missing(), sequence.take_newly_missing()), (0, 0));
        sequence.take(0, 3);
        assert_eq!((sequence.missing(), sequence.take_newly_missing()), (1, 0), "reported already");
    }

    #[test]
    fn duplicate_number_makes_up_for_a_skipped_one() {
        assert_eq!(sequence_of(&[(0, 0), (0, 1), (0, 1), (0, 3)]).missing(), 0);
    }

    #[test]
    fn a_number_that_was_taken_twice_hides_no_missing_record_of_another_cpu() {
        // A program in an interrupt took 1 again, and 2 is skipped.
        let mut sequence = sequence_of(&[(0, 0), (0, 1), (0, 1), (1, 1)]);
        assert_eq!(sequence.take_newly_missing(), 1);
        sequence.take(0, 3);
        assert_eq!(sequence.take_newly_missing(), 0);
    }

    #[test]
    fn implausible_numbers_cause_no_allocation_and_no_panic() {
        let mut sequence = sequence_of(&[(u32::MAX, 0), (MOST_CPUS, 5)]);
        assert_eq!(sequence.missing(), 0);
        sequence.take(0, u64::MAX);
        sequence.take(1, u64::MAX);
        assert_eq!(sequence.take_newly_missing(), u64::MAX);
    }
}
