//! A file that is read again whenever it changes: the pods of a node without an API server.
//!
//! Events of its directory trigger a read. A read every few seconds finds changes without such events, for
//! example through a symbolic link into another directory.
#![forbid(unsafe_code)]

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::backend::BackendInfo;
use crate::file::FileError;
use crate::file_watch::FileWatch;

/// The largest file that is read, in bytes. A larger file is refused.
pub const LARGEST: u64 = 64 << 20;

/// The read interval where events report changes.
const INTERVAL_WITH_EVENTS: Duration = Duration::from_secs(10);

/// The delay after an event. It is short, since a pod that is not known yet is no eviction candidate.
const EVENT_DELAY: Duration = Duration::from_millis(5);

/// The read interval without events.
const INTERVAL_WITHOUT_EVENTS: Duration = Duration::from_secs(1);

type Parse<T> = fn(&[u8]) -> Result<T, String>;

/// Watches a file. Needs a tokio runtime with IO and time.
pub struct PodsFile<T> {
    path: PathBuf,
    parse: Parse<T>,
    /// A hash of the content, or of the error that prevented reading it.
    state: u64,
    watch: FileWatch,
}

impl<T: Send + 'static> PodsFile<T> {
    /// Reads the file, which must be valid this first time, and begins to watch it.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or is larger than [`LARGEST`].
    pub fn open(path: &Path, parse: Parse<T>) -> Result<(Self, T), FileError> {
        // Events first, so that a change after the first read is reported.
        let watch = FileWatch::of(Some(path), EVENT_DELAY);
        let (state, text) = read(path);
        let content = parse_content(path, parse, text)?;
        Ok((Self { path: path.to_owned(), parse, state, watch }, content))
    }

    /// Waits for the next change, and returns the new content. Cancel-safe.
    ///
    /// # Errors
    /// If the file cannot be used; the last good content stays. Reported once for each change of the file.
    pub async fn changed(&mut self) -> Result<T, FileError> {
        loop {
            let (path, parse, before) = (self.path.clone(), self.parse, self.state);
            let read = move || {
                let (state, text) = read(&path);
                (state, (state != before).then(|| parse_content(&path, parse, text)))
            };
            // A file may be on a file system that hangs.
            let content = match tokio::task::spawn_blocking(read).await {
                Ok((state, content)) => {
                    self.state = state;
                    content
                }
                Err(error) => Some(parse_content(&self.path, parse, Err(error.into()))),
            };
            match content {
                Some(content) => return content,
                None => self.wait().await,
            }
        }
    }

    /// Returns how changes are detected, and why.
    pub fn info(&self) -> BackendInfo {
        let (backend, reason) = match self.watch.is_watching() {
            true => ("inotify", "events of the file's directory, and a read every 10 s"),
            false => ("poll", "a read every second: no events of the directory"),
        };
        BackendInfo::plain("pods file", backend, reason)
    }

    async fn wait(&mut self) {
        let interval = if self.watch.is_watching() { INTERVAL_WITH_EVENTS } else { INTERVAL_WITHOUT_EVENTS };
        let _elapsed = tokio::time::timeout(interval, self.watch.changed()).await;
    }
}

/// Reads the file. Returns its text or the error, and a hash of that.
fn read(path: &Path) -> (u64, io::Result<Vec<u8>>) {
    let text = read_text(path);
    let mut hasher = DefaultHasher::new();
    match &text {
        Ok(text) => hasher.write(text),
        Err(error) => error.to_string().hash(&mut hasher),
    }
    (hasher.finish(), text)
}

fn parse_content<T>(path: &Path, parse: Parse<T>, text: io::Result<Vec<u8>>) -> Result<T, FileError> {
    let path = path.display();
    let text = text.map_err(|error| FileError::new(format!("cannot read {path}"), error))?;
    parse(&text).map_err(|cause| FileError::new(format!("cannot understand {path}"), io::Error::other(cause)))
}

fn read_text(path: &Path) -> io::Result<Vec<u8>> {
    // NONBLOCK so that a named pipe is refused below and does not hang.
    const O_NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::InvalidInput };
        return Err(kind.into());
    }
    if metadata.size() > LARGEST {
        let size = metadata.size();
        let why = format!("{size} bytes are more than {LARGEST}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    let mut text = Vec::new();
    file.take(LARGEST).read_to_end(&mut text)?;
    Ok(text)
}
