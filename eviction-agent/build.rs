//! Builds the BPF programs for their own target and hands the object to the crate,
//! so that the agent is one file that carries its kernel side.

use std::path::Path;

use anyhow::Context as _;
use aya_build::Toolchain;
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

const TOOLCHAIN: &str = "EVICTION_EBPF_TOOLCHAIN";

fn main() -> anyhow::Result<()> {
    // aya-build looks at the programs' own folder only.
    println!("cargo::rerun-if-changed=../eviction-common");
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
        .context("the BPF programs need a nightly toolchain with rust-src, and bpf-linker; `cargo xtask setup` installs them")?;
    let out = std::env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?;
    let programs = Path::new(&out).join("eviction-ebpf");
    strip(&programs).with_context(|| format!("strip {}", programs.display()))
}

/// The static program relocates itself at its start, which reads all relocations: they take 4 KB of memory
/// when they are packed (DT_RELR, which musl's start code knows), else 190.
fn pack_relocations() {
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Takes out what only debuggers read, four fifths of the object: it would be part of the agent's file,
/// and of its memory while the rest is loaded. The kernel reads BTF, which stays.
fn strip(programs: &Path) -> anyhow::Result<()> {
    let object = std::fs::read(programs)?;
    let mut builder = Builder::read(&*object)?;
    for section in builder.sections.iter_mut() {
        let name = section.name.as_slice();
        section.delete = [&b".debug_"[..], b".rel.debug_"].iter().any(|debug| name.starts_with(debug));
    }
    builder.delete_orphans();
    // LLVM keeps the names of sections with those of symbols; the writer has a table for each.
    let names = builder.sections.add();
    names.name = b".shstrtab".as_slice().into();
    names.sh_type = SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(std::fs::write(programs, stripped)?)
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
