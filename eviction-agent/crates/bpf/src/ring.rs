//! The reader of the ring buffer, and what was lost: losses that the programs counted, and runs of programs that
//! the kernel skipped.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use aya::maps::{MapData, MapError, RingBuf};
use aya_obj::generated::BPF_RINGBUF_HDR_SZ;
use eviction_common::{Counter, Kind};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    attach_methods::EventClass, decode::decode, event::Event, handle::BpfHandle, on_demand::OnDemandProbe,
};

/// The result of one drain of the ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Records that were passed on.
    pub events: u64,
    /// Records that could not be decoded: the reader and the programs disagree.
    pub malformed: u64,
    /// Why the first of those could not be decoded.
    pub why: Option<String>,
    /// Whether records may have been lost before ([`BpfHandle::lost`]): more than a quarter of the ring was read.
    /// Records are lost only while it is full. What is in it may take several drains, since a drain ends at a record
    /// that is not submitted yet.
    pub may_have_lost: bool,
}

/// The reading end of the ring buffer. Its descriptor is readable (poll, epoll) when an urgent record was
/// pushed; routine records wait for the next drain.
pub struct Ring {
    ring: RingBuf<MapData>,
    page_bytes: u64,
    /// A drain of fewer bytes than this is not compared with the counters of losses.
    quarter_bytes: usize,
}

impl Ring {
    /// Creates the reader of a ring of at least so many bytes.
    pub(super) fn new(ring: RingBuf<MapData>, bytes: u32) -> Self {
        Self { ring, page_bytes: rustix::param::page_size() as u64, quarter_bytes: bytes as usize / 4 }
    }

    /// Passes on every record that is there, in the order in which they were pushed. Never waits.
    pub fn drain(&mut self, mut each: impl FnMut(Event)) -> Drained {
        let mut drained = Drained::default();
        let mut bytes = 0;
        while let Some(record) = self.ring.next() {
            bytes += BPF_RINGBUF_HDR_SZ as usize + record.len();
            match decode(&record, self.page_bytes) {
                Ok(event) => {
                    drained.events += 1;
                    each(event);
                }
                Err(why) => {
                    drained.malformed += 1;
                    drained.why.get_or_insert(why);
                }
            }
        }
        drained.may_have_lost = bytes > self.quarter_bytes;
        drained
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
