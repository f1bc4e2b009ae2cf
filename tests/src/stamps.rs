//! How much a growing process had touched at which time, readable also after its SIGKILL.
//!
//! The workload maps a shared file: a header, then a ring of (nanoseconds, bytes) pairs, one pair for each
//! [`STEP`] touched. Times are CLOCK_MONOTONIC.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// The bytes between two stamps: 64 pages of 4 KiB.
pub const STEP: u64 = 256 * 1024;

const MAGIC: u64 = u64::from_le_bytes(*b"evstamp1");
const HEADER: usize = 4096;
const CAPACITY: u64 = 65_536;
const LEN: usize = HEADER + CAPACITY as usize * 16;

#[derive(Clone, Copy)]
enum Field {
    Magic = 0,
    Count = 1,
    Go = 2,
    Term = 3,
    Done = 4,
}

/// The side of the workload. Safe to use from several threads, forked children and signal handlers.
#[derive(Clone, Copy)]
pub struct Writer(&'static [AtomicU64]);

impl Writer {
    /// Creates the file, maps it and touches all of it, so that stamping charges nothing later.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create_new(path).with_context(|| format!("create {}", path.display()))?;
        Self::map(&file).with_context(|| format!("map {}", path.display()))
    }

    /// Creates a writer of stamps that are not read.
    pub fn discarding() -> Result<Self> {
        let file = tempfile::tempfile().context("create a temporary file")?;
        Self::map(&file).context("map a temporary file")
    }

    fn map(file: &File) -> Result<Self> {
        file.set_len(LEN as u64)?;
        // SAFETY: a new mapping of LEN bytes that exist in the file, never unmapped, page-aligned,
        // accessed only as atomics.
        let words = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let base = mmap(std::ptr::null_mut(), LEN, access, MapFlags::SHARED, file, 0)?;
            std::slice::from_raw_parts(base.cast::<AtomicU64>(), LEN / 8)
        };
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
        words[Field::Magic as usize].store(MAGIC, Ordering::Release);
        Ok(Self(words))
    }

    fn field(&self, field: Field) -> &AtomicU64 {
        &self.0[field as usize]
    }

    /// Stamps that growth begins now.
    pub fn go(&self) {
        self.field(Field::Go).store(crate::clock::now(), Ordering::Release);
    }

    /// Stamps that growth has ended by itself.
    pub fn done(&self) {
        self.field(Field::Done).store(crate::clock::now(), Ordering::Release);
    }

    /// Stamps a SIGTERM; the first one counts. For signal handlers.
    pub fn term(&self) {
        let _ = self.field(Field::Term).compare_exchange(
            0,
            crate::clock::now(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// Stamps that `bytes` have been touched by now.
    pub fn stamp(&self, bytes: u64) {
        let index = self.field(Field::Count).fetch_add(1, Ordering::Relaxed) % CAPACITY;
        let at = HEADER / 8 + index as usize * 2;
        self.0[at].store(0, Ordering::Release);
        self.0[at + 1].store(bytes, Ordering::Release);
        self.0[at].store(crate::clock::now(), Ordering::Release);
    }
}

/// A stamp: by `ns`, `bytes` had been touched, and fewer than [`STEP`] more per thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub ns: u64,
    /// Bytes touched since the start of the growth.
    pub bytes: u64,
}

/// When a workload had taken an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// By this stamp.
    ByStamp(u64),
    /// After this stamp, which is the last one.
    AfterStamp(u64),
}

impl Reached {
    /// Returns the time of the stamp.
    pub const fn ns(self) -> u64 {
        let (Self::ByStamp(ns) | Self::AfterStamp(ns)) = self;
        ns
    }
}

/// The stamps of a workload until now.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// When growth began.
    pub go: Option<u64>,
    /// When the first SIGTERM came.
    pub term: Option<u64>,
    /// When growth ended by itself.
    pub done: Option<u64>,
    /// The stamps, in order of time.
    pub stamps: Vec<Stamp>,
}

impl Record {
    /// Reads the file, also while the workload runs.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&bytes).with_context(|| format!("stamps in {}", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() != LEN {
            bail!("{} bytes instead of {LEN}", bytes.len());
        }
        let word = |index: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_ne_bytes(raw)
        };
        let field = |field: Field| word(field as usize);
        let time = |at: Field| Some(field(at)).filter(|&ns| ns != 0);
        if field(Field::Magic) != MAGIC {
            bail!("wrong magic number");
        }
        let count = field(Field::Count);
        let mut stamps: Vec<_> = (0..count.min(CAPACITY) as usize)
            .map(|index| HEADER / 8 + index * 2)
            .map(|at| Stamp { ns: word(at), bytes: word(at + 1) })
            .filter(|stamp| stamp.ns != 0)
            .collect();
        stamps.sort_by_key(|stamp| (stamp.ns, stamp.bytes));
        Ok(Self { go: time(Field::Go), term: time(Field::Term), done: time(Field::Done), stamps })
    }

    /// Returns the bytes that had certainly been touched at `ns`.
    pub fn bytes_at(&self, ns: u64) -> u64 {
        let stamps = self.stamps.iter().filter(|stamp| stamp.ns <= ns);
        stamps.map(|stamp| stamp.bytes).max().unwrap_or(0)
    }

    /// Returns when at least `bytes` had been touched.
    pub fn reached(&self, bytes: u64) -> Option<u64> {
        self.stamps.iter().find(|stamp| stamp.bytes >= bytes).map(|stamp| stamp.ns)
    }

    /// Returns when at least `amount` had been taken by one thread that takes `step` between two stamps. If it was
    /// stopped before that stamp, the crossing is after the last one, whose time is returned.
    pub fn reached_by_steps(&self, amount: u64, step: u64) -> Option<Reached> {
        let stamped = self.reached(amount).map(Reached::ByStamp);
        let next = || self.last().filter(|stamp| stamp.bytes + step >= amount);
        stamped.or_else(|| next().map(|stamp| Reached::AfterStamp(stamp.ns)))
    }

    /// Returns when the step began that took the first byte of `amount`: the time of the last stamp below it.
    pub fn step_to(&self, amount: u64) -> Option<u64> {
        self.stamps.iter().rfind(|stamp| stamp.bytes < amount).map(|stamp| stamp.ns)
    }

    /// Returns the last stamp: no more than it plus one [`STEP`] per thread was ever touched.
    pub fn last(&self) -> Option<Stamp> {
        self.stamps.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_stamps_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stamps");
        let writer = Writer::create(&path).unwrap();
        assert_eq!(Record::read(&path).unwrap().stamps, []);
        writer.go();
        for step in 1..=10 {
            writer.stamp(step * STEP);
        }
        writer.term();
        let record = Record::read(&path).unwrap();
        assert_eq!(record.stamps.len(), 10);
        assert_eq!(record.done, None);
        let third = record.reached(3 * STEP - 1).unwrap();
        assert_eq!(record.bytes_at(third - 1).max(2 * STEP), 2 * STEP);
        assert_eq!(record.bytes_at(u64::MAX), 10 * STEP);
        assert!(record.go.unwrap() <= third && third <= record.term.unwrap());
    }

    #[test]
    fn ring_keeps_the_newest_stamps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stamps");
        let writer = Writer::create(&path).unwrap();
        for step in 1..=CAPACITY + 5 {
            writer.stamp(step);
        }
        let record = Record::read(&path).unwrap();
        assert_eq!(record.last().unwrap().bytes, CAPACITY + 5);
        assert_eq!(record.stamps[0].bytes, 6);
    }

    #[test]
    fn the_step_after_the_last_stamp_may_reach_an_amount() {
        let stamps = [(10, 4), (20, 8)].map(|(ns, bytes)| Stamp { ns, bytes });
        let record = Record { stamps: stamps.into(), ..Record::default() };
        let reached = [4, 5, 8, 9, 12, 13].map(|amount| record.reached_by_steps(amount, 4));
        let [by, after] = [Reached::ByStamp, Reached::AfterStamp];
        assert_eq!(
            reached,
            [Some(by(10)), Some(by(20)), Some(by(20)), Some(after(20)), Some(after(20)), None]
        );
        assert_eq!(Record::default().reached_by_steps(1, 4), None);
    }

    #[test]
    fn file_without_stamps_is_refused() {
        assert!(Record::parse(b"short").is_err());
        assert!(Record::parse(&vec![0; LEN]).is_err());
    }
}
