//! `cargo xtask dist`: what is handed to others, in target/dist.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use object::Object as _;

use crate::build;
use crate::plugin;
use crate::shell::{self, Metadata};

/// The most that the binary may weigh.
const LIMIT: u64 = 12 << 20;
/// The agent, and the BPF programs inside it, have different licences.
pub(crate) const LICENCES: &[&str] = &["LICENSE", "eviction-ebpf/LICENSE-MIT", "eviction-ebpf/LICENSE-GPL2"];
const AGENT: &str = "eviction-agent";

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the files will be downloaded from, as the manifest for krew says
    #[arg(long, value_name = "URL", default_value = "https://downloads.invalid")]
    url: String,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let binary = build::agent(true)?;
    let bytes = std::fs::read(&binary).with_context(|| format!("read {}", binary.display()))?;
    check(&bytes).with_context(|| format!("check {}", binary.display()))?;

    let dist = Metadata::read()?.target_directory.join("dist");
    if dist.exists() {
        std::fs::remove_dir_all(&dist).with_context(|| format!("empty {}", dist.display()))?;
    }
    std::fs::create_dir_all(&dist).with_context(|| format!("create {}", dist.display()))?;
    copy(&binary, &dist.join(AGENT))?;
    plugin::pack(&dist, &args.url)?;
    let mut names = vec![AGENT, plugin::ARCHIVE, plugin::NAME];
    for licence in LICENCES {
        let name = licence.rsplit('/').next().unwrap_or(licence);
        copy(&shell::root().join(licence), &dist.join(name))?;
        names.push(name);
    }
    let sums = shell::read(Command::new("sha256sum").args(&names).current_dir(&dist))?;
    let file = dist.join("SHA256SUMS");
    std::fs::write(&file, &sums).with_context(|| format!("write {}", file.display()))?;

    println!("{} ({}, static)", dist.join(AGENT).display(), build::mib(bytes.len() as u64));
    print!("{sums}");
    Ok(ExitCode::SUCCESS)
}

/// What makes the file fit to be handed out.
fn check(bytes: &[u8]) -> Result<()> {
    ensure!(build::is_static(bytes)?, "it is not static: it asks for a dynamic loader");
    ensure!(object::File::parse(bytes)?.symbol_table().is_none(), "it is not stripped");
    let size = bytes.len() as u64;
    ensure!(size <= LIMIT, "it is {}, more than {}", build::mib(size), build::mib(LIMIT));
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to)
        .map(|_| ())
        .with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_dynamic_program_is_refused() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = check(&own).unwrap_err().to_string();
        assert_eq!(error, "it is not static: it asks for a dynamic loader");
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert_eq!(check(b"#!/bin/sh\n").unwrap_err().to_string(), "not a 64-bit ELF file");
        assert!(check(b"\x7fELF\x02\x01").is_err());
    }
}
