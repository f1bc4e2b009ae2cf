//! Scenarios on the nodes with agents that Prometheus scrapes: those of the demo, on a smaller scale.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tests::agent::Options;
use tests::file_system::{FileSystem, Kind};
use tests::node::{MIB, Node, PodSpec};
use tests::process::wait_until;
use tests::workload::Workload;

use crate::server::Server;

/// The scenarios, in the order in which they run. The name is that of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    Hard,
    Oom,
    Forks,
    Disk,
}

pub(crate) const ALL: [Scenario; 4] = [Scenario::Hard, Scenario::Oom, Scenario::Forks, Scenario::Disk];

const MEMORY: u64 = 384 * MIB;
const PIDS: u64 = 200;
const DISK: u64 = 96 * MIB;
/// The limit of a container in MiB.
const LIMIT: u64 = 32;

/// Returns the pod that misbehaves.
fn misbehaving_pod(scenario: Scenario) -> PodSpec {
    PodSpec {
        limit_mib: (scenario == Scenario::Oom).then_some(LIMIT),
        volume: (scenario == Scenario::Disk).then_some("scratch"),
        storage_request_mib: 1,
        ..PodSpec::new("batch", "report", &["main"], 8)
    }
}

impl Scenario {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::Oom => "oom",
            Self::Forks => "forks",
            Self::Disk => "disk",
        }
    }

    /// Returns the kubelet configuration. The memory threshold is far away, except in the scenario about it.
    fn kubelet(self) -> Value {
        let memory = if self == Self::Hard { "128Mi" } else { "16Mi" };
        let mut hard = json!({"memory.available": memory});
        match self {
            Self::Hard | Self::Oom => {}
            Self::Forks => hard["pid.available"] = json!("60"),
            Self::Disk => {
                hard["nodefs.available"] = json!("48Mi");
                hard["nodefs.inodesFree"] = json!("100");
            }
        }
        json!({"evictionHard": hard})
    }

    /// Returns the arguments of the misbehaving process.
    fn workload(self, volume: &Path) -> Vec<String> {
        let file = volume.join("file").display().to_string();
        let mib = |mib: u64| (mib * MIB).to_string();
        let arguments: &[&str] = match self {
            Self::Hard => &["grow", "--size", &mib(300), "--rate", &mib(48)],
            Self::Oom => &["child", "--times", "5", "--size", &mib(4 * LIMIT), "--rate", &mib(64)],
            Self::Forks => &["forks", "--bomb", "--max", "300", "--rate", "50"],
            Self::Disk => &["write", "--file", &file, "--size", &mib(90), "--rate", &mib(16)],
        };
        arguments.iter().map(|&argument| argument.to_owned()).collect()
    }

    /// Returns series with sums above 0 once Prometheus has seen all of the scenario.
    fn expected_series(self) -> &'static [&'static str] {
        match self {
            Self::Hard | Self::Disk => &["evictions_total{NODE}", "eviction_results_total{NODE}"],
            Self::Oom => &["oom_kills_total{NODE}", "pod_reclaim_stall_seconds_total{NODE,pod=\"report\"}"],
            Self::Forks => &["evictions_total{NODE}", "pod_forks_total{NODE,pod=\"report\"}"],
        }
    }

    /// Runs the scenario while the server scrapes the agent. Returns its start and its end in seconds since the
    /// epoch.
    pub(crate) fn run(self, server: &mut Server) -> Result<(f64, f64)> {
        let mut span = self.run_once(server)?;
        if self == Self::Hard {
            // On a busy machine the timer may detect the crossing before the kernel does: nothing was measured then.
            let count = "eviction_agent_reaction_latency_seconds_count{node=\"hard\"}";
            let measured = format!("sum(max_over_time({count}[1m])) > 0");
            for _ in 0..5 {
                if server.now(&measured)?.is_some() {
                    break;
                }
                // Prometheus scrapes the agent of the first try for seconds after its target is removed.
                self.wait(server, "absent(up{NODE})")?;
                span = self.run_once(server)?;
            }
        }
        Ok(span)
    }

    fn run_once(self, server: &mut Server) -> Result<(f64, f64)> {
        let disk = match self {
            Self::Disk => Some(disk()?),
            _ => None,
        };
        let mut node = Node::new("mixin", MEMORY, PIDS)?;
        let web = node.add(PodSpec::new("shop", "web", &["main"], 64))?;
        let report = node.add(misbehaving_pod(self))?;
        let mut options = Options::new(&node, &self.kubelet())?;
        let mut volume = PathBuf::new();
        if let Some(disk) = &disk {
            volume = node.pods[report].create_volume(disk)?;
            options = options.on_disk(disk);
        }
        let _web = node.run(web, &["hold", "--size", "16M"])?;

        let agent = options.start()?;
        server.add_target(self.name(), &agent.address()?.to_string())?;
        self.wait_scrapes(server, 3)?;
        let from = server.now("vector(time())")?.context("no time")?;
        let _report = Workload::run(node.pods[report].first()?, self.workload(&volume))?;
        for series in self.expected_series() {
            self.wait(server, &format!("sum(eviction_agent_{series}) > 0"))?;
        }
        // Rates need two samples of the last value, rules another second.
        self.wait_scrapes(server, 4)?;
        let to = server.now("vector(time())")?.context("no time")?;
        server.remove_target(self.name())?;
        agent.stop()?;
        Ok((from, to))
    }

    /// Waits for `more` further scrapes.
    fn wait_scrapes(self, server: &Server, more: u32) -> Result<()> {
        const SCRAPES: &str = "sum(count_over_time(up{NODE}[10m]))";
        let before = server.now(&self.for_node(SCRAPES))?.unwrap_or_default();
        self.wait(server, &format!("{SCRAPES} >= {before} + {more}"))
    }

    fn for_node(self, expression: &str) -> String {
        expression.replace("NODE", &format!("node=\"{}\"", self.name()))
    }

    fn wait(self, server: &Server, expression: &str) -> Result<()> {
        let expression = self.for_node(expression);
        wait_until(&expression, || {
            std::thread::sleep(Duration::from_millis(100));
            server.now(&expression).is_ok_and(|value| value.is_some())
        })
    }
}

/// Mounts an ext4 on a loop device, or a file system in memory where that is not possible.
fn disk() -> Result<FileSystem> {
    FileSystem::new(Kind::Ext4, DISK, "eviction-mixin")
        .or_else(|_| FileSystem::new(Kind::Tmpfs, DISK, "eviction-mixin"))
}
