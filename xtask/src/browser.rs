//! The tasks that need Chromium. They are not part of CI: npm downloads 420 MB.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::build;
use crate::setup::{self, Need};
use crate::shell;

/// The environment variable with the file for the answers; as in `tests/tests/mixin/queries.rs`.
const ANSWERS: &str = "EVICTION_AGENT_ANSWERS";

/// `cargo xtask dashboards`: draws the dashboards with Grafana's own components, from the answers of a real Prometheus.
pub(crate) fn draw_dashboards() -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf, Need::Promtool, Need::Browser])?;
    let folder = shell::target_folder()?.join("dashboards");
    install(&folder, "tests/dashboards", &["package.json", "render.tsx", "draw.mjs"])?;

    build::programs(&["eviction-agent", "tests"], &tools)?;
    let answers = folder.join("answers.json");
    let mut cargo = shell::cargo();
    cargo.args(["test", "--quiet", "--package=tests", "--test=mixin", "queries"]).env(ANSWERS, &answers);
    cargo.envs(tools.test_variables());
    tools.apply(&mut cargo);
    shell::run(&mut cargo)?;

    let boards = shell::root().join("deploy/charts/eviction-agent/dashboards");
    let mut node = Command::new("node");
    node.current_dir(&folder).args(["draw.mjs", "pictures"]).arg(&answers);
    node.args(["fleet.json", "node.json"].map(|name| boards.join(name)));
    shell::run(&mut node)?;
    println!("pictures: {}", folder.join("pictures").display());
    Ok(ExitCode::SUCCESS)
}

/// The environment variable with the folder for the recording; as in `eviction-agent/src/report/tests.rs`.
const RECORDING: &str = "EVICTION_AGENT_RECORDING";

/// `cargo xtask report`: opens the page of `eviction-agent report`.
pub(crate) fn open_report() -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf, Need::Browser])?;
    let folder = shell::target_folder()?.join("report");
    install(&folder, "tests/report", &["package.json", "check.mjs"])?;

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

/// Copies the files of `source` to the folder of npm's packages, and installs the packages if they have changed
/// since the last time.
fn install(folder: &Path, source: &str, files: &[&str]) -> Result<()> {
    shell::create_folder(folder.to_owned())?;
    let wanted = shell::root().join(source);
    let installed = folder.join("node_modules/package.json");
    let read = |path: &Path| fs::read(path).ok();
    let is_installed = read(&installed).is_some_and(|text| Some(text) == read(&wanted.join("package.json")));
    for file in files {
        shell::copy(&wanted.join(file), &folder.join(file))?;
    }
    if !is_installed {
        // @grafana/ui requires packages that contradict each other.
        let options = ["install", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund"];
        shell::run(Command::new("npm").current_dir(folder).args(options))?;
        fs::copy(folder.join("package.json"), installed).context("note what is installed")?;
    }
    Ok(())
}
