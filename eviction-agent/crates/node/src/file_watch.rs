//! Detects changes of a file by inotify on its folder.
//!
//! A mounted ConfigMap is a folder of links to `..data/NAME`. The kubelet replaces the link `..data`
//! (`AtomicWriter`), and touches neither the file nor the link to it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, sleep_until};

use crate::notify::register;

/// The link that the kubelet replaces.
const DATA: &[u8] = b"..data";

/// The retry interval after the folder was removed.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The buffer size in bytes, for some events; each has a name of at most 255 bytes.
const BUFFER: usize = 4096;

/// Watches a file for changes.
#[derive(Debug)]
pub struct FileWatch {
    watched: Option<WatchedFile>,
    /// The delay before a change is reported, since files are written in several steps.
    delay: Duration,
    /// When a detected change is reported.
    due: Option<Instant>,
}

#[derive(Debug)]
struct WatchedFile {
    inotify: AsyncFd<OwnedFd>,
    folder: PathBuf,
    name: Vec<u8>,
    /// Whether the folder was removed.
    is_removed: bool,
}

impl FileWatch {
    /// Watches a file, if there is one and it can be watched. A change is reported `delay` after its first
    /// event. Needs a tokio runtime.
    pub fn of(file: Option<&Path>, delay: Duration) -> Self {
        let watched = file.and_then(|file| match WatchedFile::new(file) {
            Ok(watched) => Some(watched),
            Err(error) => {
                let file = file.display();
                tracing::warn!(%file, %error, "cannot watch the file for changes");
                None
            }
        });
        Self { watched, delay, due: None }
    }

    /// Returns whether changes are detected.
    pub fn is_watching(&self) -> bool {
        self.watched.as_ref().is_some_and(|watched| !watched.is_removed)
    }

    /// Waits for the next change. Cancel-safe.
    pub async fn changed(&mut self) {
        let Self { watched: Some(watched), delay, due } = self else { return std::future::pending().await };
        loop {
            if let Some(at) = *due {
                sleep_until(at).await;
                // This change covers all events so far.
                let _is_about_file = watched.take_events();
                *due = None;
                return;
            }
            if watched.is_removed {
                sleep(RETRY_INTERVAL).await;
                watched.is_removed = watched.add().is_err();
                if watched.is_removed {
                    continue;
                }
                *due = Some(Instant::now());
            } else if watched.next().await {
                *due = Some(Instant::now() + *delay);
            }
        }
    }
}

impl WatchedFile {
    fn new(file: &Path) -> io::Result<Self> {
        let name = file.file_name().ok_or(io::ErrorKind::InvalidInput)?.as_bytes().to_vec();
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        let inotify = register(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?)?;
        let watched = Self { inotify, folder, name, is_removed: false };
        watched.add()?;
        Ok(watched)
    }

    fn add(&self) -> io::Result<()> {
        let flags = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(self.inotify.get_ref(), &self.folder, flags)?;
        Ok(())
    }

    /// Waits for events in the folder. Returns whether any is about the file.
    async fn next(&mut self) -> bool {
        match self.inotify.readable().await {
            Ok(mut ready) => {
                ready.clear_ready();
                drop(ready);
                self.take_events()
            }
            Err(error) => {
                tracing::warn!(%error, "the watch for changes of the file has ended");
                std::future::pending().await
            }
        }
    }

    /// Takes all pending events. Returns whether any is about the file.
    fn take_events(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = inotify::Reader::new(self.inotify.get_ref(), &mut buffer);
        let mut is_about = false;
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => self.is_removed = true,
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => is_about = true,
                Ok(event) => {
                    let name = event.file_name().map(std::ffi::CStr::to_bytes);
                    is_about |= name.is_some_and(|name| name == DATA || name == self.name);
                }
                Err(Errno::INTR) => {}
                Err(_) => return is_about,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::Duration;

    use super::FileWatch;

    const DELAY: Duration = Duration::from_millis(200);

    /// A guard against a hang.
    const GUARD: Duration = Duration::from_secs(300);

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    async fn wait_for_change(watch: &mut FileWatch) {
        tokio::time::timeout(GUARD, watch.changed()).await.unwrap();
    }

    /// Returns whether no change is reported, although an event of another file in the folder has arrived.
    async fn has_no_change(watch: &mut FileWatch) -> bool {
        let events = watch.watched.as_mut().unwrap().next().await;
        !events && watch.due.is_none()
    }

    /// Writes a version as the kubelet's `AtomicWriter` does.
    fn publish(volume: &Path, version: &str, text: &str) {
        let data = volume.join(format!("..{version}"));
        fs::create_dir(&data).unwrap();
        fs::write(data.join("agent.yaml"), text).unwrap();
        symlink(format!("..{version}"), volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        if !volume.join("agent.yaml").exists() {
            symlink("..data/agent.yaml", volume.join("agent.yaml")).unwrap();
        }
    }

    #[test]
    fn replaced_config_map_is_reported() {
        run(async {
            let volume = tempfile::tempdir().unwrap();
            publish(volume.path(), "1", "one");
            let file = volume.path().join("agent.yaml");
            let mut watch = FileWatch::of(Some(&file), DELAY);
            for version in ["2", "3"] {
                publish(volume.path(), version, version);
                wait_for_change(&mut watch).await;
                assert_eq!(fs::read_to_string(&file).unwrap(), version);
            }
        });
    }

    #[test]
    fn only_changes_of_the_watched_file_are_reported() {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("agent.yaml");
            let mut watch = FileWatch::of(Some(&file), DELAY);
            fs::write(folder.path().join("other.yaml"), "").unwrap();
            assert!(has_no_change(&mut watch).await);
            fs::write(&file, "one").unwrap();
            wait_for_change(&mut watch).await;
            fs::write(folder.path().join("agent.yaml.new"), "two").unwrap();
            fs::rename(folder.path().join("agent.yaml.new"), &file).unwrap();
            wait_for_change(&mut watch).await;
        });
    }

    #[test]
    fn cancelled_wait_does_not_lose_the_change() {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("agent.yaml");
            let mut watch = FileWatch::of(Some(&file), DELAY);
            fs::write(&file, "one").unwrap();
            // Waits until the change is detected, but not until it is reported.
            while watch.due.is_none() {
                let _timed_out = tokio::time::timeout(Duration::from_millis(1), watch.changed()).await;
            }
            wait_for_change(&mut watch).await;
        });
    }

    #[test]
    fn watch_without_a_file_or_folder_reports_nothing() {
        run(async {
            for file in [None, Some(Path::new("/nowhere/at/all/agent.yaml"))] {
                let mut watch = FileWatch::of(file, DELAY);
                assert!(watch.watched.is_none());
                assert!(tokio::time::timeout(Duration::from_millis(1), watch.changed()).await.is_err());
            }
        });
    }
}
