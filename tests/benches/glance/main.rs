//! The bench of a refresh: usage and inactive page cache of all containers of a full node, at a glance
//! and file by file, and how old each figure is when it is had.
//!
//! `cargo xtask bench glance` runs it, built as the agent is shipped.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use eviction_agent::source::bpf::{LoadOptions, Usages, load};
use eviction_agent::source::cgroup::hierarchy::{Hierarchies, Host};
use eviction_agent::source::cgroup::root::NodeRoot;
use eviction_agent::source::cgroup::sample::{Fresh, Tasks};
use eviction_agent::source::cgroup::sampler::{Sampler, SamplerOptions};
use eviction_agent::source::clock::now_ns;
use eviction_agent::source::file::raise_descriptor_limit;
use serde_json::Value;
use tests::bench::machine;
use tests::bench::row::{Goal, Row};
use tests::bench::table;
use tests::interrupt::{self, Interrupt};
use tests::node::{MIB, Node, PodSpec};
use tests::workload::{self, Workload};

const PODS: usize = 110;
const CONTAINERS: &[&str] = &["one", "two", "three"];
/// A bound for what runs here.
const BOUND: u64 = 2048 * MIB;
const PIDS: u64 = 4096;
/// Containers in which memory grows meanwhile.
const GROWING: usize = 8;
const GROWTH: [&str; 4] = ["--size", "96M", "--rate", "2M"];
/// Between two refreshes, except where caches are to be warm: none finds what it needs in the processor's caches.
const PAUSE: Duration = Duration::from_millis(20);
const WARM_UP: usize = 5;
/// As many memory.stat files as the agent reads before a decision.
const MOST_STATS: usize = 32;

#[derive(Debug, Parser)]
#[command(about = "Measures a refresh of all containers' figures")]
struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// What is measured, for the machine line
    #[arg(long, value_name = "COMMIT", default_value = "")]
    commit: String,
    /// Refreshes of each kind
    #[arg(long, default_value_t = 300)]
    refreshes: usize,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    interrupt::exit("bench glance", run(&Args::parse()).map(|()| true))
}

fn run(Args { json, commit, refreshes, bench: _ }: &Args) -> Result<()> {
    let interrupt = Interrupt::install()?;
    raise_descriptor_limit().context("raise the limit of open files")?;
    let (node, _processes) = full_node(&interrupt)?;
    let hierarchies = Hierarchies::discover(&Host::default())?;
    let root = NodeRoot::resolve(&hierarchies, node.cgroup_root().as_ref())?;
    let sampler = || Sampler::new(root.clone(), &SamplerOptions::default(), |_| false);
    let emit = |line: &Value| match json {
        true => writeln!(std::io::stdout(), "{line}"),
        false => Ok(()),
    };
    emit(&machine::line("glance", None, commit)?)?;

    let mut rows = Vec::new();
    let mut keep = |new: Vec<Row>| -> Result<()> {
        for row in new {
            emit(&row.json("glance"))?;
            rows.push(row);
        }
        Ok(())
    };
    match usages(&root) {
        Ok(mut usages) => {
            keep(the_kernels_passes(&mut usages, *refreshes, &interrupt)?)?;
            let mut glancing = sampler()?;
            glancing.glance_by(usages);
            let cold = Case { name: "iterator", fresh: Fresh::All, pause: PAUSE, goal: Some(500.0) };
            for case in
                [cold, Case { name: "iterator, caches warm", pause: Duration::ZERO, goal: None, ..cold }]
            {
                keep(case.measure(&mut glancing, *refreshes, &interrupt)?)?;
            }
            let late = glancing.take_glances();
            eprintln!("glances: {late:?}");
        }
        Err(why) => eprintln!("no iterator: {why}"),
    }
    let changed = Fresh::Changed { most: MOST_STATS, since_ns: u64::MAX };
    for case in [
        Case { name: "descriptors", fresh: changed, pause: PAUSE, goal: Some(1500.0) },
        Case { name: "every file", fresh: Fresh::All, pause: PAUSE, goal: None },
    ] {
        keep(case.measure(&mut sampler()?, *refreshes, &interrupt)?)?;
    }
    let text = render(&rows);
    if *json {
        write!(std::io::stderr(), "{text}")?;
    } else {
        write!(std::io::stdout(), "{text}")?;
    }
    Ok(())
}

/// 330 containers, in some of which memory grows.
fn full_node(interrupt: &Interrupt) -> Result<(Node, Vec<Workload>)> {
    let binary = workload::binary()?;
    let mut node = Node::new("bench", BOUND, PIDS)?;
    let mut processes = Vec::new();
    for nth in 0..PODS {
        let pod = node.add(PodSpec::new("bench", format!("glance-{nth:03}"), CONTAINERS, 16))?;
        for (place, container) in node.pods[pod].containers.iter().enumerate() {
            interrupt.check()?;
            let grows = place == 0 && nth % (PODS / GROWING) == 0;
            let arguments = match grows {
                true => [&["grow"][..], &GROWTH].concat(),
                false => vec!["hold", "--size", "64K"],
            };
            processes.push(Workload::run(&binary, &container.group, arguments)?);
        }
    }
    Ok((node, processes))
}

fn usages(root: &NodeRoot) -> Result<Usages, String> {
    let options = LoadOptions { usages_of: Some(root.memory.clone()), ..LoadOptions::default() };
    let loaded = load(&options).map_err(|refused| refused.why)?;
    let why =
        loaded.missing.iter().find(|info| info.source == "cgroup usage").map(|info| info.reason.clone());
    loaded.usages.ok_or_else(|| why.unwrap_or_default())
}

/// The kernel's part of a refresh, through its tree and to the same groups again: beside it are the hand-over to
/// a thread of its own and back, and the files of those groups of which it cannot tell all.
fn the_kernels_passes(usages: &mut Usages, count: usize, interrupt: &Interrupt) -> Result<Vec<Row>> {
    let mut seen = Vec::new();
    let (mut walks, mut others) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + count {
        for walk in [true, false] {
            interrupt.sleep(PAUSE)?;
            let start = Instant::now();
            let looked = if walk { usages.walk(&mut seen) } else { usages.read(&mut seen) }?;
            let time = start.elapsed();
            // Whoever else makes cgroups here has the tree walked.
            let times = if looked.walked { &mut walks } else { &mut others };
            if round >= WARM_UP {
                times.push(time.as_nanos() as f64 / 1000.0);
            }
        }
    }
    let row = |name: &'static str, times: Vec<f64>| {
        let case = format!("{} cgroups, iterator", seen.len());
        (!times.is_empty()).then(|| Row::new(case, name, "us", times))
    };
    Ok([row("walk through the tree", walks), row("the same again", others)].into_iter().flatten().collect())
}

/// One way to refresh.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    fresh: Fresh,
    pause: Duration,
    goal: Option<f64>,
}

impl Case {
    /// How long refreshes take, and how old the oldest figures are then.
    fn measure(&self, sampler: &mut Sampler, count: usize, interrupt: &Interrupt) -> Result<Vec<Row>> {
        let Self { name, fresh, pause, goal } = self;
        let pods = &sampler.pods().pods;
        let containers: Vec<u64> =
            pods.iter().flat_map(|pod| &pod.containers).map(|container| container.cgroup_id).collect();
        if containers.len() != PODS * CONTAINERS.len() {
            bail!("{} containers are found", containers.len());
        }
        // Everything has been read once.
        sampler.sample_pods(Fresh::All, Tasks::Leave);
        let [mut times, mut usage_ages, mut cache_ages] = [const { Vec::new() }; 3];
        for round in 0..WARM_UP + count {
            interrupt.sleep(*pause)?;
            let start = Instant::now();
            sampler.sample_pods(*fresh, Tasks::Leave);
            let time = start.elapsed();
            let (mut usage_age, mut cache_age) = (0, 0);
            let now = now_ns();
            for id in &containers {
                let group = sampler.group(*id).context("a container is gone")?;
                group.working_set.known().context("a working set is not known")?;
                usage_age = usage_age.max(now.saturating_sub(group.usage_at_ns));
                cache_age = cache_age.max(now.saturating_sub(group.inactive_file_at_ns));
            }
            if round >= WARM_UP {
                times.push(time.as_nanos() as f64 / 1000.0);
                usage_ages.push(usage_age as f64 / 1000.0);
                cache_ages.push(cache_age as f64 / 1000.0);
            }
        }
        let case = format!("{} containers, {name}", containers.len());
        let refresh = Row::new(case.as_str(), "refresh", "us", times);
        Ok(vec![
            match goal {
                Some(goal) => refresh.goal(Goal::Median(*goal)),
                None => refresh,
            },
            Row::new(case.as_str(), "age of the oldest usage", "us", usage_ages),
            Row::new(case, "age of the oldest inactive file", "us", cache_ages),
        ])
    }
}

fn render(rows: &[Row]) -> String {
    let head = ["case", "metric", "n", "min us", "p25", "p50", "p75", "p99", "max", "goal"];
    let mut lines = vec![head.map(str::to_owned)];
    for row in rows {
        let figure = |percent| row.shown(percent);
        lines.push([
            row.case.clone(),
            row.metric.to_owned(),
            row.n().to_string(),
            figure(0),
            figure(25),
            figure(50),
            figure(75),
            figure(99),
            figure(100),
            row.verdict().to_owned(),
        ]);
    }
    table::render(&lines, &[0, 1, 9])
}
