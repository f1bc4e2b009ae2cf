//! Reads the segments of a recording, as far as they are complete, and copies the end of a recording, even while the
//! agent is writing it.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use eviction_core::condition::RaisedCondition;
use eviction_core::input::{Event, Input};
use eviction_core::pod::Pod;
use eviction_core::reading::UnknownReason;
use eviction_core::snapshot::Snapshot;
use eviction_core::time::Timestamp;
use eviction_kube::pods::Pod as ApiPod;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::format::{FrameKind, HEAD, MAGIC, MAX_PAYLOAD, begin, checksum, frame_of};
use super::sample::Codec;
use super::writer::{PIECE, PodChange, compressed, segments};
use super::{Key, SegmentHeader, VERSION};
use crate::zstd_stream;

/// The reason why a segment cannot be read to its end. In JSON it is its text.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct SegmentError {
    /// The position and the reason.
    pub text: String,
    /// Whether the segment ends within a frame, as a killed agent leaves it.
    #[serde(skip)]
    pub is_cut: bool,
}

impl SegmentError {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_cut: false }
    }

    fn cut(at: u64) -> Self {
        Self { text: format!("cut off after byte {at}"), is_cut: true }
    }

    /// Returns the error of a frame that ends or begins at this byte.
    fn damaged(at: u64, why: &str) -> Self {
        Self::new(format!("damaged at byte {at}: {why}"))
    }
}

impl From<io::Error> for SegmentError {
    fn from(error: io::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// An item of a recording.
#[derive(Clone, Debug)]
pub enum Item {
    /// The header with which a segment begins.
    Header(SegmentHeader),
    /// The data that an engine needs to continue from here. The pods follow.
    Key(Box<Key>),
    /// The active pods from this time on, in this order.
    Pods(Timestamp, Vec<Arc<Pod>>),
    /// An input of the engine. Never [`Event::Pods`].
    Input(Input),
    /// Conditions from before the start, which were passed to the engine.
    Seed(Vec<RaisedCondition>),
    /// The usage of pods in a sample that was not passed to the engine.
    Usage(Timestamp, Arc<Snapshot>),
    /// The record of a decision.
    Decision(Value),
    /// The offset in nanoseconds from the times in the recording to the system clock, valid from
    /// here on.
    Clock(i64),
}

/// Returns the segments of a recording: those of a directory, or the file itself. It does not check
/// that the file is a recording.
///
/// # Errors
/// If the directory cannot be read.
pub fn find(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path.metadata()?.is_dir() { segments(path) } else { Ok(vec![path.to_owned()]) }
}

/// Returns whether a file or directory is a recording, by its name.
pub fn is_recording(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with(".rec") || name.ends_with(".rec.zst") || segments(path).is_ok_and(|it| !it.is_empty())
}

/// Reads the items of several segments, and the errors of segments that cannot be read to their end.
#[derive(Default)]
pub struct Items {
    /// The segments. The first one is being read.
    files: VecDeque<PathBuf>,
    /// The first segment, once it is open.
    segment: Option<Segment<Box<dyn BufRead>>>,
}

impl Items {
    /// Reads all segments of a recording.
    ///
    /// # Errors
    /// If the recording cannot be found, or has no segment.
    pub fn of(path: &Path) -> io::Result<Self> {
        match find(path)? {
            files if files.is_empty() => Err(io::Error::new(io::ErrorKind::NotFound, "no recording")),
            files => Ok(Self::of_files(files)),
        }
    }

    /// Reads these segments.
    pub fn of_files(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { files: files.into_iter().collect(), segment: None }
    }

    /// Returns the next item of the first segment, which is opened if it is not open yet.
    fn next_of_first(&mut self) -> Result<Option<Item>, SegmentError> {
        let Some(file) = self.files.front() else { return Ok(None) };
        let segment = match &mut self.segment {
            Some(segment) => segment,
            closed => closed.insert(Segment::open(file)?),
        };
        segment.next_item()
    }
}

impl Iterator for Items {
    type Item = Result<Item, SegmentError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let read = self.next_of_first();
            if let Ok(Some(item)) = read {
                return Some(Ok(item));
            }
            self.segment = None;
            let file = self.files.pop_front()?;
            if let Err(error) = read {
                let text = format!("read {}: {}", file.display(), error.text);
                return Some(Err(SegmentError { text, ..error }));
            }
        }
    }
}

/// Reads a segment, frame by frame or item by item.
pub struct Segment<R> {
    source: R,
    /// The position after the last whole frame, in bytes.
    at: u64,
    /// The payload of the last frame.
    payload: Vec<u8>,
    codec: Codec,
    /// The pods of the last frame of pods.
    pods: Vec<Arc<Pod>>,
}

impl Segment<Box<dyn BufRead>> {
    /// Opens a file.
    ///
    /// # Errors
    /// If the file cannot be read, is not a recording, or is one of another version.
    pub fn open(path: &Path) -> Result<Self, SegmentError> {
        let source = zstd_stream::open(path).or_else(|error| match error.kind() {
            // The agent may have compressed the segment since it was found.
            io::ErrorKind::NotFound => zstd_stream::open(&compressed(path)).map_err(|_| error),
            _ => Err(error),
        });
        Segment::read(source?)
    }
}

impl<R: Read> Segment<R> {
    /// Starts to read a segment.
    ///
    /// # Errors
    /// If the source is not a recording, or one of another version.
    pub fn read(mut source: R) -> Result<Self, SegmentError> {
        let mut head = [0; 8];
        match read_up_to(&mut source, &mut head)? {
            8 if head[..6] == MAGIC => {}
            read if read < 8 && MAGIC.starts_with(&head[..read.min(6)]) => return Err(SegmentError::cut(0)),
            _ => return Err(SegmentError::new("not a recording")),
        }
        match u16::from_le_bytes([head[6], head[7]]) {
            VERSION => {
                Ok(Self { source, at: 8, payload: Vec::new(), codec: Codec::default(), pods: Vec::new() })
            }
            other => Err(SegmentError::new(format!(
                "format version {other} is not supported, this program reads version {VERSION}"
            ))),
        }
    }

    /// Returns the next item, or `None` at the end.
    ///
    /// # Errors
    /// If the segment is cut off or damaged here. Nothing after it can be read.
    pub fn next_item(&mut self) -> Result<Option<Item>, SegmentError> {
        loop {
            let at = self.at;
            let Some(kind) = self.next_frame()? else { return Ok(None) };
            if let Some(item) = self.decode(kind).map_err(|why| SegmentError::damaged(at, &why))? {
                return Ok(Some(item));
            }
        }
    }

    /// Reads the next frame and its payload. Returns its kind, or `None` at the end. Frames of unknown kinds are
    /// skipped.
    fn next_frame(&mut self) -> Result<Option<FrameKind>, SegmentError> {
        loop {
            let mut head = [0; HEAD];
            match read_up_to(&mut self.source, &mut head)? {
                0 => return Ok(None),
                HEAD => {}
                _ => return Err(SegmentError::cut(self.at)),
            }
            let number = |from: usize| {
                u32::from_le_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]])
            };
            let (length, sum) = (number(1), number(5));
            if length > MAX_PAYLOAD {
                return Err(SegmentError::damaged(self.at, "a frame is too long"));
            }
            self.payload.clear();
            let read = (&mut self.source).take(length.into()).read_to_end(&mut self.payload)?;
            if read < length as usize {
                return Err(SegmentError::cut(self.at));
            }
            if checksum(&head[..5], &self.payload) != sum {
                return Err(SegmentError::damaged(self.at, "a checksum is wrong"));
            }
            self.at += (HEAD + read) as u64;
            if let Some(kind) = FrameKind::ALL.into_iter().find(|kind| *kind as u8 == head[0]) {
                return Ok(Some(kind));
            }
        }
    }

    /// Decodes the last frame, which depends on earlier ones. Returns `None` if it has no item.
    fn decode(&mut self, kind: FrameKind) -> Result<Option<Item>, String> {
        let Self { payload, codec, pods, .. } = self;
        Ok(Some(match kind {
            FrameKind::Header => {
                // A segment does not depend on the previous one, which the same file may contain.
                (*codec, *pods) = (Codec::default(), Vec::new());
                Item::Header(json(payload)?)
            }
            FrameKind::Key => Item::Key(json(payload)?),
            FrameKind::Names => {
                codec.set_names(json(payload)?);
                return Ok(None);
            }
            FrameKind::Pods => {
                let (at, changes): (Timestamp, Vec<PodChange>) = json(payload)?;
                *pods = changes.into_iter().map(|it| pod(it, pods)).collect::<Result<_, _>>()?;
                Item::Pods(at, pods.clone())
            }
            FrameKind::Sample => {
                let (at, sample) = codec.read(payload)?;
                Item::Input(Input { at, event: Event::Sample(Arc::new(sample)) })
            }
            FrameKind::Reclaimed => {
                let (at, sample) = codec.read(payload)?;
                Item::Input(Input { at, event: Event::Reclaimed(Ok(Arc::new(sample))) })
            }
            FrameKind::Usage => {
                let (at, sample) = codec.read(payload)?;
                Item::Usage(at, Arc::new(sample))
            }
            FrameKind::Event => {
                let (at, event): (Timestamp, Result<Event, UnknownReason>) = json(payload)?;
                let event = event.unwrap_or_else(|why| Event::Reclaimed(Err(why)));
                Item::Input(Input { at, event })
            }
            FrameKind::Seed => Item::Seed(json(payload)?),
            FrameKind::Decision => Item::Decision(json(payload)?),
            FrameKind::Clock => Item::Clock(json(payload)?),
        }))
    }
}

fn json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}

fn pod(change: PodChange, before: &[Arc<Pod>]) -> Result<Arc<Pod>, String> {
    match change {
        PodChange::Same(index) => before.get(index).cloned().ok_or_else(|| "an unknown pod".to_owned()),
        PodChange::New(value) => {
            let pod: ApiPod = serde_json::from_value(value).map_err(|error| error.to_string())?;
            Ok(Arc::new(pod.into()))
        }
    }
}

/// Reads until the buffer is full or the source ends. Returns the number of bytes.
fn read_up_to(source: &mut impl Read, mut buffer: &mut [u8]) -> io::Result<usize> {
    let length = buffer.len() as u64;
    io::copy(&mut source.take(length), &mut buffer).map(|read| read as usize)
}

/// Writes the segments that were written to in the time `last` before the end of the recording, one after the
/// other and compressed. A damaged segment is left out, because the next one begins with its own key. Returns the
/// reason for each segment that was left out.
///
/// # Errors
/// If the directory cannot be read, has no segment that can be read, or the copy cannot be written.
pub fn copy_end(path: &Path, last: Duration, out: &mut dyn Write) -> io::Result<Vec<String>> {
    let ended = |segment: &PathBuf| segment.metadata().ok().filter(|it| it.len() > 0)?.modified().ok();
    // An empty file may be the output file itself.
    let segments: Vec<_> = find(path)?.into_iter().filter(|it| ended(it).is_some()).collect();
    let end = segments.iter().filter_map(ended).max();
    let from = end.and_then(|end| end.checked_sub(last)).unwrap_or(SystemTime::UNIX_EPOCH);
    let (mut copied, mut left_out) = (0, Vec::new());
    for segment in segments {
        // A segment that no longer exists was compressed, or was removed as the oldest one.
        let segment = if segment.exists() { segment } else { compressed(&segment) };
        if ended(&segment).is_none_or(|ended| ended < from) {
            continue;
        }
        match frames(&segment) {
            Ok(frames) => {
                let begin = if copied == 0 { begin() } else { Vec::new() };
                for piece in [begin, frames].concat().chunks(PIECE) {
                    out.write_all(&compress_to_vec(piece, CompressionLevel::Fastest))?;
                }
                copied += 1;
            }
            Err(error) => left_out.push(format!("{}: {}", segment.display(), error.text)),
        }
    }
    if copied > 0 {
        return Ok(left_out);
    }
    let why = left_out.into_iter().next().unwrap_or_else(|| "no recording".to_owned());
    Err(io::Error::new(io::ErrorKind::NotFound, why))
}

/// Returns the frames of a segment, up to the one that is being written.
fn frames(segment: &Path) -> Result<Vec<u8>, SegmentError> {
    let (mut segment, mut frames) = (Segment::open(segment)?, Vec::new());
    loop {
        match segment.next_frame() {
            Ok(Some(kind)) => frames.extend(frame_of(kind as u8, &segment.payload)),
            Ok(None) => return Ok(frames),
            Err(error) if error.is_cut => return Ok(frames),
            Err(error) => return Err(error),
        }
    }
}
