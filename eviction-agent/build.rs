//! Builds the BPF programs for their own target and hands the object to the crate,
//! so that the agent is one file that carries its kernel side.

use anyhow::Context as _;
use aya_build::Toolchain;

const TOOLCHAIN: &str = "EVICTION_EBPF_TOOLCHAIN";

fn main() -> anyhow::Result<()> {
    // aya-build looks at the programs' own folder only.
    println!("cargo::rerun-if-changed=../eviction-common");
    // A path that is not there, as this one in a worktree, would have everything built each time.
    if let Some(head) = git(&["rev-parse", "--git-path", "HEAD"]) {
        println!("cargo::rerun-if-changed={head}");
    }
    println!("cargo::rustc-env=EVICTION_AGENT_ABI={}", eviction_common::ABI_VERSION);
    println!("cargo::rustc-env=EVICTION_AGENT_COMMIT={}", commit());
    let package = aya_build::Package {
        name: "eviction-ebpf",
        root_dir: concat!(env!("CARGO_MANIFEST_DIR"), "/../eviction-ebpf"),
        ..Default::default()
    };
    // `cargo xtask` sets it where the machine's own nightly does not fit the BPF linker.
    println!("cargo::rerun-if-env-changed={TOOLCHAIN}");
    let chosen = std::env::var(TOOLCHAIN).ok();
    let toolchain = chosen.as_deref().map_or(Toolchain::Nightly, Toolchain::Custom);
    aya_build::build_ebpf([package], toolchain)
        .context("the BPF programs need a nightly toolchain with rust-src, and bpf-linker; `cargo xtask setup` installs them")
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
