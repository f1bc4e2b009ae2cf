//! `version`, `completion` and `man`: information about the program.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command, ValueEnum};
use serde::Serialize;

use super::output::{Format, Out, VerbError, table};
use crate::daemon::{BPF_ABI, COMMIT, Failure};

const NAME: &str = "eviction-agent";

/// Print the version, the commit and the BPF ABI
#[derive(Debug, Args)]
pub(super) struct VersionArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table, help_heading = "Output")]
    output: Format,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    commit: &'static str,
    bpf_abi: &'static str,
}

pub(super) fn version(args: &VersionArgs, out: &mut Out) -> Result<ExitCode, VerbError> {
    let version = Version { version: env!("CARGO_PKG_VERSION"), commit: COMMIT, bpf_abi: BPF_ABI };
    args.output.write(out, "the version", &version, |Version { version, commit, bpf_abi }, _| {
        let row = [(*version).to_owned(), (*commit).to_owned(), (*bpf_abi).to_owned()];
        table(["VERSION", "COMMIT", "BPF ABI"], [row], None)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub(super) struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Nushell,
    #[value(name = "powershell")]
    Pwsh,
}

pub(super) fn completion(
    args: &CompletionArgs,
    mut command: Command,
    out: &mut Out,
) -> Result<ExitCode, VerbError> {
    use clap_complete::{Shell as Complete, generate};
    // Written into memory, because the generators panic if they cannot write.
    let mut script = Vec::new();
    match args.shell {
        Shell::Bash => generate(Complete::Bash, &mut command, NAME, &mut script),
        Shell::Zsh => generate(Complete::Zsh, &mut command, NAME, &mut script),
        Shell::Fish => generate(Complete::Fish, &mut command, NAME, &mut script),
        Shell::Pwsh => generate(Complete::PowerShell, &mut command, NAME, &mut script),
        Shell::Nushell => generate(clap_complete_nushell::Nushell, &mut command, NAME, &mut script),
    }
    out.write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Print the manual page, or write one page per verb into a directory
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Directory for the pages eviction-agent.1, eviction-agent-run.1 and so on
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn man(args: &ManArgs, mut command: Command, out: &mut Out) -> Result<ExitCode, VerbError> {
    command.build();
    let Some(dir) = &args.dir else {
        out.write_all(&page(command)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let pages = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| (verb.clone(), format!("{NAME}-{}", verb.get_name())));
    let pages: Vec<_> = pages.collect();
    for (command, name) in pages.into_iter().chain([(command, NAME.to_owned())]) {
        let file = dir.join(format!("{name}.1"));
        page(command)
            .and_then(|page| std::fs::write(&file, page))
            .map_err(|error| Failure::because(format!("write {}", file.display()), &error))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}
