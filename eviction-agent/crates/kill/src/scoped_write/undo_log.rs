//! What is held, written down for whoever comes after an agent that was killed.

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

/// Where holds are written down. Without a file they are not, and a killed agent leaves them.
#[derive(Debug, Default)]
pub(crate) struct UndoLog {
    file: Option<File>,
    /// Something could not be let go on: whoever comes next tries again.
    keeps: AtomicBool,
}

impl UndoLog {
    /// Opens the log, releases what it says is still held, and empties it. Returns how much was released.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, u32)> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut released = 0;
        let mut left = Vec::new();
        match std::fs::read(path) {
            Ok(text) => {
                for entry in outstanding(&text) {
                    match entry.release() {
                        Ok(true) => released += 1,
                        Ok(false) => {}
                        Err(error) => {
                            let file = entry.path.display();
                            tracing::warn!(%file, %error, "cannot let go on what a killed agent has stopped");
                            left.push(entry);
                        }
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut options = File::options();
        let file = options.create(true).append(true).open(path)?;
        let log = Self { file: Some(file), keeps: AtomicBool::default() };
        log.clear();
        // What was taken last is let go on first.
        for entry in left.iter().rev() {
            log.keep();
            log.taken(entry);
        }
        Ok((log, released))
    }

    /// Whether something is left to undo.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    /// Something is left that could not be let go on.
    pub(super) fn keep(&self) {
        self.keeps.store(true, Ordering::Relaxed);
    }

    /// Empties the log, unless something is left in it that is still to be let go on. Only while
    /// nothing is held.
    pub(crate) fn clear(&self) {
        if self.keeps() {
            return;
        }
        if let Some(file) = &self.file
            && file.metadata().is_ok_and(|file| file.size() > 0)
        {
            let _ = file.set_len(0);
        }
    }

    pub(super) fn taken(&self, entry: &UndoEntry) {
        self.line(b'+', entry);
    }

    pub(super) fn released(&self, entry: &UndoEntry) {
        self.line(b'-', entry);
    }

    /// One append, so that lines of two threads never mix.
    fn line(&self, sign: u8, UndoEntry { id, ours, original, path }: &UndoEntry) {
        let Some(mut file) = self.file.as_ref() else {
            return;
        };
        let mut line = Vec::with_capacity(512);
        line.push(sign);
        line.extend_from_slice(format!("\t{id}\t").as_bytes());
        line.extend_from_slice(ours);
        line.push(b'\t');
        line.extend_from_slice(original);
        line.push(b'\t');
        line.extend_from_slice(path.as_os_str().as_bytes());
        line.push(b'\n');
        if let Err(error) = file.write_all(&line) {
            tracing::warn!(%error, "cannot note what is held; killed now, the agent would leave it");
        }
    }
}

/// A control file of a group that holds our value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UndoEntry {
    /// The group's.
    pub(super) id: u64,
    pub(super) ours: Vec<u8>,
    pub(super) original: Vec<u8>,
    pub(super) path: PathBuf,
}

impl UndoEntry {
    /// After the sign and a tab: id, our value, the original, the path. A cgroup's path may hold
    /// tabs but no line feed.
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

    /// Opens it and writes back the original, if it is still of the same group. Whether there was
    /// something to release.
    fn release(&self) -> Result<bool, Errno> {
        let group = self.path.parent().unwrap_or(&self.path);
        unless_gone(rustix::fs::stat(group).and_then(|group| {
            if group.st_ino != self.id {
                return Ok(false);
            }
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            self.write_back(&rustix::fs::open(&self.path, flags, Mode::empty())?)
        }))
    }

    /// Writes back the original, unless somebody else has changed the value since. Whether it was
    /// still ours.
    pub(super) fn write_back(&self, file: &OwnedFd) -> Result<bool, Errno> {
        unless_gone(content(file).and_then(|now| {
            let is_ours = now == self.ours || (self.ours == b"FROZEN" && now == b"FREEZING");
            if is_ours {
                write(file, &self.original)?;
            }
            Ok(is_ours)
        }))
    }
}

/// With the group its holds are gone.
fn unless_gone(released: Result<bool, Errno>) -> Result<bool, Errno> {
    match released {
        Err(Errno::NODEV | Errno::NOENT) => Ok(false),
        released => released,
    }
}

/// Taken and not released, the last one first. Lines that are none are of no use to anybody.
pub(super) fn outstanding(log: &[u8]) -> Vec<UndoEntry> {
    let mut held: Vec<UndoEntry> = Vec::new();
    for line in log.split(|byte| *byte == b'\n') {
        let Some((sign, entry)) = line.split_at_checked(2) else {
            continue;
        };
        match (sign, UndoEntry::parse(entry)) {
            (b"+\t", Some(entry)) => held.push(entry),
            (b"-\t", Some(entry)) => {
                if let Some(index) = held.iter().rposition(|taken| *taken == entry) {
                    held.remove(index);
                }
            }
            _ => {}
        }
    }
    held.reverse();
    held
}
