//! Reads the segments of a recording, as far as they are whole.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use eviction_core::condition::RaisedCondition;
use eviction_core::input::{Event, Input};
use eviction_core::pod::Pod;
use eviction_core::reading::UnknownReason;
use eviction_core::snapshot::{Snapshot, SnapshotBuilder};
use eviction_core::time::Timestamp;
use eviction_kube::pods::Pod as ApiPod;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use super::format::FormatError;
use super::format::{Frames, Kind};
use super::sample::{Codec, Use};
use super::writer::{COMPRESSED, PodChange, PodsFrame, segments};
use super::{Header, Key};
use crate::zstd_stream;

/// Something that was recorded.
#[derive(Clone, Debug)]
pub enum Item {
    /// A segment begins.
    Header(Header),
    /// All that an engine needs to go on from here; pods follow.
    Key(Box<Key>),
    /// The pods were these from then on, in this order.
    Pods(Timestamp, Vec<Arc<Pod>>),
    /// The engine was told this. Never [`Event::Pods`].
    Input(Input),
    /// The engine was told of conditions from before the start.
    Seed(Vec<RaisedCondition>),
    /// What pods use, of which the engine was not told.
    Usage(Timestamp, Arc<Snapshot>),
    /// The record of a decision.
    Decision(Value),
    /// Nanoseconds from the times in the recording to what the system's clock showed, from now on.
    Clock(i64),
}

/// The segments of a recording: those of a directory, or a file. Is it one at all?
///
/// # Errors
/// If the directory cannot be read.
pub fn find(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path.metadata()?.is_dir() { segments(path) } else { Ok(vec![path.to_owned()]) }
}

/// Whether a file or directory is a recording, by its name.
pub fn is_recording(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with(".rec") || name.ends_with(".rec.zst") || segments(path).is_ok_and(|it| !it.is_empty())
}

/// Reads a segment, item by item.
pub struct Segment<R> {
    frames: Frames<R>,
    codec: Codec,
    pods: Vec<Arc<Pod>>,
    samples: Samples,
}

/// The last samples: one that nobody has kept is written over, which saves allocations.
#[derive(Default)]
struct Samples([Arc<Snapshot>; 4]);

impl Samples {
    fn read(
        &mut self,
        codec: &mut Codec,
        payload: &[u8],
    ) -> Result<(Use, Timestamp, Arc<Snapshot>), &'static str> {
        let place = self.0.iter_mut().position(|it| Arc::get_mut(it).is_some()).unwrap_or(0);
        let place = &mut self.0[place];
        let old = Arc::get_mut(place).map(std::mem::take).unwrap_or_default();
        let (usage, at, sample) = codec.read(payload, SnapshotBuilder::reuse(old))?;
        *place = Arc::new(sample);
        Ok((usage, at, Arc::clone(place)))
    }
}

impl Segment<Box<dyn Read>> {
    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read, is no recording, or one of another version.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        Segment::read(open(path)?)
    }
}

/// The bytes of a segment, decompressed.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let file = BufReader::new(File::open(path)?);
    Ok(match path.extension().is_some_and(|it| it == COMPRESSED) {
        true => Box::new(BufReader::new(zstd_stream::Frames::new(file))),
        false => Box::new(file),
    })
}

impl<R: Read> Segment<R> {
    /// Begins to read.
    ///
    /// # Errors
    /// If it is no recording, or one of another version.
    pub fn read(source: R) -> Result<Self, FormatError> {
        Ok(Self {
            frames: Frames::open(source)?,
            codec: Codec::default(),
            pods: Vec::new(),
            samples: Samples::default(),
        })
    }

    /// The next item; `None` at the end.
    ///
    /// # Errors
    /// If the segment is cut off or damaged here: there is nothing after it.
    pub fn next_item(&mut self) -> Result<Option<Item>, FormatError> {
        loop {
            let at = self.frames.at;
            let Some((kind, payload)) = self.frames.next()? else { return Ok(None) };
            let Self { codec, pods, samples, .. } = self;
            match item(kind, payload, codec, pods, samples) {
                Ok(None) => {}
                Ok(Some(item)) => return Ok(Some(item)),
                Err(why) => return Err(FormatError::Damaged { at, why }),
            }
        }
    }
}

fn item(
    kind: Kind,
    payload: &[u8],
    codec: &mut Codec,
    pods: &mut Vec<Arc<Pod>>,
    samples: &mut Samples,
) -> Result<Option<Item>, String> {
    Ok(Some(match kind {
        Kind::Header => {
            // Nothing in a segment depends on the one before, which the same file may hold.
            (*codec, *pods) = (Codec::default(), Vec::new());
            Item::Header(json(payload)?)
        }
        Kind::Key => Item::Key(json(payload)?),
        Kind::Names => {
            codec.follow(json(payload)?);
            return Ok(None);
        }
        Kind::Pods => {
            let frame: PodsFrame = json(payload)?;
            *pods = frame.pods.into_iter().map(|it| pod(it, pods)).collect::<Result<_, _>>()?;
            Item::Pods(frame.at, pods.clone())
        }
        Kind::Sample => {
            let (usage, at, sample) = samples.read(codec, payload)?;
            match usage {
                Use::Sample => Item::Input(Input { at, event: Event::Sample(sample) }),
                Use::Reclaimed => Item::Input(Input { at, event: Event::Reclaimed(Ok(sample)) }),
                Use::Usage => Item::Usage(at, sample),
            }
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
        PodChange::Same(place) => before.get(place).cloned().ok_or_else(|| "an unknown pod".to_owned()),
        PodChange::New(value) => {
            let pod: ApiPod = serde_json::from_value(value).map_err(|error| error.to_string())?;
            Ok(Arc::new(pod.into()))
        }
    }
}
