//! Writes the segments of a recording, within limits.
//!
//! The segment that is being written is a plain file, to which one write appends each tick, so a killed agent
//! loses one tick. Complete segments are compressed piece by piece.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eviction_core::input::{Event, Input};
use eviction_core::pods::{KnownPod, PodSet};
use eviction_core::snapshot::Snapshot;
use eviction_core::time::Timestamp;
use rustix::fs::{FlockOperation, flock, statvfs};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::{self, FrameKind, pod_json};
use super::sample::Codec;
use super::{Recorded, SegmentHeader};
use crate::zstd_stream::EXTENSION;

/// A segment is complete after this time or this length in bytes.
const SEGMENT: Duration = Duration::from_secs(3600);
const SEGMENT_BYTES: u64 = 16 << 20;

/// The number of bytes that are compressed at once: the encoder needs 16 times as much memory.
pub(super) const PIECE: usize = 64 << 10;

/// The extension of segments. Compressed segments have [`EXTENSION`] as a second extension.
const PLAIN: &str = "rec";

/// Returns the path of a segment after its compression.
pub(super) fn compressed(segment: &Path) -> PathBuf {
    segment.with_extension(format!("{PLAIN}.{EXTENSION}"))
}

/// The directory of a recording, and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// The directory.
    pub directory: PathBuf,
    /// The maximum size of all segments together, in bytes.
    pub max_size: u64,
    /// The maximum age of a segment.
    pub max_age: Duration,
    /// The bytes that stay free on the file system.
    pub min_free: u64,
}

/// An active pod: either unchanged, with its index in the previous frame of pods, or as the API has it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum PodChange {
    Same(usize),
    New(Value),
}

/// Writes a recording.
#[derive(Debug)]
pub struct Writer {
    limits: Limits,
    header: SegmentHeader,
    open: Option<OpenSegment>,
    complete: Vec<PathBuf>,
    compression: Option<Compression>,
    /// The lock file, locked until the writer is dropped.
    _lock: File,
}

/// The segment that is being written.
#[derive(Debug)]
struct OpenSegment {
    path: PathBuf,
    file: File,
    length: u64,
    since: Instant,
    /// The entries that are not written yet.
    buffer: Vec<u8>,
    codec: Codec,
    /// The pods of the last frame of pods.
    pods: Arc<PodSet>,
    clock_offset: Option<i64>,
}

impl Writer {
    /// Locks the directory, and creates it if it does not exist. `header` identifies this run of the agent.
    ///
    /// # Errors
    /// If another agent records there, or the directory cannot be created.
    pub fn open(limits: Limits, header: SegmentHeader) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&limits.directory)?;
        let lock = limits.directory.join("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(io::Error::other("another agent records there"));
        }
        let mut writer =
            Self { limits, header, open: None, complete: Vec::new(), compression: None, _lock: lock };
        let segments = segments(&writer.limits.directory)?;
        let number = |path: &PathBuf| path.file_name()?.to_str()?.split('-').next()?.parse::<u64>().ok();
        writer.header.segment = segments.iter().filter_map(number).max().map_or(0, |last| last + 1);
        // Segments of an agent that was killed are not compressed yet.
        writer.complete = segments.into_iter().filter(|path| has_extension(path, PLAIN)).collect();
        Ok(writer)
    }

    /// Returns whether a segment is being written.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns whether the next segment should begin.
    pub fn wants_key(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.length > SEGMENT_BYTES || open.since.elapsed() > SEGMENT)
    }

    /// Takes an entry to record, which [`flush`](Self::flush) writes. `shown` converts a time to that of the
    /// system clock.
    ///
    /// # Errors
    /// If a segment cannot be created.
    pub fn take(&mut self, recorded: &Recorded, shown: impl Fn(Timestamp) -> Timestamp) -> io::Result<()> {
        if let Recorded::Key(key) = recorded {
            self.flush()?;
            self.begin(shown(key.at))?;
        }
        if let Some(open) = &mut self.open {
            open.take(recorded, shown);
        }
        // A key is written at once, so that the caller knows whether the segment can be written.
        if matches!(recorded, Recorded::Key(_)) { self.flush() } else { Ok(()) }
    }

    /// Writes the entries that were taken. An error ends the segment.
    ///
    /// # Errors
    /// If the entries cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if let Err(error) = open.file.write_all(&open.buffer) {
            if open.length == 0 {
                // Each retry would leave an empty segment, which no limit of the size removes.
                drop(fs::remove_file(&open.path));
                self.open = None;
            } else {
                // A partly written tick would look like damage.
                drop(open.file.set_len(open.length));
                self.end();
            }
            return Err(error);
        }
        open.length += open.buffer.len() as u64;
        open.buffer.clear();
        Ok(())
    }

    /// Ends the segment.
    pub fn end(&mut self) {
        self.complete.extend(self.open.take().map(|open| open.path));
    }

    /// Ends the segment after an error. A number is left out, because the next segment does not continue this one:
    /// the inputs in between are not written.
    pub fn abort(&mut self) {
        self.end();
        self.header.segment += 1;
    }

    fn begin(&mut self, shown: Timestamp) -> io::Result<()> {
        self.end();
        self.enforce_limits()?;
        let name = format!("{:08}-{}.{PLAIN}", self.header.segment, shown.strftime("%Y%m%dT%H%M%SZ"));
        let path = self.limits.directory.join(name);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
        let mut buffer = format::begin();
        put(&mut buffer, FrameKind::Header, &self.header);
        self.header.segment += 1;
        self.open = Some(OpenSegment {
            path,
            file,
            length: 0,
            since: Instant::now(),
            buffer,
            codec: Codec::default(),
            pods: Arc::default(),
            clock_offset: None,
        });
        Ok(())
    }

    /// Compresses a piece of a complete segment. Returns whether there is more to do.
    ///
    /// # Errors
    /// If the piece cannot be written. The segment then stays as it is.
    pub fn compress(&mut self) -> io::Result<bool> {
        let mut compression = match self.compression.take() {
            Some(begun) => begun,
            None => match self.complete.pop() {
                Some(path) => Compression::begin(path)?,
                None => return Ok(false),
            },
        };
        if compression.step()? {
            self.compression = Some(compression);
        }
        Ok(self.compression.is_some() || !self.complete.is_empty())
    }

    /// Removes the oldest segments while a limit is exceeded. Returns the size of the remaining segments in
    /// bytes.
    ///
    /// # Errors
    /// If the directory cannot be read, or the file system still has too little free space.
    pub fn enforce_limits(&mut self) -> io::Result<u64> {
        let open = self.open.as_ref().map(|open| open.path.clone());
        let mut found = Vec::new();
        for path in segments(&self.limits.directory)? {
            let metadata = path.metadata()?;
            let age = metadata.modified()?.elapsed().unwrap_or_default();
            found.push((path, metadata.len(), age));
        }
        let mut total: u64 = found.iter().map(|(_, length, _)| length).sum();
        for (path, length, age) in found {
            let is_over =
                total > self.limits.max_size || age > self.limits.max_age || self.is_disk_short()?;
            if !is_over || Some(&path) == open.as_ref() {
                break;
            }
            fs::remove_file(&path)?;
            self.complete.retain(|other| *other != path);
            drop(self.compression.take_if(|compression| compression.from == path));
            total -= length;
        }
        if self.is_disk_short()? {
            return Err(io::Error::other("the disk has too little free space"));
        }
        Ok(total)
    }

    fn is_disk_short(&self) -> io::Result<bool> {
        let file_system = statvfs(&self.limits.directory)?;
        Ok(file_system.f_bavail.saturating_mul(file_system.f_frsize) < self.limits.min_free)
    }
}

impl OpenSegment {
    fn take(&mut self, recorded: &Recorded, shown: impl Fn(Timestamp) -> Timestamp) {
        match recorded {
            Recorded::Key(key) => {
                self.record_clock(key.at, shown(key.at));
                put(&mut self.buffer, FrameKind::Key, key);
                self.put_pods(key.at, &key.pods);
            }
            Recorded::Input(Input { at, event }) => {
                self.record_clock(*at, shown(*at));
                match event {
                    Event::Pods(pods) => self.put_pods(*at, pods),
                    Event::Sample(sample) => self.put_sample(FrameKind::Sample, *at, sample),
                    Event::Reclaimed(Ok(sample)) => self.put_sample(FrameKind::Reclaimed, *at, sample),
                    Event::Reclaimed(Err(why)) => {
                        put(&mut self.buffer, FrameKind::Event, &(at, Err::<&Event, _>(why)));
                    }
                    other => put(&mut self.buffer, FrameKind::Event, &(at, Ok::<_, &()>(other))),
                }
            }
            Recorded::Seed(raised) => put(&mut self.buffer, FrameKind::Seed, raised),
            Recorded::Usage(at, sample) => self.put_sample(FrameKind::Usage, *at, sample),
            Recorded::Decision(json) => {
                put_frame(&mut self.buffer, FrameKind::Decision, |out| {
                    out.extend(json.as_bytes());
                    Ok(())
                });
            }
        }
    }

    fn put_sample(&mut self, kind: FrameKind, at: Timestamp, sample: &Snapshot) {
        if let Some(names) = self.codec.update_names(sample) {
            put(&mut self.buffer, FrameKind::Names, &names);
        }
        let (codec, skips_small_changes) = (&mut self.codec, kind == FrameKind::Usage);
        put_frame(&mut self.buffer, kind, |out| codec.write(at, sample, skips_small_changes, out));
    }

    fn put_pods(&mut self, at: Timestamp, pods: &Arc<PodSet>) {
        let before: HashMap<&str, usize> =
            self.pods.pods().iter().enumerate().map(|(index, known)| (&*known.pod.uid, index)).collect();
        let change = |known: &Arc<KnownPod>| {
            let same = before.get(&*known.pod.uid).copied();
            match same.filter(|index| self.pods.pods()[*index].pod == known.pod) {
                Some(index) => PodChange::Same(index),
                None => PodChange::New(pod_json(&known.pod)),
            }
        };
        let changes: Vec<PodChange> = pods.pods().iter().map(change).collect();
        put(&mut self.buffer, FrameKind::Pods, &(at, changes));
        self.pods = Arc::clone(pods);
    }

    fn record_clock(&mut self, at: Timestamp, shown: Timestamp) {
        let offset = i64::try_from(shown.as_nanosecond() - at.as_nanosecond()).unwrap_or(0);
        // Smaller differences are the drift of the clock.
        if self.clock_offset.is_none_or(|before| before.abs_diff(offset) > 50_000_000) {
            self.clock_offset = Some(offset);
            put(&mut self.buffer, FrameKind::Clock, &offset);
        }
    }
}

/// Appends a frame with this value as JSON.
fn put(buffer: &mut Vec<u8>, kind: FrameKind, value: &impl Serialize) {
    put_frame(buffer, kind, |out| serde_json::to_writer(out, value));
}

/// Appends a frame with the payload that `write` appends.
fn put_frame(
    buffer: &mut Vec<u8>,
    kind: FrameKind,
    write: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>,
) {
    format::frame(kind as u8, buffer, |out| {
        if let Err(error) = write(out) {
            tracing::error!(%error, ?kind, "an entry cannot be recorded");
        }
    });
}

/// Returns the segments in a directory, the oldest first.
pub(super) fn segments(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let stem = path.with_extension("");
        match path.extension().and_then(|it| it.to_str()) {
            Some(PLAIN) => found.push(path),
            Some(EXTENSION) if has_extension(&stem, PLAIN) => found.push(path),
            _ => {}
        }
    }
    found.sort();
    // Both files exist if the agent was killed between the two steps. Then the compressed one is complete.
    let all = found.clone();
    found.retain(|path| !has_extension(path, PLAIN) || !all.contains(&compressed(path)));
    Ok(found)
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|it| it == extension)
}

/// The compression of a complete segment. Its file is removed if the compression is not completed.
#[derive(Debug)]
struct Compression {
    from: PathBuf,
    source: File,
    part: PathBuf,
    out: File,
}

impl Drop for Compression {
    fn drop(&mut self) {
        // After the last step the file has another name.
        drop(fs::remove_file(&self.part));
    }
}

impl Compression {
    fn begin(from: PathBuf) -> io::Result<Self> {
        let part = from.with_extension("part");
        let source = File::open(&from)?;
        let out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        Ok(Self { from, source, part, out })
    }

    /// Compresses the next piece as a separate zstd frame. Returns whether there is more to do.
    fn step(&mut self) -> io::Result<bool> {
        let mut piece = Vec::with_capacity(PIECE);
        (&mut self.source).take(PIECE as u64).read_to_end(&mut piece)?;
        if !piece.is_empty() {
            self.out.write_all(&compress_to_vec(&*piece, CompressionLevel::Fastest))?;
            return Ok(true);
        }
        // The age of a segment is computed from its modification time.
        self.out.set_modified(self.source.metadata()?.modified()?)?;
        fs::rename(&self.part, compressed(&self.from))?;
        fs::remove_file(&self.from)?;
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use eviction_core::fixture::at;

    use super::*;
    use crate::telemetry::recording::tests::limits;

    #[test]
    fn a_segment_whose_first_write_fails_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(limits(folder.path()), SegmentHeader::default()).unwrap();
        writer.begin(at(0)).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        writer.open.as_mut().unwrap().file = full;
        assert!(writer.flush().is_err() && !writer.is_open());
        assert!(segments(folder.path()).unwrap().is_empty());
        assert!(!writer.compress().unwrap());
    }
}
