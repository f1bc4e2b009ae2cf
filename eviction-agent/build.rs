//! Tells the program which commit and layout of BPF records it has, and how the linker packs it.

fn main() {
    // A path that is not there, as this one in a worktree, would have everything built each time.
    if let Some(head) = git(&["rev-parse", "--git-path", "HEAD"]) {
        println!("cargo::rerun-if-changed={head}");
    }
    // What is shipped says which commit it is: a branch that moves on leaves the file above as it is.
    let is_shipped = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && is_shipped
        && std::path::Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rustc-env=EVICTION_AGENT_ABI={}", eviction_common::ABI_VERSION);
    println!("cargo::rustc-env=EVICTION_AGENT_COMMIT={}", commit());
    pack_relocations();
}

/// The static program relocates itself at its start, which reads all relocations: they take 4 KB of memory
/// when they are packed (DT_RELR, which musl's start code knows), else 190.
fn pack_relocations() {
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The commit that is built, or `unknown` outside a repository.
fn commit() -> String {
    git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned())
}

/// What git says; nothing outside a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned())
}
