//! Temporary writes to control files that must be undone: they stop forks or freeze a cgroup.
//!
//! Each write is logged before it is made, and marked as undone after it is undone. The next agent undoes
//! what a killed one has left behind.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, pread, pwrite};
use thiserror::Error;

use super::cgroup::has_event;

/// A temporary write failed.
#[derive(Debug, Error)]
#[error("{operation} {}", path.display())]
pub(super) struct ScopedWriteError {
    operation: &'static str,
    path: PathBuf,
    source: Errno,
}

impl ScopedWriteError {
    /// Whether the cgroup is removed, or does not have the controller.
    pub(super) fn is_removed(&self) -> bool {
        matches!(self.source, Errno::NOENT | Errno::NODEV)
    }
}

/// A control file that has the value `ours` until this is dropped.
#[derive(Debug)]
pub(super) struct ScopedWrite {
    file: OwnedFd,
    entry: UndoEntry,
    log: Arc<UndoLog>,
}

impl ScopedWrite {
    /// Stops forks in the cgroup and below it. Returns `None` if they were already stopped.
    pub(super) fn stop_forks(
        dir: impl AsFd,
        path: &Path,
        log: &Arc<UndoLog>,
    ) -> Result<Option<Self>, ScopedWriteError> {
        Self::apply(dir, path, c"pids.max", b"0", None, log)
    }

    /// Freezes the cgroup and those below it. Returns `None` if it was already frozen.
    pub(super) fn freeze(
        dir: impl AsFd,
        path: &Path,
        log: &Arc<UndoLog>,
    ) -> Result<Option<Self>, ScopedWriteError> {
        let dir = dir.as_fd();
        let version_2 = Self::apply(dir, path, c"cgroup.freeze", b"1", None, log);
        match version_2 {
            Err(error) if error.source == Errno::NOENT => {
                // The file reads FREEZING before FROZEN.
                Self::apply(dir, path, c"freezer.state", b"FROZEN", Some(b"THAWED"), log)
            }
            taken => taken,
        }
    }

    /// Writes `ours` and logs it. `only_from` is the only value that may be replaced; `None` means any value.
    fn apply(
        dir: impl AsFd,
        path: &Path,
        name: &std::ffi::CStr,
        ours: &[u8],
        only_from: Option<&[u8]>,
        log: &Arc<UndoLog>,
    ) -> Result<Option<Self>, ScopedWriteError> {
        let dir = dir.as_fd();
        let path = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let fail = |operation| {
            let path = path.clone();
            move |source| ScopedWriteError { operation, path, source }
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(dir, name, flags, Mode::empty()).map_err(fail("open"))?;
        let original = content(&file).map_err(fail("read"))?;
        if original == ours || only_from.is_some_and(|only| original != only) {
            return Ok(None);
        }
        let stat = rustix::fs::fstat(dir).map_err(fail("look at the group of"))?;
        let fail = fail("write");
        let entry = UndoEntry { id: stat.st_ino, ours: ours.to_vec(), original, path };
        let hold = Self { file, entry, log: Arc::clone(log) };
        log.log_write(&hold.entry);
        // If the write fails, the drop marks the entry as undone.
        write(&hold.file, ours).map_err(fail)?;
        Ok(Some(hold))
    }

    /// Whether the freezer reports that all tasks are frozen.
    pub(super) fn is_frozen(&self, dir: impl AsFd) -> bool {
        if self.entry.ours == b"FROZEN" {
            return content(&self.file).is_ok_and(|text| text == b"FROZEN");
        }
        has_event(dir, b"frozen 1")
    }
}

impl Drop for ScopedWrite {
    fn drop(&mut self) {
        match self.entry.write_back(&self.file) {
            Ok(_) => self.log.log_undone(&self.entry),
            Err(error) => {
                let file = self.entry.path.display();
                tracing::error!(%file, %error, "cannot resume what was stopped");
                self.log.mark_pending();
            }
        }
    }
}

fn content(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut text = [0; 256];
    let count = pread(file, &mut text, 0)?;
    Ok(text[..count].trim_ascii().to_vec())
}

fn write(file: &OwnedFd, value: &[u8]) -> Result<(), Errno> {
    pwrite(file, value, 0).map(|_| ())
}

/// The log file. Without a file nothing is logged, and the writes of a killed agent stay.
#[derive(Debug, Default)]
pub(super) struct UndoLog {
    file: Option<File>,
    /// Whether an entry could not be undone. The next agent tries again.
    has_pending: AtomicBool,
}

impl UndoLog {
    /// Opens the log, undoes its outstanding entries, and empties it. Returns the number of entries undone.
    pub(super) fn open(path: &Path) -> io::Result<(Self, u32)> {
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
    pub(super) fn has_pending(&self) -> bool {
        self.has_pending.load(Ordering::Relaxed)
    }

    /// Records that an entry could not be undone.
    fn mark_pending(&self) {
        self.has_pending.store(true, Ordering::Relaxed);
    }

    /// Empties the log, unless it has an entry that could not be undone. Call it only while no temporary
    /// write is in place.
    pub(super) fn clear(&self) {
        if self.has_pending() {
            return;
        }
        if let Some(file) = &self.file
            && file.metadata().is_ok_and(|file| file.size() > 0)
        {
            let _ = file.set_len(0);
        }
    }

    fn log_write(&self, entry: &UndoEntry) {
        self.append_line('+', entry);
    }

    fn log_undone(&self, entry: &UndoEntry) {
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
struct UndoEntry {
    /// The id of the cgroup.
    id: u64,
    ours: Vec<u8>,
    original: Vec<u8>,
    path: PathBuf,
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
    fn write_back(&self, file: &OwnedFd) -> Result<bool, Errno> {
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
fn outstanding(log: &[u8]) -> Vec<UndoEntry> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A directory that takes the place of a cgroup, next to a log.
    fn group() -> (tempfile::TempDir, PathBuf, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().join("pod1");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("pids.max"), "max\n").unwrap();
        let dir = rustix::fs::open(&group, OFlags::DIRECTORY, Mode::empty()).unwrap();
        (folder, group, dir)
    }

    // A plain file keeps the end of a longer value; a control file does not.
    fn pids_max(group: &Path) -> String {
        let text = std::fs::read_to_string(group.join("pids.max")).unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn drop_restores_the_value_and_marks_the_log_entry_as_undone() {
        let (folder, group, dir) = group();
        let path = folder.path().join("run/log");
        let (log, recovered) = UndoLog::open(&path).unwrap();
        assert_eq!(recovered, 0);
        let log = Arc::new(log);
        std::fs::write(group.join("pids.max"), "7").unwrap();
        let hold = ScopedWrite::stop_forks(&dir, &group, &log).unwrap().unwrap();
        assert_eq!(pids_max(&group), "0");
        assert_eq!(outstanding(&std::fs::read(&path).unwrap()).len(), 1);
        assert!(ScopedWrite::stop_forks(&dir, &group, &log).unwrap().is_none());
        drop(hold);
        assert_eq!(pids_max(&group), "7");
        assert_eq!(outstanding(&std::fs::read(&path).unwrap()), []);
        log.clear();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn drop_keeps_a_value_that_was_set_by_others() {
        let (_folder, group, dir) = group();
        std::fs::write(group.join("pids.max"), "7").unwrap();
        let hold = ScopedWrite::stop_forks(&dir, &group, &Arc::default()).unwrap().unwrap();
        std::fs::write(group.join("pids.max"), "9").unwrap();
        drop(hold);
        assert_eq!(pids_max(&group), "9");
    }

    #[test]
    fn next_agent_undoes_the_writes_of_a_killed_agent() {
        let (folder, group, dir) = group();
        let path = folder.path().join("log");
        std::fs::write(group.join("pids.max"), "7").unwrap();
        let (log, _) = UndoLog::open(&path).unwrap();
        std::mem::forget(ScopedWrite::stop_forks(&dir, &group, &Arc::new(log)).unwrap());
        // Another cgroup with the same path must not be changed.
        let text = String::from_utf8(std::fs::read(&path).unwrap()).unwrap();
        let id = rustix::fs::fstat(&dir).unwrap().st_ino;
        let other = text.replace(&format!("\t{id}\t"), &format!("\t{}\t", id + 1));
        std::fs::write(&path, other).unwrap();
        assert_eq!(UndoLog::open(&path).unwrap().1, 0);
        assert_eq!(pids_max(&group), "0");
        std::fs::write(&path, &text).unwrap();
        assert_eq!(UndoLog::open(&path).unwrap().1, 1);
        assert_eq!(pids_max(&group), "7");
        std::fs::write(&path, text).unwrap();
        assert_eq!(UndoLog::open(&path).unwrap().1, 0);
    }

    #[test]
    fn entry_that_cannot_be_undone_stays_in_the_log() {
        let (folder, group, dir) = group();
        let path = folder.path().join("log");
        let (log, _) = UndoLog::open(&path).unwrap();
        std::mem::forget(ScopedWrite::stop_forks(&dir, &group, &Arc::new(log)).unwrap());
        let text = std::fs::read(&path).unwrap();
        // A directory cannot be written to.
        std::fs::remove_file(group.join("pids.max")).unwrap();
        std::fs::create_dir(group.join("pids.max")).unwrap();
        let (log, recovered) = UndoLog::open(&path).unwrap();
        assert_eq!(recovered, 0);
        log.clear();
        assert_eq!(std::fs::read(&path).unwrap(), text);
        std::fs::remove_dir(group.join("pids.max")).unwrap();
        let (_, recovered) = UndoLog::open(&path).unwrap();
        assert_eq!((recovered, std::fs::read(&path).unwrap()), (0, Vec::new()), "it is gone");
    }

    #[test]
    fn a_failure_names_the_file() {
        let (_folder, group, dir) = group();
        std::fs::remove_file(group.join("pids.max")).unwrap();
        let error = ScopedWrite::stop_forks(&dir, &group, &Arc::default()).unwrap_err();
        assert!(error.to_string().starts_with("open ") && error.to_string().ends_with("pod1/pids.max"));
    }

    proptest! {
        #[test]
        fn any_log_content_is_parsed_without_panic(bytes: Vec<u8>, tail in "[+-]\t[0-9]{1,30}\t[a-z0-9]{0,4}\t.{0,9}\t.{0,9}") {
            outstanding(&bytes);
            let mut log = bytes;
            log.extend(tail.as_bytes());
            prop_assert!(outstanding(&log).len() <= log.len());
        }
    }
}
