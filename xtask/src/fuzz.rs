//! `cargo xtask fuzz`: fuzzes everything that comes from outside, with libFuzzer.
//!
//! It begins with the corpus in the repository. New inputs stay under `target/fuzz`, and an input that makes a
//! target fail is named at the end. Once it is in the corpus, it is tried with every change.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::setup::{self, Need, Tools};
use crate::shell;

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these targets
    targets: Vec<String>,
    /// How long each of them is tried
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u32,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Args { targets, seconds } = args;
    let all = targets_of(&shell::root().join("fuzz/targets"))?;
    for target in targets {
        ensure!(all.contains(target), "`{target}` is no target: there are {}", all.join(", "));
    }
    let chosen = if targets.is_empty() { &all } else { targets };
    let tools = setup::ensure(&[Need::Bpf, Need::Fuzz])?;
    let work = shell::target_folder()?.join("fuzz");
    let mut failed = Vec::new();
    for target in chosen {
        let new_inputs = shell::create_folder(work.join(target))?;
        if shell::run(&mut command(&tools, target, &new_inputs, *seconds)?).is_err() {
            failed.push(target.as_str());
        }
    }
    println!("{} targets for {seconds} s each, {} failed {}", chosen.len(), failed.len(), failed.join(", "));
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn command(tools: &Tools, target: &str, new_inputs: &Path, seconds: u32) -> Result<Command> {
    let program = tools.cargo_fuzz.as_deref().context("cargo-fuzz was not set up")?;
    let mut fuzz = Command::new(program);
    fuzz.current_dir(shell::root()).env("RUSTUP_TOOLCHAIN", &tools.bpf_toolchain);
    fuzz.args(["fuzz", "run", "--fuzz-dir", "fuzz", target]);
    fuzz.arg(new_inputs).arg(Path::new("fuzz/corpus").join(target));
    // A target that hangs or uses too much memory fails, like one that panics.
    fuzz.arg("--").arg(format!("-max_total_time={seconds}"));
    fuzz.args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]);
    tools.apply(&mut fuzz);
    Ok(fuzz)
}

/// Returns the targets, by their files.
fn targets_of(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let file = entry?.path();
        names.extend(file.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_a_program_and_has_a_corpus() {
        let root = shell::root();
        let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
        let targets = targets_of(&root.join("fuzz/targets")).unwrap();
        assert!(targets.len() >= 5, "{targets:?}");
        for target in targets {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is no program");
            assert!(root.join("fuzz/corpus").join(&target).is_dir(), "{target} has no corpus");
        }
    }
}
