//! What is stopped for a while and must go on again: forking and running.
//!
//! Each hold is written to a log before it is taken and struck off after it is released, so that
//! the next agent releases what one that was killed has left.
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

/// A hold could not be taken.
#[derive(Debug, Error)]
#[error("{operation} {}", path.display())]
pub(super) struct HoldError {
    operation: &'static str,
    path: PathBuf,
    source: Errno,
}

impl HoldError {
    /// Whether there is no group any more, or no such controller.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.source, Errno::NOENT | Errno::NODEV)
    }
}

/// A control file that holds `ours` until it is released.
#[derive(Debug)]
pub(super) struct Hold {
    file: OwnedFd,
    path: PathBuf,
    id: u64,
    ours: &'static [u8],
    original: Vec<u8>,
    log: Arc<Log>,
}

impl Hold {
    /// Lets nothing fork in the group and below it. `None` if nothing could before.
    pub(super) fn forks(dir: impl AsFd, path: &Path, log: &Arc<Log>) -> Result<Option<Self>, HoldError> {
        Self::take(dir, path, c"pids.max", b"0", None, log)
    }

    /// Freezes the group and those below it. `None` if it was frozen before.
    pub(super) fn freeze(dir: impl AsFd, path: &Path, log: &Arc<Log>) -> Result<Option<Self>, HoldError> {
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
        ours: &'static [u8],
        only_from: Option<&[u8]>,
        log: &Arc<Log>,
    ) -> Result<Option<Self>, HoldError> {
        let dir = dir.as_fd();
        let fail = |operation| {
            let name = std::ffi::OsStr::from_bytes(name.to_bytes());
            move |source| HoldError { operation, path: path.join(name), source }
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(dir, name, flags, Mode::empty()).map_err(fail("open"))?;
        let original = content(&file).map_err(fail("read"))?;
        if original == ours || only_from.is_some_and(|only| original != only) {
            return Ok(None);
        }
        let stat = rustix::fs::fstat(dir).map_err(fail("look at the group of"))?;
        let hold = Self {
            file,
            path: path.join(std::ffi::OsStr::from_bytes(name.to_bytes())),
            id: stat.st_ino,
            ours,
            original,
            log: Arc::clone(log),
        };
        log.taken(&hold);
        // Dropped on failure, which strikes it off.
        write(&hold.file, ours).map_err(fail("write"))?;
        Ok(Some(hold))
    }

    /// Whether the freezer says that all tasks are frozen.
    pub(super) fn is_frozen(&self, dir: impl AsFd) -> bool {
        if self.ours == b"FROZEN" {
            return content(&self.file).is_ok_and(|text| text == b"FROZEN");
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let events = openat(dir, c"cgroup.events", flags, Mode::empty());
        let text = events.and_then(|events| content(&events));
        text.is_ok_and(|text| text.windows(8).any(|line| line == b"frozen 1"))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        match release(&self.file, self.ours, &self.original) {
            // With the group its holds are gone.
            Ok(()) | Err(Errno::NODEV | Errno::NOENT) => {}
            Err(error) => {
                let file = self.path.display();
                tracing::error!(%file, %error, "cannot let go on what was stopped");
                self.log.keep();
                return;
            }
        }
        self.log.released(self);
    }
}

/// Writes back the original, unless somebody else has changed the value since.
fn release(file: &OwnedFd, ours: &[u8], original: &[u8]) -> Result<(), Errno> {
    let now = content(file)?;
    if now == ours || (ours == b"FROZEN" && now == b"FREEZING") {
        write(file, original)?;
    }
    Ok(())
}

fn content(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut text = [0; 256];
    let count = pread(file, &mut text, 0)?;
    Ok(text[..count].trim_ascii().to_vec())
}

fn write(file: &OwnedFd, value: &[u8]) -> Result<(), Errno> {
    pwrite(file, value, 0).map(|_| ())
}

/// Where holds are written down. Without a file they are not, and a killed agent leaves them.
#[derive(Debug, Default)]
pub(super) struct Log {
    file: Option<File>,
    /// Something could not be let go on: whoever comes next tries again.
    keeps: AtomicBool,
}

/// What a killed agent has left, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recovered {
    pub(super) released: u32,
    pub(super) failed: u32,
}

impl Log {
    /// Opens the log, releases what it says is still held, and empties it.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Recovered)> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut recovered = Recovered::default();
        let mut left = Vec::new();
        match std::fs::read(path) {
            Ok(text) => {
                for entry in outstanding(&text) {
                    match entry.release() {
                        Ok(true) => recovered.released += 1,
                        Ok(false) => {}
                        Err(error) => {
                            let file = entry.path.display();
                            tracing::warn!(%file, %error, "cannot let go on what a killed agent has stopped");
                            recovered.failed += 1;
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
            log.line(b'+', entry.id, &entry.ours, &entry.original, &entry.path);
        }
        Ok((log, recovered))
    }

    fn keep(&self) {
        self.keeps.store(true, Ordering::Relaxed);
    }

    /// Empties the log, unless something is left in it that is still to be let go on. Only while
    /// nothing is held.
    pub(super) fn clear(&self) {
        if self.keeps.load(Ordering::Relaxed) {
            return;
        }
        if let Some(file) = &self.file
            && file.metadata().is_ok_and(|file| file.size() > 0)
        {
            let _ = file.set_len(0);
        }
    }

    fn taken(&self, hold: &Hold) {
        self.line(b'+', hold.id, hold.ours, &hold.original, &hold.path);
    }

    fn released(&self, hold: &Hold) {
        self.line(b'-', hold.id, hold.ours, &hold.original, &hold.path);
    }

    /// One append, so that lines of two threads never mix.
    fn line(&self, sign: u8, id: u64, ours: &[u8], original: &[u8], path: &Path) {
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

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    id: u64,
    ours: Vec<u8>,
    original: Vec<u8>,
    path: PathBuf,
}

impl Entry {
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

    /// Whether there was something to release: the same group, and still our value.
    fn release(&self) -> io::Result<bool> {
        let group = self.path.parent().unwrap_or(&self.path);
        let same = std::fs::metadata(group).map(|group| group.ino() == self.id);
        match same {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
        match self.release_value() {
            // It went meanwhile, and its holds with it.
            Err(Errno::NODEV | Errno::NOENT) => Ok(false),
            released => released.map_err(io::Error::from),
        }
    }

    fn release_value(&self) -> Result<bool, Errno> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let held = content(&file)?;
        release(&file, &self.ours, &self.original)?;
        Ok(held != content(&file)?)
    }
}

/// Taken and not released, the last one first. Lines that are none are of no use to anybody.
fn outstanding(log: &[u8]) -> Vec<Entry> {
    let mut held: Vec<Entry> = Vec::new();
    for line in log.split(|byte| *byte == b'\n') {
        let Some((sign, entry)) = line.split_at_checked(2) else {
            continue;
        };
        match (sign, Entry::parse(entry)) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        let (log, recovered) = Log::open(&path).unwrap();
        assert_eq!(recovered, Recovered::default());
        let log = Arc::new(log);
        std::fs::write(group.join("pids.max"), "7").unwrap();
        let hold = Hold::forks(&dir, &group, &log).unwrap().unwrap();
        assert_eq!(pids_max(&group), "0");
        assert_eq!(outstanding(&std::fs::read(&path).unwrap()).len(), 1);
        assert!(Hold::forks(&dir, &group, &log).unwrap().is_none());
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
        let hold = Hold::forks(&dir, &group, &Arc::default()).unwrap().unwrap();
        std::fs::write(group.join("pids.max"), "9").unwrap();
        drop(hold);
        assert_eq!(pids_max(&group), "9");
    }

    #[test]
    fn the_next_agent_releases_what_a_killed_one_has_left() {
        let (folder, group, dir) = group();
        let path = folder.path().join("log");
        std::fs::write(group.join("pids.max"), "7").unwrap();
        let (log, _) = Log::open(&path).unwrap();
        std::mem::forget(Hold::forks(&dir, &group, &Arc::new(log)).unwrap());
        // A group of another id under the same path is not ours to change.
        let text = String::from_utf8(std::fs::read(&path).unwrap()).unwrap();
        let id = rustix::fs::fstat(&dir).unwrap().st_ino;
        let other = text.replace(&format!("\t{id}\t"), &format!("\t{}\t", id + 1));
        std::fs::write(&path, other).unwrap();
        assert_eq!(Log::open(&path).unwrap().1, Recovered::default());
        assert_eq!(pids_max(&group), "0");
        std::fs::write(&path, &text).unwrap();
        let released = Recovered { released: 1, failed: 0 };
        assert_eq!(Log::open(&path).unwrap().1, released);
        assert_eq!(pids_max(&group), "7");
        std::fs::write(&path, text).unwrap();
        assert_eq!(Log::open(&path).unwrap().1, Recovered::default());
    }

    #[test]
    fn a_failure_names_the_file() {
        let (_folder, group, dir) = group();
        std::fs::remove_file(group.join("pids.max")).unwrap();
        let error = Hold::forks(&dir, &group, &Arc::default()).unwrap_err();
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
