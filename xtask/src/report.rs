//! `cargo xtask report`: opens the page of `eviction-agent report` in Chromium. Not part of CI.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::setup::{self, Need};
use crate::shell;
use crate::{build, dashboards};

/// The environment variable with the folder for the recording; as in `eviction-agent/src/report/tests.rs`.
const RECORDING: &str = "EVICTION_AGENT_RECORDING";

pub(crate) fn run() -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf, Need::Browser])?;
    let folder = shell::target_folder()?.join("report");
    dashboards::install(&folder, "tests/report", &["package.json", "check.mjs"])?;

    let recording = folder.join("recording");
    if recording.exists() {
        fs::remove_dir_all(&recording).with_context(|| format!("remove {}", recording.display()))?;
    }
    let agent = build::programs(&["eviction-agent"], &tools)?.join("eviction-agent");
    let mut cargo = shell::cargo();
    cargo.args([
        "test",
        "--quiet",
        "--package=eviction-agent",
        "--lib",
        "report_size_is_bounded_for_a_long_recording",
    ]);
    tools.apply(cargo.env(RECORDING, &recording));
    shell::run(&mut cargo)?;

    // The page contains the recording's path as it is passed.
    let mut node = Command::new("node");
    node.current_dir(&folder).arg("check.mjs").arg(agent).args(["recording", "pictures"]);
    shell::run(&mut node)?;
    println!("pictures: {}", folder.join("pictures").display());
    Ok(ExitCode::SUCCESS)
}
