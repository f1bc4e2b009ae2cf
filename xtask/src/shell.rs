//! Running other programs, and where the workspace is.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Error, Result, bail};
use serde::Deserialize;

/// The BPF programs are built for their own target; every other package takes part in a
/// build for the machine at hand.
pub(crate) const EBPF: &str = "eviction-ebpf";

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The cargo that runs this task, so that a task never changes the toolchain midway.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Shows the command, runs it with the caller's output, and fails if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", show(command));
    run_unseen(command)
}

/// The same for a command that was shown already.
pub(crate) fn run_unseen(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("run `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// What the command prints is for people: standard output is a task's own, which may be read by a machine.
pub(crate) fn aside(command: &mut Command) -> &mut Command {
    command.stdout(std::io::stderr())
}

/// Becomes that program, so that Ctrl-C and its exit code are its own; hands back why it could not.
pub(crate) fn become_program(command: &mut Command) -> Error {
    let shown = show(command);
    eprintln!("$ {shown}");
    Error::new(command.exec()).context(format!("run `{shown}`"))
}

/// Runs the command silently and hands back what it printed on standard output.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("run `{shown}`"))?;
    if !output.status.success() {
        bail!(
            "`{shown}` ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{shown}` is not UTF-8"))
}

/// The command as one would type it; the program by its name alone.
pub(crate) fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(OsStr::new("?"));
    std::iter::once(name)
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            if word.is_empty() || word.contains(' ') { format!("'{word}'") } else { word.into_owned() }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// What `cargo metadata` says of the workspace itself.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    /// The workspace's own packages.
    pub(crate) packages: Vec<Package>,
    /// Where cargo builds.
    pub(crate) target_directory: PathBuf,
}

/// One package of the workspace.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
}

impl Metadata {
    /// Asks cargo, without the network.
    pub(crate) fn read() -> Result<Self> {
        let text = read(cargo().args(["metadata", "--format-version=1", "--no-deps", "--offline"]))?;
        serde_json::from_str(&text).context("the output of `cargo metadata`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_installer_prints_is_not_the_tasks_own_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo to people"]);
        assert_eq!(command.output().unwrap().stdout, b"to people\n");
        assert_eq!(aside(&mut command).output().unwrap().stdout, b"");
    }
}
