//! The log of temporary writes, from which the next agent undoes those of a killed one.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{content, write};

/// The log file. Without a file nothing is logged, and the writes of a killed agent stay.
#[derive(Debug, Default)]
pub(crate) struct UndoLog {
    file: Option<File>,
    /// Whether an entry could not be undone. The next agent tries again.
    has_pending: AtomicBool,
}

impl UndoLog {
    /// Opens the log, undoes its outstanding entries, and empties it. Returns the number of entries undone.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, u32)> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut undone = 0;
        let mut failed = Vec::new();
        match std::fs::read(path) {
            Ok(text) => {
                for entry in outstanding(&text) {
                    match entry.undo() {
                        Ok(true) => undone += 1,
                        Ok(false) => {}
                        Err(error) => {
                            let file = entry.path.display();
                            tracing::warn!(%file, %error, "cannot resume what a killed agent has stopped");
                            failed.push(entry);
                        }
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut options = File::options();
        let file = options.create(true).append(true).open(path)?;
        let log = Self { file: Some(file), has_pending: AtomicBool::default() };
        log.clear();
        // `outstanding` returns the last entry first; the log has it last.
        for entry in failed.iter().rev() {
            log.mark_pending();
            log.log_write(entry);
        }
        Ok((log, undone))
    }

    /// Whether something is left to undo.
    pub(crate) fn has_pending(&self) -> bool {
        self.has_pending.load(Ordering::Relaxed)
    }

    /// Records that an entry could not be undone.
    pub(super) fn mark_pending(&self) {
        self.has_pending.store(true, Ordering::Relaxed);
    }

    /// Empties the log, unless it has an entry that could not be undone. Call it only while no temporary
    /// write is in place.
    pub(crate) fn clear(&self) {
        if self.has_pending() {
            return;
        }
        if let Some(file) = &self.file
            && file.metadata().is_ok_and(|file| file.size() > 0)
        {
            let _ = file.set_len(0);
        }
    }

    pub(super) fn log_write(&self, entry: &UndoEntry) {
        self.append_line('+', entry);
    }

    pub(super) fn log_undone(&self, entry: &UndoEntry) {
        self.append_line('-', entry);
    }

    /// Writes a line with one append, so that lines of two threads never mix.
    fn append_line(&self, sign: char, UndoEntry { id, ours, original, path }: &UndoEntry) {
        let Some(mut file) = self.file.as_ref() else {
            return;
        };
        let sign_and_id = format!("{sign}\t{id}");
        let fields = [sign_and_id.as_bytes(), ours, original, path.as_os_str().as_bytes()];
        let mut line = fields.join(&b'\t');
        line.push(b'\n');
        if let Err(error) = file.write_all(&line) {
            tracing::warn!(%error, "cannot note what is held; killed now, the agent would leave it");
        }
    }
}

/// A control file of a cgroup that has our value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UndoEntry {
    /// The id of the cgroup.
    pub(super) id: u64,
    pub(super) ours: Vec<u8>,
    pub(super) original: Vec<u8>,
    pub(super) path: PathBuf,
}

impl UndoEntry {
    /// Parses what follows the sign and a tab: id, our value, the original value, the path. A cgroup's path
    /// may contain tabs but no line feed.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(4, |byte| *byte == b'\t');
        let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        Some(Self {
            id,
            ours: fields.next()?.to_vec(),
            original: fields.next()?.to_vec(),
            path: std::ffi::OsStr::from_bytes(fields.next()?).into(),
        })
    }

    /// Opens the file and writes the original value back, if the path still belongs to the same cgroup.
    /// Returns whether there was something to undo.
    fn undo(&self) -> Result<bool, Errno> {
        let group = self.path.parent().unwrap_or(&self.path);
        false_if_removed(rustix::fs::stat(group).and_then(|group| {
            if group.st_ino != self.id {
                return Ok(false);
            }
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            self.write_back(&rustix::fs::open(&self.path, flags, Mode::empty())?)
        }))
    }

    /// Writes the original value back, unless the value was changed by others in the meantime. Returns
    /// whether it was still ours.
    pub(super) fn write_back(&self, file: &OwnedFd) -> Result<bool, Errno> {
        false_if_removed(content(file).and_then(|now| {
            let is_ours = now == self.ours || (self.ours == b"FROZEN" && now == b"FREEZING");
            if is_ours {
                write(file, &self.original)?;
            }
            Ok(is_ours)
        }))
    }
}

/// If the cgroup is removed, there is nothing to undo.
fn false_if_removed(undone: Result<bool, Errno>) -> Result<bool, Errno> {
    match undone {
        Err(Errno::NODEV | Errno::NOENT) => Ok(false),
        undone => undone,
    }
}

/// Returns the entries that were not undone, the last one first. Ignores lines that cannot be parsed.
pub(super) fn outstanding(log: &[u8]) -> Vec<UndoEntry> {
    let mut pending: Vec<UndoEntry> = Vec::new();
    for line in log.split(|byte| *byte == b'\n') {
        let Some((sign, entry)) = line.split_at_checked(2) else {
            continue;
        };
        match (sign, UndoEntry::parse(entry)) {
            (b"+\t", Some(entry)) => pending.push(entry),
            (b"-\t", Some(entry)) => {
                if let Some(index) = pending.iter().rposition(|taken| *taken == entry) {
                    pending.remove(index);
                }
            }
            _ => {}
        }
    }
    pending.reverse();
    pending
}
