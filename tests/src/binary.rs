//! Finds the programs that tests start.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// Finds a program of this workspace: at the path that the test task sets, or beside the running program. This
/// works on other machines as well, where `env!("CARGO_BIN_EXE_…")` is a path of the machine that has built it.
///
/// # Errors
/// If there is none.
pub fn find(name: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(format!("CARGO_BIN_EXE_{name}")) {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("find this program")?;
    // target/debug/demo, or target/debug/deps/demo-0123456789abcdef.
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("no {name} beside {}: `cargo build --bins` makes it", own.display()))
}
