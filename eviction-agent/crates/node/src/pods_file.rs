//! A file that is read again whenever it changes: the pods of a node without an API server.
//!
//! Events of its directory tell when to read it; reading it every few seconds finds what they do not
//! tell, such as a symbolic link that leads into another directory.
#![forbid(unsafe_code)]

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::backend::BackendInfo;
use crate::file_watch::FileWatch;

/// A larger file is refused.
pub const LARGEST: u64 = 64 << 20;

/// How often the file is read where events tell of changes.
const BESIDE_EVENTS: Duration = Duration::from_secs(10);

/// A pod that is not known yet is no candidate, so that a change is read almost at once.
const SETTLE: Duration = Duration::from_millis(5);

/// How often where they do not.
const WITHOUT_EVENTS: Duration = Duration::from_secs(1);

/// What is wrong with the file.
#[derive(Debug, Error)]
pub enum PodsFileError<E> {
    /// It cannot be read, or is larger than [`LARGEST`].
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// What it says is not understood.
    #[error("cannot understand {}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: E,
    },
}

/// What became of the file.
#[derive(Debug)]
pub enum FileChange<T, E> {
    /// It has new content.
    New(T),
    /// It cannot be used; the last good content stays. Told once for each change of the file.
    Invalid(PodsFileError<E>),
}

type Parse<T, E> = dyn Fn(&[u8]) -> Result<T, E> + Send + Sync;

/// Watches a file. Needs a tokio runtime with IO and time.
pub struct PodsFile<T, E> {
    path: PathBuf,
    parse: Arc<Parse<T, E>>,
    /// A hash of its content, or of why it cannot be read.
    state: u64,
    watch: FileWatch,
}

impl<T: Send + 'static, E: Send + 'static> PodsFile<T, E> {
    /// Reads the file, which must be good this first time, and begins to watch it.
    pub fn open(
        path: &Path,
        parse: impl Fn(&[u8]) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<(Self, T), PodsFileError<E>> {
        // Events first: what changes after the first reading is then told.
        let watch = FileWatch::of(Some(path), SETTLE);
        let (state, content) = read(path, &parse, None);
        let content = content.unwrap_or_else(|| {
            Err(PodsFileError::Read { path: path.to_owned(), source: io::ErrorKind::NotFound.into() })
        })?;
        Ok((Self { path: path.to_owned(), parse: Arc::new(parse), state, watch }, content))
    }

    /// Waits for the next change. May be cancelled at any time.
    pub async fn changed(&mut self) -> FileChange<T, E> {
        loop {
            let (path, parse, state) = (self.path.clone(), self.parse.clone(), self.state);
            // A file may be on a file system that hangs.
            let read = tokio::task::spawn_blocking(move || read(&path, &*parse, Some(state))).await;
            let content = match read {
                Ok((state, content)) => {
                    self.state = state;
                    content
                }
                Err(error) => {
                    Some(Err(PodsFileError::Read { path: self.path.clone(), source: error.into() }))
                }
            };
            match content {
                Some(Ok(content)) => return FileChange::New(content),
                Some(Err(error)) => return FileChange::Invalid(error),
                None => self.wait().await,
            }
        }
    }

    /// What tells of changes, and why.
    pub fn info(&self) -> BackendInfo {
        let (backend, reason) = match self.watch.is_watching() {
            true => ("inotify", "events of the file's directory, and a read every 10 s"),
            false => ("poll", "a read every second: no events of the directory"),
        };
        BackendInfo::plain("pods file", backend, reason)
    }

    async fn wait(&mut self) {
        let pause = if self.watch.is_watching() { BESIDE_EVENTS } else { WITHOUT_EVENTS };
        let _elapsed = tokio::time::timeout(pause, self.watch.changed()).await;
    }
}

/// Reads the file; its content, or what is wrong with it, unless that is so since it was in the state `before`.
fn read<T, E>(
    path: &Path,
    parse: &Parse<T, E>,
    before: Option<u64>,
) -> (u64, Option<Result<T, PodsFileError<E>>>) {
    let text = read_text(path);
    let mut hasher = DefaultHasher::new();
    match &text {
        Ok(text) => hasher.write(text),
        Err(error) => error.to_string().hash(&mut hasher),
    }
    let state = hasher.finish();
    if before == Some(state) {
        return (state, None);
    }
    let path = path.to_owned();
    let content = match text {
        Ok(text) => parse(&text).map_err(|source| PodsFileError::Parse { path, source }),
        Err(source) => Err(PodsFileError::Read { path, source }),
    };
    (state, Some(content))
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
