//! The PSI trigger of a cgroup v2: the kernel reports that tasks of the cgroup wait for memory. The report
//! comes late, when the kernel already reclaims. It only makes a sample due.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::register_for;
use crate::file::{FileError, open_path, retry};

/// The name of the backend.
pub const NAME: &str = "memory.pressure trigger";

/// Stalls that are reported: microseconds within a window of microseconds. The kernel takes windows from half a
/// second on; those that are no multiple of two seconds need CAP_SYS_RESOURCE. The first that is accepted is used.
const STALLS: [&str; 2] = ["some 20000 500000", "some 50000 2000000"];

/// A trigger on the `memory.pressure` of one cgroup.
#[derive(Debug)]
pub struct PsiWatch {
    group: PathBuf,
    file: Option<AsyncFd<OwnedFd>>,
}

impl PsiWatch {
    /// Registers a trigger with the cgroup in the folder `group`.
    ///
    /// # Errors
    /// If there is no such file, or the kernel refuses the trigger.
    pub fn open(group: &Path) -> Result<Self, FileError> {
        let mut this = Self { group: group.to_owned(), file: None };
        this.set()?;
        Ok(this)
    }

    /// Registers the trigger, unless it is registered.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn set(&mut self) -> Result<(), FileError> {
        if self.file.is_none() {
            let path = self.group.join("memory.pressure");
            self.file = Some(
                register(&path)
                    .map_err(|source| FileError::new(format!("cannot watch {}", path.display()), source))?,
            );
        }
        Ok(())
    }

    /// Removes the trigger. Closing the returned value waits for the kernel's readers (`synchronize_rcu`).
    #[must_use = "dropping it may take tenths of a second"]
    pub fn clear(&mut self) -> Option<impl Send + use<>> {
        self.file.take()
    }

    /// Waits until the kernel reports a stall; forever while no trigger is registered. Cancel-safe.
    ///
    /// # Errors
    /// If the cgroup was removed.
    pub async fn fired(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return std::future::pending().await };
        let mut guard = file.ready(Interest::PRIORITY | Interest::ERROR).await?;
        let ready = guard.ready();
        guard.clear_ready();
        if ready.is_error() { Err(io::Error::other("the group is gone")) } else { Ok(()) }
    }

    #[cfg(any(test, feature = "fixture"))]
    /// Creates a trigger for tests, on any descriptor and with a cgroup that does not exist.
    pub fn of(file: OwnedFd) -> io::Result<Self> {
        let file = register_for(file, Interest::PRIORITY)?;
        Ok(Self { group: PathBuf::from("/nowhere"), file: Some(file) })
    }
}

fn register(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let mut last_error = io::Error::other("no trigger");
    for stall in STALLS {
        let file = open_path(path, OFlags::RDWR | OFlags::NONBLOCK)?;
        // The terminating NUL is part of the request.
        match retry(|| rustix::io::write(&file, format!("{stall}\0").as_bytes())) {
            Ok(_) => return register_for(file, Interest::PRIORITY),
            Err(errno) => last_error = errno.into(),
        }
    }
    Err(last_error)
}
