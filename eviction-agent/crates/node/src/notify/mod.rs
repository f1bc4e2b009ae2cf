//! Kernel notifications of memory growth that need no BPF, and the timer that covers what they miss.

pub mod memcg_v1;
pub mod memory_events;
pub mod psi;
pub mod sample_interval;
pub use crate::timer;

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

/// A file of a cgroup that cannot be watched.
#[derive(Debug, Error)]
#[error("cannot watch {}", path.display())]
pub struct WatchError {
    /// The file.
    pub path: PathBuf,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

impl WatchError {
    /// Returns what the user can do about it.
    pub fn help(&self) -> Option<&'static str> {
        match Errno::from_io_error(&self.source)? {
            Errno::ROFS => Some("mount the cgroup hierarchy writable"),
            Errno::ACCESS | Errno::PERM => Some("run as root, or add the capability DAC_OVERRIDE"),
            Errno::NOENT | Errno::OPNOTSUPP => Some("boot with psi=1; the root has no memory.events"),
            _ => None,
        }
    }
}
