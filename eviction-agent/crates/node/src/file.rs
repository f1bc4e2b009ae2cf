//! Small kernel files behind descriptors that stay open.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, pread};
use thiserror::Error;

use eviction_core::reading::UnknownReason;

/// A file that is read again and again from its beginning. Reading through an open descriptor costs a half to
/// an eighth of opening the file each time.
#[derive(Debug)]
pub struct OpenFile(OwnedFd);

const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

impl OpenFile {
    /// Opens `path` for reading.
    pub fn open(path: &Path) -> Result<Self, UnknownReason> {
        open_path(path, READ).map(Self).map_err(unreadable)
    }

    /// Reads the whole file into `buffer` with one call. A file that does not fit is
    /// [`UnknownReason::Unparsable`]: a part of it must not pass for the whole.
    pub fn read<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b [u8], UnknownReason> {
        let length = retry(|| pread(&self.0, &mut *buffer, 0)).map_err(unreadable)?;
        if length < buffer.len() { Ok(&buffer[..length]) } else { Err(UnknownReason::Unparsable) }
    }

    /// Reads the whole file into `buffer` with as many calls as needed, at most `limit` bytes.
    pub fn read_all<'b>(&self, buffer: &'b mut Vec<u8>, limit: usize) -> Result<&'b [u8], UnknownReason> {
        let mut length = 0;
        loop {
            if buffer.len() < length + 4096 {
                buffer.resize(length + 8192, 0);
            }
            let read = retry(|| pread(&self.0, &mut buffer[length..], length as u64)).map_err(unreadable)?;
            length += read;
            if read == 0 {
                return Ok(&buffer[..length]);
            }
            if length > limit {
                return Err(UnknownReason::Unparsable);
            }
        }
    }
}

/// Opens a file or a folder.
pub(crate) fn open_path(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    retry(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()))
}

/// Opens, reads and closes a file of at most `limit` bytes.
pub fn read_once(path: &Path, limit: usize) -> Result<Vec<u8>, UnknownReason> {
    let mut buffer = Vec::new();
    let length = OpenFile::open(path)?.read_all(&mut buffer, limit)?.len();
    buffer.truncate(length);
    Ok(buffer)
}

/// Raises the limit of open files as far as possible without a privilege (the hard limit of RLIMIT_NOFILE, at
/// most 2^20). Returns the new limit.
pub fn raise_descriptor_limit() -> Result<u64, Errno> {
    const MAX_DESCRIPTORS: u64 = 1 << 20;
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limits = getrlimit(Resource::Nofile);
    let wanted = limits.maximum.unwrap_or(MAX_DESCRIPTORS).min(MAX_DESCRIPTORS);
    if limits.current.is_some_and(|current| current < wanted) {
        limits.current = Some(wanted);
        setrlimit(Resource::Nofile, limits)?;
    }
    Ok(limits.current.unwrap_or(MAX_DESCRIPTORS))
}

/// An error of a file, or of what was requested from the kernel through it.
#[derive(Debug, Error)]
#[error("{what}")]
pub struct FileError {
    /// What has failed, and on which file.
    pub what: String,
    /// The cause: the kernel's error, or what is wrong with the content.
    #[source]
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn new(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { what: what.into(), source: source.into() }
    }

    /// Returns the error of a file that could not be read.
    pub(crate) fn unreadable(path: &Path, why: UnknownReason) -> Self {
        let source = match why {
            UnknownReason::Unreadable(errno) => io::Error::from_raw_os_error(errno),
            why => io::Error::other(ReasonText(why).to_string()),
        };
        Self::new(format!("cannot read {}", path.display()), source)
    }
}

/// Returns the reason for an error number.
pub fn unreadable(errno: Errno) -> UnknownReason {
    UnknownReason::Unreadable(errno.raw_os_error())
}

/// Displays a reason as text.
#[derive(Clone, Copy, Debug)]
pub struct ReasonText(pub UnknownReason);

impl std::fmt::Display for ReasonText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            UnknownReason::Absent => f.write_str("there is no such value"),
            UnknownReason::Failed => f.write_str("the source answered with an error"),
            UnknownReason::Unreadable(errno) => std::io::Error::from_raw_os_error(errno).fmt(f),
            UnknownReason::Unparsable => f.write_str("not of the expected form"),
            UnknownReason::Stale => f.write_str("too old"),
            UnknownReason::Implausible => f.write_str("cannot be true"),
            UnknownReason::Replaced => f.write_str("another file system has taken its place"),
        }
    }
}

/// Returns whether the reason means that the file or its cgroup was removed: the kernel returns ENODEV on
/// descriptors of a removed cgroup.
pub fn is_removed(why: UnknownReason) -> bool {
    [Errno::NODEV, Errno::NOENT].iter().any(|errno| why == unreadable(*errno))
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "12345\n").unwrap();
        let file = OpenFile::open(&path).unwrap();
        assert_eq!(file.read(&mut [0; 7]), Ok(&b"12345\n"[..]));
        assert_eq!(file.read(&mut [0; 6]), Err(UnknownReason::Unparsable));
        assert_eq!(file.read_all(&mut Vec::new(), 6), Ok(&b"12345\n"[..]));
        assert_eq!(file.read_all(&mut Vec::new(), 5), Err(UnknownReason::Unparsable));
        std::fs::write(&path, "").unwrap();
        assert_eq!(file.read(&mut [0; 7]), Ok(&b""[..]));
    }

    #[test]
    fn the_error_number_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let why = read_once(&folder.path().join("absent"), 10).unwrap_err();
        assert_eq!(why, UnknownReason::Unreadable(2));
        assert!(is_removed(why));
        assert_eq!(read_once(folder.path(), 10), Err(UnknownReason::Unreadable(21)));
        assert!(!is_removed(UnknownReason::Unreadable(13)));
    }

    #[test]
    fn the_limit_of_open_files_is_raised() {
        let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let now = raise_descriptor_limit().unwrap();
        assert!(before.current.is_none_or(|before| now >= before.min(1 << 20)));
        let after = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        assert!(after.current.is_none_or(|after| after == now));
        assert_eq!(after.maximum, before.maximum);
    }

    #[test]
    fn an_interrupted_call_is_repeated() {
        let mut interruptions = 3;
        let result = retry(|| {
            interruptions -= 1;
            if interruptions > 0 { Err(Errno::INTR) } else { Ok(7) }
        });
        assert_eq!(result, Ok(7));
        assert_eq!(retry::<()>(|| Err(Errno::ACCESS)), Err(Errno::ACCESS));
    }
}
