//! The lint of `eviction-core` refuses a clock, IO and maps without an order
//! (eviction-agent/crates/core/clippy.toml).

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Whether the lint accepts a function with this body, and what it said.
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
fn refuses_a_clock_io_and_maps_without_an_order() {
    for (body, says) in [
        ("let _ = std::time::SystemTime::now();", "time arrives with each input"),
        ("let _ = std::time::Instant::now();", "time arrives with each input"),
        ("let _ = std::fs::read(\"/proc/meminfo\");", "the core has no IO"),
        ("println!(\"test\");", "the core has no IO"),
        ("let _ = std::collections::HashMap::<u8, u8>::new();", "its order differs from run to run"),
    ] {
        let (accepted, output) = lint(body).unwrap();
        assert!(!accepted && output.contains(says), "{body}: {output}");
    }
}

#[test]
fn accepts_what_only_computes() {
    let (accepted, output) = lint("let _ = std::collections::BTreeMap::<u8, u8>::new();").unwrap();
    assert!(accepted, "{output}");
}
