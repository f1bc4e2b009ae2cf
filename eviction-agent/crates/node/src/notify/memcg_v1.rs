//! The usage threshold of cgroup v1.
//!
//! `cgroup.event_control` binds an eventfd to `memory.usage_in_bytes` and a number of bytes. The kernel signals
//! it when usage crosses that number in either direction. It checks every 128 charges, so it is up to 0.9 MB
//! late, and it misses a working set that grows while usage does not change.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use super::{register, take_count};
use crate::file::{FileError, open_path, retry};

/// The number of bytes by which usage may exceed a threshold before the kernel signals it: it checks each 128
/// charge events on each CPU (THRESHOLDS_EVENTS_TARGET in mm/memcontrol-v1.c), and charges come in batches.
pub const GRANULARITY: u64 = 1 << 20;

/// The name of the backend.
pub const NAME: &str = "cgroup v1 threshold";

/// The minimum time between two registrations: working set and usage always drift apart, and registering more
/// often is not worth its cost.
const REGISTER_INTERVAL_NS: u64 = 1_000_000_000;

/// A registered threshold stays while it is off by less than this, or by a sixteenth of the headroom.
const TOLERANCE: u64 = 256 << 10;

/// A threshold on the usage of one cgroup that follows the working set.
#[derive(Debug)]
pub struct MemcgV1 {
    group: PathBuf,
    /// The eventfd of the registered threshold.
    current: Option<AsyncFd<OwnedFd>>,
    pending: Option<JoinHandle<Result<OwnedFd, FileError>>>,
    usage: Option<u64>,
    registered_ns: u64,
}

impl MemcgV1 {
    /// Returns the backend for the cgroup in the folder `group`, with no threshold set.
    ///
    /// # Errors
    /// If this process may not open the control files.
    pub fn open(group: &Path) -> Result<Self, FileError> {
        control_files(group)?;
        Ok(Self { group: group.to_owned(), current: None, pending: None, usage: None, registered_ns: 0 })
    }

    /// Sets the threshold at `usage` bytes, which is `headroom` above the current usage, unless the present
    /// threshold is near enough. Registering waits for an RCU grace period (milliseconds), so it runs on a
    /// thread for blocking work. Needs a tokio runtime.
    pub fn set(&mut self, usage: u64, headroom: u64, now_ns: u64) {
        let is_near = |set: u64| set.abs_diff(usage) <= (headroom / 16).max(TOLERANCE);
        let is_recent = now_ns.saturating_sub(self.registered_ns) < REGISTER_INTERVAL_NS;
        if self.pending.is_some() || self.usage.is_some_and(is_near) || (is_recent && self.current.is_some())
        {
            return;
        }
        (self.usage, self.registered_ns) = (Some(usage), now_ns);
        let group = self.group.clone();
        self.pending = Some(tokio::task::spawn_blocking(move || {
            register_eventfd(&group, &[usage.saturating_sub(GRANULARITY), usage])
        }));
    }

    /// Removes the threshold.
    pub fn clear(&mut self) {
        (self.current, self.usage) = (None, None);
    }

    /// Waits until usage crosses the threshold; forever while none is set. Cancel-safe.
    ///
    /// # Errors
    /// If the threshold cannot be registered or watched any more.
    pub async fn crossed(&mut self) -> io::Result<()> {
        loop {
            let registered = async {
                match &mut self.pending {
                    Some(pending) => pending.await,
                    None => std::future::pending().await,
                }
            };
            // The previous threshold stays until the new one is registered.
            let crossed = async {
                match &self.current {
                    Some(current) => take_count(current).await,
                    None => std::future::pending().await,
                }
            };
            let registered = tokio::select! {
                registered = registered => registered,
                crossed = crossed => return crossed.map(drop),
            };
            self.pending = None;
            let event = registered.map_err(io::Error::other)?.map_err(io::Error::other)?;
            self.current = Some(register(event)?);
        }
    }
}

/// Makes an eventfd that the kernel signals when the usage of the cgroup in the folder `group` crosses one of
/// `levels`, in bytes, upwards or downwards, without telling which. The kernel also signals it when the cgroup is
/// removed. Closing it removes the registration. **Blocks** for an RCU grace period per level (milliseconds).
///
/// # Errors
/// If the eventfd cannot be made, or the kernel refuses a level.
pub fn register_eventfd(group: &Path, levels: &[u64]) -> Result<OwnedFd, FileError> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| FileError::new("cannot make an eventfd", errno))?;
    let (usage, control, path) = control_files(group)?;
    for bytes in levels {
        let request = format!("{} {} {bytes}", event.as_raw_fd(), usage.as_raw_fd());
        retry(|| rustix::io::write(&control, request.as_bytes())).map_err(|errno| {
            let what = format!("cannot register a threshold of {bytes} bytes with {}", path.display());
            FileError::new(what, errno)
        })?;
    }
    Ok(event)
}

/// Opens the usage file and the control file; the path is that of the control file.
fn control_files(group: &Path) -> Result<(OwnedFd, OwnedFd, PathBuf), FileError> {
    let open = |name: &str, flags: OFlags| {
        let path = group.join(name);
        match open_path(&path, flags) {
            Ok(file) => Ok((file, path)),
            Err(errno) => Err(FileError::new(format!("cannot open {}", path.display()), errno)),
        }
    };
    let (usage, _) = open("memory.usage_in_bytes", OFlags::RDONLY)?;
    let (control, path) = open("cgroup.event_control", OFlags::WRONLY)?;
    Ok((usage, control, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_threshold_that_cannot_be_registered_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| std::fs::write(folder.path().join(name), "0").unwrap();
        assert!(MemcgV1::open(folder.path()).is_err());
        write("memory.usage_in_bytes");
        write("cgroup.event_control");
        let mut backend = MemcgV1::open(folder.path()).unwrap();
        std::fs::remove_file(folder.path().join("memory.usage_in_bytes")).unwrap();
        runtime().block_on(async {
            backend.set(GRANULARITY, GRANULARITY, 1);
            let error = backend.crossed().await.unwrap_err();
            let path = folder.path().join("memory.usage_in_bytes");
            assert_eq!(error.to_string(), format!("cannot open {}", path.display()));
        });
    }

    #[test]
    fn near_or_recent_threshold_is_not_registered_again() {
        const MIB: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        for name in ["memory.usage_in_bytes", "cgroup.event_control"] {
            std::fs::write(folder.path().join(name), "0").unwrap();
        }
        let mut backend = MemcgV1::open(folder.path()).unwrap();
        runtime().block_on(async {
            let mut set = |usage, headroom, now_ns| {
                backend.set(usage, headroom, now_ns);
                backend.usage
            };
            assert_eq!(set(100 * MIB, 64 * MIB, 1), Some(100 * MIB));
            assert_eq!(set(900 * MIB, 64 * MIB, u64::MAX), Some(100 * MIB), "one registration at a time");
            let pending = backend.pending.take().unwrap().await.unwrap();
            backend.current = Some(register(pending.unwrap()).unwrap());
            let mut set = |usage, headroom, now_ns| {
                backend.set(usage, headroom, now_ns);
                backend.usage
            };
            assert_eq!(set(104 * MIB, 64 * MIB, 2 * REGISTER_INTERVAL_NS), Some(100 * MIB), "near enough");
            assert_eq!(set(200 * MIB, 64 * MIB, 2), Some(100 * MIB), "too soon");
            assert_eq!(set(200 * MIB, 64 * MIB, 2 * REGISTER_INTERVAL_NS), Some(200 * MIB));
            backend.clear();
            assert!(backend.current.is_none() && backend.usage.is_none());
        });
    }
}
