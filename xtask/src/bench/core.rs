//! `cargo xtask bench core`: runs `tests/benches/core`, built as the agent is shipped, and the kubelet's
//! eviction manager, which `tests/oracle` builds from the published module.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use super::commit;
use crate::build::TARGET;
use crate::setup::{self, Need};
use crate::shell;

/// Arguments of the bench.
#[derive(clap::Args)]
pub(super) struct Core {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// Without the kubelet's passes, which take Go and a minute: no ratio and no goal then
    #[arg(long)]
    alone: bool,
}

pub(super) fn run(Core { json, alone }: &Core) -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf, Need::Musl])?;
    let kubelet = (!alone).then(oracle).transpose()?;
    let mut bench = shell::cargo();
    bench.args(["bench", "--package", "tests", "--bench", "core", "--target", TARGET]);
    bench.args(["--", "--commit", &commit()]);
    if let Some(kubelet) = kubelet {
        bench.arg("--kubelet").arg(kubelet);
    }
    if *json {
        bench.arg("--json");
    }
    tools.apply(&mut bench);
    Err(shell::become_program(&mut bench))
}

/// Builds the kubelet's eviction manager as a program; Go rebuilds only what has changed.
fn oracle() -> Result<PathBuf> {
    let folder = shell::root().join("tests/oracle");
    eprintln!("kubelet: building tests/oracle, which takes some minutes the first time");
    shell::run(&mut Command::new(folder.join("build.sh"))).context(
        "build the kubelet's eviction manager (it takes Go and a module proxy; --alone leaves it out)",
    )?;
    Ok(folder.join("oracle"))
}
