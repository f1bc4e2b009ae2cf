//! The project's tasks: `cargo xtask help` lists them.
//!
//! A task installs what it lacks before it starts ([`setup`]), prints text on standard error or as plain lines,
//! and exits with a status that a script can rely on.
#![forbid(unsafe_code)]

mod bench;
mod browser;
mod build;
mod chart;
mod demo;
mod dist;
mod e2e;
mod fuzz;
mod image;
mod lint;
mod packages;
mod plugin;
mod sbom;
mod setup;
mod shell;
mod story;
mod test;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The tasks of eviction-agent")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the other tasks need and this machine lacks (they do it by themselves)
    Setup,
    /// Build the agent, BPF programs included, and print its size
    Build(build::Args),
    /// Run every test of the workspace, or those whose name contains FILTER
    Test(test::Args),
    /// The alerts, recording rules and dashboards, by promtool and a Prometheus that scrapes the agent
    Mixin,
    /// Check the Helm chart and what is made from it
    Chart(chart::Args),
    /// Pictures of the dashboards, drawn by Grafana's own components in Chromium
    Dashboards,
    /// The page of `eviction-agent report`, opened in Chromium
    Report,
    /// Short stories of node pressure on real cgroups, each checked from outside
    Demo(demo::Args),
    /// Stories with a real etcd, API server, controllers, scheduler and kubelet
    E2e(e2e::Args),
    /// Measure the agent as it is shipped
    Bench(bench::Args),
    /// The agent and the demo's stories on other kernels, in QEMU
    Vm(vm::Args),
    /// Try whatever comes from outside with made-up input
    Fuzz(fuzz::Args),
    /// Format, clippy, docs and dependencies
    Lint,
    /// Put static binaries, packages, the kubectl plugin, SBOMs, licences and checksums into target/dist
    Dist(dist::Args),
    /// An OCI archive of the static binary, for containerd and registries; no docker needed
    Image(image::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Setup => setup::run(),
        Task::Build(args) => build::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Mixin => test::run(&test::Args { filter: Some("mixin".to_owned()), deny_skips: true }),
        Task::Chart(args) => chart::run(&args),
        Task::Dashboards => browser::draw_dashboards(),
        Task::Report => browser::open_report(),
        Task::Demo(args) => demo::run(&args),
        Task::E2e(args) => e2e::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Vm(args) => vm::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Lint => lint::run(),
        Task::Dist(args) => dist::run(&args),
        Task::Image(args) => image::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
