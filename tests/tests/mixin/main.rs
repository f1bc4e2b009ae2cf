//! The alerts, recording rules and dashboards.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod boards;
mod queries;
mod rules;
mod server;
mod stories;

use std::path::PathBuf;

/// Returns the path of a file of the chart, which has the only copy of rules and dashboards.
fn chart(file: &str) -> PathBuf {
    tests::helm::chart().join(file)
}
