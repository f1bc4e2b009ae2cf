//! The bench of the recorder: a day of a node with 110 pods, a sample each second.
//!
//! `cargo xtask bench recorder` runs it. `exact`: the engine looks at all pods in every sample. `calm`: it looks at
//! the node alone, and what pods use is recorded with the dead band. The usages are made up: of ten containers six
//! are idle, three move, one is busy.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use eviction_agent::telemetry::recording::writer::{Limits, Writer};
use eviction_agent::telemetry::recording::{Header, Key, Recorded};
use eviction_config::kubelet_policy;
use eviction_core::engine::Engine;
use eviction_core::input::{ApiReachability, Event, Input};
use eviction_core::reading::Reading;
use eviction_core::snapshot::{
    ContainerStatValues, FsStats, MemoryStats, NodeStats, PodStatValues, Snapshot, SnapshotBuilder,
};
use eviction_core::time::Timestamp;
use serde_json::{Value, json};
use tests::bench::machine;

const PODS: u64 = 110;
const CONTAINERS: u64 = 3;
const PAGE: u64 = 4096;
const DAY_SECONDS: u64 = 86_400;

#[derive(Debug, Parser)]
#[command(about = "Measures the recorder")]
struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// How much is recorded; sizes are those of 24 hours
    #[arg(long, default_value_t = 24)]
    hours: u64,
    /// What is measured, for the machine line
    #[arg(long, value_name = "COMMIT", default_value = "")]
    commit: String,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// The MB of a day that each case may take.
const CASES: [(&str, f64); 2] = [("calm, 110 pods", 30.0), ("exact, 110 pods", 150.0)];

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.json {
        println!("{}", machine::line("recorder", None, &args.commit)?);
    }
    let mut is_met = true;
    for (case, most) in CASES {
        let folder = tempfile::tempdir()?;
        let seconds = args.hours * 3600;
        let before = cpu_seconds()?;
        write(folder.path(), seconds, case.starts_with("exact"))?;
        let cpu = cpu_seconds()? - before;
        let size = size(folder.path())? * (DAY_SECONDS / seconds.max(1)) as f64 / 1e6;
        is_met &= size <= most;
        for (metric, unit, value) in [
            ("size of a day", "MB", size),
            ("cpu", "% of a core", 100.0 * cpu / seconds as f64),
            ("peak rss", "MiB", peak_mib()?),
        ] {
            eprintln!("{case}: {metric} {value:.3} {unit}");
            if args.json {
                let row = json!({
                    "bench": "recorder", "case": case, "metric": metric, "unit": unit, "n": 1, "p50": value,
                    "program": "eviction-agent",
                });
                println!("{row}");
            }
        }
    }
    std::io::stdout().flush()?;
    Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn write(directory: &Path, seconds: u64, is_exact: bool) -> Result<()> {
    let limits = Limits {
        directory: directory.to_owned(),
        max_size: u64::MAX,
        max_age: Duration::from_secs(DAY_SECONDS * 2),
        min_free: 0,
    };
    let mut writer = Writer::open(limits, Header::default())?;
    let policy = kubelet_policy(&Value::Null).ok().context("the kubelet's defaults")?;
    let mut random = Random(7);
    let mut pages: Vec<u64> = (0..PODS * CONTAINERS).map(|_| 1000 + random.below(50_000)).collect();
    for second in 0..seconds {
        let at = Timestamp::from_second(1_767_600_000 + i64::try_from(second)?)?;
        if second % 3600 == 0 {
            writer.take(
                &Recorded::Key(Box::new(Key {
                    at,
                    state: Engine::new(policy.clone()).state(),
                    policy: policy.clone(),
                    dry_run: false,
                    layout: None,
                    terminating: Vec::new(),
                    api: ApiReachability::Reachable,
                    lost: 0,
                    pods: Arc::default(),
                })),
                |at| at,
            )?;
        }
        grow(&mut pages, &mut random);
        let sample = sample(at, &pages, true)?;
        if is_exact {
            writer.take(&input(at, sample), |at| at)?;
        } else {
            writer.take(&input(at, self::sample(at, &pages, false)?), |at| at)?;
            writer.take(&Recorded::Usage(at, sample), |at| at)?;
        }
        writer.flush()?;
        while second % 3600 == 0 && writer.compress()? {}
    }
    writer.end();
    while writer.compress()? {}
    Ok(())
}

fn input(at: Timestamp, sample: Arc<Snapshot>) -> Recorded {
    Recorded::Input(Input { at, event: Event::Sample(sample) })
}

fn grow(pages: &mut [u64], random: &mut Random) {
    for (place, pages) in pages.iter_mut().enumerate() {
        let most = match place % 10 {
            0..6 => u64::from(random.below(50) == 0),
            6..9 => 8,
            _ => 400,
        };
        *pages = (*pages + random.below(2 * most + 1)).saturating_sub(most).max(100);
    }
}

fn sample(at: Timestamp, pages: &[u64], with_pods: bool) -> Result<Arc<Snapshot>> {
    let mut builder = SnapshotBuilder::new();
    let used = pages.iter().sum::<u64>() * PAGE;
    let (available, time) = (Some((64_u64 << 30).saturating_sub(used)), Some(at));
    let disk = FsStats { available, capacity: Some(1 << 40), time, ..FsStats::default() };
    builder.node(NodeStats {
        memory: Reading::Known(MemoryStats {
            available,
            working_set: Some(used),
            time,
            ..MemoryStats::default()
        }),
        node_fs: Reading::Known(disk),
        image_fs: Reading::Known(disk),
        ..NodeStats::default()
    });
    for (pod, pages) in pages.chunks(CONTAINERS as usize).enumerate().filter(|_| with_pods) {
        let total = pages.iter().sum::<u64>() * PAGE;
        let values = PodStatValues {
            memory_working_set: Some(total),
            memory_anonymous: Some(total / 5 * 4 / PAGE * PAGE),
            process_count: Some(4 + pages[0] % 2),
            ..PodStatValues::default()
        };
        let mut pod = builder.pod(&format!("00000000-0000-4000-8000-{pod:012}"), values);
        for (name, pages) in ["main", "proxy", "logs"].into_iter().zip(pages) {
            let memory_working_set = Some(pages * PAGE);
            pod.container(name, ContainerStatValues { memory_working_set, ..ContainerStatValues::default() });
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn size(directory: &Path) -> Result<f64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes as f64)
}

/// User and system time of this process.
fn cpu_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after = stat.rsplit(") ").next().context("a form of its own")?;
    let ticks: Vec<f64> = after.split(' ').skip(11).take(2).filter_map(|it| it.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() / 100.0)
}

fn peak_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib / 1024.0)
}
