//! Notices by inotify on its folder that a file was changed.
//!
//! A ConfigMap that is mounted is a folder of links to `..data/NAME`; the kubelet replaces the link
//! `..data` (`AtomicWriter`), and touches neither the file nor the link to it.

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

use crate::async_fd::register;

/// The link that the kubelet replaces.
const DATA: &[u8] = b"..data";

/// After the folder was gone.
const AGAIN: Duration = Duration::from_secs(10);

/// Room for some events; each has a name of at most 255 bytes.
const BUFFER: usize = 4096;

/// A file of which changes are to be noticed.
#[derive(Debug)]
pub struct FileWatch {
    watched: Option<WatchedFile>,
    /// For so long a change is kept back, since files are written in several steps.
    settle: Duration,
    /// A change was noticed, and is told then.
    due: Option<Instant>,
}

#[derive(Debug)]
struct WatchedFile {
    inotify: AsyncFd<OwnedFd>,
    folder: PathBuf,
    name: Vec<u8>,
    /// The folder is not there any more.
    is_lost: bool,
}

impl FileWatch {
    /// Watches a file, if there is one, as far as that is possible. A change is told `settle` after its
    /// first event. Needs a runtime.
    pub fn of(file: Option<&Path>, settle: Duration) -> Self {
        let watched = file.and_then(|file| match WatchedFile::new(file) {
            Ok(watched) => Some(watched),
            Err(error) => {
                let file = file.display();
                tracing::warn!(%file, %error, "no events of changes of the file");
                None
            }
        });
        Self { watched, settle, due: None }
    }

    /// Whether changes are noticed.
    pub fn is_watching(&self) -> bool {
        self.watched.as_ref().is_some_and(|watched| !watched.is_lost)
    }

    /// Waits for the next change. May be cancelled; nothing is lost by that.
    pub async fn changed(&mut self) {
        let Self { watched: Some(watched), settle, due } = self else { return std::future::pending().await };
        loop {
            if let Some(at) = *due {
                sleep_until(at).await;
                // What happened meanwhile is read with it.
                let _whatever = watched.take();
                *due = None;
                return;
            }
            if watched.is_lost {
                sleep(AGAIN).await;
                watched.is_lost = watched.add().is_err();
                if watched.is_lost {
                    continue;
                }
                *due = Some(Instant::now());
            } else if watched.next().await {
                *due = Some(Instant::now() + *settle);
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
        let watched = Self { inotify, folder, name, is_lost: false };
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

    /// Waits for something to happen in the folder; whether it is about the file.
    async fn next(&mut self) -> bool {
        match self.inotify.readable().await {
            Ok(mut ready) => {
                ready.clear_ready();
                drop(ready);
                self.take()
            }
            Err(error) => {
                tracing::warn!(%error, "no more events of changes of the file");
                std::future::pending().await
            }
        }
    }

    /// Takes all that has happened; whether any of it is about the file.
    fn take(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = inotify::Reader::new(self.inotify.get_ref(), &mut buffer);
        let mut is_about = false;
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => self.is_lost = true,
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

    const SETTLE: Duration = Duration::from_millis(200);

    /// A guard against a hang.
    const GUARD: Duration = Duration::from_secs(300);

    fn on_a_runtime(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    async fn noticed(watch: &mut FileWatch) {
        tokio::time::timeout(GUARD, watch.changed()).await.unwrap();
    }

    /// Whether nothing is told, of which something else in the folder is the proof that it was seen.
    async fn is_silent(watch: &mut FileWatch) -> bool {
        let events = watch.watched.as_mut().unwrap().next().await;
        !events && watch.due.is_none()
    }

    /// As the kubelet's `AtomicWriter` does it.
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
    fn a_config_map_that_is_replaced_is_noticed() {
        on_a_runtime(async {
            let volume = tempfile::tempdir().unwrap();
            publish(volume.path(), "1", "one");
            let file = volume.path().join("agent.yaml");
            let mut watch = FileWatch::of(Some(&file), SETTLE);
            for version in ["2", "3"] {
                publish(volume.path(), version, version);
                noticed(&mut watch).await;
                assert_eq!(fs::read_to_string(&file).unwrap(), version);
            }
        });
    }

    #[test]
    fn a_file_that_is_written_or_replaced_is_noticed_and_no_other() {
        on_a_runtime(async {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("agent.yaml");
            let mut watch = FileWatch::of(Some(&file), SETTLE);
            fs::write(folder.path().join("other.yaml"), "").unwrap();
            assert!(is_silent(&mut watch).await);
            fs::write(&file, "one").unwrap();
            noticed(&mut watch).await;
            fs::write(folder.path().join("agent.yaml.new"), "two").unwrap();
            fs::rename(folder.path().join("agent.yaml.new"), &file).unwrap();
            noticed(&mut watch).await;
        });
    }

    #[test]
    fn who_stops_waiting_is_told_later() {
        on_a_runtime(async {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("agent.yaml");
            let mut watch = FileWatch::of(Some(&file), SETTLE);
            fs::write(&file, "one").unwrap();
            // Until it was noticed, and not until it would be told.
            while watch.due.is_none() {
                let _not_told = tokio::time::timeout(Duration::from_millis(1), watch.changed()).await;
            }
            noticed(&mut watch).await;
        });
    }

    #[test]
    fn without_a_file_or_a_folder_nothing_is_ever_told() {
        on_a_runtime(async {
            for file in [None, Some(Path::new("/nowhere/at/all/agent.yaml"))] {
                let mut watch = FileWatch::of(file, SETTLE);
                assert!(watch.watched.is_none());
                assert!(tokio::time::timeout(Duration::from_millis(1), watch.changed()).await.is_err());
            }
        });
    }
}
