//! The bench of the recorder: a node with 110 pods and a sample each second, of which one goes each two hours.
//!
//! `cargo xtask bench recorder` runs it. `exact`: the engine evaluates all pods in every sample. `calm`: it evaluates
//! the node alone, and what pods use is recorded with the dead band. Each case is a process of its own, and so is its
//! baseline, the same engine without a recorder. The usages are made up: of ten containers six are idle, three
//! move, one is busy; for some minutes before each eviction a pod grows until the threshold is met.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use eviction_agent::telemetry::recording::writer::{Limits, Writer};
use eviction_agent::telemetry::recording::{Key, Recorded, SegmentHeader};
use eviction_config::kubelet_policy;
use eviction_core::decision::{Action, Decision};
use eviction_core::disk_layout::DiskLayout;
use eviction_core::engine::Engine;
use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::pods::{KnownPod, PodSet};
use eviction_core::policy::Policy;
use eviction_core::reading::Reading;
use eviction_core::record::DecisionRecord;
use eviction_core::snapshot::{
    ContainerStatValues, FsStats, MemoryStats, NodeStats, PodStatValues, Snapshot,
};
use eviction_core::time::Timestamp;
use eviction_kube::pods::Pod;
use serde_json::{Value, json};
use tests::bench::machine;
use tests::random::Random;

const PODS: u64 = 110;
const CONTAINERS: usize = 3;
const PAGE: u64 = 4096;
const CAPACITY: u64 = 64 << 30;
const DAY_SECONDS: u64 = 86_400;
const BETWEEN_EVICTIONS: u64 = 2 * 3600;
/// So long a pod grows before it is evicted.
const GROWTH_SECONDS: u64 = 120;
const START: i64 = 1_767_600_000;

#[derive(Debug, Parser)]
#[command(about = "Measures the recorder")]
struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// How much is recorded; sizes are those of 24 hours
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=240))]
    hours: u64,
    /// Measure `replay --verify`, `what-if` and `report` of this agent as well
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// What is measured, for the machine line
    #[arg(long, value_name = "COMMIT", default_value = "")]
    commit: String,
    /// Run one case, which records here, and print what it took
    #[arg(long, hide = true)]
    directory: Option<PathBuf>,
    #[command(flatten)]
    case: Case,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Case {
    /// Evaluate all pods in every sample
    #[arg(long, hide = true)]
    exact: bool,
    /// Start the recorder; without it the case is a baseline
    #[arg(long, hide = true)]
    record: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(directory) = &args.directory {
        let evicted = run(directory, args.hours * 3600, args.case)?;
        let cpu = tests::clock::cpu_time(std::process::id())?;
        println!("{}", json!({"cpu": cpu.as_secs_f64(), "peak": peak_mib()?, "evicted": evicted}));
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        println!("{}", machine::line("recorder", None, &args.commit)?);
    }
    let mut rows = Rows { json: args.json, all_met: true };
    for (exact, name, most_mb) in [(false, "calm, 110 pods", 30.0), (true, "exact, 110 pods", 150.0)] {
        let folder = tempfile::tempdir()?;
        let measure = |record| measured(args.hours, Case { exact, record }, folder.path());
        let (before, after) = (measure(false)?, measure(true)?);
        let more = |key: &str| Some(after[key].as_f64()? - before[key].as_f64()?);
        let size = size(folder.path())? * 24.0 / args.hours as f64 / 1e6;
        let cpu = 100.0 * more("cpu").context("no cpu")? / (args.hours * 3600) as f64;
        rows.row(name, "size of a day", "MB", size, Some(most_mb));
        rows.row(name, "cpu more", "% of a core", cpu, Some(0.1));
        rows.row(name, "peak rss more", "MiB", more("peak").context("no peak")?, None);
        let Some(agent) = &args.agent else { continue };
        ensure!(after["evicted"].as_u64() > Some(0), "no pod was evicted: there is nothing to replay");
        let recording = folder.path().to_str().context("a path of UTF-8")?;
        let decide = |arguments: &[&str]| verb(agent, arguments);
        let (seconds, _) = decide(&["replay", recording, "--verify"])?;
        rows.row(name, "replay --verify", "s", seconds, None);
        let (seconds, _) = decide(&["what-if", recording, "--kubelet", "evictionHard.memory.available=1Gi"])?;
        rows.row(name, "what-if", "s", seconds, Some(10.0 * args.hours.div_ceil(24) as f64));
        let (seconds, page) = decide(&["report", recording, "--last", "10m"])?;
        rows.row(name, "report of 10 minutes", "s", seconds, None);
        rows.row(name, "report of 10 minutes", "kB", page as f64 / 1e3, Some(300.0));
    }
    Ok(if rows.all_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints what was measured.
struct Rows {
    json: bool,
    all_met: bool,
}

impl Rows {
    fn row(&mut self, case: &str, metric: &str, unit: &str, value: f64, most: Option<f64>) {
        // Times depend on the machine.
        self.all_met &= unit == "s" || most.is_none_or(|most| value <= most);
        let goal = most.map_or_else(String::new, |most| format!(" (at most {most})"));
        eprintln!("{case}: {metric} {value:.3} {unit}{goal}");
        if self.json {
            let row = json!({
                "bench": "recorder", "case": case, "metric": metric, "unit": unit, "n": 1, "p50": value,
                "program": "eviction-agent",
            });
            println!("{row}");
        }
    }
}

/// Runs a case in a process of its own.
fn measured(hours: u64, case: Case, directory: &Path) -> Result<Value> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--hours", &hours.to_string(), "--directory"]).arg(directory);
    command.args(case.exact.then_some("--exact")).args(case.record.then_some("--record"));
    let output = command.stderr(std::process::Stdio::inherit()).output().context("run a case")?;
    ensure!(output.status.success(), "{case:?} failed");
    serde_json::from_slice(&output.stdout).context("read what a case took")
}

/// The seconds that a verb takes, and the bytes that it prints.
fn verb(agent: &Path, arguments: &[&str]) -> Result<(f64, usize)> {
    let start = Instant::now();
    let output = Command::new(agent).args(arguments).output();
    let output = output.with_context(|| format!("run {}", agent.display()))?;
    let (verb, error) = (arguments[0], String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "`{verb}` failed with {}: {error}", output.status);
    Ok((start.elapsed().as_secs_f64(), output.stdout.len()))
}

/// A pod and the pages of its containers.
struct Used {
    pod: Arc<KnownPod>,
    pages: [u64; CONTAINERS],
}

/// A node, its engine and its recorder.
struct Node {
    policy: Policy,
    engine: Engine,
    writer: Option<Writer>,
    used: Vec<Used>,
    random: Random,
    /// Pods so far, those that are gone too.
    made: u64,
}

/// Runs the engine on a made-up node, and returns how many pods went.
fn run(directory: &Path, seconds: u64, case: Case) -> Result<u64> {
    let limits = Limits {
        directory: directory.to_owned(),
        max_size: u64::MAX,
        max_age: Duration::from_secs(seconds.max(DAY_SECONDS) * 2),
        min_free: 0,
    };
    let writer = case.record.then(|| Writer::open(limits, SegmentHeader::default())).transpose()?;
    let policy = kubelet_policy(&Value::Null).ok().context("the kubelet's defaults")?;
    let mut engine = Engine::new(policy.clone());
    let layout = Event::DiskLayout(Ok(DiskLayout::default()));
    engine.step(Input { at: Timestamp::from_second(START)?, event: layout });
    let mut node = Node { policy, engine, writer, used: Vec::new(), random: Random(7), made: 0 };
    let mut evicted = 0;
    for second in 0..seconds {
        let at = Timestamp::from_second(START + i64::try_from(second)?)?;
        if second % 3600 == 0 {
            node.record_key(at)?;
        }
        node.fill(at)?;
        let is_growing = second % BETWEEN_EVICTIONS >= BETWEEN_EVICTIONS - GROWTH_SECONDS;
        node.grow(is_growing);
        let sample = node.sample(at, true);
        // Near a threshold the engine evaluates all pods, in calm times only the node.
        let decision = if case.exact || is_growing {
            node.handle(at, Event::Sample(sample))?
        } else {
            let calm = node.sample(at, false);
            let decision = node.handle(at, Event::Sample(calm))?;
            node.record(&Recorded::Usage(at, sample))?;
            decision
        };
        for action in &decision.actions {
            if let Action::Evict(eviction) = action {
                evicted += 1;
                let uid = node.engine.pods().pods()[eviction.pod as usize].pod.uid.clone();
                node.used.retain(|used| used.pod.pod.uid != uid);
                node.handle(at, Event::Evicted { uid, result: Ok(()) })?;
                node.set_pods(at)?;
            }
        }
        if let Some(writer) = &mut node.writer {
            writer.flush()?;
            while second % 3600 == 0 && writer.compress()? {}
        }
    }
    if let Some(writer) = &mut node.writer {
        writer.end();
        while writer.compress()? {}
    }
    Ok(evicted)
}

impl Node {
    fn handle(&mut self, at: Timestamp, event: Event) -> Result<Decision> {
        let input = Input { at, event };
        self.record(&Recorded::Input(input.clone()))?;
        let decision = self.engine.step(input);
        if !decision.actions.is_empty() {
            let record = serde_json::to_string(&DecisionRecord::of(&decision))?;
            self.record(&Recorded::Decision(record))?;
        }
        Ok(decision)
    }

    fn record(&mut self, recorded: &Recorded) -> Result<()> {
        match &mut self.writer {
            Some(writer) => writer.take(recorded, |at| at).context("record"),
            None => Ok(()),
        }
    }

    fn record_key(&mut self, at: Timestamp) -> Result<()> {
        let key = Key {
            at,
            state: self.engine.state(),
            policy: self.policy.clone(),
            dry_run: false,
            layout: Some(DiskLayout::default()),
            terminating: Vec::new(),
            api: ApiReachability::Reachable,
            lost: 0,
            pods: Arc::clone(self.engine.pods()),
        };
        self.record(&Recorded::Key(Box::new(key)))
    }

    fn set_pods(&mut self, at: Timestamp) -> Result<()> {
        let pods = self.used.iter().map(|used| Arc::clone(&used.pod)).collect();
        self.handle(at, Event::Pods(Arc::new(PodSet::new(pods)))).map(drop)
    }

    /// A pod that is gone is followed by another.
    fn fill(&mut self, at: Timestamp) -> Result<()> {
        if self.used.len() as u64 == PODS {
            return Ok(());
        }
        while (self.used.len() as u64) < PODS {
            let pod = made_pod(self.made)?;
            self.made += 1;
            let pages = [(); CONTAINERS].map(|()| 1000 + self.random.below(50_000));
            self.used.push(Used { pod: Arc::new(KnownPod::new(pod.into(), &self.policy)), pages });
        }
        self.set_pods(at)
    }

    fn grow(&mut self, to_the_threshold: bool) {
        let random = &mut self.random;
        for (place, pages) in self.used.iter_mut().flat_map(|used| &mut used.pages).enumerate() {
            let most = match place % 10 {
                0..6 => u64::from(random.below(50) == 0),
                6..9 => 8,
                _ => 400,
            };
            *pages = (*pages + random.below(2 * most + 1)).saturating_sub(most).max(100);
        }
        if to_the_threshold && let Some(used) = self.used.first_mut() {
            used.pages[0] += CAPACITY / PAGE / GROWTH_SECONDS;
        }
    }

    fn sample(&self, at: Timestamp, with_pods: bool) -> Arc<Snapshot> {
        let total = |used: &Used| used.pages.iter().sum::<u64>() * PAGE;
        let working_set = self.used.iter().map(total).sum::<u64>();
        let (available, time) = (Some(CAPACITY.saturating_sub(working_set)), Some(at));
        let disk = FsStats { available: Some(1 << 39), capacity: Some(1 << 40), time, ..FsStats::default() };
        let mut snapshot = Snapshot::of_node(NodeStats {
            memory: Reading::Known(MemoryStats { available, working_set: Some(working_set), time }),
            node_fs: Reading::Known(disk),
            image_fs: Reading::Known(disk),
            ..NodeStats::default()
        });
        for used in self.used.iter().filter(|_| with_pods) {
            let total = total(used);
            let values = PodStatValues {
                memory_working_set: Some(total),
                memory_anonymous: Some(total / 5 * 4 / PAGE * PAGE),
                process_count: Some(4 + used.pages[0] % 2),
                ..PodStatValues::default()
            };
            snapshot.add_pod(&used.pod.pod.uid, values);
            for (name, pages) in ["main", "proxy", "logs"].into_iter().zip(used.pages) {
                let memory_working_set = Some(pages * PAGE);
                snapshot.add_container(
                    name,
                    ContainerStatValues { memory_working_set, ..ContainerStatValues::default() },
                );
            }
        }
        Arc::new(snapshot)
    }
}

fn made_pod(number: u64) -> Result<Pod> {
    let pod = json!({
        "metadata": {
            "name": format!("shop-{number}"),
            "namespace": "shop",
            "uid": format!("00000000-0000-4000-8000-{number:012}"),
        },
        "spec": {
            "containers": [
                {"name": "main", "resources": {"requests": {"memory": "100Mi"}}}, {"name": "proxy"}, {"name": "logs"},
            ],
        },
        "status": {"phase": "Running", "qosClass": "Burstable"},
    });
    serde_json::from_value(pod).context("decode a made-up pod")
}

fn size(directory: &Path) -> Result<f64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes as f64)
}

fn peak_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib / 1024.0)
}
