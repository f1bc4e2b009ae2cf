//! Copies the end of a recording, even while the agent is writing it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::format::{Frames, SegmentError, begin, frame_of};
use super::reader::find;
use super::writer::{PIECE, compressed};
use crate::zstd_stream;

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
    let (mut frames, mut copy) = (Frames::open(zstd_stream::open(segment)?)?, Vec::new());
    loop {
        match frames.next() {
            Ok(Some((kind, payload))) => copy.extend(frame_of(kind as u8, payload)),
            Ok(None) => return Ok(copy),
            Err(error) if error.is_cut => return Ok(copy),
            Err(error) => return Err(error),
        }
    }
}
