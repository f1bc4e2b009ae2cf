//! `cargo xtask build`: the agent as one static file.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use object::Endianness;
use object::elf::PT_INTERP;
use object::read::elf::ElfFile64;

use crate::setup::{self, Need, Tools};
use crate::shell;

/// The agent is linked against musl, so that one file runs on every distribution.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-musl";

/// What the agent is built for, by the names of OCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Platform {
    #[value(name = "linux/amd64")]
    Amd64,
    #[value(name = "linux/arm64")]
    Arm64,
}

impl Platform {
    /// The platform of this machine.
    pub(crate) const HOST: Self = if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 };

    /// Returns the Rust target.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Amd64 => TARGET,
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }

    /// Returns the architecture as OCI and Debian name it.
    pub(crate) fn arch(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns the architecture as rpm and the kernel name it.
    pub(crate) fn rpm_arch(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Returns a command that runs a program of this platform, on another machine with QEMU.
    pub(crate) fn command(self, program: &Path) -> Command {
        if self == Self::HOST {
            return Command::new(program);
        }
        let mut command = Command::new(format!("qemu-{}-static", self.rpm_arch()));
        command.arg(program);
        command
    }

    /// Returns what is needed to build programs of this platform.
    pub(crate) fn needs(self) -> &'static [Need] {
        match self {
            Self::Amd64 => &[Need::Bpf, Need::Musl],
            Self::Arm64 => &[Need::Bpf, Need::Musl, Need::Arm64],
        }
    }

    /// Returns the program that removes symbols from programs of this platform.
    pub(crate) fn strip(self) -> &'static str {
        match self {
            Self::Amd64 => "strip",
            Self::Arm64 => "aarch64-linux-gnu-strip",
        }
    }
}

/// The Cargo profile of the agent that is shipped.
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

/// Builds the agent, and returns its path.
pub(crate) fn agent(release: bool) -> Result<PathBuf> {
    agent_for(Platform::Amd64, release)
}

/// Builds the agent for a platform, and returns its path.
pub(crate) fn agent_for(platform: Platform, release: bool) -> Result<PathBuf> {
    let tools = setup::ensure(platform.needs())?;
    let target = platform.target();
    let profile: &[&str] = if release { &["--profile", SHIPPED] } else { &[] };
    let options = [&["--bin", "eviction-agent", "--target", target][..], profile].concat();
    let folder = build(&["eviction-agent"], &options, &tools)?.join(target);
    Ok(folder.join(if release { SHIPPED } else { "debug" }).join("eviction-agent"))
}

/// Builds the programs of these packages for this machine, unoptimised, and returns their folder.
pub(crate) fn programs(packages: &[&str], tools: &Tools) -> Result<PathBuf> {
    Ok(build(packages, &["--bins"], tools)?.join("debug"))
}

/// Builds the programs of these packages for a platform as static files, optimised, and returns their folder.
pub(crate) fn static_programs(packages: &[&str], platform: Platform, tools: &Tools) -> Result<PathBuf> {
    let target = platform.target();
    let folder = build(packages, &["--release", "--bins", "--target", target], tools)?;
    Ok(folder.join(target).join("release"))
}

/// Builds these packages with these options of cargo, and returns the folder in which cargo builds.
fn build(packages: &[&str], options: &[&str], tools: &Tools) -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.arg("build").args(packages.iter().flat_map(|package| ["--package", package])).args(options);
    tools.apply(&mut cargo);
    shell::run(&mut cargo)?;
    shell::target_folder()
}

/// Returns whether a program runs without a dynamic loader.
pub(crate) fn is_static(program: &[u8]) -> Result<bool> {
    let file = ElfFile64::<Endianness>::parse(program).context("not a 64-bit ELF file")?;
    let mut headers = file.elf_program_headers().iter();
    Ok(headers.all(|header| header.p_type.get(file.endian()) != PT_INTERP))
}

/// Formats a size in MiB, rounded up.
pub(crate) fn mib(bytes: u64) -> String {
    let tenths = (bytes * 10).div_ceil(1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::mib;
    use crate::shell::root;

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(mib(0), "0.0 MiB");
        assert_eq!(mib(1), "0.1 MiB");
        assert_eq!(mib(12 << 20), "12.0 MiB");
        assert_eq!(mib((12 << 20) + 1), "12.1 MiB");
    }

    /// The rest of what is shipped is built for size (`opt-level = "s"`), and Cargo has no entry for several crates.
    #[test]
    fn profiles_of_the_agent_name_each_of_its_crates() {
        let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let crates = fs::read_dir(root().join("eviction-agent/crates")).unwrap();
        let mut names: Vec<_> = crates
            .map(|entry| format!("eviction-{}", entry.unwrap().file_name().display()))
            .chain(["eviction-agent".to_owned()])
            .collect();
        names.sort();
        assert!(names.contains(&"eviction-core".to_owned()), "{names:?}");
        for profile in ["shipped", "bench"] {
            for name in &names {
                let entry = format!("[profile.{profile}.package.{name}]\nopt-level = 2\n");
                assert!(manifest.contains(&entry), "Cargo.toml lacks {entry}");
            }
        }
    }
}
