//! What is measured, and what of it is timed.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use eviction_agent::source::summary::Summary;
use eviction_core::eviction::EvaluationEnd;
use eviction_core::policy::preferences::Profile;
use eviction_core::record::DecisionRecord;
use eviction_core::snapshot::Snapshot;
use rustix::time::{ClockId, clock_gettime};
use tests::allocations::count_allocations;
use tests::bench::row::Row;
use tests::simulated_node::{Case, SimulatedNode};

use crate::Measured;
use crate::node::{Node, victims};

/// Runs that are not measured, so many at least and for so long: buffers find their size, and the
/// processor finds its pace.
const WARM_UP: (usize, Duration) = (5, Duration::from_millis(100));

/// After which nothing is remembered of an eviction that has a say in another one.
const AN_HOUR: Duration = Duration::from_secs(3600);

/// Times in nanoseconds, and the most allocations that one run made.
#[derive(Default)]
struct Samples {
    nanos: Vec<f64>,
    allocations: u64,
}

impl Samples {
    fn take<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let ((result, elapsed), allocations) = count_allocations(|| {
            let on_processor = processor_time();
            let start = Instant::now();
            let result = black_box(work());
            let elapsed = start.elapsed();
            (result, elapsed.min(processor_time().saturating_sub(on_processor)))
        });
        self.nanos.push(elapsed.as_nanos() as f64);
        self.allocations = self.allocations.max(allocations);
        result
    }

    /// Takes so many samples after warming up. `run` prepares a run and has the rest timed.
    fn of(count: usize, mut run: impl FnMut(&mut Self) -> Result<()>) -> Result<Self> {
        let (mut runs, start) = (0, Instant::now());
        while runs < WARM_UP.0 || start.elapsed() < WARM_UP.1 {
            run(&mut Self::default())?;
            runs += 1;
        }
        let mut samples = Self::default();
        for _ in 0..count {
            run(&mut samples)?;
        }
        Ok(samples)
    }

    fn measured(self, pods: usize, case: &str, metric: &'static str) -> Measured {
        let Self { nanos, allocations } = self;
        Measured {
            pods,
            row: Row::new(case, metric, "ns", nanos),
            allocations: Some(allocations),
            kubelet: None,
        }
    }
}

/// What the thread has had of a processor. Nothing here ever waits, so that this is at least what
/// the work takes; as asking for it costs as much as a system call, it is held against the clock
/// on the wall, which counts what others on a busy machine take. The lesser of both is nearer.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// What happens to the snapshot and the decision at the end of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drop {
    /// Their memory is used again in the next sync, as in the agent unless it publishes the decision.
    Recycled,
    /// Their memory is freed, which is slow for thousands of pages.
    Freed,
}

/// Returns the name of the rows, and a node after its first sync.
fn node(simulated: &SimulatedNode, profile: Profile, case: Case) -> Result<(String, Node)> {
    let name = match profile {
        Profile::Kubelet => case.name().to_owned(),
        Profile::Enhanced => format!("enhanced, {}", case.name()),
    };
    let mut node = Node::new(simulated, profile, &case.configuration(), case)?;
    let snapshot = node.next_snapshot(None)?;
    let decision = node.sync(&snapshot);
    let end = decision.evaluation().map(|evaluation| evaluation.end);
    let gone: Vec<_> = victims(&decision).collect();
    node.carry_out(&gone, AN_HOUR)?;
    let expected = match case {
        Case::Calm | Case::CalmNoLocalStorage => EvaluationEnd::NoPressure,
        Case::MemoryPressure | Case::DiskPressure => EvaluationEnd::Evicted,
    };
    ensure!(end == Some(expected), "a sync of case {name:?} ended in {end:?}");
    Ok((name, node))
}

/// Measures syncs with a snapshot that is decoded and indexed, and the drop of snapshot and decision.
pub(crate) fn sync(
    simulated: &SimulatedNode,
    case: Case,
    profile: Profile,
    drop_as: Drop,
    syncs: usize,
) -> Result<Measured> {
    let (name, mut node) = node(simulated, profile, case)?;
    let mut buffer: Option<Arc<Snapshot>> = None;
    let mut gone = Vec::with_capacity(node.pods.len());
    let samples = Samples::of(syncs, |samples| {
        let snapshot = node.next_snapshot(buffer.take())?;
        gone.clear();
        buffer = samples.take(|| {
            let decision = black_box(node.sync(&snapshot));
            gone.extend(victims(&decision));
            match drop_as {
                Drop::Recycled => {
                    node.engine.recycle(decision);
                    Some(snapshot)
                }
                Drop::Freed => {
                    drop((decision, snapshot));
                    None
                }
            }
        });
        // Long enough for every sync to decide the same.
        node.carry_out(&gone, AN_HOUR)
    })?;
    let metric = match drop_as {
        Drop::Recycled => "pass",
        Drop::Freed => "pass, freed",
    };
    Ok(samples.measured(node.pods.len(), &name, metric))
}

/// Measures the assignment of statistics to pods.
pub(crate) fn index(simulated: &SimulatedNode, runs: usize) -> Result<Measured> {
    let (_, mut node) = node(simulated, Profile::Kubelet, Case::Calm)?;
    let mut snapshot = Snapshot::clone(&*node.next_snapshot(None)?);
    let samples = Samples::of(runs, |samples| {
        samples.take(|| snapshot.index(&node.pods));
        Ok(())
    })?;
    Ok(samples.measured(node.pods.len(), "snapshot", "index"))
}

/// Measures the record of a decision with all candidates, created and written as JSON.
pub(crate) fn report(simulated: &SimulatedNode, profile: Profile, runs: usize) -> Result<Measured> {
    let (name, mut node) = node(simulated, profile, Case::MemoryPressure)?;
    let snapshot = node.next_snapshot(None)?;
    let decision = node.sync(&snapshot);
    let samples = Samples::of(runs, |samples| {
        samples.take(|| serde_json::to_string(&DecisionRecord::of(&decision)))?;
        Ok(())
    })?;
    Ok(samples.measured(node.pods.len(), &name, "report"))
}

/// Measures the decoding of a kubelet's Summary from JSON to a snapshot that uses the memory of the last one.
pub(crate) fn decode(simulated: &SimulatedNode, runs: usize) -> Result<Measured> {
    let json = simulated.summary(Case::Calm, 0);
    let mut snapshot = Snapshot::default();
    let samples = Samples::of(runs, |samples| {
        samples.take(|| Summary::parse(json.as_bytes()).map(|it| it.snapshot_into(&mut snapshot)))?;
        Ok(())
    })?;
    Ok(samples.measured(simulated.pods().len(), "summary", "decode"))
}
