//! Builds the BPF programs for their own target; the object becomes part of this crate.

use std::path::Path;

use anyhow::Context as _;
use aya_build::Toolchain;
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

const TOOLCHAIN: &str = "EVICTION_EBPF_TOOLCHAIN";

fn main() -> anyhow::Result<()> {
    // aya-build watches the programs' own folder only.
    println!("cargo::rerun-if-changed=../../../eviction-common");
    let package = aya_build::Package {
        name: "eviction-ebpf",
        root_dir: concat!(env!("CARGO_MANIFEST_DIR"), "/../../../eviction-ebpf"),
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

/// Removes the sections that only debuggers read, four fifths of the object. They would be part of the agent's
/// executable, and of its memory while the programs are loaded. The kernel reads BTF, which stays.
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
