//! `cargo xtask dist`: builds the files of a release, in target/dist.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use object::Object as _;

use crate::build::{self, Platform};
use crate::setup::{self, Need};
use crate::shell;
use crate::{image, packages, plugin, sbom};

/// The maximum size of the binary. It has 15.3 MiB on amd64 and 12.8 MiB on arm64, most of it code of crates
/// (kube, ring, ratatui).
const MAX_BINARY_BYTES: u64 = 16 << 20;
/// The licence files: the agent, and the BPF programs inside it, have different licences.
pub(crate) const LICENCES: &[&str] = &["LICENSE", "eviction-ebpf/LICENSE-MIT", "eviction-ebpf/LICENSE-GPL2"];

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build for this platform (repeatable)
    #[arg(long, value_enum, default_values = ["linux/amd64"])]
    platform: Vec<Platform>,
    /// Where the files will be downloaded from, as the manifest for krew says
    #[arg(long, value_name = "URL", default_value = "https://downloads.invalid")]
    url: String,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    setup::ensure(&[Need::Packages])?;
    let dist = shell::target_folder()?.join("dist");
    if dist.exists() {
        std::fs::remove_dir_all(&dist).with_context(|| format!("empty {}", dist.display()))?;
    }
    let dist = shell::create_folder(dist)?;
    let (mut names, mut agents) = (Vec::new(), Vec::new());
    for &platform in &args.platform {
        let binary = build::agent_for(platform, true)?;
        names.extend(write_agent(&binary, platform, &dist)?);
        agents.push((platform, binary));
    }
    image::pack(&agents, &dist.join(image::ARCHIVE))?;
    names.push(image::ARCHIVE.to_owned());
    for licence in LICENCES {
        let name = licence.rsplit('/').next().unwrap_or(licence);
        shell::copy(&shell::root().join(licence), &dist.join(name))?;
        names.push(name.to_owned());
    }
    plugin::pack(&dist, &args.url)?;
    names.extend([plugin::ARCHIVE, plugin::NAME].map(str::to_owned));
    let sums = shell::read(Command::new("sha256sum").args(&names).current_dir(&dist))?;
    let file = dist.join("SHA256SUMS");
    std::fs::write(&file, &sums).with_context(|| format!("write {}", file.display()))?;
    print!("{sums}");
    println!("{}", dist.display());
    Ok(ExitCode::SUCCESS)
}

/// Writes the binary for a platform, its SBOM and its packages, and returns their names.
fn write_agent(binary: &Path, platform: Platform, dist: &Path) -> Result<Vec<String>> {
    let bytes = std::fs::read(binary).with_context(|| format!("read {}", binary.display()))?;
    check(&bytes).with_context(|| format!("check {}", binary.display()))?;
    if platform != Platform::HOST {
        check_emulated_output(&build::agent_for(Platform::HOST, true)?, binary, platform)?;
    }
    let name = format!("eviction-agent-linux-{}", platform.arch());
    shell::copy(binary, &dist.join(&name))?;
    let bill = format!("{name}.cdx.json");
    std::fs::write(dist.join(&bill), sbom::generate(&bytes, platform)?)
        .with_context(|| format!("write {bill}"))?;
    let packages = packages::pack(binary, platform, dist)?;
    packages::check(binary, platform, dist, &packages)?;
    eprintln!("{name}: {}, static", build::mib(bytes.len() as u64));
    Ok([vec![name, bill], packages].concat())
}

/// Compares what an agent for another platform prints, run by QEMU, with what this machine's own agent prints:
/// the resolved configuration, and the decisions of all scenarios.
fn check_emulated_output(own: &Path, binary: &Path, platform: Platform) -> Result<()> {
    let run = |platform: Platform, binary: &Path, verb: &[&str]| {
        let output = platform.command(binary).args(verb).current_dir(shell::root()).output();
        output.with_context(|| format!("run {}", binary.display()))
    };
    let config =
        ["config", "--config=deploy/systemd/agent.yaml", "--memory-capacity=8Gi", "--pid-capacity=32768"];
    let replay = ["replay", "-o", "jsonl", "tests/scenarios/kubelet", "tests/scenarios/enhanced"];
    for verb in [&config[..], &replay, &["replay", "--verify", "tests/scenarios/kubelet"]] {
        let (expected, found) = (run(Platform::HOST, own, verb)?, run(platform, binary, verb)?);
        let is_same = (expected.status, &expected.stdout) == (found.status, &found.stdout);
        let (what, error) = (verb.join(" "), String::from_utf8_lossy(&found.stderr));
        ensure!(is_same && found.status.success(), "`{what}` differs on linux/{}: {error}", platform.arch());
    }
    // QEMU has no bpf(2), so the findings differ, but `check` still prints a result.
    let found = run(platform, binary, &["check"])?.stdout;
    let found = String::from_utf8_lossy(&found);
    ensure!(found.starts_with("run would"), "`check` on linux/{}: {found}", platform.arch());
    eprintln!("linux/{}: config and replay print what they print here", platform.arch());
    Ok(())
}

/// Checks that the file can be released: it is static, stripped and not too large.
fn check(bytes: &[u8]) -> Result<()> {
    ensure!(build::is_static(bytes)?, "it is not static: it asks for a dynamic loader");
    ensure!(object::File::parse(bytes)?.symbol_table().is_none(), "it is not stripped");
    let size = bytes.len() as u64;
    ensure!(
        size <= MAX_BINARY_BYTES,
        "it is {}, more than {}",
        build::mib(size),
        build::mib(MAX_BINARY_BYTES)
    );
    Ok(())
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
    fn file_that_is_not_elf_is_refused() {
        assert_eq!(check(b"#!/bin/sh\n").unwrap_err().to_string(), "not a 64-bit ELF file");
        assert!(check(b"\x7fELF\x02\x01").is_err());
    }
}
