//! `cargo xtask lint`: all checks of the code that do not run it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::setup::{self, Need, Tools};
use crate::shell::{self, EBPF};

pub(crate) fn run() -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf, Need::Lints, Need::Deny])?;
    let cargo = |options: &[&str]| {
        let mut cargo = shell::cargo();
        tools.apply(cargo.args(options));
        cargo
    };
    let clippy = |targets: &[&str]| shell::run(cargo(&["clippy"]).args(targets).args(["--", "-Dwarnings"]));
    // The quick ones first. All of them run, since each may find something.
    let steps: [(&str, &dyn Fn() -> Result<()>); 6] = [
        ("format", &|| shell::run(shell::cargo().args(["fmt", "--all", "--check"]))),
        ("dependencies", &|| check_dependencies(&tools)),
        ("clippy of the BPF programs", &|| shell::run(&mut bpf_clippy(&tools))),
        ("clippy", &|| clippy(&["--workspace", "--exclude", EBPF, "--all-targets"])),
        // `--all-targets` leaves out a target that plain tests leave out (`test = false` in tests/Cargo.toml).
        ("clippy of the node's stories", &|| clippy(&["--package", "tests", "--test", "kubelet"])),
        ("documentation", &|| {
            let options = ["doc", "--workspace", "--exclude", EBPF, "--no-deps", "--document-private-items"];
            shell::run(cargo(&options).env("RUSTDOCFLAGS", "-Dwarnings"))
        }),
    ];
    let mut summary = Vec::new();
    let mut failed = 0;
    for (name, step) in steps {
        let started = Instant::now();
        let done = step();
        let seconds = started.elapsed().as_secs_f64();
        if let Err(error) = &done {
            println!("error: {name}: {error:#}");
            failed += 1;
        }
        let result = if done.is_ok() { "ok" } else { "FAILED" };
        summary.push(format!("{result:<7} {name} ({seconds:.1} s)"));
    }
    println!("{}", summary.join("\n"));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The BPF programs as they are built: with the nightly toolchain, for their own target.
fn bpf_clippy(tools: &Tools) -> Command {
    let mut cargo = Command::new("rustup");
    cargo
        .current_dir(shell::root())
        .args(["run", &tools.bpf_toolchain, "cargo", "clippy", "--package", EBPF])
        .args(["--release", "--target=bpfel-unknown-none", "-Zbuild-std=core"])
        .args(["--target-dir=target/bpf-clippy", "--", "-Dwarnings"])
        .env("CARGO_ENCODED_RUSTFLAGS", format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH));
    // `cargo xtask` sets these to its own toolchain.
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(name);
    }
    cargo
}

/// Runs cargo-deny with deny.toml: licences, sources, versions and known vulnerabilities of the dependencies.
fn check_dependencies(tools: &Tools) -> Result<()> {
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
        .map(PathBuf::from)
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
