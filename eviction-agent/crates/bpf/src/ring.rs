//! The ring buffer's reader.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use aya::maps::{MapData, RingBuf};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    decode::{DecodeError, decode},
    event::Event,
    sequence::Sequence,
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
