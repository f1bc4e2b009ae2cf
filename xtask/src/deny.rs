//! What comes in from outside: licences, sources, versions, known vulnerabilities, and the
//! reason for each.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::setup::Tools;
use crate::shell::{self, Metadata};

/// Runs cargo-deny with deny.toml.
pub(crate) fn run(tools: &Tools) -> Result<()> {
    let program = tools.cargo_deny.as_deref().context("cargo-deny was not set up")?;
    let deny = || {
        let mut command = Command::new(program);
        command.current_dir(shell::root());
        command
    };
    let reasons = check_reasons();
    shell::run(deny().args(["--locked", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))?;
    if has_advisories() {
        shell::run(deny().args(["--locked", "--offline", "check", "advisories"]))?;
    } else {
        eprintln!(
            "advisories: no copy of the database here, so none were checked; `cargo deny fetch db` gets one"
        );
    }
    reasons
}

const REASONS: &str = "docs/reference/dependencies.md";

/// Every direct dependency has a line of reason, and every line a dependency.
fn check_reasons() -> Result<()> {
    let text =
        std::fs::read_to_string(shell::root().join(REASONS)).with_context(|| format!("read {REASONS}"))?;
    let metadata = Metadata::read()?;
    let used = metadata.packages.iter().flat_map(|package| &package.dependencies);
    let used: BTreeSet<&str> = used.map(|dependency| dependency.name.as_str()).collect();
    let ours: BTreeSet<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    compare_reasons(&text, &used, &ours)
}

fn compare_reasons(text: &str, used: &BTreeSet<&str>, ours: &BTreeSet<&str>) -> Result<()> {
    let told: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .filter(|(_, reason)| reason.len() > " | ".len())
        .map(|(name, _)| name)
        .collect();
    let missing: Vec<_> = used.difference(&told).filter(|name| !ours.contains(*name)).collect();
    ensure!(missing.is_empty(), "{REASONS} gives no reason for {missing:?}");
    let stale: Vec<_> = told.difference(used).collect();
    ensure!(stale.is_empty(), "{REASONS} tells of {stale:?}, which nothing depends on");
    Ok(())
}

/// Whether someone has fetched the advisory database: lint does not, so that it says the same
/// with and without a network.
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
    use std::collections::BTreeSet;

    use super::{compare_reasons, has_folder};

    #[test]
    fn every_dependency_has_a_reason() {
        let text = "| crate | why |\n| --- | --- |\n| `a` | because |\n| `own` | ours |\n";
        let check = |used: &[&'static str]| {
            let used: BTreeSet<&str> = used.iter().copied().collect();
            compare_reasons(text, &used, &BTreeSet::from(["own", "tests"])).map_err(|error| error.to_string())
        };
        assert_eq!(check(&["a", "own", "tests"]), Ok(()));
        assert_eq!(
            check(&["a", "own", "b"]),
            Err("docs/reference/dependencies.md gives no reason for [\"b\"]".to_owned())
        );
        assert_eq!(
            check(&["own"]),
            Err("docs/reference/dependencies.md tells of [\"a\"], which nothing depends on".to_owned())
        );
    }

    #[test]
    fn a_lock_file_is_no_database() {
        let home = tempfile::tempdir().unwrap();
        assert!(!has_folder(&home.path().join("absent")));
        std::fs::write(home.path().join("db.lock"), "").unwrap();
        assert!(!has_folder(home.path()));
        std::fs::create_dir(home.path().join("advisory-db-3157b0e258782691")).unwrap();
        assert!(has_folder(home.path()));
    }
}
