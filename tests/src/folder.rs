//! A folder for the files of one run, removed at its end, or by a later run if it crashed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::process;

/// Writes a file that may be executed.
///
/// # Errors
/// If it cannot be written.
pub fn write_executable(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("make {} executable", file.display()))
}

/// A folder of this process.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a folder in memory, where writing a file never waits for a disk.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn in_memory(prefix: &str) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        Self::below(if memory.is_dir() { memory } else { Path::new("/tmp") }, prefix)
    }

    /// Creates a folder below that one, after removing those of processes that have ended.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn below(parent: &Path, prefix: &str) -> Result<Self> {
        remove_abandoned(parent, prefix)
            .with_context(|| format!("clear {} of earlier runs", parent.display()))?;
        let pid = std::process::id();
        let (_, start) = process::stat(pid).context("read own start time")?;
        let mut serial = 0;
        loop {
            let path = parent.join(format!("{prefix}-{serial}-{pid}-{start}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => serial += 1,
                Err(error) => {
                    return Err(error).with_context(|| format!("make {}", path.display()));
                }
            }
        }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("remove {}: {error}", self.0.display());
        }
    }
}

/// Returns a folder on a disk, for files with pages that the kernel can reclaim: the temporary one, or the
/// current one if that is in memory.
///
/// # Errors
/// If the file system cannot be read.
pub fn on_disk() -> Result<PathBuf> {
    let temporary = std::env::temp_dir();
    match is_in_memory(&temporary)? {
        true => std::env::current_dir().context("find the current folder"),
        false => Ok(temporary),
    }
}

/// Returns a file or folder of this repository.
pub fn repository(path: impl AsRef<Path>) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// Returns `~/.cache/eviction-agent`, in which tasks keep what they build and fetch.
pub fn cache() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
    Some(base.join("eviction-agent"))
}

/// Returns whether a file or folder is in a tmpfs, so that its pages exist only in memory.
///
/// # Errors
/// If the file system cannot be read.
pub fn is_in_memory(path: &Path) -> Result<bool> {
    // linux/magic.h
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let kind =
        rustix::fs::statfs(path).with_context(|| format!("read the file system of {}", path.display()))?;
    Ok(kind.f_type == TMPFS_MAGIC)
}

fn remove_abandoned(parent: &Path, prefix: &str) -> Result<()> {
    abandoned(parent, prefix)?.into_iter().try_for_each(|folder| Ok(fs::remove_dir_all(folder)?))
}

/// Returns the folders that were left behind by processes that have ended.
///
/// # Errors
/// If the parent cannot be listed.
pub fn abandoned(parent: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| is_abandoned(name, prefix)) {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

/// Returns whether a name is `<prefix>-<serial>-<pid>-<start>` of a process that has ended.
fn is_abandoned(name: &str, prefix: &str) -> bool {
    let Some(rest) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-')) else {
        return false;
    };
    let parts: Vec<Option<u64>> = rest.split('-').map(|part| part.parse().ok()).collect();
    let [Some(_), Some(pid), Some(start)] = parts[..] else { return false };
    let running = u32::try_from(pid).ok().and_then(process::stat);
    running.is_none_or(|(_, now)| now != start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_removed_when_its_owner_is_dropped() {
        let parent = tempfile::tempdir().expect("a folder");
        let one = Folder::below(parent.path(), "x").expect("one");
        let two = Folder::below(parent.path(), "x").expect("another");
        assert_ne!(one.path(), two.path());
        let removed = one.path().to_owned();
        drop(one);
        assert!(!removed.exists() && two.path().exists());
    }

    #[test]
    fn only_folders_of_ended_processes_are_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let own = std::process::id();
        let dead = format!("x-0-{own}-1");
        let names = [dead.as_str(), "x-y-1-1", "y-0-1-1", "x-0-1"];
        for name in names {
            fs::create_dir(parent.path().join(name)).expect("a folder");
        }
        let mine = Folder::below(parent.path(), "x").expect("a folder");
        let kept: Vec<bool> = names.map(|name| parent.path().join(name).exists()).to_vec();
        assert_eq!(kept, [false, true, true, true]);
        assert!(mine.path().exists());
    }
}
