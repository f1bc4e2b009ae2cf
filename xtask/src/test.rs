//! `cargo xtask test`: runs and counts every test of the workspace.
//!
//! The test programs are built once and then started one after the other. A test that cannot run here prints
//! `SKIPPED <name>: <reason>` and passes; it is counted and shown as skipped, never as passed.

pub(crate) mod report;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::build::Platform;
use crate::e2e::kubernetes;
use crate::setup::{self, Need, Tools};
use crate::shell::{self, EBPF};
use report::Report;

/// Packages with tests that load programs into the kernel or create cgroups, which are shared.
const ONE_AT_A_TIME: &[&str] = &["tests"];
/// The target with the stories of a cluster. Each story has its own node and cluster and waits most of the
/// time, so that several run at once.
const STORIES: &str = "e2e";
const STORIES_AT_ONCE: usize = 3;
/// The task's own package. It is built separately, so that its dependencies have the features with which `cargo
/// xtask` itself is built.
const XTASK: &str = "xtask";
/// The timeout for a test that never ends. It does not measure speed.
const TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only the tests whose name contains this, and all of a test target of this name
    pub(crate) filter: Option<String>,
    /// Fail if a test was skipped, as on a machine that is known to run them all
    #[arg(long)]
    pub(crate) deny_skips: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf])?;
    let packages = shell::packages()?;
    let packages: Vec<&str> =
        packages.iter().map(String::as_str).filter(|name| ![EBPF, XTASK].contains(name)).collect();

    let mut built = build(&packages, &["--bins", "--tests"], &tools)?;
    let xtask = build(&[XTASK], &["--tests"], &tools)?;
    built.tests.extend(xtask.tests);
    // The quick ones first.
    built.tests.sort_by_key(|test| (ONE_AT_A_TIME.contains(&test.package.as_str()), test.title()));

    let logs = shell::create_folder(shell::target_folder()?.join("xtask/tests"))?;
    let mut total = Report::default();
    let kubernetes = kubernetes_folder(args);
    let programs = [Need::Promtool, Need::Helm, Need::FileSystems, Need::Node].map(setup::ensure_for_tests);
    for test in &built.tests {
        let log = logs.join(format!("{}.log", test.title().replace(['/', ' '], "-")));
        let mut command = test.command(args, &built.programs);
        command.envs(kubernetes.iter().map(|folder| (kubernetes::FOLDER, folder)));
        command.envs(programs.iter().flat_map(Tools::test_variables));
        total.add(run_one(&test.title(), command, &log)?);
    }
    let log = logs.join("doc.log");
    total.add(run_one("documentation", doc_tests(&packages, args, &tools), &log)?);

    print_summary(&total, args)
}

/// Returns the folder of Kubernetes' programs. Builds them, unless a filter selects tests that most likely do
/// not need them. Tests without them report that.
fn kubernetes_folder(args: &Args) -> Option<PathBuf> {
    let found = if args.filter.is_some() { kubernetes::cached() } else { kubernetes::ensure().map(Some) };
    found.inspect_err(|error| eprintln!("{error:#}")).unwrap_or_default()
}

/// Prints what was skipped and what failed, and the closing line.
fn print_summary(total: &Report, args: &Args) -> Result<ExitCode> {
    println!();
    for skip in &total.skipped {
        println!("SKIPPED {skip}");
    }
    for name in &total.failed {
        println!("FAILED {name}");
    }
    let denied = args.deny_skips && !total.skipped.is_empty();
    if denied {
        println!("error: a skipped test is a failure here (--deny-skips)");
    }
    println!("{}", total.closing_line());
    if total.is_empty() {
        match &args.filter {
            Some(filter) => bail!("no test has a name with `{filter}` in it"),
            None => bail!("no test was run"),
        }
    }
    Ok(if total.failed.is_empty() && !denied { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The results of a build.
#[derive(Default)]
pub(crate) struct Built {
    pub(crate) tests: Vec<TestProgram>,
    /// The binaries that tests start, by name.
    pub(crate) programs: Vec<(String, PathBuf)>,
}

pub(crate) struct TestProgram {
    package: String,
    /// The name of the target; empty for the tests inside a library.
    target: String,
    folder: PathBuf,
    program: PathBuf,
}

impl TestProgram {
    fn title(&self) -> String {
        if self.target.is_empty() {
            self.package.clone()
        } else {
            format!("{}/{}", self.package, self.target)
        }
    }

    fn command(&self, args: &Args, programs: &[(String, PathBuf)]) -> Command {
        let mut command = self.start(programs);
        let is_whole_target = args.filter.as_ref() == Some(&self.target);
        command.args(args.filter.as_ref().filter(|_| !is_whole_target)).arg("--show-output");
        if ONE_AT_A_TIME.contains(&self.package.as_str()) {
            let threads = if self.target == STORIES { STORIES_AT_ONCE } else { 1 };
            command.arg(format!("--test-threads={threads}"));
        }
        command
    }

    /// Returns the command with which `cargo test` would start it.
    pub(crate) fn start(&self, programs: &[(String, PathBuf)]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO_PKG_NAME", &self.package)
            .envs(programs.iter().map(|(name, path)| (format!("CARGO_BIN_EXE_{name}"), path)))
            .env("INSTA_WORKSPACE_ROOT", shell::root());
        command
    }
}

/// Builds these targets of these packages.
pub(crate) fn build(packages: &[&str], targets: &[&str], tools: &Tools) -> Result<Built> {
    let mut cargo = shell::cargo();
    cargo
        .args(["build", "--message-format=json-render-diagnostics"])
        .args(targets)
        .args(packages.iter().flat_map(|package| ["--package", package]));
    tools.apply(&mut cargo);
    eprintln!("$ {}", shell::command_line(&cargo));
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("run cargo build")?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let text = String::from_utf8(output.stdout).context("the messages of cargo build")?;
    let mut built = Built::default();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        built.add(&serde_json::from_str(line).context("a message of cargo build")?);
    }
    Ok(built)
}

impl Built {
    /// Adds the program of a message of cargo, if it is about one.
    fn add(&mut self, message: &Value) {
        let (manifest, target) = (&message["manifest_path"], &message["target"]);
        let (Some(manifest), Some(program)) = (manifest.as_str(), message["executable"].as_str()) else {
            return;
        };
        if message["reason"] != "compiler-artifact" {
            return;
        }
        let (program, manifest) = (PathBuf::from(program), Path::new(manifest));
        let folder = manifest.parent().unwrap_or(Path::new("/")).to_owned();
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = target["name"].as_str().unwrap_or_default();
        match (message["profile"]["test"] == true, target["kind"][0].as_str().unwrap_or_default()) {
            (false, "bin") => self.programs.push((name.to_owned(), program)),
            (true, kind) => {
                let target = match kind {
                    "test" => name.to_owned(),
                    "bin" => format!("bin {name}"),
                    _ => String::new(),
                };
                self.tests.push(TestProgram { package, target, folder, program });
            }
            (false, _) => {}
        }
    }
}

/// The profile of tests in guests.
const GUEST: &str = "guest";

/// Builds integration tests of the package `tests` as static files, and returns a copy of each with the name of
/// its target.
pub(crate) fn static_tests(names: &[&str], platform: Platform, tools: &Tools) -> Result<Vec<PathBuf>> {
    let for_guests = ["--target", platform.target(), "--profile", GUEST];
    let targets: Vec<&str> = names.iter().flat_map(|&name| ["--test", name]).chain(for_guests).collect();
    let built = build(&["tests"], &targets, tools)?;
    let copy = |test: TestProgram| {
        let copied = test.program.with_file_name(&test.target);
        shell::copy(&test.program, &copied)?;
        Ok(copied)
    };
    built.tests.into_iter().map(copy).collect()
}

fn doc_tests(packages: &[&str], args: &Args, tools: &Tools) -> Command {
    let mut cargo = shell::cargo();
    cargo.args(["test", "--doc", "--no-fail-fast"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    cargo.arg("--").args(&args.filter).arg("--show-output");
    tools.apply(&mut cargo);
    cargo
}

/// Runs a test program and prints its results.
fn run_one(title: &str, command: Command, log: &Path) -> Result<Report> {
    let started = Instant::now();
    let (report, output) = run_to_end(title, command, log)?;
    if !report.failed.is_empty() {
        println!("{}", output.trim_end());
    }
    if !report.is_empty() {
        println!("{title}: {} ({:.1} s)", report.closing_line(), started.elapsed().as_secs_f64());
    }
    Ok(report)
}

/// Runs a test program to its end and parses its output. The output is written to a file, where it can be
/// followed and read afterwards, and is returned.
pub(crate) fn run_to_end(title: &str, mut command: Command, log: &Path) -> Result<(Report, String)> {
    let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("share the log")?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("start the tests of {title}"))?;
    let status: Option<ExitStatus> = loop {
        if let Some(status) = child.try_wait().context("wait for a test program")? {
            break Some(status);
        }
        if started.elapsed() > TIMEOUT {
            child.kill().context("end a test program that hangs")?;
            child.wait().context("wait for a test program")?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };

    let output = std::fs::read(log).with_context(|| format!("read {}", log.display()))?;
    let output = String::from_utf8_lossy(&output).into_owned();
    let mut report = Report::read(title, &output);
    let end = match status {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("ended with {status}")),
        None => Some(format!("did not end within {} minutes", TIMEOUT.as_secs() / 60)),
    };
    if let Some(end) = &end
        && report.failed.is_empty()
    {
        report.failed.push(format!("{title}: {end}"));
    }
    Ok((report, output))
}
