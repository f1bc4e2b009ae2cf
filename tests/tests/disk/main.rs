//! The signals of disks on real file systems, and the view of a node's directories from a pod.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod agent;
mod hooks;
mod kernel_kill;
mod layout;
mod limits;
mod reclaim;
mod statistics;
mod usage;
mod xfs;

use tests::file_system::{FileSystem, Kind};

const MIB: u64 = 1 << 20;

/// Mounts a file system of 320 MiB, or returns why that is not possible here. The least that xfs takes is 300.
fn mounted(kind: Kind) -> Result<FileSystem, String> {
    FileSystem::new(kind, 320 * MIB, "eviction-disk-test").map_err(|error| format!("{error:#}"))
}

/// Mounts a file system, or ends the test.
macro_rules! mount {
    ($kind:expr) => {
        match crate::mounted($kind) {
            Ok(mounted) => mounted,
            Err(why) => tests::skip!("no {} can be mounted here: {why}", $kind.name()),
        }
    };
}
use mount;
