//! What is stopped for a while and must go on again: forking and running.
//!
//! Each hold is written to a log before it is taken and struck off after it is released, so that
//! the next agent releases what one that was killed has left.
#![forbid(unsafe_code)]

mod undo_log;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, pread, pwrite};
use thiserror::Error;

use undo_log::UndoEntry;
pub(super) use undo_log::UndoLog;

/// A hold could not be taken.
#[derive(Debug, Error)]
#[error("{operation} {}", path.display())]
pub(super) struct ScopedWriteError {
    operation: &'static str,
    path: PathBuf,
    source: Errno,
}

impl ScopedWriteError {
    /// Whether there is no group any more, or no such controller.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.source, Errno::NOENT | Errno::NODEV)
    }
}

/// A control file that holds `ours` until it is released.
#[derive(Debug)]
pub(super) struct ScopedWrite {
    file: OwnedFd,
    entry: UndoEntry,
    log: Arc<UndoLog>,
}

impl ScopedWrite {
    /// Lets nothing fork in the group and below it. `None` if nothing could before.
    pub(super) fn forks(
        dir: impl AsFd,
        path: &Path,
        log: &Arc<UndoLog>,
    ) -> Result<Option<Self>, ScopedWriteError> {
        Self::take(dir, path, c"pids.max", b"0", None, log)
    }

    /// Freezes the group and those below it. `None` if it was frozen before.
    pub(super) fn freeze(
        dir: impl AsFd,
        path: &Path,
        log: &Arc<UndoLog>,
    ) -> Result<Option<Self>, ScopedWriteError> {
        let dir = dir.as_fd();
        let version_2 = Self::take(dir, path, c"cgroup.freeze", b"1", None, log);
        match version_2 {
            Err(error) if error.source == Errno::NOENT => {
                // Reading gives FREEZING before FROZEN.
                Self::take(dir, path, c"freezer.state", b"FROZEN", Some(b"THAWED"), log)
            }
            taken => taken,
        }
    }

    /// `only_from`: the value that it may be taken from; any but ours if `None`.
    fn take(
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
        log.taken(&hold.entry);
        // Dropped on failure, which strikes it off.
        write(&hold.file, ours).map_err(fail)?;
        Ok(Some(hold))
    }

    /// Whether the freezer says that all tasks are frozen.
    pub(super) fn is_frozen(&self, dir: impl AsFd) -> bool {
        if self.entry.ours == b"FROZEN" {
            return content(&self.file).is_ok_and(|text| text == b"FROZEN");
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let events = openat(dir, c"cgroup.events", flags, Mode::empty());
        let text = events.and_then(|events| content(&events));
        text.is_ok_and(|text| text.windows(8).any(|line| line == b"frozen 1"))
    }
}

impl Drop for ScopedWrite {
    fn drop(&mut self) {
        match self.entry.write_back(&self.file) {
            Ok(_) => self.log.released(&self.entry),
            Err(error) => {
                let file = self.entry.path.display();
                tracing::error!(%file, %error, "cannot let go on what was stopped");
                self.log.keep();
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::undo_log::outstanding;
    use super::*;

    /// A folder that looks like a group, and a log beside it.
    fn group() -> (tempfile::TempDir, PathBuf, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().join("pod1");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("pids.max"), "max\n").unwrap();
        let dir = rustix::fs::open(&group, OFlags::DIRECTORY, Mode::empty()).unwrap();
        (folder, group, dir)
    }

    // A plain file keeps the tail of a longer value, which a control file does not.
    fn pids_max(group: &Path) -> String {
        let text = std::fs::read_to_string(group.join("pids.max")).unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn released_when_dropped_and_struck_off() {
        let (folder, group, dir) = group();
        let path = folder.path().join("run/log");
        let (log, recovered) = UndoLog::open(&path).unwrap();
        assert_eq!(recovered, 0);
        let log = Arc::new(log);
        std::fs::write(group.join("pids.max"), "7").unwrap();
        let hold = ScopedWrite::forks(&dir, &group, &log).unwrap().unwrap();
        assert_eq!(pids_max(&group), "0");
        assert_eq!(outstanding(&std::fs::read(&path).unwrap()).len(), 1);
        assert!(ScopedWrite::forks(&dir, &group, &log).unwrap().is_none());
        drop(hold);
        assert_eq!(pids_max(&group), "7");
        assert_eq!(outstanding(&std::fs::read(&path).unwrap()), []);
        log.clear();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn a_value_that_somebody_else_has_set_stays() {
        let (_folder, group, dir) = group();
        std::fs::write(group.join("pids.max"), "7").unwrap();
        let hold = ScopedWrite::forks(&dir, &group, &Arc::default()).unwrap().unwrap();
        std::fs::write(group.join("pids.max"), "9").unwrap();
        drop(hold);
        assert_eq!(pids_max(&group), "9");
    }

    #[test]
    fn the_next_agent_releases_what_a_killed_one_has_left() {
        let (folder, group, dir) = group();
        let path = folder.path().join("log");
        std::fs::write(group.join("pids.max"), "7").unwrap();
        let (log, _) = UndoLog::open(&path).unwrap();
        std::mem::forget(ScopedWrite::forks(&dir, &group, &Arc::new(log)).unwrap());
        // A group of another id under the same path is not ours to change.
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
    fn what_cannot_be_let_go_on_stays_for_the_one_after_it() {
        let (folder, group, dir) = group();
        let path = folder.path().join("log");
        let (log, _) = UndoLog::open(&path).unwrap();
        std::mem::forget(ScopedWrite::forks(&dir, &group, &Arc::new(log)).unwrap());
        let text = std::fs::read(&path).unwrap();
        // Nobody can write to a folder.
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
        let error = ScopedWrite::forks(&dir, &group, &Arc::default()).unwrap_err();
        assert!(error.to_string().starts_with("open ") && error.to_string().ends_with("pod1/pids.max"));
    }

    proptest! {
        #[test]
        fn any_log_is_survived(bytes: Vec<u8>, tail in "[+-]\t[0-9]{1,30}\t[a-z0-9]{0,4}\t.{0,9}\t.{0,9}") {
            outstanding(&bytes);
            let mut log = bytes;
            log.extend(tail.as_bytes());
            prop_assert!(outstanding(&log).len() <= log.len());
        }
    }
}
