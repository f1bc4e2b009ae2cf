//! A process namespace that contains a hog, a competitor that must end it, and no other process to end.
//!
//! Competitors watch `MemAvailable` of the whole machine. So their threshold is set a fixed distance below what
//! is available at that moment, and the hog, limited by its cgroup, grows by that distance: the machine keeps
//! all the memory that it needs. A thread that runs before all others reads `MemAvailable` each millisecond and
//! sees the crossing.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::agent;
use tests::cgroup::Group;
use tests::clock;
use tests::death::DeathWatcher;
use tests::growth::{Pages, WorkingSetGrowth};
use tests::interrupt::Interrupt;
use tests::meminfo;
use tests::node::{MIB, Node, PodSpec};
use tests::stamps::Record;
use tests::workload::Workload;

use crate::case::{Case, MAX_WORKING_SET};
use crate::competitor::{self, Competitor};
use crate::hog_node::Decision;
use crate::runs::Run;
use crate::testbed::Testbed;

/// The side outside the namespace: the hog's cgroup.
#[derive(Debug)]
pub(crate) struct CompetitorNamespace<'a> {
    testbed: &'a Testbed,
    case: Case,
    competitor: Competitor,
    node: Node,
}

impl<'a> CompetitorNamespace<'a> {
    pub(crate) fn new(testbed: &'a Testbed, case: Case, competitor: Competitor) -> Result<Self> {
        let mut node = Node::new("competitor_namespace", case.memory(), 64)?;
        node.add(PodSpec::new("bench", "hog", &["main"], 8))?;
        Ok(Self { testbed, case, competitor, node })
    }

    /// Measures one crossing; `None` if other activity on the machine spoiled it.
    pub(crate) fn cross(&self) -> Result<Option<Run>> {
        let Self { testbed, case, competitor, node } = self;
        let (stamps, scratch) = (node.file("stamps"), node.file("."));
        let group = node.pods[0].first()?.path();
        let mut inside = competitor::own_command("inside", testbed.competitors.as_deref())?;
        inside.args(["--competitor", competitor.name()]);
        inside.arg("--group").arg(group).arg("--stamps").arg(&stamps).arg("--scratch").arg(scratch);
        inside.arg("--").args(case.hog.arguments(case.size(), case.rate, &stamps, &testbed.disk()?));
        let reported = competitor::output_in_own_namespace(&inside, competitor.name(), &testbed.interrupt)?;
        let record = Record::read(&stamps)?;
        std::fs::remove_file(&stamps).context("remove the stamps of a run")?;
        Ok(self.run(&reported, &record))
    }

    fn run(&self, reported: &Value, record: &Record) -> Option<Run> {
        let growth = self.case.hog.growth(record);
        let crossed = reported["crossed_ns"].as_u64()?;
        let (first, last) = (record.go?, growth.last()?);
        // A crossing outside the hog's growth was caused by another process.
        if crossed <= first || crossed >= last.ns && reported["dead_ns"].is_null() {
            return None;
        }
        let crossed_at_bytes = growth.bytes_at(crossed)?;
        let dead = reported["dead_ns"].as_u64();
        let decided = dead.map(|_| Decision {
            // A killed process touches no more memory, so the last stamp is when the signal arrived.
            at_ns: last.ns,
            stamped_ns: None,
            detected_by: self.competitor.name().to_owned(),
        });
        Some(Run {
            working_set: WorkingSetGrowth::new(growth, 0, crossed_at_bytes, Pages::Refault),
            decided,
            dead,
        })
    }
}

/// What is done inside.
#[derive(Debug, clap::Args)]
pub(crate) struct Inside {
    #[arg(long)]
    competitor: String,
    #[arg(long)]
    group: PathBuf,
    #[arg(long)]
    stamps: PathBuf,
    #[arg(long)]
    scratch: PathBuf,
    #[arg(long)]
    competitors_folder: Option<PathBuf>,
    #[arg(last = true)]
    hog: Vec<String>,
}

/// How long after the growth a decision may come before it counts as missed.
const PATIENCE_NS: u64 = 3_000_000_000;

/// With less available memory, other processes than the hog would be in danger.
const MIN_AVAILABLE: u64 = 4096 * MIB;

/// Lets the hog grow, and prints when the threshold was crossed and when the hog died.
pub(crate) fn inside(args: &Inside) -> Result<()> {
    let Inside { competitor, group, stamps, scratch, competitors_folder, hog } = args;
    let competitor = Competitor::from_name(competitor).context("there is no such program")?;
    let interrupt = Interrupt::install()?;
    ensure!(std::process::id() == 1, "this is for a namespace of its own");
    let group = Group::existing(group)?;
    let mut hog = Workload::start(&group, hog)?;
    let available = meminfo::available()?;
    let threshold = available - MAX_WORKING_SET;
    let _competitor = competitor.start(threshold, competitors_folder.as_deref(), scratch, &interrupt)?;
    let sampler = Sampler::below(threshold);
    let death = DeathWatcher::start(&group, hog.pid())?;
    hog.go()?;
    let dead = loop {
        interrupt.check()?;
        if !hog.process().is_running()? {
            break Some(death.wait(&interrupt, agent::GUARD)?);
        }
        let grown = Record::read(stamps)?.done;
        if grown.is_some_and(|grown| clock::now() > grown + PATIENCE_NS) {
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let crossed = sampler.end()?;
    println!("{}", json!({"crossed_ns": crossed, "dead_ns": dead}));
    Ok(())
}

/// Returns why a competitor cannot be used with a threshold that is [`MAX_WORKING_SET`] below this machine's available memory.
pub(crate) fn refusal(competitor: Competitor) -> Result<Option<String>> {
    let (available, total) = (meminfo::available()?, meminfo::total()?);
    if available <= MIN_AVAILABLE {
        return Ok(Some(format!("this machine has but {} MiB available", available / MIB)));
    }
    let threshold = available.saturating_sub(MAX_WORKING_SET);
    let most = competitor.greatest_threshold(total);
    Ok((threshold > most).then(|| {
        let [most, threshold] = [most, threshold].map(|bytes| bytes / MIB);
        format!(
            "it takes no threshold above {most} MiB, and the threshold would be {threshold} MiB available"
        )
    }))
}

/// Reads `MemAvailable` each millisecond, in a thread that runs before all others.
struct Sampler {
    thread: std::thread::JoinHandle<Result<Option<u64>>>,
    end: Arc<AtomicBool>,
}

impl Sampler {
    fn below(threshold: u64) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            tests::process::set_fifo_priority()?;
            while !ended.load(Ordering::Relaxed) {
                if meminfo::available()? < threshold {
                    return Ok(Some(clock::now()));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(None)
        });
        Self { thread, end }
    }

    fn end(self) -> Result<Option<u64>> {
        self.end.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the sampling thread has panicked")?
    }
}
