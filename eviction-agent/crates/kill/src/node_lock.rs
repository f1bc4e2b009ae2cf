//! The lock that allows only one acting agent per node.
//!
//! The lock is a BSD lock (flock(2)) on the directory of the node's root cgroup. Agents that act on the same
//! node lock the same inode, also from another container, mount, cgroup or PID namespace, through a read-only
//! mount, and without a shared directory. The kernel releases the lock when the process ends, in whatever
//! way. Agents on different subtrees do not conflict.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, Stat, flock, fstat, open};
use rustix::io::Errno;
use thiserror::Error;

/// The lock of a node, held until it is dropped.
#[derive(Debug)]
pub struct NodeLock {
    _dir: OwnedFd,
    id: u64,
}

/// Why the lock was not acquired.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another agent holds the lock.
    #[error("take the node lock in {}: another agent has it, {holder}", path.display())]
    Held {
        /// The node's root cgroup.
        path: PathBuf,
        /// The process that holds the lock.
        holder: String,
    },
    /// The directory cannot be locked.
    #[error("{operation} {}", path.display())]
    Failed {
        /// The operation that failed.
        operation: &'static str,
        /// The node's root cgroup.
        path: PathBuf,
        /// The error of the operation.
        source: Errno,
    },
}

impl LockError {
    /// Returns advice on how to fix the error.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            Self::Held { .. } => {
                Some("stop the other one, or run this one with --action none, which works beside it")
            }
            Self::Failed { .. } => None,
        }
    }
}

impl NodeLock {
    /// Takes the lock of the node whose root cgroup is `path`, without waiting.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let fail = |operation| move |source| LockError::Failed { operation, path: path.to_owned(), source };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(path, flags, Mode::empty()).map_err(fail("open"))?;
        let stat = fstat(&dir).map_err(fail("look at"))?;
        match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _dir: dir, id: stat.st_ino }),
            Err(Errno::WOULDBLOCK) => {
                Err(LockError::Held { path: path.to_owned(), holder: find_holder(&stat) })
            }
            Err(source) => Err(fail("lock")(source)),
        }
    }

    /// Returns the cgroup id of the node's root.
    pub fn id(&self) -> u64 {
        self.id
    }
}

/// Finds the holder of a BSD lock on the inode in /proc/locks, which shows holders in other PID namespaces
/// with the pid 0. Returns its process id, program and start time.
fn find_holder(locked: &Stat) -> String {
    let device = (rustix::fs::major(locked.st_dev), rustix::fs::minor(locked.st_dev));
    let locks = procfs::locks().unwrap_or_default();
    let pid = locks.iter().find_map(|lock| {
        let is_it = matches!(lock.lock_type, procfs::LockType::FLock)
            && (lock.devmaj, lock.devmin, lock.inode) == (device.0, device.1, locked.st_ino);
        lock.pid.filter(|pid| is_it && *pid > 0)
    });
    let Some(pid) = pid else { return "in another PID namespace".to_owned() };
    let Ok(stat) = procfs::process::Process::new(pid).and_then(|process| process.stat()) else {
        return format!("pid {pid}");
    };
    let started = procfs::boot_time_secs().ok().and_then(|boot| {
        let since = stat.starttime / procfs::ticks_per_second();
        jiff::Timestamp::from_second(i64::try_from(boot.checked_add(since)?).ok()?).ok()
    });
    let started = started.map(|started| format!(", started {started}")).unwrap_or_default();
    format!("pid {pid} ({}){started}", stat.comm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_lock_is_rejected_and_the_error_names_the_holder() {
        let folder = tempfile::tempdir().unwrap();
        let first = NodeLock::acquire(folder.path()).unwrap();
        let error = NodeLock::acquire(folder.path()).unwrap_err();
        let message = error.to_string();
        let own = format!("another agent has it, pid {} (", std::process::id());
        assert!(message.contains(&own) && message.contains(", started 2"), "{message}");
        assert!(error.help().is_some());
        drop(first);
        NodeLock::acquire(folder.path()).unwrap();
        let missing = NodeLock::acquire(&folder.path().join("missing")).unwrap_err();
        assert!(missing.to_string().starts_with("open "));
    }
}
