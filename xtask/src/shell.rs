//! Runs other programs, and finds the workspace.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Error, Result, bail};
use serde_json::Value;

/// The package of the BPF programs, which are built for their own target. Every other package is part of a
/// build for this machine.
pub(crate) const EBPF: &str = "eviction-ebpf";

/// Returns the root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Returns the cargo that runs this task, so that a task never changes the toolchain midway.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Prints the command, runs it with the caller's output, and fails if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", command_line(command));
    run_without_printing(command)
}

/// Does the same for a command that was printed already.
pub(crate) fn run_without_printing(command: &mut Command) -> Result<()> {
    let shown = command_line(command);
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("run `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Redirects a command's standard output to standard error: standard output belongs to the task, and a program
/// may parse it.
pub(crate) fn stdout_to_stderr(command: &mut Command) -> &mut Command {
    command.stdout(std::io::stderr())
}

/// Replaces this process by that program, so that Ctrl-C and the exit code are those of the program. Returns
/// the error if that fails.
pub(crate) fn become_program(command: &mut Command) -> Error {
    let shown = command_line(command);
    eprintln!("$ {shown}");
    Error::new(command.exec()).context(format!("run `{shown}`"))
}

/// Runs the command silently, and returns its standard output.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let shown = command_line(command);
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

/// Formats the command as a user would type it, with only the name of the program.
pub(crate) fn command_line(command: &Command) -> String {
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

/// Returns the output of `cargo metadata` about the workspace itself, without the network.
fn metadata() -> Result<Value> {
    let text = read(cargo().args(["metadata", "--format-version=1", "--no-deps", "--offline"]))?;
    serde_json::from_str(&text).context("the output of `cargo metadata`")
}

/// Returns the names of the workspace's own packages.
pub(crate) fn packages() -> Result<Vec<String>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    Ok(packages.filter_map(|package| package["name"].as_str()).map(str::to_owned).collect())
}

/// Returns the folder in which cargo builds.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let metadata = metadata()?;
    let folder = metadata["target_directory"].as_str().context("cargo names no target directory")?;
    Ok(PathBuf::from(folder))
}

/// Returns the project's folder in the user's folder for caches.
pub(crate) fn cache_folder() -> Result<PathBuf> {
    let folder = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".cache")));
    Ok(folder.context("no home folder: set HOME")?.join("eviction-agent"))
}

/// Copies a file.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = std::fs::copy(from, to).map(drop);
    copied.with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

/// Creates a folder, if it is missing, and returns it.
pub(crate) fn create_folder(folder: PathBuf) -> Result<PathBuf> {
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirected_command_prints_nothing_on_standard_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo to people"]);
        assert_eq!(command.output().unwrap().stdout, b"to people\n");
        assert_eq!(stdout_to_stderr(&mut command).output().unwrap().stdout, b"");
    }
}
