//! The time from the crossing of a disk threshold to the decision: with BPF hooks, with the timer alone, and by
//! polling statfs, as the kubelet does. Also the cost for writers and for a calm node.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use serde_json::json;
use tests::agent::{self, Agent, GUARD};
use tests::bench::row::{Goal, Row};
use tests::clock;
use tests::file_system::{FileSystem, Kind};
use tests::node::{MIB, Node, PodSpec};
use tests::process::wait_until;
use tests::stamps::{Reached, Record, STEP};
use tests::workload::Workload;

use crate::cost::CostSampler;
use crate::idle::{self, MOST_PODS};
use crate::overhead::{cpu_ns, percent};
use crate::testbed::Testbed;

const DISK: u64 = 1536 * MIB;
/// On a small disk the timer fires often, since the disk could be filled soon.
const CALM_DISK: u64 = 16 * 1024 * MIB;
/// The files of each pod; a disk of that size has a million inodes.
const CALM_FILES: usize = 9_000;
/// The memory limit of the test's node: page cache must not be short.
const MEMORY: u64 = 8192 * MIB;
/// The hooks that are always attached. Without them only the timer is left.
const EXT4: &str = "tp_btf ext4_allocate_blocks, ext4_free_blocks, ext4_allocate_inode, ext4_free_inode";
/// The pause after the agent's start, which is not measured.
const SETTLE: Duration = Duration::from_millis(400);
/// The headroom at which the on-demand probe is attached; one go of the writer uses less.
const NEAR: u64 = 48 * MIB;
/// The number of blocks, 64 KiB each.
const BLOCKS: &str = "256";
const GOES: usize = 12;
/// The size of a block of the file system: the one that crosses the threshold is beyond it.
const BLOCK_KIB: f64 = 4.0;
/// The cases of a writer that is killed in the kernel, and the bytes of each of its writes.
const KILLED: [(&str, &str); 2] =
    [("ext4, 4 KiB writes, kernel kill", "4K"), ("ext4, 256 KiB writes, kernel kill", "256K")];

/// The load that crosses the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Write,
    Create,
    Allocate,
    /// Crosses the limit of a volume, not the threshold of the disk.
    Limit,
}

impl Load {
    const ALL: [Self; 4] = [Self::Write, Self::Create, Self::Allocate, Self::Limit];

    fn name(self) -> &'static str {
        match self {
            Self::Write => "ext4, 1 GB/s",
            Self::Create => "ext4, inode bomb",
            Self::Allocate => "ext4, fallocate",
            Self::Limit => "ext4, emptyDir over its limit",
        }
    }

    fn signal(self) -> &'static str {
        if self == Self::Create { "nodefs.inodesFree" } else { "nodefs.available" }
    }

    /// Returns how much is left before the threshold at the start: bytes, or inodes for `Create`.
    fn headroom(self) -> u64 {
        match self {
            Self::Write | Self::Allocate => 256 * MIB,
            Self::Create => 20_000,
            Self::Limit => 1024 * MIB,
        }
    }

    fn available(self, path: &Path) -> Result<u64> {
        let stat = statvfs(path).with_context(|| format!("read the file system of {}", path.display()))?;
        Ok(if self == Self::Create { stat.f_ffree } else { stat.f_bavail * stat.f_frsize })
    }
}

/// How the crossing is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DetectionMethod {
    Hooks,
    Timer,
    Poll(Duration),
}

impl DetectionMethod {
    const ALL: [Self; 4] =
        [Self::Hooks, Self::Timer, Self::Poll(Duration::from_secs(1)), Self::Poll(Duration::from_secs(10))];

    /// Polls with a long period take long, so they get fewer runs.
    fn runs(self, runs: usize) -> usize {
        if self == Self::Poll(Duration::from_secs(10)) { runs.min(3) } else { runs }
    }
}

/// The delay of a decision in microseconds, and how much was used beyond the threshold by then.
struct Crossing {
    late_us: f64,
    overshoot: f64,
}

pub(crate) fn run(testbed: &mut Testbed, runs: usize, pairs: usize, seconds: u64) -> Result<()> {
    testbed.print_machine(None)?;
    for load in Load::ALL.into_iter().filter(|load| testbed.is_selected(load.name())).collect::<Vec<_>>() {
        for method in DetectionMethod::ALL {
            if load == Load::Limit && method != DetectionMethod::Hooks {
                continue;
            }
            let mut crossings = Vec::new();
            for run in 0..method.runs(if load == Load::Limit { runs.min(3) } else { runs }) {
                let which = || format!("{}, {method:?}, run {}", load.name(), run + 1);
                crossings.push(cross(testbed, load, method).with_context(which)?);
            }
            testbed.progress(&format!("{}, {method:?}: {} crossings", load.name(), crossings.len()));
            testbed.add_rows(rows(load, method, &crossings))?;
        }
    }
    for (case, block) in KILLED {
        if testbed.is_selected(case) {
            let overshoot = (0..runs).map(|_| kill_writer(testbed, block)).collect::<Result<_>>()?;
            let row = Row::new(case, "overshoot at death", "KiB", overshoot);
            testbed.add_rows(vec![row.goal(Goal::Max(BLOCK_KIB))])?;
        }
    }
    if testbed.is_selected("near") {
        let slowdowns = slowdowns(testbed, pairs)?;
        testbed.add_rows(slowdowns)?;
    }
    if testbed.is_selected("calm") {
        let rows = calm(testbed, seconds)?;
        testbed.add_rows(rows)?;
    }
    Ok(())
}

fn rows(load: Load, method: DetectionMethod, crossings: &[Crossing]) -> Vec<Row> {
    let case = match method {
        DetectionMethod::Timer => format!("{}, timer alone", load.name()),
        DetectionMethod::Hooks | DetectionMethod::Poll(_) => load.name().to_owned(),
    };
    let late = crossings.iter().map(|it| it.late_us).collect();
    let mut late = Row::new(case.clone(), "crossing to decision", "us", late);
    let n = crossings.len();
    late = match (load, method) {
        (_, DetectionMethod::Poll(_)) => late,
        (Load::Write, DetectionMethod::Hooks) => late.goal(Goal::Percentiles { n, p50: 500.0, p99: 3000.0 }),
        (Load::Write, DetectionMethod::Timer) => late.goal(Goal::Percentiles { n, p50: 2500.0, p99: 5000.0 }),
        (Load::Limit, _) => late.goal(Goal::Max(50_000.0)),
        (Load::Create, _) => late,
        (Load::Allocate, _) => late.goal(Goal::Max(2000.0)),
    };
    let mut rows = vec![late];
    if matches!(load, Load::Write | Load::Create) {
        let (unit, by, most) = match (load, method) {
            (Load::Create, _) => ("inodes", 1.0, 100.0),
            (_, DetectionMethod::Hooks) => ("MiB", MIB as f64, 1.0),
            _ => ("MiB", MIB as f64, 4.0),
        };
        let overshoot = crossings.iter().map(|it| it.overshoot / by).collect();
        let overshoot = Row::new(case, "overshoot at decision", unit, overshoot);
        rows.push(if matches!(method, DetectionMethod::Poll(_)) {
            overshoot
        } else {
            overshoot.goal(Goal::Max(most))
        });
    }
    match method {
        DetectionMethod::Poll(period) => {
            let name = format!("poll each {} s", period.as_secs());
            rows.into_iter().map(|row| row.program(&name)).collect()
        }
        DetectionMethod::Hooks | DetectionMethod::Timer => rows,
    }
}

/// A node with a separate file system as its nodefs.
struct Site {
    // Dropped first: the processes in its cgroups end before the disk is unmounted.
    node: Node,
    disk: FileSystem,
    /// The directory of each pod's volume.
    volumes: Vec<PathBuf>,
}

impl Site {
    fn new(pods: usize, limit_mib: Option<u64>, bytes: u64) -> Result<Self> {
        let disk = FileSystem::new(Kind::Ext4, bytes, "eviction-bench-disk")?;
        let mut node = Node::new("bench", MEMORY, 4096)?;
        let mut volumes = Vec::new();
        for nth in 0..pods {
            let spec = PodSpec::new("bench", format!("pod-{nth:03}"), &["main"], 8);
            let pod = node.add(PodSpec { volume: Some("scratch"), volume_limit_mib: limit_mib, ..spec })?;
            volumes.push(node.pods[pod].create_volume(&disk)?);
        }
        Ok(Self { node, disk, volumes })
    }

    fn agent(&self, testbed: &Testbed, signal: &str, threshold: u64, more: &[&str]) -> Result<Agent> {
        self.agent_with(testbed, signal, threshold, "none", agent::config_without_margin(&self.node)?, more)
    }

    fn agent_with(
        &self,
        testbed: &Testbed,
        signal: &str,
        threshold: u64,
        action: &'static str,
        config: PathBuf,
        more: &[&str],
    ) -> Result<Agent> {
        let kubelet = json!({"evictionHard": {signal: threshold.to_string()}});
        let mut options = testbed.options(&self.node, &kubelet)?;
        options.action = action;
        options.config = Some(config);
        options.more.extend(more.iter().map(|&argument| argument.to_owned()));
        let agent = Agent::start(&options.on_disk(&self.disk), &testbed.interrupt)?;
        testbed.interrupt.sleep(SETTLE)?;
        Ok(agent)
    }
}

/// The running agent or poll that decides.
enum Watcher {
    Agent(Agent),
    Poll { decided: mpsc::Receiver<Result<u64>>, _end: mpsc::Sender<()> },
}

impl Watcher {
    fn start(
        testbed: &Testbed,
        site: &Site,
        load: Load,
        method: DetectionMethod,
        threshold: u64,
    ) -> Result<Self> {
        let more: &[&str] = match method {
            DetectionMethod::Hooks => &[],
            DetectionMethod::Timer => &["--disable-backend", EXT4],
            DetectionMethod::Poll(period) => {
                return Ok(Self::poll(site.disk.path().to_owned(), load, period, threshold));
            }
        };
        Ok(Self::Agent(site.agent(testbed, load.signal(), threshold, more)?))
    }

    /// Polls at each `period`. The first wait is random, since a crossing may come at any point of the period.
    fn poll(path: PathBuf, load: Load, period: Duration, threshold: u64) -> Self {
        let (sender, decided) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
            let mut wait = Duration::from_nanos(clock::now() % period_ns);
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = period;
                match load.available(&path) {
                    Ok(available) if available >= threshold => {}
                    looked => return drop(sender.send(looked.map(|_| clock::now()))),
                }
            }
        });
        Self::Poll { decided, _end: end }
    }

    /// Waits for the decision and returns its time.
    fn decided(self) -> Result<u64> {
        match self {
            Self::Poll { decided, _end } => decided.recv_timeout(GUARD).context("the poll saw nothing")?,
            Self::Agent(mut agent) => {
                let decision = agent.wait_for_decision()?;
                let at = decision.number("decided_mono_ns").context("a decision has no time")?;
                agent.stop()?;
                Ok(at)
            }
        }
    }
}

/// Measures one crossing on a new file system.
fn cross(testbed: &Testbed, load: Load, method: DetectionMethod) -> Result<Crossing> {
    testbed.interrupt.check()?;
    let limit = (load == Load::Limit).then_some(8);
    let site = Site::new(3, limit, DISK)?;
    let volume = &site.volumes[0];
    let before = load.available(site.disk.path())?;
    let threshold = before - load.headroom();
    let watcher = Watcher::start(testbed, &site, load, method, threshold)?;
    if matches!(load, Load::Allocate | Load::Limit) {
        let bytes = if load == Load::Limit { 16 * MIB } else { load.headroom() + 64 * MIB };
        let file = File::create_new(volume.join("file")).context("make a file")?;
        let began = clock::now();
        fallocate(&file, FallocateFlags::empty(), 0, bytes).context("allocate a file")?;
        let late = watcher.decided()?.saturating_sub(began);
        return Ok(Crossing { late_us: late as f64 / 1000.0, overshoot: 0.0 });
    }
    let stamps = site.node.file("stamps-disk");
    let file = volume.join("file");
    let (rate, all) = ((1_000_000_000_u64).to_string(), before.to_string());
    let stamped = stamps.display().to_string();
    let place = if load == Load::Write { &file } else { volume }.display().to_string();
    let arguments: Vec<&str> = match load {
        Load::Write => vec!["--stamps", &stamped, "write", "--file", &place, "--size", &all, "--rate", &rate],
        _ => vec!["--stamps", &stamped, "create", "--dir", &place, "--max", &all],
    };
    let mut writer = Workload::start(site.node.pods[0].first()?, arguments)?;
    let taken = load.available(site.disk.path())?;
    writer.go()?;
    let decided = watcher.decided()?;
    drop(writer);
    let record = Record::read(&stamps)?;
    let headroom = taken - threshold;
    // The crossing is stamped after the write; a decision may come between the two.
    let reached = record.reached_by_steps(headroom + 1, if load == Load::Write { STEP } else { 1 });
    let late = match reached.context("the threshold was never crossed")? {
        Reached::ByStamp(crossed) => decided.saturating_sub(crossed),
        Reached::AfterStamp(_) => 0,
    };
    Ok(Crossing {
        late_us: late as f64 / 1000.0,
        overshoot: record.bytes_at(decided).saturating_sub(headroom) as f64,
    })
}

/// Returns how far beyond the threshold a writer at full speed is when it is dead, KiB.
fn kill_writer(testbed: &Testbed, block: &str) -> Result<f64> {
    testbed.interrupt.check()?;
    let site = Site::new(3, None, DISK)?;
    // No kill order is armed while the pods are equal.
    let first = File::create_new(site.volumes[0].join("first")).context("make a file")?;
    fallocate(&first, FallocateFlags::empty(), 0, 8 * MIB).context("allocate a file")?;
    let threshold = Load::Write.available(site.disk.path())? - NEAR;
    let config = json!({"kernelKill": "HardDisk", "thresholdMargin": {"mode": "Never"}});
    let config = site.node.write_agent_config(&config)?;
    let mut agent = site.agent_with(testbed, Load::Write.signal(), threshold, "kill", config, &[])?;
    let is_armed = || agent.metric("eviction_agent_kernel_kill_armed", &[]).is_ok_and(|armed| armed > 0.0);
    let (file, size) = (site.volumes[0].join("file").display().to_string(), DISK.to_string());
    let arguments = ["write", "--file", &file, "--size", &size, "--block", block];
    let mut writer = Workload::start(site.node.pods[0].first()?, arguments)?;
    // No kill order is armed for a pod without a process either.
    wait_until("an armed kill order", is_armed)?;
    writer.go()?;
    writer.process().wait()?;
    let available = Load::Write.available(site.disk.path())?;
    agent.wait_for("the event of the kernel kill", GUARD, |event| event.kind() == "kernel_kill")?;
    agent.stop()?;
    Ok((threshold as f64 - available as f64) / 1024.0)
}

/// Measures the slowdown of buffered writes near a threshold, by processor time, and the noise of that.
fn slowdowns(testbed: &Testbed, pairs: usize) -> Result<Vec<Row>> {
    let site = Site::new(1, None, DISK)?;
    let place = site.volumes[0].display().to_string();
    let arguments = ["measure", "--what", "write", "--count", BLOCKS, "--dir", &place];
    let mut writer = Workload::run(site.node.pods[0].first()?, arguments)?;
    writer.wait_event("go")?;
    let mut measure = || -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..GOES {
            writer.go()?;
            best = best.min(cpu_ns(&mut writer)?);
        }
        Ok(best)
    };
    let threshold = Load::Write.available(site.disk.path())? - NEAR;
    let (mut near, mut noise) = (Vec::new(), Vec::new());
    measure()?;
    for _ in 0..pairs {
        let before = measure()?;
        let agent = site.agent(testbed, Load::Write.signal(), threshold, &[])?;
        let with = measure()?;
        agent.stop()?;
        let (after, again, last) = (measure()?, measure()?, measure()?);
        near.push(percent(with, before, after));
        noise.push(percent(again, after, last));
    }
    let case = "ext4, 64 KiB writes, near";
    Ok(vec![
        Row::new(case, "slowdown", "%", near).goal(Goal::Median(6.0)),
        Row::new(format!("{case}, A/A"), "slowdown", "%", noise),
    ])
}

/// Measures the cost of a calm agent that watches a disk with pods, which have a million inodes.
fn calm(testbed: &Testbed, seconds: u64) -> Result<Vec<Row>> {
    let site = Site::new(MOST_PODS, None, CALM_DISK)?;
    for volume in &site.volumes {
        testbed.interrupt.check()?;
        for file in 0..CALM_FILES {
            File::create(volume.join(file.to_string())).context("make a file")?;
        }
    }
    let threshold = Load::Write.available(site.disk.path())? / 10;
    let agent = site.agent(testbed, Load::Write.signal(), threshold, &[])?;
    testbed.interrupt.sleep(idle::SETTLE)?;
    let mut watched = CostSampler::new(agent.pid())?;
    for _ in 0..idle::pieces(seconds) {
        testbed.interrupt.sleep(idle::PIECE)?;
        watched.sample()?;
    }
    let readings = agent.metric("eviction_agent_syncs_total", &[("trigger", "pod_storage")])?;
    agent.stop()?;
    let case = format!("ext4, calm, {MOST_PODS} pods, 1 M inodes");
    let [rss, cpu, wakeups] = watched.rows(&case);
    let readings = Row::new(&case, "readings of pods", "", vec![readings]).goal(Goal::Max(0.0));
    Ok(vec![rss, cpu.goal(Goal::Mean(0.1)), wakeups, readings])
}
