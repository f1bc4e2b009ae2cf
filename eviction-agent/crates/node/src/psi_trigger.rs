//! What the kernel tells of a version 2 group by making a file readable anew: that its tasks wait
//! for memory (`memory.pressure`), and that it ran into its own limits (`memory.events`).
//!
//! Both come late, when the kernel reclaims already; they say that a look is due, not what it finds.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::async_fd::register_for;
use super::backend_info::BackendInfo;
use super::file::retry;

/// The names of both as rungs.
pub const PRESSURE: &str = "memory.pressure trigger";
/// See [`PRESSURE`].
pub const EVENTS: &str = "memory.events";

/// Stalls that are told: microseconds within a window of microseconds. The kernel takes windows from
/// half a second on; those that are no multiple of two seconds need CAP_SYS_RESOURCE. The first that
/// is accepted is used.
const STALLS: [&str; 2] = ["some 20000 500000", "some 50000 2000000"];

/// Why such a file cannot be watched.
#[derive(Debug, Error)]
#[error("cannot watch {}", path.display())]
pub struct TriggerError {
    /// The file.
    pub path: PathBuf,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

impl TriggerError {
    /// What the user can do about it.
    pub fn help(&self) -> Option<&'static str> {
        match Errno::from_io_error(&self.source)? {
            Errno::ROFS => Some("mount the cgroup hierarchy writable"),
            Errno::ACCESS | Errno::PERM => Some("run as root, or add the capability DAC_OVERRIDE"),
            Errno::NOENT | Errno::OPNOTSUPP => Some("boot with psi=1; the root has no memory.events"),
            _ => None,
        }
    }
}

/// A file that the kernel makes readable anew when there is something to tell.
#[derive(Debug)]
pub struct Trigger {
    file: AsyncFd<OwnedFd>,
    /// What is read to hear of the next time.
    is_reread: bool,
}

impl Trigger {
    /// Asks to be told when tasks of this group wait for memory.
    ///
    /// # Errors
    /// If there is no such file, or it cannot be written.
    pub fn on_pressure(group: &Path) -> Result<Self, TriggerError> {
        let path = group.join("memory.pressure");
        let fail = |source: io::Error| TriggerError { path: path.clone(), source };
        let mut refused = None;
        for stall in STALLS {
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = retry(|| rustix::fs::open(&path, flags, Mode::empty())).map_err(|e| fail(e.into()))?;
            // The closing zero counts.
            match retry(|| rustix::io::write(&file, format!("{stall}\0").as_bytes())) {
                Ok(_) => return Self::watch(file, false).map_err(fail),
                Err(errno) => refused = Some(errno),
            }
        }
        Err(fail(refused.map_or_else(|| io::Error::other("no trigger"), io::Error::from)))
    }

    /// Asks to be told when this group runs into a limit of its own or of one below it.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn on_events(group: &Path) -> Result<Self, TriggerError> {
        let path = group.join("memory.events");
        let fail = |source: io::Error| TriggerError { path: path.clone(), source };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = retry(|| rustix::fs::open(&path, flags, Mode::empty())).map_err(|e| fail(e.into()))?;
        let this = Self::watch(file, true).map_err(fail)?;
        this.read().map_err(fail)?;
        Ok(this)
    }

    #[cfg(any(test, feature = "fixture"))]
    /// For tests: over any descriptor.
    pub fn of(file: OwnedFd) -> io::Result<Self> {
        Self::watch(file, false)
    }

    fn watch(file: OwnedFd, is_reread: bool) -> io::Result<Self> {
        Ok(Self { file: register_for(file, Interest::PRIORITY)?, is_reread })
    }

    /// Waits until the kernel has something to tell.
    ///
    /// # Errors
    /// If the group is gone or the descriptor of no use any more.
    pub async fn fired(&self) -> io::Result<()> {
        let mut guard = self.file.ready(Interest::PRIORITY | Interest::ERROR).await?;
        let ready = guard.ready();
        guard.clear_ready();
        if ready.is_error() && !self.is_reread {
            return Err(io::Error::other("the group is gone"));
        }
        self.read()
    }

    fn read(&self) -> io::Result<()> {
        if self.is_reread {
            let mut text = [0; 256];
            retry(|| rustix::io::pread(&self.file, &mut text, 0))?;
        }
        Ok(())
    }

    /// What `check` says of such a trigger.
    pub fn info(rung: &'static str, reason: String) -> BackendInfo {
        let source = if rung == EVENTS { "limits" } else { "pressure" };
        BackendInfo::plain(source, rung, reason)
    }
}
