//! Kernel notifications of memory growth that need no BPF, and the timer that covers what they miss.

pub mod memcg_v1;
pub mod memory_events;
pub mod psi;
pub mod sample_interval;
pub mod timer;

use std::io;
use std::path::Path;

use thiserror::Error;

/// A notification of the kernel that cannot be requested.
#[derive(Debug, Error)]
#[error("{what}")]
pub struct WatchError {
    /// What has failed, and on which file.
    pub what: String,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

impl WatchError {
    fn new(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { what: what.into(), source: source.into() }
    }

    /// Returns the error for a file that cannot be watched.
    fn of_file(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::new(format!("cannot watch {}", path.display()), source)
    }
}
