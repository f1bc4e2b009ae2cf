//! A namespace in which there is a hog, one that is to end it, and nothing else to be ended.
//!
//! What the others watch is the whole machine's `MemAvailable`. So they are given a threshold a
//! certain way below what is available at that moment, and the hog, bounded by its own group,
//! covers that way: the machine keeps all that it needs. The crossing is seen by a thread that
//! runs before all others and looks each millisecond.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tests::agent;
use tests::cgroup::Group;
use tests::clock;
use tests::death::Death;
use tests::growth::{Climb, Pages};
use tests::interrupt::Interrupt;
use tests::meminfo;
use tests::node::{MIB, Node, PodSpec};
use tests::process::Process;
use tests::stamps::Record;
use tests::workload::Workload;

use crate::case::{Case, LINE};
use crate::competitor::{self, Competitor};
use crate::hog_node::Decided;
use crate::runs::Run;
use crate::testbed::Testbed;

/// Outside: the hog's group.
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

    /// One crossing; `None` if what others do on the machine spoiled it.
    pub(crate) fn cross(&self) -> Result<Option<Run>> {
        let Self { testbed, case, competitor, node } = self;
        let (stamps, scratch) = (node.file("stamps"), node.file("."));
        let group = node.pods[0].first()?.path();
        let own = std::env::current_exe().context("find this program")?;
        let mut inside = std::process::Command::new(own);
        inside.arg("inside").args(["--competitor", competitor.name()]);
        inside.arg("--group").arg(group).arg("--stamps").arg(&stamps).arg("--scratch").arg(scratch);
        inside.arg("--workload").arg(&testbed.workload);
        if let Some(competitors) = &testbed.competitors {
            inside.arg("--competitors-folder").arg(competitors);
        }
        inside.arg("--").args(case.hog.arguments(case.size(), case.rate, &stamps, testbed.disk()?));
        let reported = competitor::output_alone(&inside, competitor.name(), &testbed.interrupt)?;
        let record = Record::read(&stamps)?;
        std::fs::remove_file(&stamps).context("remove the stamps of a run")?;
        Ok(self.run(&reported, &record))
    }

    fn run(&self, reported: &Value, record: &Record) -> Option<Run> {
        let growth = self.case.hog.growth(record);
        let crossed = reported["crossed_ns"].as_u64()?;
        let (first, last) = (record.go?, growth.last()?);
        // What the hog was not there for was somebody else's growth.
        if crossed <= first || crossed >= last.ns && reported["dead_ns"].is_null() {
            return None;
        }
        let line = growth.bytes_at(crossed)?;
        let dead = reported["dead_ns"].as_u64();
        let decided = dead.map(|_| Decided {
            // A process that is killed touches nothing any more: that is when the signal came.
            at_ns: last.ns,
            stamped_ns: None,
            seen_by: self.competitor.name().to_owned(),
        });
        Some(Run { climb: Climb::new(growth, 0, line, Pages::Refault), decided, dead })
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
    workload: PathBuf,
    #[arg(long)]
    competitors_folder: Option<PathBuf>,
    #[arg(last = true)]
    hog: Vec<String>,
}

/// How long a competitor is given to start, and to have looked at the machine.
const WARM: Duration = Duration::from_millis(1500);
/// How long it may take after the growth before it counts as missed.
const PATIENCE_NS: u64 = 3_000_000_000;

/// With less than that available it would not be the hog alone that is in danger.
const LEAST: u64 = 4096 * MIB;

/// Lets the hog grow, and prints when the line was crossed and when the hog died.
pub(crate) fn inside(args: &Inside) -> Result<()> {
    let Inside { competitor, group, stamps, scratch, workload, competitors_folder, hog } = args;
    let competitor = Competitor::named(competitor).context("there is no such program")?;
    let interrupt = Interrupt::install()?;
    ensure!(std::process::id() == 1, "this is for a namespace of its own");
    let group = Group::existing(group)?;
    let mut hog = Workload::start(workload, &group, hog)?;
    let available = meminfo::available()?;
    let threshold = available - LINE;
    let mut command = competitor.below(threshold, competitors_folder.as_deref(), scratch)?;
    let mut competitor = Process::spawn(&mut command)?;
    interrupt.sleep(WARM + Duration::from_nanos(clock::now() % 500_000_000))?;
    if !competitor.is_running()? {
        bail!("it ended by itself: {}", agent::describe(competitor.wait()?));
    }
    let sampler = Sampler::below(threshold);
    let death = Death::of(&group, hog.pid())?;
    hog.go()?;
    let dead = loop {
        interrupt.check()?;
        if !hog.process().is_running()? {
            break Some(death.at(&interrupt, agent::GUARD)?);
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

/// Why a competitor cannot be asked for a line as far as [`LINE`] from what this machine has available.
pub(crate) fn refusal(competitor: Competitor) -> Result<Option<String>> {
    let (available, total) = (meminfo::available()?, meminfo::total()?);
    if available <= LEAST {
        return Ok(Some(format!("this machine has but {} MiB available", available / MIB)));
    }
    let threshold = available.saturating_sub(LINE);
    let most = competitor.greatest_threshold(total);
    Ok((threshold > most).then(|| {
        let [most, threshold] = [most, threshold].map(|bytes| bytes / MIB);
        format!("it takes no threshold above {most} MiB, and the line would be at {threshold} MiB available")
    }))
}

/// Looks each millisecond, before everybody else.
struct Sampler {
    thread: std::thread::JoinHandle<Result<Option<u64>>>,
    end: Arc<AtomicBool>,
}

impl Sampler {
    fn below(threshold: u64) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            tests::process::run_first()?;
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
        self.thread.join().ok().context("the thread that looks has panicked")?
    }
}
