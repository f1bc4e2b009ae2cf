//! The alerts, recording rules and dashboards.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod boards;
mod queries;
mod rules;
mod server;
mod stories;

use std::path::{Path, PathBuf};

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns the path of a file of the chart, which has the only copy of rules and dashboards.
fn chart(file: &str) -> PathBuf {
    root().join("deploy/charts/eviction-agent").join(file)
}
