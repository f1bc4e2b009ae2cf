//! Runs cargo-deny: licences, sources, versions and known vulnerabilities of the dependencies.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::setup::Tools;
use crate::shell;

/// Runs cargo-deny with deny.toml.
pub(crate) fn run(tools: &Tools) -> Result<()> {
    let program = tools.cargo_deny.as_deref().context("cargo-deny was not set up")?;
    let deny = || {
        let mut command = Command::new(program);
        command.current_dir(shell::root());
        command
    };
    shell::run(deny().args(["--locked", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))?;
    if has_advisories() {
        shell::run(deny().args(["--locked", "--offline", "check", "advisories"]))?;
    } else {
        eprintln!(
            "advisories: no copy of the database here, so none were checked; `cargo deny fetch db` gets one"
        );
    }
    Ok(())
}

/// Returns whether the advisory database has been fetched. Lint does not fetch it, so that its result is the
/// same with and without a network.
fn has_advisories() -> bool {
    let home = std::env::var_os("CARGO_HOME")
        .map(std::path::PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    home.is_some_and(|home| has_folder(&home.join("advisory-dbs")))
}

fn has_folder(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|entries| entries.flatten().any(|entry| entry.path().is_dir()))
}

#[cfg(test)]
mod tests {
    use super::has_folder;

    #[test]
    fn lock_file_is_not_taken_for_an_advisory_database() {
        let home = tempfile::tempdir().unwrap();
        assert!(!has_folder(&home.path().join("absent")));
        std::fs::write(home.path().join("db.lock"), "").unwrap();
        assert!(!has_folder(home.path()));
        std::fs::create_dir(home.path().join("advisory-db-3157b0e258782691")).unwrap();
        assert!(has_folder(home.path()));
    }
}
