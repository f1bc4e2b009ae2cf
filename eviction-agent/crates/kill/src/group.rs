//! The files of a cgroup that the hands read.
#![forbid(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, read};

/// Opens a group below another one; that one itself by an empty path.
pub(super) fn open_group(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, path, flags, Mode::empty())
}

/// Appends the process ids in the group's `cgroup.procs` and returns how many of its processes
/// this PID namespace does not show. The file is opened each time: version 1 makes the list when
/// it is opened, and keeps it.
pub(super) fn list(group: BorrowedFd<'_>, text: &mut Vec<u8>, pids: &mut Vec<u32>) -> Result<u32, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(group, c"cgroup.procs", flags, Mode::empty())?;
    let mut digits: Option<u32> = None;
    let mut unreachable = 0;
    loop {
        let count = match read(&file, text.as_mut_slice()) {
            Ok(0) => return Ok(unreachable),
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        for byte in &text[..count] {
            if byte.is_ascii_digit() {
                let before = digits.unwrap_or(0).saturating_mul(10);
                digits = Some(before.saturating_add(u32::from(byte - b'0')));
                continue;
            }
            match digits.take() {
                Some(0) => unreachable += 1,
                Some(pid) => pids.push(pid),
                None => {}
            }
        }
    }
}

/// Whether a version 2 group has tasks in it or below it, those included that `cgroup.procs` lists no more
/// though their exit has only begun, as 7.2 does: until it is over their memory is theirs.
pub(super) fn is_populated(group: BorrowedFd<'_>) -> bool {
    let mut text = [0; 128];
    short(group, c"cgroup.events", &mut text).split(|byte| *byte == b'\n').any(|line| line == b"populated 1")
}

/// Whether a short control file of a group has this content.
pub(super) fn file_says(group: &OwnedFd, name: &CStr, content: &[u8]) -> bool {
    short(group, name, &mut [0; 16]).trim_ascii() == content
}

/// What stands in a short file of a group; nothing if it cannot be read.
pub(super) fn short<'t>(group: impl AsFd, name: &CStr, text: &'t mut [u8]) -> &'t [u8] {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let count =
        openat(group, name, flags, Mode::empty()).and_then(|file| read(&file, &mut *text)).unwrap_or(0);
    &text[..count]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_tasks_for_as_long_as_its_events_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let group = std::fs::File::open(folder.path()).unwrap();
        assert!(!is_populated(group.as_fd()), "version 1 does not tell");
        for (text, expected) in
            [("populated 1\nfrozen 0\n", true), ("populated 0\nfrozen 1\n", false), ("", false)]
        {
            std::fs::write(folder.path().join("cgroup.events"), text).unwrap();
            assert_eq!(is_populated(group.as_fd()), expected, "{text}");
        }
    }
}
