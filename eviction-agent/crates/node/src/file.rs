//! Small kernel files: reading them through descriptors that stay open, and parsing their numbers and keys.
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
            why => io::Error::other(reason_text(why)),
        };
        Self::new(format!("cannot read {}", path.display()), source)
    }
}

/// Returns the reason for an error number.
pub fn unreadable(errno: Errno) -> UnknownReason {
    UnknownReason::Unreadable(errno.raw_os_error())
}

/// Returns a reason as text.
pub fn reason_text(why: UnknownReason) -> String {
    match why {
        UnknownReason::Absent => "there is no such value".to_owned(),
        UnknownReason::Failed => "the source answered with an error".to_owned(),
        UnknownReason::Unreadable(errno) => io::Error::from_raw_os_error(errno).to_string(),
        UnknownReason::Unparsable => "not of the expected form".to_owned(),
        UnknownReason::Stale => "too old".to_owned(),
        UnknownReason::Implausible => "cannot be true".to_owned(),
        UnknownReason::Replaced => "another file system has taken its place".to_owned(),
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

/// Parses an unsigned decimal number and nothing else.
///
/// Values above 2^63 − 1 are [`UnknownReason::Implausible`]: the kernel's counters of bytes and tasks are
/// signed longs, so values such as 2^64 − 1 are underflows. The same holds for a number with a minus sign.
pub fn parse_number(text: &[u8]) -> Result<u64, UnknownReason> {
    if let [b'-', digits @ ..] = text {
        let numeric = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        return Err(if numeric { UnknownReason::Implausible } else { UnknownReason::Unparsable });
    }
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(UnknownReason::Unparsable);
    }
    text.iter()
        .try_fold(0_i64, |value, digit| value.checked_mul(10)?.checked_add(i64::from(digit - b'0')))
        .and_then(|value| u64::try_from(value).ok())
        .ok_or(UnknownReason::Implausible)
}

/// Parses a file that holds one number: the number and at most one line feed.
pub fn parse_number_line(text: &[u8]) -> Result<u64, UnknownReason> {
    parse_number(text.strip_suffix(b"\n").unwrap_or(text))
}

/// Returns the lines of a text. A last line without a line feed was cut off and is an error.
pub fn complete_lines(text: &[u8]) -> Result<impl Iterator<Item = &[u8]>, UnknownReason> {
    match text.strip_suffix(b"\n") {
        Some(body) => Ok(body.split(|byte| *byte == b'\n')),
        None => Err(UnknownReason::Unparsable),
    }
}

/// Returns the words of a line, separated by blanks.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty())
}

/// A value that was not found in a text so far.
pub(crate) const NOT_FOUND: Result<u64, UnknownReason> = Err(UnknownReason::Absent);

/// Records a value that a text may contain once. A second one makes it unparsable, since it is not known which of
/// the two is right. `value` must not be [`NOT_FOUND`]; the parsers here never return that.
pub(crate) fn record_once(found: &mut Result<u64, UnknownReason>, value: Result<u64, UnknownReason>) {
    *found = if *found == NOT_FOUND { value } else { Err(UnknownReason::Unparsable) };
}

/// Parses the values of `keys` in a text of lines `key value`, or `key value unit` if there is a unit. Other
/// lines are ignored.
pub fn parse_keys<const N: usize>(
    text: &[u8],
    keys: [&[u8]; N],
    unit: Option<&[u8]>,
) -> [Result<u64, UnknownReason>; N] {
    let lines = match complete_lines(text) {
        Ok(lines) => lines,
        Err(why) => return [Err(why); N],
    };
    let mut found = [NOT_FOUND; N];
    for line in lines {
        let mut words = words(line);
        let Some(key) = words.next() else { continue };
        let Some(index) = keys.iter().position(|wanted| *wanted == key) else { continue };
        let value = match (words.next(), words.next(), words.next()) {
            (Some(value), found_unit, None) if found_unit == unit => parse_number(value),
            _ => Err(UnknownReason::Unparsable),
        };
        record_once(&mut found[index], value);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn value_that_is_found_again_is_unparsable() {
        let unparsable = Err(UnknownReason::Unparsable);
        for first in [Ok(1), Err(UnknownReason::Implausible), unparsable] {
            let mut found = NOT_FOUND;
            record_once(&mut found, first);
            assert_eq!(found, first);
            for _ in 0..2 {
                record_once(&mut found, Ok(1));
                assert_eq!(found, unparsable, "after {first:?}");
            }
        }
    }

    #[test]
    fn numbers_are_parsed() {
        for (text, expected) in [
            ("0", Ok(0)),
            ("9223372036854775807", Ok(i64::MAX as u64)),
            ("9223372036854775808", Err(UnknownReason::Implausible)),
            ("18446744073709551615", Err(UnknownReason::Implausible)),
            ("99999999999999999999999999", Err(UnknownReason::Implausible)),
            ("-1", Err(UnknownReason::Implausible)),
            ("-", Err(UnknownReason::Unparsable)),
            ("-x", Err(UnknownReason::Unparsable)),
            ("+1", Err(UnknownReason::Unparsable)),
            ("", Err(UnknownReason::Unparsable)),
            ("max", Err(UnknownReason::Unparsable)),
            ("1 2", Err(UnknownReason::Unparsable)),
            ("1\n", Err(UnknownReason::Unparsable)),
            ("0x10", Err(UnknownReason::Unparsable)),
            ("１", Err(UnknownReason::Unparsable)),
        ] {
            assert_eq!(parse_number(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(parse_number_line(b"12\n"), Ok(12));
        assert_eq!(parse_number_line(b"12\n\n"), Err(UnknownReason::Unparsable));
        assert_eq!(parse_number_line(b"\n"), Err(UnknownReason::Unparsable));
    }

    proptest! {
        #[test]
        fn number_is_parsed_exactly_or_refused_above_the_maximum(value: u64) {
            let parsed = parse_number(value.to_string().as_bytes());
            prop_assert_eq!(parsed, if value <= i64::MAX as u64 { Ok(value) } else { Err(UnknownReason::Implausible) });
        }

        #[test]
        fn arbitrary_bytes_give_their_number_or_an_error(bytes: Vec<u8>) {
            let parsed = parse_number_line(&bytes);
            if let Ok(value) = parsed {
                let text = std::str::from_utf8(&bytes).unwrap().trim_end_matches('\n');
                prop_assert_eq!(text.parse::<u64>(), Ok(value));
            }
        }
    }
}
