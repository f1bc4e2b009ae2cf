//! The format of frames: `kind u8, length u32, crc32 u32, payload`, little endian. The checksum covers kind,
//! length and payload.

use std::io::{self, Read};

use serde::Serialize;

use super::VERSION;

/// The first bytes of each segment. The version follows as a `u16`.
const MAGIC: [u8; 6] = *b"EVREC\0";

/// The maximum length of a payload in bytes: more than the pods of a node with ten thousand pods.
const MAX_PAYLOAD: u32 = 64 << 20;

const HEAD: usize = 9;

/// The content of a frame: JSON, except for the pods of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// [`Header`](super::Header), the first frame of a segment.
    Header = 1,
    /// [`Key`](super::Key).
    Key = 2,
    /// A time and the active pods from then on, as changes since the previous frame.
    Pods = 3,
    /// The pods, containers and volumes to which the numbers of samples belong.
    Names = 4,
    /// A sample that was passed to the engine.
    Sample = 5,
    /// An input other than a sample or the active pods.
    Event = 6,
    /// Conditions from before the start.
    Seed = 7,
    /// The record of a decision.
    Decision = 8,
    /// The offset in nanoseconds from the times in the recording to the system clock, valid from here on.
    Clock = 9,
    /// A sample that was passed to the engine after node reclaim.
    Reclaimed = 10,
    /// A sample that was not passed to the engine.
    Usage = 11,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Header,
        Self::Key,
        Self::Pods,
        Self::Names,
        Self::Sample,
        Self::Event,
        Self::Seed,
        Self::Decision,
        Self::Clock,
        Self::Reclaimed,
        Self::Usage,
    ];
}

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
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_cut: false }
    }

    fn cut(at: u64) -> Self {
        Self { text: format!("cut off after byte {at}"), is_cut: true }
    }

    /// Returns the error of a frame that ends or begins at this byte.
    pub(super) fn damaged(at: u64, why: &str) -> Self {
        Self::new(format!("damaged at byte {at}: {why}"))
    }
}

impl From<io::Error> for SegmentError {
    fn from(error: io::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Returns the first bytes of a segment.
pub fn begin() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// Appends a frame with this kind, which may be an unknown one. `write` appends its payload.
pub(super) fn frame(kind: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; HEAD]);
    write(out);
    let length = u32::try_from(out.len() - start - HEAD).unwrap_or(u32::MAX);
    out[start] = kind;
    out[start + 1..start + 5].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(&out[start..start + 5], &out[start + HEAD..]);
    out[start + 5..start + HEAD].copy_from_slice(&sum.to_le_bytes());
}

/// Returns a frame with this kind, which may be an unknown one.
pub fn frame_of(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame(kind, &mut out, |out| out.extend(payload));
    out
}

fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(payload);
    hasher.finalize()
}

/// Reads frames one after the other.
pub(super) struct Frames<R> {
    source: R,
    /// The position after the last whole frame, in bytes.
    pub(super) at: u64,
    payload: Vec<u8>,
}

impl<R: Read> Frames<R> {
    /// # Errors
    /// If the source is not a recording, or one of another version.
    pub(super) fn open(mut source: R) -> Result<Self, SegmentError> {
        let mut head = [0; 8];
        match read_up_to(&mut source, &mut head)? {
            8 if head[..6] == MAGIC => {}
            read if read < 8 && MAGIC.starts_with(&head[..read.min(6)]) => return Err(SegmentError::cut(0)),
            _ => return Err(SegmentError::new("not a recording")),
        }
        match u16::from_le_bytes([head[6], head[7]]) {
            VERSION => Ok(Self { source, at: 8, payload: Vec::new() }),
            other => Err(SegmentError::new(format!(
                "format version {other} is not supported, this program reads version {VERSION}"
            ))),
        }
    }

    /// Returns the next frame, or `None` at the end. After an error nothing more can be read. Frames of
    /// unknown kinds are skipped.
    pub(super) fn next(&mut self) -> Result<Option<(Kind, &[u8])>, SegmentError> {
        let kind = loop {
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
            if let Some(kind) = Kind::ALL.into_iter().find(|kind| *kind as u8 == head[0]) {
                break kind;
            }
        };
        Ok(Some((kind, &self.payload)))
    }
}

/// Reads until the buffer is full or the source ends. Returns the number of bytes.
fn read_up_to(source: &mut impl Read, mut buffer: &mut [u8]) -> io::Result<usize> {
    let length = buffer.len() as u64;
    io::copy(&mut source.take(length), &mut buffer).map(|read| read as usize)
}
