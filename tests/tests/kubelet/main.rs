//! Tests with a real node, run by `cargo xtask e2e` alone: `cargo test` skips them, because they need the whole
//! machine, one at a time.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../e2e/fixture.rs"]
mod fixture;

mod configz;
mod disk;
mod garbage;
mod hog;
mod image;
mod installed;
mod kill;
mod node_cleanup;
mod oom;
mod static_pods;
mod testbed;
mod two_disks;
