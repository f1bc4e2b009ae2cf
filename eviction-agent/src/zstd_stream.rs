//! Reads files, and decompresses zstd streams of several frames.

use std::fs::File;
use std::io;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The extension of compressed files.
pub(crate) const EXTENSION: &str = "zst";

/// Opens a file. Its content is decompressed if the file has the extension of compressed files.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let file = BufReader::new(File::open(path)?);
    Ok(match path.extension().is_some_and(|it| it == EXTENSION) {
        true => Box::new(BufReader::new(Frames::new(file))),
        false => Box::new(file),
    })
}

/// Reads all frames of a zstd stream to its end.
struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    is_within_frame: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Self {
        Self { source, decoder: FrameDecoder::new(), is_within_frame: false }
    }

    /// Starts the next frame that has content and skips skippable frames. Returns false at the end.
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

    /// Checks the checksum of the frame, because the decoder does not compare it.
    fn check_sum(&self) -> io::Result<()> {
        let wanted = self.decoder.get_checksum_from_data();
        if wanted.is_some() && wanted != self.decoder.get_calculated_checksum() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a frame is wrong"));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Frames<R> {
    /// Reads on in the stream. After an error the position is unknown, and the caller must not read on.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_within_frame {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.is_within_frame = true;
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.decoder.is_finished() {
                self.check_sum()?;
                self.is_within_frame = false;
                continue;
            }
            let one = BlockDecodingStrategy::UptoBlocks(1);
            self.decoder.decode_blocks(&mut self.source, one).map_err(io::Error::other)?;
        }
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

    /// A skippable frame, which has no content (RFC 8878, 3.1.2).
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
    fn a_stream_cut_off_within_a_frame_is_an_error() {
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
        fn arbitrary_bytes_do_not_cause_panics_or_endless_reads(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let damaged = [frame(b"one\n"), bytes].concat();
            let mut all = Vec::new();
            drop(Frames::new(&*damaged).take(1 << 20).read_to_end(&mut all));
            prop_assert!(all.starts_with(b"one\n"));
        }
    }
}
