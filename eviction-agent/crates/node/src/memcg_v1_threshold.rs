//! The kernel's own threshold on the usage of a version 1 group.
//!
//! `cgroup.event_control` joins an eventfd to `memory.usage_in_bytes` and a number of bytes;
//! the kernel signals it when usage crosses that number in either direction. It looks every so
//! many charges, so it comes up to 0.9 MB late, and it is blind to a working set that grows
//! while usage stands still.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;
use tokio::io::unix::AsyncFd;

use super::async_fd::{register, take_count};
use super::backend_info::BackendInfo;
use super::file::retry;

/// Bytes that usage may be beyond a threshold when the kernel signals it: it looks each 128
/// charge events on each CPU (THRESHOLDS_EVENTS_TARGET in mm/memcontrol-v1.c), and charges
/// come in batches.
pub const GRAIN: u64 = 1 << 20;

/// Its name as a rung.
pub const RUNG: &str = "cgroup v1 threshold";

/// Why a threshold could not be set.
#[derive(Debug, Error)]
pub enum ThresholdError {
    /// No eventfd could be made or watched.
    #[error("cannot make an eventfd")]
    Eventfd(#[source] io::Error),
    /// A control file could not be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the registration.
    #[error("cannot register a threshold of {bytes} bytes with {}", path.display())]
    Register {
        /// The event_control file.
        path: PathBuf,
        /// The threshold.
        bytes: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl ThresholdError {
    /// What can be done about it, where something can.
    pub fn help(&self) -> Option<&'static str> {
        let (Self::Eventfd(source) | Self::Open { source, .. } | Self::Register { source, .. }) = self;
        match Errno::from_io_error(source)? {
            Errno::ROFS => Some("mount the cgroup hierarchy writable"),
            Errno::ACCESS | Errno::PERM => Some("run as root, or add the capability DAC_OVERRIDE"),
            Errno::NOENT => Some("thresholds on usage exist on cgroup version 1 only"),
            Errno::MFILE => Some("raise the limit of open files (RLIMIT_NOFILE)"),
            _ => None,
        }
    }
}

/// Thresholds on the usage of one group, removed when dropped.
#[derive(Debug)]
pub struct UsageThreshold {
    event: AsyncFd<OwnedFd>,
    group: PathBuf,
}

impl UsageThreshold {
    /// Registers each of `lines`, in bytes of usage, for the group in the folder `group`. One
    /// signal tells that some line was crossed, not which.
    ///
    /// **Blocks** for an RCU grace period per line (milliseconds): never call it on the
    /// reaction path. Several lines at once, nearer and nearer to the goal, make it seldom
    /// necessary to arm again.
    pub fn register(group: &Path, lines: &[u64]) -> Result<Self, ThresholdError> {
        let event = join(group, lines)?;
        Ok(Self { event: register(event).map_err(ThresholdError::Eventfd)?, group: group.to_owned() })
    }

    /// Registers other lines in place of these. Blocks, as [`Self::register`] does; the old
    /// lines stay until the new ones are set, so no crossing falls between.
    pub fn rearm(&mut self, lines: &[u64]) -> Result<(), ThresholdError> {
        *self = Self::register(&self.group, lines)?;
        Ok(())
    }

    /// Waits until usage has crossed a line, upwards or downwards; returns how many times.
    /// The removal of the group counts as a crossing too: the kernel signals it once.
    pub async fn crossed(&self) -> io::Result<u64> {
        take_count(&self.event).await
    }

    /// What this is, for the log and `check`.
    pub fn info(reason: String) -> BackendInfo {
        BackendInfo { source: "usage", rung: RUNG, reason, sees_every_charge: false, grain_bytes: GRAIN }
    }
}

/// Whether this process may set thresholds for that group, without setting one.
///
/// # Errors
/// The first of the control files that cannot be opened.
pub fn is_allowed(group: &Path) -> Result<(), ThresholdError> {
    files(group).map(drop)
}

/// What a threshold is registered with: the usage, and the control file with its name.
fn files(group: &Path) -> Result<(OwnedFd, OwnedFd, PathBuf), ThresholdError> {
    let open = |name: &str, flags: OFlags| {
        let path = group.join(name);
        match retry(|| rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty())) {
            Ok(file) => Ok((file, path)),
            Err(errno) => Err(ThresholdError::Open { path, source: errno.into() }),
        }
    };
    let (usage, _) = open("memory.usage_in_bytes", OFlags::RDONLY)?;
    let (control, path) = open("cgroup.event_control", OFlags::WRONLY)?;
    Ok((usage, control, path))
}

/// Makes an eventfd that the kernel signals when the usage of `group` crosses one of `lines`.
/// Closing it ends that.
pub fn join(group: &Path, lines: &[u64]) -> Result<OwnedFd, ThresholdError> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| ThresholdError::Eventfd(errno.into()))?;
    let (usage, control, path) = files(group)?;
    for bytes in lines {
        let request = format!("{} {} {bytes}", event.as_raw_fd(), usage.as_raw_fd());
        retry(|| rustix::io::write(&control, request.as_bytes())).map_err(|errno| {
            ThresholdError::Register { path: path.clone(), bytes: *bytes, source: errno.into() }
        })?;
    }
    Ok(event)
}
