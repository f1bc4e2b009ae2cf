//! `cargo xtask setup`: installs what the tasks need and this machine lacks.
//!
//! Every task calls [`ensure`] first. If nothing is missing, that is a handful of file look-ups. If something
//! is missing, it is printed in a line and installed, once.

mod debian;
mod machine;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::build::Platform;
use crate::shell;
use machine::Machine;

/// The linker of the BPF target. 0.10.3 is the last one for LLVM 22, which rustc 1.95 and the nightlies up to
/// [`DATED_NIGHTLY`] contain; later ones need LLVM 23.
const BPF_LINKER: &str = "0.10.3";
/// The major version of LLVM that [`BPF_LINKER`] supports.
const LLVM: u32 = 22;
/// The toolchain that is used if the machine's own `nightly` contains another LLVM, or if there is none.
const DATED_NIGHTLY: &str = "nightly-2026-05-20";
/// Built without optimisation: it runs for a second, and compiles in 1.5 minutes instead of 4.
const CARGO_DENY: &str = "0.20.2";
/// Renders the chart. Supports schemas of 2020-12, as 3.18 and later do.
const HELM: &str = "v3.22.0";
/// Has the schemas of Kubernetes 1.25 to 1.37.
const KUBERNETES_VALIDATE: &str = "1.37.0";
/// Installs plugins of kubectl.
const KREW: &str = "v0.4.3";
/// Runs targets with libFuzzer.
const CARGO_FUZZ: &str = "0.13.1";
/// The first cargo-deny that supports the project's deny.toml.
const CARGO_DENY_MIN: (u32, u32) = (0, 20);

/// Something that a task needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A nightly toolchain with `rust-src`, and the BPF linker.
    Bpf,
    /// The static target of the agent.
    Musl,
    /// The static target, a C compiler and an emulator of arm64.
    Arm64,
    /// The programs that build packages of Debian and Red Hat.
    Packages,
    /// rustfmt and clippy, also for the BPF programs.
    Lints,
    /// cargo-deny.
    Deny,
    /// cargo-fuzz.
    Fuzz,
    /// QEMU, and the programs that pack a guest.
    Guests,
    /// QEMU for a guest of arm64.
    Arm64Guests,
    /// The programs that are compared with the agent.
    Competitors,
    /// Programs that grow until they are ended.
    Stressors,
    /// The programs that run the pods of a node.
    Node,
    /// Prometheus and promtool, which check metrics, alerts and dashboards.
    Promtool,
    /// Helm, and the validator of the objects that it renders.
    Helm,
    /// krew, which installs plugins of kubectl.
    Krew,
    /// The programs that create the file systems of the tests.
    FileSystems,
    /// The programs that draw the dashboards.
    Browser,
}

/// The tools of a task, once nothing is missing.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// The toolchain that builds the BPF programs.
    pub(crate) bpf_toolchain: String,
    /// The BPF linker, if it is not the one that a plain `cargo build` finds.
    bpf_linker: Option<PathBuf>,
    /// cargo-deny.
    pub(crate) cargo_deny: Option<PathBuf>,
    /// cargo-fuzz.
    pub(crate) cargo_fuzz: Option<PathBuf>,
    /// A folder, laid out like `/`, with the programs that are compared with the agent.
    pub(crate) competitors: Option<PathBuf>,
    /// A folder, laid out like `/`, with containerd, runc and the network plugins.
    pub(crate) node: Option<PathBuf>,
    /// A folder, laid out like `/`, with Prometheus and promtool.
    pub(crate) prometheus: Option<PathBuf>,
    /// Helm.
    pub(crate) helm: Option<PathBuf>,
    /// kubernetes-validate.
    pub(crate) kubernetes_validate: Option<PathBuf>,
    /// A folder with krew and validate-krew-manifest.
    pub(crate) krew: Option<PathBuf>,
}

impl Tools {
    /// Returns the paths of promtool, Helm and kubernetes-validate as environment variables for the tests; as in
    /// `tests/src/prometheus.rs`, `tests/src/helm.rs` and `tests/tests/chart/main.rs`.
    pub(crate) fn test_variables(&self) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let promtool = self.prometheus.as_ref().map(|folder| folder.join("usr/bin/promtool"));
        let all = [
            ("EVICTION_AGENT_PROMTOOL", promtool),
            ("EVICTION_AGENT_HELM", self.helm.clone()),
            ("EVICTION_AGENT_KUBERNETES_VALIDATE", self.kubernetes_validate.clone()),
        ];
        all.into_iter().filter_map(|(name, program)| Some((name, program?)))
    }

    /// Sets the tools for a cargo that builds the agent, if they are not the default ones. On most machines
    /// this changes nothing, so that plain cargo reuses the build.
    pub(crate) fn apply(&self, cargo: &mut Command) {
        if self.bpf_toolchain != "nightly" {
            cargo.env("EVICTION_EBPF_TOOLCHAIN", &self.bpf_toolchain);
        }
        if let Some(linker) = &self.bpf_linker {
            cargo.env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker);
        }
    }
}

/// An installation by a line of shell commands, and what it is for.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    missing: String,
    line: String,
}

impl Step {
    fn new(missing: impl Into<String>, line: impl Into<String>) -> Self {
        Self { missing: missing.into(), line: line.into() }
    }

    fn run(&self) -> Result<()> {
        let Self { missing, line } = self;
        let duration = if line.starts_with("cargo ") { ", which takes minutes" } else { "" };
        eprintln!("setup: {missing} is missing: {line}{duration}");
        let mut command = Command::new("sh");
        // A private target folder or flags of this build must not affect a tool.
        command
            .args(["-ec", line])
            .current_dir(std::env::temp_dir())
            // apt must not ask.
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CARGO_BUILD_TARGET")
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        shell::run_without_printing(shell::stdout_to_stderr(&mut command)).with_context(|| {
            let rustup = if line.starts_with("rustup ") { "rustup, https://rustup.rs, and " } else { "" };
            format!("setup: install {missing} ({rustup}the network is needed)")
        })
    }
}

pub(crate) fn run() -> Result<ExitCode> {
    let tools = ensure(&[Need::Bpf, Need::Musl, Need::Lints, Need::Deny])?;
    println!("nothing is missing (BPF programs: {})", tools.bpf_toolchain);
    Ok(ExitCode::SUCCESS)
}

/// Installs what is missing for `needs`.
pub(crate) fn ensure(needs: &[Need]) -> Result<Tools> {
    let machine = Machine::of_this_process()?;
    let mut last = None;
    loop {
        let step = match find_tools(&machine, needs) {
            Ok(tools) => return Ok(tools),
            Err(step) => step,
        };
        if last.as_ref() == Some(&step) {
            bail!("setup: {} is still missing after `{}`", step.missing, step.line);
        }
        step.run()?;
        last = Some(step);
    }
}

/// Does the same for a need of tests that skip themselves without it: prints the error, and returns no tools.
pub(crate) fn ensure_for_tests(need: Need) -> Tools {
    ensure(&[need]).inspect_err(|error| eprintln!("{error:#}")).unwrap_or_default()
}

/// Returns the tools, or the first installation that is missing. Each one is determined after the one before
/// it: a toolchain just installed may lack a component.
fn find_tools(machine: &Machine, needs: &[Need]) -> Result<Tools, Step> {
    let mut tools = Tools::default();
    for need in needs {
        let step = debian::install(machine, *need).or_else(|| match need {
            Need::Bpf => bpf(machine, &mut tools),
            Need::Musl => target(machine, crate::build::TARGET),
            Need::Arm64 => target(machine, Platform::Arm64.target()),
            Need::Lints => lints(machine),
            Need::Deny => deny(machine, &mut tools),
            Need::Fuzz => fuzz(machine, &mut tools),
            Need::Competitors => {
                debian::unpack(machine, "competitors", &debian::COMPETITORS, &mut tools.competitors)
            }
            Need::Node => debian::unpack(machine, "node", &debian::NODE, &mut tools.node),
            Need::Helm => helm(machine, &mut tools).or_else(|| kubernetes_validate(machine, &mut tools)),
            Need::Krew => krew(machine, &mut tools),
            Need::Promtool => {
                debian::unpack(machine, "prometheus", &debian::PROMETHEUS, &mut tools.prometheus)
            }
            Need::Packages
            | Need::Guests
            | Need::Arm64Guests
            | Need::Stressors
            | Need::FileSystems
            | Need::Browser => None,
        });
        if let Some(step) = step {
            return Err(step);
        }
    }
    Ok(tools)
}

/// Returns the nightly that builds the BPF programs: the machine's own if the linker supports its LLVM, else
/// one that is known to fit.
fn bpf_toolchain(machine: &Machine) -> &'static str {
    if machine.llvm("nightly") == Some(LLVM) { "nightly" } else { DATED_NIGHTLY }
}

fn bpf(machine: &Machine, tools: &mut Tools) -> Option<Step> {
    let toolchain = bpf_toolchain(machine);
    if machine.llvm(toolchain).is_none() {
        let options = "--profile=minimal --component=rust-src --no-self-update";
        return Some(Step::new(
            "a nightly toolchain for the BPF programs",
            format!("rustup toolchain install {toolchain} {options}"),
        ));
    }
    if !machine.has_source(toolchain) {
        return Some(component("rust-src", toolchain));
    }
    toolchain.clone_into(&mut tools.bpf_toolchain);

    let fits = |version: &str| version == BPF_LINKER;
    let own = machine.own_tool("bpf-linker");
    match machine.tool_on_path("bpf-linker") {
        Some((_, version)) if fits(&version) => None,
        Some(_) if own.as_ref().is_some_and(|(_, version)| fits(version)) => {
            tools.bpf_linker = own.map(|(path, _)| path);
            None
        }
        // Another project on this machine may need the version that is there, so the project's own is installed
        // beside it.
        Some(_) => Some(install("bpf-linker", BPF_LINKER, Some(&machine.own))),
        None => Some(install("bpf-linker", BPF_LINKER, None)),
    }
}

/// Returns a step that adds a component to a toolchain.
fn component(name: &str, toolchain: &str) -> Step {
    Step::new(
        format!("{name} of {toolchain}"),
        format!("rustup component add {name} --toolchain {toolchain}"),
    )
}

fn target(machine: &Machine, target: &str) -> Option<Step> {
    let step =
        || Step::new(format!("the standard library for {target}"), format!("rustup target add {target}"));
    (!machine.has_target(target)).then(step)
}

fn lints(machine: &Machine) -> Option<Step> {
    let nightly = bpf_toolchain(machine);
    for (component, program) in [("rustfmt", "rustfmt"), ("clippy", "cargo-clippy")] {
        if !machine.has_program(program) {
            return Some(Step::new(component, format!("rustup component add {component}")));
        }
    }
    (!machine.nightly_has_program(nightly, "cargo-clippy")).then(|| self::component("clippy", nightly))
}

fn deny(machine: &Machine, tools: &mut Tools) -> Option<Step> {
    let fits = |version: &str| {
        let mut parts = version.split('.').map_while(|part| part.parse::<u32>().ok());
        matches!((parts.next(), parts.next()), (Some(major), Some(minor)) if (major, minor) >= CARGO_DENY_MIN)
    };
    tools.cargo_deny = machine.tool("cargo-deny", fits);
    tools.cargo_deny.is_none().then(|| install("cargo-deny", CARGO_DENY, Some(&machine.own)))
}

fn fuzz(machine: &Machine, tools: &mut Tools) -> Option<Step> {
    tools.cargo_fuzz = machine.tool("cargo-fuzz", |_| true);
    tools.cargo_fuzz.is_none().then(|| install("cargo-fuzz", CARGO_FUZZ, Some(&machine.own)))
}

/// Finds Helm, in the version that the chart is tested with.
fn helm(machine: &Machine, tools: &mut Tools) -> Option<Step> {
    let folder = machine.own.join(format!("helm-{HELM}"));
    tools.helm = Some(folder.join("helm"));
    let is_missing = !folder.join("helm").is_file();
    is_missing.then(|| go(format!("helm {HELM}"), &folder, &[format!("helm.sh/helm/v3/cmd/helm@{HELM}")]))
}

fn krew(machine: &Machine, tools: &mut Tools) -> Option<Step> {
    let folder = machine.own.join(format!("krew-{KREW}"));
    tools.krew = Some(folder.clone());
    let programs = ["krew", "validate-krew-manifest"];
    let packages = programs.map(|program| format!("sigs.k8s.io/krew/cmd/{program}@{KREW}"));
    let is_missing = programs.iter().any(|program| !folder.join(program).is_file());
    is_missing.then(|| go(format!("krew {KREW}"), &folder, &packages))
}

/// Returns a step in which Go builds programs into a folder.
fn go(missing: String, folder: &Path, packages: &[String]) -> Step {
    let line = format!("GOBIN='{}' CGO_ENABLED=0 go install {}", folder.display(), packages.join(" "));
    Step::new(missing, line)
}

/// Finds kubernetes-validate in its own Python environment.
fn kubernetes_validate(machine: &Machine, tools: &mut Tools) -> Option<Step> {
    let folder = machine.own.join(format!("kubernetes-validate-{KUBERNETES_VALIDATE}"));
    let program = folder.join("bin/kubernetes-validate");
    tools.kubernetes_validate = Some(program.clone());
    (!program.is_file()).then(|| {
        let line = format!(
            "python3 -m venv '{0}'; '{0}/bin/pip' install --quiet kubernetes-validate=={KUBERNETES_VALIDATE}",
            folder.display()
        );
        Step::new(format!("kubernetes-validate {KUBERNETES_VALIDATE}"), line)
    })
}

/// Returns a step in which cargo installs a tool into that folder, or else into its own folder for tools, in
/// which a plain `cargo build` finds it.
fn install(tool: &str, version: &str, folder: Option<&Path>) -> Step {
    let debug = if tool == "cargo-deny" { " --debug" } else { "" };
    let folder = folder.map_or_else(String::new, |folder| format!(" --root='{}'", folder.display()));
    Step::new(
        format!("{tool} {version}"),
        format!("cargo install {tool}@{version} --locked --quiet{debug}{folder}"),
    )
}

#[cfg(test)]
mod tests;
