//! The state file on the disk: read once, set aside if it cannot be used, and replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::SUFFIXES;

/// The maximum size in bytes. A longer file is not one of the agent's.
const MAX_BYTES: u64 = 4 << 20;

/// A state file, by its path.
#[derive(Clone, Debug)]
pub(crate) struct StateFile {
    pub(super) path: PathBuf,
}

impl StateFile {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the content; `None` if there is no file.
    pub(super) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_BYTES {
            // Too long is treated like a corrupt file.
            bytes.clear();
        }
        Ok(Some(bytes))
    }

    /// Reads a JSON value; `None` if there is no file.
    ///
    /// # Errors
    /// The file and the cause, if it cannot be used.
    pub(crate) fn read_json<T: DeserializeOwned>(&self) -> Result<Option<T>, String> {
        let failed = |why: &dyn std::fmt::Display| format!("read {}: {why}", self.path.display());
        let bytes = self.read().map_err(|error| failed(&error))?;
        bytes.map(|bytes| serde_json::from_slice(&bytes).map_err(|error| failed(&error))).transpose()
    }

    /// Replaces the file by a JSON value, as [`Self::write`] does.
    pub(crate) fn write_json(&self, value: &impl Serialize) -> io::Result<()> {
        self.write(&serde_json::to_vec(value)?)
    }

    /// Renames the file, so that it can be examined later. Replaces a file that was set aside before.
    pub(super) fn set_aside(&self) -> io::Result<PathBuf> {
        let aside = self.with_suffix(SUFFIXES[1]);
        fs::rename(&self.path, &aside)?;
        Ok(aside)
    }

    /// Replaces the file as a whole or not at all, also if the machine stops at any moment.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let new = self.with_suffix(SUFFIXES[0]);
        let written = write_new(&new, bytes).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                fs::create_dir_all(folder)?;
                write_new(&new, bytes)
            }
            _ => Err(error),
        });
        let exchanged = written.and_then(|()| fs::rename(&new, &self.path));
        if exchanged.is_err() {
            // A full disk needs the space.
            drop(fs::remove_file(&new));
        }
        exchanged?;
        File::open(folder)?.sync_all()
    }

    fn with_suffix(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        name.into()
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(flags).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::at(folder.path().join("not/yet/state.json"));
        assert_eq!(file.read().unwrap(), None);
        for bytes in [&b"one"[..], b"another", b""] {
            file.write(bytes).unwrap();
            assert_eq!(file.read().unwrap().as_deref(), Some(bytes));
        }
        let names = fs::read_dir(file.path.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1, "nothing is left beside it");
        // A file that a kill in the middle has left does no harm.
        fs::write(file.with_suffix(".new"), vec![b'x'; 100]).unwrap();
        assert_eq!(file.read().unwrap().as_deref(), Some(&b""[..]));
        file.write(b"next").unwrap();
        assert_eq!(file.read().unwrap().as_deref(), Some(&b"next"[..]));
    }

    #[test]
    fn a_file_that_was_set_aside_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::at(folder.path().join("state.json"));
        for text in ["first", "second"] {
            file.write(text.as_bytes()).unwrap();
            let aside = file.set_aside().unwrap();
            assert_eq!(fs::read_to_string(aside).unwrap(), text);
            assert_eq!(file.read().unwrap(), None);
        }
    }

    #[test]
    fn directories_pipes_and_oversized_files_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::create_dir(&path).unwrap();
        assert!(StateFile::at(path.clone()).read().is_err());
        assert!(StateFile::at(path.clone()).write(b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "what was begun is cleared away");
        let long = folder.path().join("long");
        File::create(&long).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert_eq!(StateFile::at(long).read().unwrap().as_deref(), Some(&b""[..]));
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(StateFile::at(pipe).read().is_err(), "without a wait");
    }

    #[test]
    fn a_failed_write_keeps_the_previous_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::at(folder.path().join("state.json"));
        file.write(b"good").unwrap();
        // A link that another process has put there is not followed.
        let other = folder.path().join("other");
        fs::write(&other, "not ours").unwrap();
        std::os::unix::fs::symlink(&other, file.with_suffix(".new")).unwrap();
        assert!(file.write(b"better").is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "not ours");
        assert_eq!(file.read().unwrap().as_deref(), Some(&b"good"[..]));
        file.write(b"better").unwrap();
        assert_eq!(file.read().unwrap().as_deref(), Some(&b"better"[..]));
    }
}
