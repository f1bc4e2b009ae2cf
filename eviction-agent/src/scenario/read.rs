//! Finding scenarios: in a file, a folder, a stream with one a line, on standard input, each
//! also compressed with zstd.

use std::fs::File;
use std::io;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use serde::de::IgnoredAny;

use crate::scenario::format::Case;

/// What was found at a place: a scenario, or why it is none.
pub type Found = Result<Case, ReadError>;

/// Something that is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file or folder that cannot be read.
    #[error("read {place}: {source}")]
    Io {
        /// Which one.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// A text that is no JSON, or not that of a scenario.
    #[error("parse {place}:{line}: {source}")]
    Malformed {
        /// Which file.
        place: String,
        /// In which line of it.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// Hands over everything that is found at a path, `-` being standard input. Folders are
/// searched for `.json` and `.jsonl`, with `.zst` behind or not, in the order of names.
pub fn each(path: &Path, use_one: &mut dyn FnMut(Found)) {
    if path == Path::new("-") {
        return stream("standard input", &mut io::stdin().lock(), use_one);
    }
    match files(path) {
        Ok(files) => files.iter().for_each(|file| each_in_file(file, use_one)),
        Err(source) => use_one(Err(io_error(path, source))),
    }
}

fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.metadata()?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut inside = Vec::new();
    for entry in path.read_dir()? {
        inside.push(entry?.path());
    }
    inside.sort();
    let mut found = Vec::new();
    for path in inside {
        let name = path.to_string_lossy();
        let name = name.strip_suffix(".zst").unwrap_or(&name);
        if path.is_dir() {
            found.append(&mut files(&path)?);
        } else if name.ends_with(".json") || name.ends_with(".jsonl") {
            found.push(path);
        }
    }
    Ok(found)
}

fn each_in_file(path: &Path, use_one: &mut dyn FnMut(Found)) {
    let place = path.display().to_string();
    let compressed = path.extension().is_some_and(|extension| extension == "zst");
    let opened = File::open(path).map(BufReader::new).map(|file| match compressed {
        true => Box::new(BufReader::new(Frames::new(file))) as Box<dyn BufRead>,
        false => Box::new(file),
    });
    match opened {
        Ok(mut reader) => stream(&place, &mut *reader, use_one),
        Err(source) => use_one(Err(io_error(path, source))),
    }
}

fn io_error(path: &Path, source: io::Error) -> ReadError {
    ReadError::Io { place: path.display().to_string(), source }
}

/// One value a line, unless the whole is one value over several lines.
fn stream(place: &str, reader: &mut dyn BufRead, use_one: &mut dyn FnMut(Found)) {
    let mut lines = Lines { place, number: 0, text: Vec::new() };
    let mut first = true;
    loop {
        match lines.next(reader) {
            Ok(false) => return,
            Ok(true) if first && !is_value(&lines.text) => {
                return without_whole_first_line(lines, reader, use_one);
            }
            Ok(true) => use_one(lines.case()),
            Err(error) => return use_one(Err(error)),
        }
        first = false;
    }
}

/// Either a value over several lines, or a stream whose first line is broken.
fn without_whole_first_line(mut lines: Lines<'_>, reader: &mut dyn BufRead, use_one: &mut dyn FnMut(Found)) {
    let mut rest = Vec::new();
    if let Err(source) = reader.read_to_end(&mut rest) {
        return use_one(Err(lines.io(source)));
    }
    let is_stream =
        rest.split(|byte| *byte == b'\n').any(|line| line.first() == Some(&b'{') && is_value(line));
    if !is_stream {
        lines.text.append(&mut rest);
        return use_one(lines.case());
    }
    use_one(lines.case());
    let mut rest = rest.as_slice();
    while lines.next(&mut rest).unwrap_or(false) {
        use_one(lines.case());
    }
}

fn is_value(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// The line that is being read.
struct Lines<'a> {
    place: &'a str,
    number: usize,
    text: Vec<u8>,
}

impl Lines<'_> {
    /// Goes on to the next line that is not empty, if there is one.
    fn next(&mut self, reader: &mut dyn BufRead) -> Result<bool, ReadError> {
        loop {
            self.text.clear();
            self.number += 1;
            let read = reader.read_until(b'\n', &mut self.text);
            match read.map_err(|source| self.io(source))? {
                0 => return Ok(false),
                _ if self.text.trim_ascii().is_empty() => {}
                _ => return Ok(true),
            }
        }
    }

    fn case(&self) -> Found {
        serde_json::from_slice(self.text.trim_ascii_end()).map_err(|source| ReadError::Malformed {
            place: self.place.to_owned(),
            line: self.number - 1 + source.line().max(1),
            source,
        })
    }

    fn io(&self, source: io::Error) -> ReadError {
        ReadError::Io { place: self.place.to_owned(), source }
    }
}

/// Reads frame by frame to the end.
pub(super) struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    Within,
    /// Whatever fails has lost its place: nothing comes after it.
    Failed,
}

impl<R: BufRead> Frames<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, decoder: FrameDecoder::new(), state: State::Between }
    }

    /// Goes to the next frame that holds something. False at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.source.by_ref().take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }

    /// The decoder leaves it to its user whether what it gave was right.
    fn check_sum(&self) -> io::Result<()> {
        let wanted = self.decoder.get_checksum_from_data();
        if wanted.is_some() && wanted != self.decoder.get_calculated_checksum() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a frame is wrong"));
        }
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.state == State::Between {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.state = State::Within;
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.decoder.is_finished() {
                self.check_sum()?;
                self.state = State::Between;
                continue;
            }
            let one = BlockDecodingStrategy::UptoBlocks(1);
            self.decoder.decode_blocks(&mut self.source, one).map_err(io::Error::other)?;
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.state == State::Failed {
            return Ok(0);
        }
        self.read_some(buffer).inspect_err(|_| self.state = State::Failed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn decoded(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        Frames::new(bytes).read_to_end(&mut all).map(|_| all)
    }

    fn frame(content: &[u8]) -> Vec<u8> {
        compress_to_vec(content, CompressionLevel::Fastest)
    }

    /// A frame that says nothing of the content (RFC 8878, 3.1.2).
    fn skippable(length: u32, content: &[u8]) -> Vec<u8> {
        [&0x184D_2A50_u32.to_le_bytes()[..], &length.to_le_bytes(), content].concat()
    }

    #[test]
    fn all_frames_are_read() {
        let many = [frame(b"one\n"), skippable(3, b"???"), frame(b""), frame(b"two\n")].concat();
        assert_eq!(decoded(&many).unwrap(), b"one\ntwo\n");
        assert_eq!(decoded(b"").unwrap(), b"");
    }

    #[test]
    fn what_is_cut_off_is_an_error_wherever() {
        let content = "a line of a scenario\n".repeat(500);
        let two = [frame(content.as_bytes()), frame(b"two\n")].concat();
        let first = frame(content.as_bytes()).len();
        for length in (1..two.len()).filter(|&length| length != first) {
            assert!(decoded(&two[..length]).is_err(), "{length} of {}", two.len());
        }
        assert!(decoded(&skippable(9, b"???")).is_err());
        assert!(decoded(&[frame(b"one\n"), b"no frame".to_vec()].concat()).is_err());
    }

    #[test]
    fn a_wrong_checksum_is_an_error() {
        let mut one = frame(b"one\n");
        *one.last_mut().unwrap() ^= 1;
        assert!(decoded(&one).unwrap_err().to_string().contains("checksum"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_read_for_ever(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let damaged = [frame(b"one\n"), bytes].concat();
            let mut all = Vec::new();
            drop(Frames::new(&*damaged).take(1 << 20).read_to_end(&mut all));
            prop_assert!(all.starts_with(b"one\n"));
        }
    }
}
