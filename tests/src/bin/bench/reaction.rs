//! From the crossing to the decision and to the victim's death, by the kernel's stamps and by the
//! growing process's own; beside ours, what else there is.

use anyhow::{Context as _, Result, ensure};
use tests::bench::row::{Goal, Row};
use tests::node::MIB;

use crate::agent_watcher::AgentWatcher;
use crate::case::{Case, Hog, Load, Rate};
use crate::competitor::Competitor;
use crate::competitor_namespace::{self, CompetitorNamespace};
use crate::hog_node::{self, HogNode, Watcher};
use crate::load::Hogs;
use crate::pollers::{Means, Poller};
use crate::runs::Runs;
use crate::testbed::Testbed;

/// At most so many runs for each that counts.
const TRIES: usize = 3;
/// Less overshoot than this cannot be distinguished from none: the hog's own clock knows 64 pages.
const LEAST_MIB: f64 = 0.25;
/// Competitors let a hog run on for a while: what they are measured by must be longer than that.
const FAR: u64 = 1024 * MIB;

/// The backend by which the agent watches charges here.
pub(crate) fn backend(testbed: &Testbed) -> Result<String> {
    let case = Case::new(1);
    let hog_node = HogNode::new(testbed, case)?;
    let ours = AgentWatcher::start(testbed, case, &hog_node.node)?;
    let backend = ours.backend("charge").context("the agent names no source of charges")?;
    ours.stop()?;
    Ok(backend)
}

/// Every hog, with free memory and with the page cache full, at 1 GB/s; fresh pages at the other
/// rates too, and there beside everything else that there is.
pub(crate) fn run(testbed: &mut Testbed, n: usize) -> Result<()> {
    let backend = backend(testbed)?;
    testbed.begin(Some(backend))?;
    for load in [Load::Idle, Load::Hogs] {
        let hogs = Loaded::new(testbed, load)?;
        let base = Case { load, ..Case::new(n) };
        for hog in Hog::ALL {
            for cache_full in [false, true] {
                let case = Case { hog, cache_full, ..base };
                if testbed.wants(&case.name()) {
                    let rows = ours(testbed, case)?;
                    testbed.keep(rows)?;
                }
            }
        }
        for rate in Rate::ALL {
            beside(testbed, Case { rate, room: FAR, ..base })?;
        }
        let full = Case { cache_full: true, ..base };
        if testbed.wants(&full.name()) {
            by_plain_means(testbed, full)?;
        }
        drop(hogs);
    }
    Ok(())
}

/// The load of some cases, from the first to the last of them.
pub(crate) struct Loaded {
    _hogs: Option<Hogs>,
}

impl Loaded {
    pub(crate) fn new(testbed: &Testbed, load: Load) -> Result<Self> {
        let _hogs = match load {
            Load::Idle => None,
            Load::Hogs => Some(Hogs::start(testbed)?),
        };
        Ok(Self { _hogs })
    }
}

/// One case with everything that ends a hog, ours last: its rows say how it compares.
pub(crate) fn beside(testbed: &mut Testbed, case: Case) -> Result<()> {
    if !testbed.wants(&case.name()) {
        return Ok(());
    }
    by_plain_means(testbed, case)?;
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
        testbed.keep(rows)?;
    }
    let rows = ours(testbed, case)?;
    let times = times_less(&rows, &theirs, case);
    let rows = rows.into_iter().map(|row| compare(row, &theirs)).chain(times).collect::<Vec<_>>();
    testbed.keep(rows)
}

/// The kernel's notification and polls, which read what the kubelet reads.
fn by_plain_means(testbed: &mut Testbed, case: Case) -> Result<()> {
    for means in Means::ALL {
        if let Some(why) = means.refusal()? {
            testbed.progress(&format!("{} ({}) is left out: {why}", case.name(), means.name()));
            continue;
        }
        let rows = plain(testbed, case, means)?;
        testbed.keep(rows)?;
    }
    Ok(())
}

/// How many times less than the other's our overshoot is in the end, which at full speed has a goal.
fn times_less(ours: &[Row], theirs: &[Row], case: Case) -> Option<Row> {
    const LEAST: f64 = 20.0;
    let times = times(ours.iter().find(|row| row.metric == "overshoot at death")?, theirs)?;
    let row = Row::new(case.name(), "earlyoom's overshoot at death", "of ours", vec![times]);
    Some(if case.rate == Rate::Full { row.goal(Goal::AtLeast(LEAST)) } else { row })
}

/// Says how many times less ours is than the other's, by the medians.
pub(crate) fn compare(ours: Row, theirs: &[Row]) -> Row {
    match times(&ours, theirs) {
        Some(times) => {
            ours.with("against", Competitor::Earlyoom.program()).with("ratio", (times * 10.0).round() / 10.0)
        }
        None => ours,
    }
}

fn times(ours: &Row, theirs: &[Row]) -> Option<f64> {
    let their = theirs.iter().find(|row| row.metric == ours.metric && row.metric != "rate reached")?;
    let least = if ours.unit == "MiB" { LEAST_MIB } else { 1.0 };
    Some(their.percentile(50)? / ours.percentile(50)?.max(least))
}

/// Lets hogs cross the line, one after the other, and a new agent watch every few of them.
pub(crate) fn ours(testbed: &Testbed, case: Case) -> Result<Vec<Row>> {
    let mut runs = Runs::new(case, None);
    let (mut thread, mut backend) = (None, None);
    while needs_more(&runs, case)? {
        let mut hog_node = HogNode::new(testbed, case)?;
        let mut ours = AgentWatcher::start(testbed, case, &hog_node.node)?;
        (thread, backend) = (ours.backend("control loop thread"), ours.backend("charge"));
        series(&mut hog_node, &mut runs, &mut ours)?;
        ours.stop()?;
        testbed.progress(&runs.progress());
    }
    let rows = runs.rows().into_iter();
    Ok(rows.map(|row| goal(row, case, backend.as_deref()).with("thread", thread.clone())).collect())
}

fn plain(testbed: &Testbed, case: Case, means: Means) -> Result<Vec<Row>> {
    let mut runs = Runs::new(case, Some(&means.name()));
    while needs_more(&runs, case)? {
        let mut hog_node = HogNode::new(testbed, case)?;
        series(&mut hog_node, &mut runs, &mut Poller::new(means))?;
        testbed.progress(&runs.progress());
    }
    Ok(runs.rows())
}

pub(crate) fn competitor_rows(testbed: &Testbed, case: Case, competitor: Competitor) -> Result<Vec<Row>> {
    let mut runs = Runs::new(case, Some(competitor.program()));
    let competitor_namespace = CompetitorNamespace::new(testbed, case, competitor)?;
    while needs_more(&runs, case)? {
        for _ in 0..hog_node::HOGS {
            if runs.good() < case.n {
                match competitor_namespace.cross()? {
                    Some(run) => runs.add(run)?,
                    None => runs.void(),
                }
            }
        }
        testbed.progress(&runs.progress());
    }
    Ok(runs.rows())
}

fn needs_more(runs: &Runs, case: Case) -> Result<bool> {
    ensure!(case.n > 0, "no run was asked for");
    Ok(runs.good() < case.n && runs.number() < case.n * TRIES)
}

fn series(hog_node: &mut HogNode<'_>, runs: &mut Runs, watcher: &mut dyn Watcher) -> Result<()> {
    for pod in 1..=hog_node::HOGS {
        if runs.good() < hog_node.case.n {
            let run = hog_node.cross(pod, watcher);
            let which = || format!("{}, run {}", hog_node.case.name(), runs.number() + 1);
            let run = run.with_context(which)?;
            runs.add(run)?;
        }
    }
    Ok(())
}

/// What is to be reached (the project's own goals, not a standard).
fn goal(row: Row, case: Case, backend: Option<&str>) -> Row {
    // The grain of the backend and 1 MiB: a batch of charges where each is seen; else, and for a huge page, 2 MiB.
    let sees_every_charge = backend.is_some_and(|backend| backend.contains("page_counter"));
    let beyond_mib = if sees_every_charge && case.hog != Hog::Huge { 1.25 } else { 3.0 };
    match row.metric {
        "stamp to decision" if case.load == Load::Idle => {
            row.goal(Goal::Stamp { n: case.n.min(100), p50: 300.0, p99: 1500.0 })
        }
        "stamp to decision" => row.goal(Goal::Stamp { n: case.n.min(100), p50: 2000.0, p99: 2000.0 }),
        "overshoot at decision" if case.rate == Rate::One && case.load == Load::Idle => {
            row.goal(Goal::Max(beyond_mib))
        }
        "overshoot at death" if case.kernel_kill => row.goal(Goal::Max(beyond_mib)),
        "wrong decisions" => row.goal(Goal::Max(0.0)),
        _ => row,
    }
}
