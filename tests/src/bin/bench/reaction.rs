//! The time from the crossing to the decision and to the victim's death, by the BPF program's timestamps and by
//! the hog's own; for the agent and for its alternatives.

use anyhow::{Context as _, Result, ensure};
use tests::bench::row::{Goal, Row};
use tests::node::MIB;

use crate::agent_watcher::AgentWatcher;
use crate::case::{Case, Hog, Load, Rate};
use crate::competitor::Competitor;
use crate::competitor_namespace::{self, CompetitorNamespace};
use crate::hog_node::{self, HogNode, Watcher};
use crate::load::Hogs;
use crate::pollers::{DetectionMethod, Poller};
use crate::runs::{Runs, TRIES};
use crate::testbed::Testbed;

/// A smaller overshoot cannot be distinguished from none: the hog stamps every 64 pages.
const LEAST_MIB: f64 = 0.25;
/// Competitors let a hog grow for a while, so it must be able to grow further than that.
const MAX_OVERSHOOT: u64 = 1024 * MIB;

/// Prints the line that precedes all rows, with the backend by which the agent watches charges here.
pub(crate) fn print_machine(testbed: &mut Testbed) -> Result<()> {
    let case = Case::new(1);
    let hog_node = HogNode::new(testbed, case)?;
    let ours = AgentWatcher::start(testbed, case, &hog_node.node)?;
    let backend = ours.agent.backend("charge").context("the agent names no source of charges")?;
    ours.stop()?;
    drop(hog_node);
    testbed.print_machine(Some(backend))
}

/// Measures every hog at 1 GB/s, with free memory and with the page cache full. Measures fresh pages at every
/// rate, and there also with everything else that ends a hog.
pub(crate) fn run(testbed: &mut Testbed, n: usize) -> Result<()> {
    print_machine(testbed)?;
    for load in [Load::Idle, Load::Hogs] {
        let hogs = Hogs::start(testbed, load)?;
        let base = Case { load, ..Case::new(n) };
        for hog in Hog::ALL {
            for cache_full in [false, true] {
                let case = Case { hog, cache_full, ..base };
                if testbed.is_selected(&case.name()) {
                    let rows = agent_rows(testbed, case)?;
                    testbed.add_rows(rows)?;
                }
            }
        }
        for rate in Rate::ALL {
            measure_with_competitors(testbed, Case { rate, max_overshoot: MAX_OVERSHOOT, ..base })?;
        }
        let full = Case { cache_full: true, ..base };
        if testbed.is_selected(&full.name()) {
            measure_pollers(testbed, full)?;
        }
        drop(hogs);
    }
    Ok(())
}

/// Measures one case with everything that ends a hog, the agent last: its rows contain the comparison.
pub(crate) fn measure_with_competitors(testbed: &mut Testbed, case: Case) -> Result<()> {
    if !testbed.is_selected(&case.name()) {
        return Ok(());
    }
    measure_pollers(testbed, case)?;
    let mut theirs = Vec::new();
    for competitor in Competitor::ALL {
        if let Some(why) = competitor_namespace::refusal(competitor)? {
            testbed.progress(&format!("{} ({}) is left out: {why}", case.name(), competitor.program()));
            continue;
        }
        let rows = competitor_rows(testbed, case, competitor)?;
        if competitor == Competitor::Earlyoom {
            theirs.clone_from(&rows);
        }
        testbed.add_rows(rows)?;
    }
    let rows = agent_rows(testbed, case)?;
    let times = overshoot_ratio(&rows, &theirs, case);
    let rows = rows.into_iter().map(|row| with_ratio(row, &theirs)).chain(times).collect::<Vec<_>>();
    testbed.add_rows(rows)
}

/// Measures the kernel's notification and polls, which read what the kubelet reads.
fn measure_pollers(testbed: &mut Testbed, case: Case) -> Result<()> {
    for method in DetectionMethod::ALL {
        if let Some(why) = method.refusal()? {
            testbed.progress(&format!("{} ({}) is left out: {why}", case.name(), method.name()));
            continue;
        }
        let rows = poller_rows(testbed, case, method)?;
        testbed.add_rows(rows)?;
    }
    Ok(())
}

/// Returns how many times smaller the agent's overshoot at death is than earlyoom's. At full speed it has a
/// goal.
fn overshoot_ratio(ours: &[Row], theirs: &[Row], case: Case) -> Option<Row> {
    const LEAST: f64 = 20.0;
    let times = median_ratio(ours.iter().find(|row| row.metric == "overshoot at death")?, theirs)?;
    let row = Row::new(case.name(), "earlyoom's overshoot at death", "of ours", vec![times]);
    Some(if case.rate == Rate::Full { row.goal(Goal::AtLeast(LEAST)) } else { row })
}

/// Adds how many times smaller the agent's median is than the other program's.
pub(crate) fn with_ratio(ours: Row, theirs: &[Row]) -> Row {
    match median_ratio(&ours, theirs) {
        Some(times) => {
            ours.with("against", Competitor::Earlyoom.program()).with("ratio", (times * 10.0).round() / 10.0)
        }
        None => ours,
    }
}

fn median_ratio(ours: &Row, theirs: &[Row]) -> Option<f64> {
    let their = theirs.iter().find(|row| row.metric == ours.metric && row.metric != "rate reached")?;
    let least = if ours.unit == "MiB" { LEAST_MIB } else { 1.0 };
    Some(their.percentile(50)? / ours.percentile(50)?.max(least))
}

/// Lets hogs cross the threshold, one after the other, with a new agent for every few of them.
pub(crate) fn agent_rows(testbed: &Testbed, case: Case) -> Result<Vec<Row>> {
    let (mut thread, mut backend) = (None, None);
    let rows = measure(testbed, case, None, |runs| {
        let hog_node = HogNode::new(testbed, case)?;
        let mut ours = AgentWatcher::start(testbed, case, &hog_node.node)?;
        (thread, backend) = (ours.agent.backend("control loop thread"), ours.agent.backend("charge"));
        cross_all_hogs(&hog_node, runs, &mut ours)?;
        ours.stop()
    })?;
    let with_goal = |row| goal(row, case, backend.as_deref()).with("thread", thread.clone());
    Ok(rows.into_iter().map(with_goal).collect())
}

fn poller_rows(testbed: &Testbed, case: Case, method: DetectionMethod) -> Result<Vec<Row>> {
    measure(testbed, case, Some(&method.name()), |runs| {
        let hog_node = HogNode::new(testbed, case)?;
        cross_all_hogs(&hog_node, runs, &mut Poller::new(method))
    })
}

pub(crate) fn competitor_rows(testbed: &Testbed, case: Case, competitor: Competitor) -> Result<Vec<Row>> {
    let competitor_namespace = CompetitorNamespace::new(testbed, case, competitor)?;
    measure(testbed, case, Some(competitor.program()), |runs| {
        for _ in 0..hog_node::HOGS {
            if runs.good() < case.n {
                match competitor_namespace.cross()? {
                    Some(run) => runs.add(run)?,
                    None => runs.void(),
                }
            }
        }
        Ok(())
    })
}

/// Calls `cross_some` until there are enough valid crossings, and returns the rows of all.
fn measure(
    testbed: &Testbed,
    case: Case,
    program: Option<&str>,
    mut cross_some: impl FnMut(&mut Runs) -> Result<()>,
) -> Result<Vec<Row>> {
    ensure!(case.n > 0, "no run was asked for");
    let mut runs = Runs::new(case, program);
    while runs.good() < case.n && runs.total() < case.n * TRIES {
        cross_some(&mut runs)?;
        testbed.progress(&runs.progress());
    }
    Ok(runs.rows())
}

fn cross_all_hogs(hog_node: &HogNode<'_>, runs: &mut Runs, watcher: &mut dyn Watcher) -> Result<()> {
    for pod in 1..=hog_node::HOGS {
        if runs.good() < hog_node.case.n {
            let run = hog_node.cross(pod, watcher);
            let which = || format!("{}, run {}", hog_node.case.name(), runs.total() + 1);
            let run = run.with_context(which)?;
            runs.add(run)?;
        }
    }
    Ok(())
}

/// Adds the goal to a row (the project's own goals, not a standard).
fn goal(row: Row, case: Case, backend: Option<&str>) -> Row {
    // The granularity of the backend and 1 MiB: a batch of charges where each is seen; else, and for a huge
    // page, 2 MiB.
    let sees_every_charge = backend.is_some_and(|backend| backend.contains("page_counter"));
    let beyond_mib = if sees_every_charge && case.hog != Hog::Huge { 1.25 } else { 3.0 };
    match row.metric {
        "stamp to decision" if case.load == Load::Idle => {
            row.goal(Goal::Percentiles { n: case.n.min(100), p50: 300.0, p99: 1500.0 })
        }
        "stamp to decision" => row.goal(Goal::Percentiles { n: case.n.min(100), p50: 2000.0, p99: 2000.0 }),
        "overshoot at decision" if case.rate == Rate::One && case.load == Load::Idle => {
            row.goal(Goal::Max(beyond_mib))
        }
        "overshoot at death" if case.kernel_kill => row.goal(Goal::Max(beyond_mib)),
        "wrong decisions" => row.goal(Goal::Max(0.0)),
        _ => row,
    }
}
