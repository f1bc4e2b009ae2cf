//! Frames: `kind u8, length u32, crc32 u32, payload`, little endian. The checksum covers kind, length and
//! payload.

use std::io::{self, Read};

use super::VERSION;

/// Begins each segment; the version follows as a `u16`.
const MAGIC: [u8; 6] = *b"EVREC\0";

/// Longer than any frame: the pods of a node with ten thousand pods.
const LONGEST: u32 = 64 << 20;

const HEAD: usize = 9;

/// What a frame holds. JSON, but for samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// [`Header`](super::Header). The first.
    Header = 1,
    /// [`Key`](super::Key).
    Key = 2,
    /// The active pods: changes since the frame before.
    Pods = 3,
    /// The pods, containers and volumes that the numbers of samples are about.
    Names = 4,
    /// A sample: numbers.
    Sample = 5,
    /// Another input.
    Event = 6,
    /// Conditions from before the start.
    Seed = 7,
    /// A decision's record.
    Decision = 8,
    /// Nanoseconds from the times in the recording to what the system's clock shows, from now on.
    Clock = 9,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Header,
        Self::Key,
        Self::Pods,
        Self::Names,
        Self::Sample,
        Self::Event,
        Self::Seed,
        Self::Decision,
        Self::Clock,
    ];
}

/// Why a segment cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It cannot be read at all.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It begins with something else.
    #[error("not a recording")]
    NotARecording,
    /// Another version has written it.
    #[error("format version {0} is not supported, this program reads version {VERSION}")]
    Version(u16),
    /// It ends within a frame.
    #[error("cut off after byte {0}")]
    Cut(u64),
    /// A checksum is wrong, or a payload says nothing.
    #[error("damaged at byte {at}: {why}")]
    Damaged {
        /// Where the frame begins.
        at: u64,
        /// What is wrong.
        why: String,
    },
}

/// The first bytes of a segment.
pub fn begin() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// Appends a frame whose payload `write` appends.
pub(super) fn frame(kind: Kind, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; HEAD]);
    write(out);
    let length = u32::try_from(out.len() - start - HEAD).unwrap_or(u32::MAX);
    out[start] = kind as u8;
    out[start + 1..start + 5].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(&out[start..start + 5], &out[start + HEAD..]);
    out[start + 5..start + HEAD].copy_from_slice(&sum.to_le_bytes());
}

/// A frame of that kind, whatever it is.
pub fn frame_of(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame(Kind::Event, &mut out, |out| out.extend(payload));
    out[0] = kind;
    let sum = checksum(&out[..5], payload);
    out[5..HEAD].copy_from_slice(&sum.to_le_bytes());
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
    /// Bytes read so far, of whole frames.
    pub(super) at: u64,
    payload: Vec<u8>,
}

impl<R: Read> Frames<R> {
    /// # Errors
    /// If it is no recording, or one of another version.
    pub(super) fn open(mut source: R) -> Result<Self, FormatError> {
        let mut head = [0; 8];
        match read_up_to(&mut source, &mut head)? {
            8 if head[..6] == MAGIC => {}
            read if read < 8 && MAGIC.starts_with(&head[..read.min(6)]) => return Err(FormatError::Cut(0)),
            _ => return Err(FormatError::NotARecording),
        }
        match u16::from_le_bytes([head[6], head[7]]) {
            VERSION => Ok(Self { source, at: 8, payload: Vec::new() }),
            other => Err(FormatError::Version(other)),
        }
    }

    /// The next frame; `None` at the end. After an error there is nothing more to read. Frames of kinds that
    /// this program does not know are skipped.
    pub(super) fn next(&mut self) -> Result<Option<(Kind, &[u8])>, FormatError> {
        let kind = loop {
            let mut head = [0; HEAD];
            match read_up_to(&mut self.source, &mut head)? {
                0 => return Ok(None),
                HEAD => {}
                _ => return Err(FormatError::Cut(self.at)),
            }
            let number = |from: usize| {
                u32::from_le_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]])
            };
            let (length, sum) = (number(1), number(5));
            if length > LONGEST {
                return Err(self.damaged("a frame is too long"));
            }
            self.payload.clear();
            let read = (&mut self.source).take(length.into()).read_to_end(&mut self.payload)?;
            if read < length as usize {
                return Err(FormatError::Cut(self.at));
            }
            if checksum(&head[..5], &self.payload) != sum {
                return Err(self.damaged("a checksum is wrong"));
            }
            self.at += (HEAD + read) as u64;
            if let Some(kind) = Kind::ALL.into_iter().find(|kind| *kind as u8 == head[0]) {
                break kind;
            }
        };
        Ok(Some((kind, &self.payload)))
    }

    pub(super) fn damaged(&self, why: impl ToString) -> FormatError {
        FormatError::Damaged { at: self.at, why: why.to_string() }
    }
}

/// As much as there is, or the buffer full.
fn read_up_to(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match source.read(&mut buffer[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
