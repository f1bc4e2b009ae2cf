//! A small node on which hogs cross the threshold, one after the other.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tests::agent;
use tests::clock;
use tests::death::DeathWatcher;
use tests::growth::WorkingSetGrowth;
use tests::node::{MIB, Node, PodSpec};
use tests::stamps::Record;
use tests::workload::Workload;

use crate::case::Case;
use crate::runs::Run;
use crate::testbed::Testbed;

/// The hogs of one node. The agent limits the rate of kills, and a new agent counts from zero.
pub(crate) const HOGS: usize = 8;
/// The minimum number of pods of a node: the hogs, and the reader.
pub(crate) const FEW: usize = HOGS + 1;
const PIDS: u64 = 200;

/// A program that watches the node and ends what grows.
pub(crate) trait Watcher {
    /// Returns how long after the growth a decision may come before it counts as missed.
    fn patience(&self) -> Duration {
        Duration::from_secs(3)
    }
    /// Called before the hog grows.
    fn begin(&mut self, hog_node: &HogNode<'_>, hog: &Hog<'_>) -> Result<()>;
    /// Returns the decision that was made since then, if there is one.
    fn poll_decision(&mut self) -> Result<Option<Decision>>;
    /// Called when the hog has ended or has grown to its full size.
    fn wait_until_settled(&mut self, hog_node: &HogNode<'_>, hog: &Hog<'_>, decided: bool) -> Result<()>;
}

/// Returns the node's working set before a run. Fails if the node is not empty.
pub(crate) fn idle_working_set(node: &Node, case: Case) -> Result<u64> {
    let base = node.working_set()?;
    ensure!(base < case.max_working_set / 2, "the node is not empty before a run: {} MiB", base / MIB);
    Ok(base)
}

/// Returns a random pause, so that runs start at different moments of a watcher's timers.
pub(crate) fn random_pause() -> Duration {
    Duration::from_millis(200 + clock::now() / 1000 % 500)
}

/// The process that grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hog<'a> {
    pub(crate) pid: u32,
    /// `namespace/name` of its pod.
    pub(crate) pod: &'a str,
}

/// The decision of a watcher.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    /// When the decision was made, nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) at_ns: u64,
    /// When the BPF program saw the crossing.
    pub(crate) stamped_ns: Option<u64>,
    pub(crate) detected_by: String,
}

/// A node on which hogs cross the threshold.
#[derive(Debug)]
pub(crate) struct HogNode<'a> {
    pub(crate) testbed: &'a Testbed,
    pub(crate) case: Case,
    pub(crate) node: Node,
}

impl<'a> HogNode<'a> {
    /// Creates the node. The first pod reads files, the others are for hogs.
    pub(crate) fn new(testbed: &'a Testbed, case: Case) -> Result<Self> {
        let mut node = Node::new("bench", case.memory(), PIDS)?;
        for nth in 0..case.pods.max(FEW) {
            testbed.interrupt.check()?;
            let name = if nth == 0 { "reader".to_owned() } else { format!("hog-{nth:03}") };
            node.add(PodSpec::new("bench", name, &["main"], 8))?;
        }
        Ok(Self { testbed, case, node })
    }

    /// Lets the hog of that pod grow until the watcher ends it or it has grown to its full size.
    pub(crate) fn cross(&self, pod: usize, watcher: &mut dyn Watcher) -> Result<Run> {
        let Self { testbed, case, .. } = *self;
        let reader = if case.cache_full { Some(self.fill_page_cache()?) } else { None };
        let stamps = self.node.file(&format!("stamps-{pod}"));
        let arguments = case.hog.arguments(case.size(), case.rate, &stamps, &testbed.disk()?);
        let mut process = Workload::start(self.node.pods[pod].first()?, arguments)?;
        let name = self.node.pods[pod].full_name();
        let hog = Hog { pid: process.pid(), pod: &name };
        watcher.begin(self, &hog)?;
        testbed.interrupt.sleep(random_pause())?;
        let base = idle_working_set(&self.node, case)?;
        let death = DeathWatcher::start(&self.node.pods[pod].group, hog.pid)?;
        process.go()?;

        let decided = self.wait_for_decision(watcher, &stamps)?;
        let dead = match &decided {
            Some(_) => Some(death.wait(&testbed.interrupt, agent::GUARD)?),
            None => None,
        };
        drop(process);
        drop(reader);
        let growth = case.hog.growth(&Record::read(&stamps)?);
        std::fs::remove_file(&stamps).context("remove the stamps of a run")?;
        watcher.wait_until_settled(self, &hog, decided.is_some())?;
        Ok(Run {
            working_set: WorkingSetGrowth::new(growth, base, case.max_working_set, case.hog.pages()),
            decided,
            dead,
        })
    }

    /// Fills the node with page cache up to its limit.
    fn fill_page_cache(&self) -> Result<Workload> {
        let memory = self.case.memory();
        let size = (memory + 32 * MIB).to_string();
        let folder = self.testbed.disk()?.display().to_string();
        let arguments = ["cache", "--size", &size, "--dir", &folder];
        let mut reader = Workload::run(self.node.pods[0].first()?, arguments)?;
        reader.wait_event("cached")?;
        let usage = self.node.root().memory()?;
        // Reclaim goes below the limit in batches.
        ensure!(usage > memory - memory / 16, "the page cache did not fill: usage {} MiB", usage / MIB);
        Ok(reader)
    }

    /// Waits for the decision; `None` if the hog has grown to its full size and none came.
    fn wait_for_decision(&self, watcher: &mut dyn Watcher, stamps: &Path) -> Result<Option<Decision>> {
        let patience = u64::try_from(watcher.patience().as_nanos())?;
        let mut grown: Option<u64> = None;
        loop {
            self.testbed.interrupt.check()?;
            if let Some(decided) = watcher.poll_decision()? {
                return Ok(Some(decided));
            }
            match grown {
                None => grown = Record::read(stamps)?.done,
                Some(done) if clock::now() > done + patience => return Ok(None),
                Some(_) => {}
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
