//! Writes decisions to a file, one a line, as `replay` reads them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::telemetry::decision_log::DecisionInputs;
use crate::telemetry::metrics::Metrics;
use eviction_core::decision::Decision;
use eviction_core::record::DecisionRecord;

use crate::error::Failure;
use crate::telemetry::stdout::Printer;

/// The file is rotated at this length, and one former file is kept.
const LONGEST: u64 = 64 << 20;

/// Writes decisions, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Recorder(Printer);

impl Recorder {
    /// Appends to the file at that path, or creates it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn open(path: &Path, metrics: Arc<Metrics>) -> Result<Self, Failure> {
        let file = RotatedFile::open(path)
            .map_err(|error| Failure::because(format!("open the recording {}", path.display()), &error))?;
        Ok(Self(Printer::start(file, metrics)?))
    }

    /// Writes a decision under that name, if it evicts pods.
    pub(crate) fn write(
        &self,
        name: &str,
        inputs: &DecisionInputs,
        decision: &Decision,
        record: &DecisionRecord,
    ) {
        if let Some(scenario) = super::scenario(name, inputs, decision, record) {
            self.0.print(scenario.to_string());
        }
    }

    /// Waits until everything is written.
    pub(crate) fn finish(self) {
        self.0.finish();
    }
}

/// A file that is rotated when it is long.
#[derive(Debug)]
struct RotatedFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl RotatedFile {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, length })
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut before = self.path.clone().into_os_string();
        before.push(".1");
        std::fs::rename(&self.path, before)?;
        *self = Self::open(&self.path)?;
        Ok(())
    }
}

impl Write for RotatedFile {
    /// Takes whole lines, and writes each whole or not at all.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.length > LONGEST {
            self.rotate()?;
        }
        let before = self.file.metadata()?.len();
        if let Err(error) = self.file.write_all(bytes) {
            // A part of a line would spoil the next one.
            if self.file.metadata().is_ok_and(|now| now.is_file() && now.len() > before)
                && let Err(error) = self.file.set_len(before)
            {
                tracing::debug!(%error, "cutting off half a line");
            }
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_gives_way_and_the_one_before_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions.jsonl");
        let mut file = RotatedFile::open(&path).unwrap();
        file.write_all(b"one\n").unwrap();
        file.length = LONGEST + 1;
        file.write_all(b"two\n").unwrap();
        drop(file);
        RotatedFile::open(&path).unwrap().write_all(b"three\n").unwrap();
        let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(
            (text("decisions.jsonl.1"), text("decisions.jsonl")),
            ("one\n".into(), "two\nthree\n".into())
        );
    }

    #[test]
    fn what_cannot_be_written_is_said_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let failure = Recorder::open(folder.path(), Arc::new(Metrics::new("0", "0"))).unwrap_err();
        assert!(format!("{failure:?}").contains("open the recording"), "{failure:?}");
    }
}
