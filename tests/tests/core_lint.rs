//! The lint of `eviction-core` refuses a clock, IO and maps without an order
//! (eviction-agent/crates/core/clippy.toml).

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Returns whether the lint accepts a function with this body, and its output.
fn lint(body: &str) -> std::io::Result<(bool, String)> {
    let folder = TempDir::new()?;
    let file = folder.path().join("lib.rs");
    std::fs::write(&file, format!("//! A test.\n\n/// A test.\npub fn test() {{\n    {body}\n}}\n"))?;
    let output = Command::new(Path::new(env!("CARGO")).with_file_name("clippy-driver"))
        .args(["--crate-type=lib", "--edition=2024", "--emit=metadata", "-Dwarnings", "--out-dir"])
        .args([folder.path(), &file])
        .env("CLIPPY_CONF_DIR", concat!(env!("CARGO_MANIFEST_DIR"), "/../eviction-agent/crates/core"))
        .output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn the_core_lint_refuses_clocks_io_and_unordered_maps() {
    for (body, message) in [
        ("let _ = std::time::SystemTime::now();", "time arrives with each input"),
        ("let _ = std::time::Instant::now();", "time arrives with each input"),
        ("let _ = std::fs::read(\"/proc/meminfo\");", "the core has no IO"),
        ("let _ = std::fs::OpenOptions::new();", "the core has no IO"),
        ("println!(\"test\");", "the core has no IO"),
        ("let _ = std::io::stdin();", "the core has no IO"),
        ("let _ = std::env::var_os(\"HOME\");", "the core has no environment"),
        ("let _ = std::thread::Builder::new();", "the core has no threads"),
        ("let _ = std::collections::HashMap::<u8, u8>::new();", "its order differs from run to run"),
    ] {
        let (accepted, output) = lint(body).unwrap();
        assert!(!accepted && output.contains(message), "{body}: {output}");
    }
}

#[test]
fn the_core_lint_accepts_pure_computation() {
    let (accepted, output) = lint("let _ = std::collections::BTreeMap::<u8, u8>::new();").unwrap();
    assert!(accepted, "{output}");
}
