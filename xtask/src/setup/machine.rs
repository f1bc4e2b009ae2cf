//! What is installed, read from the folders of rustup and cargo: running these programs would take a fifth of a
//! second each time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::build;
use crate::shell;

/// The folders that are searched for tools.
#[derive(Debug)]
pub(super) struct Machine {
    /// `~/.rustup`.
    pub(super) rustup_home: PathBuf,
    /// The toolchain that runs this task.
    pub(super) sysroot: PathBuf,
    /// `x86_64-unknown-linux-gnu`, the end of the names of toolchain folders.
    pub(super) host: String,
    /// The folders that are searched for programs, in this order.
    pub(super) path: Vec<PathBuf>,
    /// The folder of tools that would be in the way elsewhere.
    pub(super) own: PathBuf,
}

impl Machine {
    /// Returns the machine as the environment of this process describes it.
    pub(super) fn of_this_process() -> Result<Self> {
        let home = std::env::home_dir().context("setup: no home folder: set HOME")?;
        let folder = |name: &str, default: &str| {
            std::env::var_os(name).map_or_else(|| home.join(default), PathBuf::from)
        };
        let cargo_home = folder("CARGO_HOME", ".cargo");
        let mut path: Vec<_> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
        path.push(cargo_home.join("bin"));
        let sysroot = sysroot()?;
        Ok(Self {
            rustup_home: folder("RUSTUP_HOME", ".rustup"),
            host: host(&sysroot),
            sysroot,
            path,
            own: shell::cache_folder()?.join("tools"),
        })
    }

    fn toolchain(&self, name: &str) -> PathBuf {
        self.rustup_home.join("toolchains").join(format!("{name}-{}", self.host))
    }

    /// Returns the major version of LLVM of the toolchain of that name, 0 if it has no shared LLVM; `None` if
    /// there is no such toolchain.
    pub(super) fn llvm(&self, toolchain: &str) -> Option<u32> {
        let libraries = std::fs::read_dir(self.toolchain(toolchain).join("lib")).ok()?;
        Some(libraries.flatten().find_map(|file| llvm_of(file.file_name().to_str()?)).unwrap_or(0))
    }

    /// Returns whether that toolchain has the source of the standard library.
    pub(super) fn has_source(&self, toolchain: &str) -> bool {
        self.toolchain(toolchain).join("lib/rustlib/src/rust/library/core/Cargo.toml").is_file()
    }

    /// Returns whether that toolchain has a program.
    pub(super) fn nightly_has_program(&self, toolchain: &str, program: &str) -> bool {
        self.toolchain(toolchain).join("bin").join(program).is_file()
    }

    /// Returns whether the toolchain of this task has the standard library of a target.
    pub(super) fn has_target(&self, target: &str) -> bool {
        self.sysroot.join("lib/rustlib").join(target).join("lib").is_dir()
    }

    /// Returns whether the toolchain of this task has a program.
    pub(super) fn has_program(&self, program: &str) -> bool {
        self.sysroot.join("bin").join(program).is_file()
    }

    /// Returns whether that program is on the path or in a folder of system tools, which is not on every path.
    pub(super) fn is_on_path(&self, program: &str) -> bool {
        let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
        self.path.iter().chain(&system).any(|folder| folder.join(program).is_file())
    }

    /// Returns whether that program is on the path and needs no library.
    pub(super) fn is_static(&self, program: &str) -> bool {
        let found = self.path.iter().map(|folder| folder.join(program)).find(|path| path.is_file());
        found.and_then(|path| build::is_static(&std::fs::read(path).ok()?).ok()).unwrap_or(false)
    }

    /// Returns a tool of a version that fits, on the path or in the project's own folder.
    pub(super) fn tool(&self, tool: &str, fits: impl Fn(&str) -> bool) -> Option<PathBuf> {
        let mut found = [self.tool_on_path(tool), self.own_tool(tool)].into_iter().flatten();
        found.find(|(_, version)| fits(version)).map(|(path, _)| path)
    }

    /// Returns a tool on the path, and its version.
    pub(super) fn tool_on_path(&self, tool: &str) -> Option<(PathBuf, String)> {
        self.path.iter().map(|folder| folder.join(tool)).find_map(with_version)
    }

    /// Returns a tool in the project's own folder, and its version.
    pub(super) fn own_tool(&self, tool: &str) -> Option<(PathBuf, String)> {
        with_version(self.own.join("bin").join(tool))
    }
}

/// Returns the toolchain of the cargo that runs this task.
fn sysroot() -> Result<PathBuf> {
    let of_cargo = std::env::var_os("CARGO").and_then(|cargo| {
        let sysroot = Path::new(&cargo).parent()?.parent()?.to_owned();
        sysroot.join("lib/rustlib").is_dir().then_some(sysroot)
    });
    match of_cargo {
        Some(sysroot) => Ok(sysroot),
        None => {
            let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
            let printed = shell::read(Command::new(rustc).args(["--print", "sysroot"]))?;
            Ok(PathBuf::from(printed.trim_end()))
        }
    }
}

/// Returns the machine's target triple. A toolchain contains the standard library of its host, and the name of
/// its folder ends with the host's; a distribution's toolchain gets the usual triple.
fn host(sysroot: &Path) -> String {
    let fallback = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let Some(name) = sysroot.file_name().and_then(|name| name.to_str()) else {
        return fallback;
    };
    match name.find(std::env::consts::ARCH) {
        Some(start) => name[start..].to_owned(),
        None => fallback,
    }
}

/// Returns the version of LLVM: `libLLVM.so.22.1-rust-1.97.0-nightly` or `libLLVM-19-rust-…` → 22, 19.
fn llvm_of(file: &str) -> Option<u32> {
    let version = file.strip_prefix("libLLVM.so.").or_else(|| file.strip_prefix("libLLVM-"))?;
    version.split(['.', '-']).next()?.parse().ok()
}

/// Returns the version that a tool prints: `bpf-linker 0.10.3` → 0.10.3.
fn with_version(path: PathBuf) -> Option<(PathBuf, String)> {
    if !path.is_file() {
        return None;
    }
    let output = Command::new(&path).arg("--version").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?.split_whitespace().nth(1)?.to_owned();
    Some((path, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llvm_is_read_from_the_library_name() {
        assert_eq!(llvm_of("libLLVM.so.22.1-rust-1.97.0-nightly"), Some(22));
        assert_eq!(llvm_of("libLLVM-22-rust-1.97.0-nightly.so"), Some(22));
        assert_eq!(llvm_of("libLLVM-19.so"), Some(19));
        assert_eq!(llvm_of("librustc_driver-b5a965480ee51f9a.so"), None);
        assert_eq!(llvm_of("libLLVM-rust.so"), None);
    }

    #[test]
    fn host_triple_is_the_end_of_the_toolchain_folder_name() {
        let arch = std::env::consts::ARCH;
        let gnu = format!("{arch}-unknown-linux-gnu");
        let musl = format!("{arch}-unknown-linux-musl");
        assert_eq!(host(Path::new(&format!("/r/toolchains/1.95.0-{musl}"))), musl);
        assert_eq!(host(Path::new(&format!("/r/toolchains/stable-{gnu}"))), gnu);
        assert_eq!(host(Path::new("/usr")), gnu);
    }
}
