//! A file of pods that is read again whenever it changes.
//!
//! What matters is the file that the path leads to, by its identity and times, so that
//! renames, symbolic links that are pointed elsewhere (as a mounted ConfigMap's are) and
//! writing in place are all seen. Events of its directory tell when to look; a look every few
//! seconds sees what they cannot, such as a link into another directory.
#![forbid(unsafe_code)]

use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use thiserror::Error;
use tokio::io::unix::AsyncFd;

use crate::async_fd::register;

use crate::backend::BackendInfo;

/// A larger file is refused.
pub const LARGEST: u64 = 64 << 20;

/// How often is looked where events tell of changes.
const LOOK_BESIDE_EVENTS: Duration = Duration::from_secs(10);

/// How often is looked where they do not.
const LOOK_WITHOUT_EVENTS: Duration = Duration::from_secs(1);

/// A file that was written so lately may be written again without its times telling.
const UNSETTLED: Duration = Duration::from_secs(2);

/// What is wrong with the file.
#[derive(Debug, Error)]
pub enum PodsFileError<E> {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is larger than [`LARGEST`].
    #[error("cannot read {}: {size} bytes are more than {LARGEST}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: u64,
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
    seen: FileState,
    events: Result<AsyncFd<OwnedFd>, io::Error>,
}

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FileState {
    File { identity: [i64; 7], settled: bool, content: u64 },
    Error { errno: Option<i32> },
}

impl<T: Send + 'static, E: Send + 'static> PodsFile<T, E> {
    /// Reads the file, which must be good this first time, and begins to watch it.
    pub fn open(
        path: &Path,
        parse: impl Fn(&[u8]) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<(Self, T), PodsFileError<E>> {
        // Events first: what changes after the first look is then told.
        let events = watch(path);
        let parse: Arc<Parse<T, E>> = Arc::new(parse);
        let (seen, change) = look(path, &*parse, None);
        match change {
            Some(FileChange::New(content)) => {
                Ok((Self { path: path.to_owned(), parse, seen, events }, content))
            }
            Some(FileChange::Invalid(error)) => Err(error),
            None => {
                Err(PodsFileError::Read { path: path.to_owned(), source: io::ErrorKind::NotFound.into() })
            }
        }
    }

    /// Waits for the next change. May be cancelled at any time.
    pub async fn changed(&mut self) -> FileChange<T, E> {
        loop {
            let (path, parse, seen) = (self.path.clone(), self.parse.clone(), self.seen.clone());
            // A file may be on a file system that hangs.
            let looked = tokio::task::spawn_blocking(move || look(&path, &*parse, Some(&seen))).await;
            match looked {
                Ok((seen, change)) => {
                    self.seen = seen;
                    if let Some(change) = change {
                        return change;
                    }
                }
                Err(error) => {
                    let path = self.path.clone();
                    return FileChange::Invalid(PodsFileError::Read { path, source: error.into() });
                }
            }
            self.wait().await;
        }
    }

    /// What tells of changes, and why.
    pub fn info(&self) -> BackendInfo {
        let (backend, reason) = match &self.events {
            Ok(_) => ("inotify", "events of the file's directory, and a look every 10 s".to_owned()),
            Err(error) => ("poll", format!("a look every second: no events of the directory: {error}")),
        };
        BackendInfo::plain("pods file", backend, reason)
    }

    async fn wait(&mut self) {
        let unsettled = matches!(self.seen, FileState::File { settled: false, .. });
        match &self.events {
            Ok(events) => {
                let pause = if unsettled { UNSETTLED } else { LOOK_BESIDE_EVENTS };
                let told = tokio::time::timeout(pause, events.readable()).await;
                if let Ok(told) = told {
                    let still_good = told.and_then(|mut ready| {
                        let good = drain(events.get_ref());
                        ready.clear_ready();
                        good
                    });
                    if still_good.is_err() {
                        // The directory itself was moved or removed: watch what is there now.
                        self.events = watch(&self.path);
                    }
                }
            }
            Err(_) => {
                tokio::time::sleep(LOOK_WITHOUT_EVENTS).await;
                self.events = watch(&self.path);
            }
        }
    }
}

/// Begins to watch the directory of `path`.
fn watch(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let flags = WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&events, directory, flags)?;
    register(events)
}

/// Takes all events that wait; an error when the watch has ended.
fn drain(events: &OwnedFd) -> io::Result<()> {
    use inotify::ReadFlags;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(events, &mut buffer);
    let mut ended = false;
    loop {
        match reader.next() {
            Ok(event) => {
                ended |= event
                    .events()
                    .intersects(ReadFlags::IGNORED | ReadFlags::MOVE_SELF | ReadFlags::DELETE_SELF);
            }
            Err(rustix::io::Errno::AGAIN) if ended => return Err(io::ErrorKind::NotFound.into()),
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Looks at the file; tells what is new since it was in the state `before`.
fn look<T, E>(
    path: &Path,
    parse: &Parse<T, E>,
    before: Option<&FileState>,
) -> (FileState, Option<FileChange<T, E>>) {
    let fail = |source: io::Error| {
        let seen = FileState::Error { errno: source.raw_os_error() };
        let told = before == Some(&seen);
        let path = path.to_owned();
        (seen, (!told).then_some(FileChange::Invalid(PodsFileError::Read { path, source })))
    };
    // NONBLOCK so that a named pipe is refused below and does not hang.
    const O_NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = match std::fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(error) => return fail(error),
    };
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return fail(error),
    };
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::InvalidInput };
        return fail(kind.into());
    }
    let identity = [
        metadata.dev().cast_signed(),
        metadata.ino().cast_signed(),
        metadata.size().cast_signed(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    ];
    if let Some(FileState::File { identity: known, settled: true, .. }) = before
        && *known == identity
    {
        return (FileState::File { identity, settled: true, content: content_of(before) }, None);
    }
    let settled = metadata
        .modified()
        .is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > UNSETTLED));
    let size = metadata.size();
    let mut text = Vec::new();
    if size <= LARGEST
        && let Err(error) = (&mut file).take(LARGEST).read_to_end(&mut text)
    {
        return fail(error);
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(&text);
    hasher.write_u64(size.max(LARGEST));
    let seen = FileState::File { identity, settled, content: hasher.finish() };
    if matches!(before, Some(FileState::File { .. })) && content_of(before) == content_of(Some(&seen)) {
        return (seen, None);
    }
    let path = path.to_owned();
    let change = if size > LARGEST {
        FileChange::Invalid(PodsFileError::TooLarge { path, size })
    } else {
        match parse(&text) {
            Ok(content) => FileChange::New(content),
            Err(source) => FileChange::Invalid(PodsFileError::Parse { path, source }),
        }
    };
    (seen, Some(change))
}

fn content_of(seen: Option<&FileState>) -> u64 {
    match seen {
        Some(FileState::File { content, .. }) => *content,
        _ => 0,
    }
}
