//! `cargo xtask build`: the agent as one static file.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use object::Endianness;
use object::elf::PT_INTERP;
use object::read::elf::ElfFile64;

use crate::setup::{self, Need, Tools};
use crate::shell::{self, Metadata};

/// The agent is linked against musl, so that one file runs on every distribution.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-musl";

/// The profile that is shipped.
const SHIPPED: &str = "shipped";

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Optimise and strip, as it is shipped
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let binary = agent(args.release)?;
    let size = std::fs::metadata(&binary).with_context(|| format!("read {}", binary.display()))?.len();
    println!("{} ({})", binary.display(), mib(size));
    Ok(ExitCode::SUCCESS)
}

/// Builds the agent and says where it is.
pub(crate) fn agent(release: bool) -> Result<PathBuf> {
    let tools = setup::ensure(&[Need::Bpf, Need::Musl])?;
    let mut cargo = shell::cargo();
    cargo.args(["build", "--package", "eviction-agent", "--bin", "eviction-agent"]);
    cargo.args(["--target", TARGET]);
    if release {
        cargo.args(["--profile", SHIPPED]);
    }
    tools.apply(&mut cargo);
    shell::run(&mut cargo)?;
    let profile = if release { SHIPPED } else { "debug" };
    let target = Metadata::read()?.target_directory;
    Ok(target.join(TARGET).join(profile).join("eviction-agent"))
}

/// Builds the programs of these packages for the machine at hand, unoptimised, and says in which
/// folder they are.
pub(crate) fn programs(packages: &[&str], tools: &Tools) -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--bins"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    tools.apply(&mut cargo);
    shell::run(&mut cargo)?;
    Ok(Metadata::read()?.target_directory.join("debug"))
}

/// Builds the programs of these packages as static files, optimised like the agent as it is shipped,
/// and says in which folder they are.
pub(crate) fn static_programs(packages: &[&str], tools: &Tools) -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--release", "--bins", "--target", TARGET]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    tools.apply(&mut cargo);
    shell::run(&mut cargo)?;
    Ok(Metadata::read()?.target_directory.join(TARGET).join("release"))
}

/// Whether a program runs without a dynamic loader.
pub(crate) fn is_static(program: &[u8]) -> Result<bool> {
    let file = ElfFile64::<Endianness>::parse(program).context("not a 64-bit ELF file")?;
    let mut headers = file.elf_program_headers().iter();
    Ok(headers.all(|header| header.p_type.get(file.endian()) != PT_INTERP))
}

/// A size as people read it, rounded up.
pub(crate) fn mib(bytes: u64) -> String {
    let tenths = (bytes * 10).div_ceil(1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::mib;

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(mib(0), "0.0 MiB");
        assert_eq!(mib(1), "0.1 MiB");
        assert_eq!(mib(12 << 20), "12.0 MiB");
        assert_eq!(mib((12 << 20) + 1), "12.1 MiB");
    }
}
