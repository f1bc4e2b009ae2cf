//! A node in small on which hogs cross the line, one after the other.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tests::agent;
use tests::clock;
use tests::death::Death;
use tests::growth::Climb;
use tests::node::{MIB, Node, PodSpec};
use tests::stamps::Record;
use tests::workload::Workload;

use crate::case::Case;
use crate::runs::Run;
use crate::testbed::Testbed;

/// Hogs of one node: the agent refuses to kill pod after pod, and a new one counts anew.
pub(crate) const HOGS: usize = 8;
/// The fewest pods that a node here can have: the hogs, and the reader.
pub(crate) const FEW: usize = HOGS + 1;
const PIDS: u64 = 200;

/// Who watches the node, and ends what grows.
pub(crate) trait Watcher {
    /// How long a decision may be outstanding after the growth before it counts as missed.
    fn patience(&self) -> Duration {
        Duration::from_secs(3)
    }
    /// The hog is about to grow.
    fn begin(&mut self, hog_node: &HogNode<'_>, hog: &Hog<'_>) -> Result<()>;
    /// What was decided since, if anything was.
    fn decided(&mut self) -> Result<Option<Decided>>;
    /// The hog is gone, or has grown to its end.
    fn settle(&mut self, hog_node: &HogNode<'_>, hog: &Hog<'_>, decided: bool) -> Result<()>;
}

/// The process that is to grow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hog<'a> {
    pub(crate) pid: u32,
    /// `namespace/name` of its pod.
    pub(crate) pod: &'a str,
}

/// A decision.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    /// When it fell.
    pub(crate) at_ns: u64,
    /// When the kernel program saw the crossing.
    pub(crate) stamped_ns: Option<u64>,
    pub(crate) seen_by: String,
}

/// The node.
#[derive(Debug)]
pub(crate) struct HogNode<'a> {
    pub(crate) testbed: &'a Testbed,
    pub(crate) case: Case,
    pub(crate) node: Node,
    random: u64,
}

impl<'a> HogNode<'a> {
    /// The first pod reads files, the others are for hogs.
    pub(crate) fn new(testbed: &'a Testbed, case: Case) -> Result<Self> {
        let mut node = Node::new("bench", case.memory(), PIDS)?;
        for nth in 0..case.pods.max(FEW) {
            testbed.interrupt.check()?;
            node.add(PodSpec::new(
                "bench",
                if nth == 0 { "reader".to_owned() } else { format!("hog-{nth:03}") },
                &["main"],
                8,
            ))?;
        }
        Ok(Self { testbed, case, node, random: clock::now() | 1 })
    }

    /// Lets the hog of that pod grow until the watcher ends it or it has grown to its end.
    pub(crate) fn cross(&mut self, pod: usize, watcher: &mut dyn Watcher) -> Result<Run> {
        let Self { testbed, case, .. } = *self;
        let reader = if case.cache_full { Some(self.fill()?) } else { None };
        let stamps = self.node.file(&format!("stamps-{pod}"));
        let arguments = case.hog.arguments(case.size(), case.rate, &stamps, testbed.disk()?);
        let mut process = Workload::start(&testbed.workload, self.node.pods[pod].first()?, arguments)?;
        let name = self.node.pods[pod].full_name();
        let hog = Hog { pid: process.pid(), pod: &name };
        let pause = self.random_pause();
        watcher.begin(self, &hog)?;
        testbed.interrupt.sleep(pause)?;
        let base = self.node.working_set()?;
        ensure!(base < self.case.line / 2, "the node is not empty before a run: {} MiB", base / MIB);
        let death = Death::of(&self.node.pods[pod].group, hog.pid)?;
        process.go()?;

        let decided = self.wait(watcher, &stamps)?;
        let dead = match &decided {
            Some(_) => Some(death.at(&testbed.interrupt, agent::GUARD)?),
            None => None,
        };
        drop(process);
        drop(reader);
        let growth = case.hog.growth(&Record::read(&stamps)?);
        std::fs::remove_file(&stamps).context("remove the stamps of a run")?;
        watcher.settle(self, &hog, decided.is_some())?;
        Ok(Run { climb: Climb::new(growth, base, case.line, case.hog.pages()), decided, dead })
    }

    /// Any moment of a watcher's own timers is as good as any other.
    fn random_pause(&mut self) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        Duration::from_millis(200 + self.random % 500)
    }

    /// Fills the node with page cache up to its limit.
    fn fill(&self) -> Result<Workload> {
        let memory = self.case.memory();
        let size = (memory + 32 * MIB).to_string();
        let folder = self.testbed.disk()?.display().to_string();
        let arguments = ["cache", "--size", &size, "--dir", &folder];
        let mut reader = Workload::run(&self.testbed.workload, self.node.pods[0].first()?, arguments)?;
        reader.wait_event("cached")?;
        let usage = self.node.root().memory()?;
        // Reclaim goes below the limit in batches.
        ensure!(usage > memory - memory / 16, "the page cache did not fill: usage {} MiB", usage / MIB);
        Ok(reader)
    }

    /// The decision; `None` if the hog grew to its end and none came.
    fn wait(&self, watcher: &mut dyn Watcher, stamps: &Path) -> Result<Option<Decided>> {
        let patience = u64::try_from(watcher.patience().as_nanos())?;
        let mut grown: Option<u64> = None;
        loop {
            self.testbed.interrupt.check()?;
            if let Some(decided) = watcher.decided()? {
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
