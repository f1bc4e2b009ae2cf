//! Opens, reads and writes the control files of a cgroup below an open directory.
#![forbid(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, read, write};
use rustix::path::Arg;

/// Opens a cgroup below `dir`; with an empty path, `dir` itself.
pub(super) fn open_group(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, path, flags, Mode::empty())
}

/// Whether `cgroup.events` of a cgroup v2 cgroup has this line.
pub(super) fn has_event(group: impl AsFd, line: &[u8]) -> bool {
    let mut text = [0; 128];
    read_short_file(group, c"cgroup.events", &mut text).split(|byte| *byte == b'\n').any(|it| it == line)
}

/// Whether a short control file of a cgroup has this content.
pub(super) fn file_contains(group: &OwnedFd, name: &CStr, content: &[u8]) -> bool {
    read_short_file(group, name, &mut [0; 16]).trim_ascii() == content
}

/// Returns the content of a short file of a cgroup; empty if it cannot be read.
pub(super) fn read_short_file<'t>(group: impl AsFd, name: &CStr, text: &'t mut [u8]) -> &'t [u8] {
    let count = open_file(group, name).and_then(|file| read(&file, &mut *text)).unwrap_or(0);
    &text[..count]
}

/// Opens a file of a cgroup for reading.
pub(super) fn open_file(group: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    openat(group, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Writes a value to a control file of a cgroup.
pub(super) fn write_file(group: impl AsFd, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    let file = openat(group, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    write(&file, value).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_events_shows_whether_a_cgroup_is_populated() {
        let folder = tempfile::tempdir().unwrap();
        let group = std::fs::File::open(folder.path()).unwrap();
        assert!(!has_event(&group, b"populated 1"), "version 1 does not tell");
        for (text, expected) in
            [("populated 1\nfrozen 0\n", true), ("populated 0\nfrozen 1\n", false), ("", false)]
        {
            std::fs::write(folder.path().join("cgroup.events"), text).unwrap();
            assert_eq!(has_event(&group, b"populated 1"), expected, "{text}");
        }
    }
}
