//! `version`, `completion` and `man`: information about the program.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, Subcommand, ValueEnum};
use serde::Serialize;

use super::output::{Out, OutputFormat, VerbError, table};
use crate::daemon::{BPF_ABI, COMMIT, Failure};

const NAME: &str = "eviction-agent";

// No doc comment: clap would show it as the description of the program.
#[derive(Debug, Subcommand)]
pub(super) enum AboutVerb {
    /// Print a completion script for a shell
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual page, or write one page per verb into a directory
    Man {
        /// Directory for the pages eviction-agent.1, eviction-agent-run.1 and so on
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Print the version, the commit and the BPF ABI
    Version {
        /// Output format
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table, help_heading = "Output")]
        output: OutputFormat,
    },
}

/// Runs a verb. `command`: the whole command line.
pub(super) fn run(verb: &AboutVerb, command: Command, out: &mut Out) -> Result<ExitCode, VerbError> {
    match verb {
        AboutVerb::Completion { shell } => completion(*shell, command, out)?,
        AboutVerb::Man { dir } => man(dir.as_deref(), command, out)?,
        AboutVerb::Version { output } => version(*output, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct VersionInfo {
    version: &'static str,
    commit: &'static str,
    bpf_abi: &'static str,
}

fn version(output: OutputFormat, out: &mut Out) -> Result<(), VerbError> {
    let version = VersionInfo { version: env!("CARGO_PKG_VERSION"), commit: COMMIT, bpf_abi: BPF_ABI };
    output.write(out, "the version", &version, |VersionInfo { version, commit, bpf_abi }, _| {
        let row = [(*version).to_owned(), (*commit).to_owned(), (*bpf_abi).to_owned()];
        table(["VERSION", "COMMIT", "BPF ABI"], [row], None)
    })
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
    Nushell,
    #[value(name = "powershell")]
    Pwsh,
}

fn completion(shell: Shell, mut command: Command, out: &mut Out) -> io::Result<()> {
    use clap_complete::{Shell as Complete, generate};
    // Written into memory, because the generators panic if they cannot write.
    let mut script = Vec::new();
    match shell {
        Shell::Bash => generate(Complete::Bash, &mut command, NAME, &mut script),
        Shell::Zsh => generate(Complete::Zsh, &mut command, NAME, &mut script),
        Shell::Fish => generate(Complete::Fish, &mut command, NAME, &mut script),
        Shell::Pwsh => generate(Complete::PowerShell, &mut command, NAME, &mut script),
        Shell::Nushell => generate(clap_complete_nushell::Nushell, &mut command, NAME, &mut script),
    }
    out.write_all(&script)
}

fn man(dir: Option<&Path>, mut command: Command, out: &mut Out) -> Result<(), VerbError> {
    command.build();
    let Some(dir) = dir else { return Ok(out.write_all(&page(command)?)?) };
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
    Ok(())
}

fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}
