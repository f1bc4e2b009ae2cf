//! The signals of disks on real file systems, and the view of a node's directories from a pod.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod agent;
mod hooks;
mod kernel_kill;
mod layout;
mod limits;
mod reclaim;
mod statistics;
mod unprivileged;
mod usage;
mod writers;
mod xfs;

use tests::file_system::{FileSystem, Kind};
use tests::node::MIB;

/// Mounts a file system of 320 MiB. The least that xfs takes is 300.
fn mounted(kind: Kind) -> anyhow::Result<FileSystem> {
    FileSystem::new(kind, 320 * MIB, "eviction-disk-test")
}

/// Mounts a file system, or ends the test.
macro_rules! mount {
    ($kind:expr) => {
        tests::or_skip!(crate::mounted($kind), format!("no {} can be mounted here", $kind.name()))
    };
}
use mount;
