//! What is measured, and what of it is timed.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use eviction_agent::core::report::Report;
use eviction_agent::core::snapshot::{Snapshot, SnapshotBuilder};
use eviction_agent::source::summary::Summary;
use tests::allocations::counted;
use tests::bench::row::Row;
use tests::world::{Case, World};

use crate::node::Node;
use crate::{Measured, baseline};

/// Runs that are not measured: buffers find their size, and the processor finds its pace.
const WARM_UP: usize = 5;

/// Times in nanoseconds, and the most allocations that one run made.
#[derive(Default)]
struct Samples {
    nanos: Vec<f64>,
    allocations: u64,
}

impl Samples {
    fn take<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let ((result, elapsed), allocations) = counted(|| {
            let start = Instant::now();
            let result = black_box(work());
            (result, start.elapsed())
        });
        self.nanos.push(elapsed.as_nanos() as f64);
        self.allocations = self.allocations.max(allocations);
        result
    }

    /// Takes so many samples after warming up. `run` prepares a run and has the rest timed.
    fn of(count: usize, mut run: impl FnMut(&mut Self) -> Result<()>) -> Result<Self> {
        for _ in 0..WARM_UP {
            run(&mut Self::default())?;
        }
        let mut samples = Self::default();
        for _ in 0..count {
            run(&mut samples)?;
        }
        Ok(samples)
    }

    fn measured(self, pods: usize, case: &str, metric: &'static str) -> Measured {
        let Self { nanos, allocations } = self;
        Measured { pods, row: Row::new(case, metric, "ns", nanos), allocations, baseline: None }
    }
}

/// A pass over a snapshot that is decoded and indexed. Its drop is part of it: that of the
/// decision and of the snapshot, but a calm look's memory is handed back for the next one.
pub(crate) fn pass(node: &mut Node, passes: usize) -> Result<Measured> {
    let is_calm = matches!(node.case, Case::Calm | Case::CalmNoLocalStorage);
    let first = Arc::new(node.look()?);
    let decision = node.pass(first);
    node.check(&decision)?;
    drop(decision);
    let mut spare: Option<Snapshot> = None;
    let samples = Samples::of(passes, |samples| {
        let snapshot = Arc::new(match spare.take() {
            Some(old) => node.renew(old)?,
            None => node.look()?,
        });
        spare = samples.take(|| {
            if is_calm {
                drop(black_box(node.pass(Arc::clone(&snapshot))));
                Arc::into_inner(snapshot)
            } else {
                drop(black_box(node.pass(snapshot)));
                None
            }
        });
        Ok(())
    })?;
    let mut measured = samples.measured(node.pods.len(), node.case.name(), "pass");
    measured.baseline = baseline::of(node.case, node.pods.len());
    if let Some(baseline) = measured.baseline {
        measured.row = measured.row.goal(baseline::goal(node.case, baseline));
    }
    Ok(measured)
}

/// Looking up which statistics belong to which pod.
pub(crate) fn index(node: &mut Node, runs: usize) -> Result<Measured> {
    let mut snapshot = node.look()?;
    let samples = Samples::of(runs, |samples| {
        samples.take(|| snapshot.index(&node.pods));
        Ok(())
    })?;
    Ok(samples.measured(node.pods.len(), "snapshot", "index"))
}

/// The report of a pass with all of its candidates, made and written as JSON.
pub(crate) fn report(node: &mut Node, runs: usize) -> Result<Measured> {
    let snapshot = node.look()?;
    let decision = node.pass(Arc::new(snapshot));
    node.check(&decision)?;
    let samples = Samples::of(runs, |samples| {
        samples.take(|| serde_json::to_string(&Report::of(&decision, node.engine.policy())))?;
        Ok(())
    })?;
    Ok(samples.measured(node.pods.len(), node.case.name(), "report"))
}

/// From the JSON of a kubelet's Summary to a snapshot in the memory of the last one.
pub(crate) fn decode(world: &World, runs: usize) -> Result<Measured> {
    let json = world.summary(Case::Calm, 0);
    let mut spare = Some(Snapshot::default());
    let samples = Samples::of(runs, |samples| {
        let builder = SnapshotBuilder::reuse(spare.take().unwrap_or_default());
        let snapshot =
            samples.take(|| Summary::parse(json.as_bytes()).map(|it| it.snapshot_into(builder)))?;
        spare = Some(snapshot);
        Ok(())
    })?;
    Ok(samples.measured(world.pods().len(), "summary", "decode"))
}
