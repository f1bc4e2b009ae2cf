//! Reads the segments of a recording, as far as they are complete.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use eviction_core::condition::RaisedCondition;
use eviction_core::input::{Event, Input};
use eviction_core::pod::Pod;
use eviction_core::reading::UnknownReason;
use eviction_core::snapshot::Snapshot;
use eviction_core::time::Timestamp;
use eviction_kube::pods::Pod as ApiPod;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use super::format::SegmentError;
use super::format::{Frames, Kind};
use super::sample::Codec;
use super::writer::{PodChange, compressed, segments};
use super::{Header, Key};
use crate::zstd_stream;

/// An item of a recording.
#[derive(Clone, Debug)]
pub enum Item {
    /// The header with which a segment begins.
    Header(Header),
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

/// Reads a segment, item by item.
pub struct Segment<R> {
    frames: Frames<R>,
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
    pub fn read(source: R) -> Result<Self, SegmentError> {
        Ok(Self { frames: Frames::open(source)?, codec: Codec::default(), pods: Vec::new() })
    }

    /// Returns the next item, or `None` at the end.
    ///
    /// # Errors
    /// If the segment is cut off or damaged here. Nothing after it can be read.
    pub fn next_item(&mut self) -> Result<Option<Item>, SegmentError> {
        loop {
            let at = self.frames.at;
            let Some((kind, payload)) = self.frames.next()? else { return Ok(None) };
            let item = decode(kind, payload, &mut self.codec, &mut self.pods);
            if let Some(item) = item.map_err(|why| SegmentError::damaged(at, &why))? {
                return Ok(Some(item));
            }
        }
    }
}

/// Decodes a frame, which depends on earlier ones. Returns `None` if it has no item.
fn decode(
    kind: Kind,
    payload: &[u8],
    codec: &mut Codec,
    pods: &mut Vec<Arc<Pod>>,
) -> Result<Option<Item>, String> {
    Ok(Some(match kind {
        Kind::Header => {
            // A segment does not depend on the previous one, which the same file may contain.
            (*codec, *pods) = (Codec::default(), Vec::new());
            Item::Header(json(payload)?)
        }
        Kind::Key => Item::Key(json(payload)?),
        Kind::Names => {
            codec.set_names(json(payload)?);
            return Ok(None);
        }
        Kind::Pods => {
            let (at, changes): (Timestamp, Vec<PodChange>) = json(payload)?;
            *pods = changes.into_iter().map(|it| pod(it, pods)).collect::<Result<_, _>>()?;
            Item::Pods(at, pods.clone())
        }
        Kind::Sample => {
            let (at, sample) = codec.read(payload)?;
            Item::Input(Input { at, event: Event::Sample(Arc::new(sample)) })
        }
        Kind::Reclaimed => {
            let (at, sample) = codec.read(payload)?;
            Item::Input(Input { at, event: Event::Reclaimed(Ok(Arc::new(sample))) })
        }
        Kind::Usage => {
            let (at, sample) = codec.read(payload)?;
            Item::Usage(at, Arc::new(sample))
        }
        Kind::Event => {
            let (at, event): (Timestamp, Result<Event, UnknownReason>) = json(payload)?;
            let event = event.unwrap_or_else(|why| Event::Reclaimed(Err(why)));
            Item::Input(Input { at, event })
        }
        Kind::Seed => Item::Seed(json(payload)?),
        Kind::Decision => Item::Decision(json(payload)?),
        Kind::Clock => Item::Clock(json(payload)?),
    }))
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
