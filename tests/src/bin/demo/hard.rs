//! A runaway grows beyond the hard threshold of memory.available.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tests::node::{MIB, Node};
use tests::workload::Workload;

use crate::pods;
use crate::runaway::{Plan, Runaway};
use crate::testbed::Testbed;
use crate::variant::Variant;

/// Whether the node's memory is full of page cache at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// Usage and working set grow together.
    Empty,
    /// Usage stays at the limit, and the working set grows within it.
    Full,
}

/// The memory of the node. Its cgroup cannot exceed it.
pub(crate) const MEMORY: u64 = 768 * MIB;
pub(crate) const PIDS: u64 = 100;
/// The memory that must stay available.
const THRESHOLD: u64 = 128 * MIB;
const MAX_WORKING_SET: u64 = MEMORY - THRESHOLD;
/// The memory of the bystanders, MiB.
const CHECKOUT: u64 = 320;
const ETCD: u64 = 48;
/// The runaway would grow beyond the threshold, and not to the node's limit.
const PLAN: Plan<'_> = Plan::grow(MAX_WORKING_SET);
/// The kernel charges in batches of 64 pages on each processor, so usage is ahead of what was touched by that
/// much.
const CHARGED_AHEAD: u64 = 1 << 20;
/// With a full page cache, the kernel may count some pages as active, and isolates some while it reclaims.
/// These are not inactive, so they are part of the working set, although no process has grown.
const RECLAIMED: u64 = 4 << 20;

pub(crate) fn run(testbed: &mut Testbed<'_>, cache: Cache, variant: Variant) -> Result<()> {
    let mut node = testbed.node(MEMORY, PIDS)?;
    let checkout = node.add(pods::checkout())?;
    let etcd = node.add(pods::etcd())?;
    let report = node.add(pods::report())?;
    describe(testbed);
    let mut bystanders = pods::bystanders(testbed, &node, &[(checkout, CHECKOUT), (etcd, ETCD)])?;
    let _reader = match cache {
        Cache::Empty => None,
        Cache::Full => Some(fill_page_cache(testbed, &node, checkout)?),
    };
    let config = json!({"evictionHard": {"memory.available": format!("{}Mi", THRESHOLD / MIB)}});
    let mut agent = testbed.agent(&node, &config, "charge")?;
    let kills_before = node.oom_kills()?;

    let active_variant = variant.begin(testbed, &node)?;
    let by_others = if cache == Cache::Full { RECLAIMED } else { 0 };
    let mut runaway = Runaway::start(testbed, &node, report, Plan { by_others, ..PLAN })?;
    let Some(decision) = testbed.wait_for_eviction(&mut agent, "memory.available", &node.pods[report])?
    else {
        return Ok(());
    };
    let working_set = runaway.wait_for_death(testbed, &decision, &[])?;
    let beyond =
        working_set.overshoot(decision.number("decided_mono_ns").context("the decision has no time")?);
    testbed.check(
        "after the crossing, not before",
        beyond.is_some_and(|beyond| i128::from(beyond) + i128::from(CHARGED_AHEAD.max(by_others)) > 0),
        format_args!("{beyond:?} bytes beyond the threshold"),
    );
    runaway.check_ended(testbed, &node)?;

    let reasons = ["the biggest, but within its request", "critical, though it exceeds its request"];
    pods::check_one_decision(testbed, &mut agent, &mut bystanders, reasons)?;
    active_variant.end(testbed)?;
    pods::check_one_eviction(testbed, &node, kills_before, agent, ("memory.available", report))
}

fn describe(testbed: &Testbed<'_>) {
    testbed.printer.line(
        "node",
        format_args!(
            "{} MiB; memory.available is below {} MiB once the working set passes {} MiB",
            MEMORY / MIB,
            THRESHOLD / MIB,
            MAX_WORKING_SET / MIB
        ),
    );
    let pod = |text: String| testbed.printer.line("pod", text);
    pod(format!("shop/checkout     {CHECKOUT} MiB, 400 MiB requested: the biggest, within its request"));
    pod(format!("kube-system/etcd   {ETCD} MiB, 16 MiB requested: critical, being static"));
    pod(format!("batch/report      grows at {} MiB/s, 32 MiB requested", PLAN.rate / MIB));
}

/// Reads a file until the node's memory is full.
fn fill_page_cache(testbed: &Testbed<'_>, node: &Node, pod: usize) -> Result<Workload> {
    let size = (MEMORY + 64 * MIB).to_string();
    // The folder of the programs is on a disk; the one for temporary files may be in memory.
    let own = std::env::current_exe().context("find this program")?;
    let folder = own.parent().context("the folder of this program")?.display().to_string();
    let arguments = ["cache", "--size", &size, "--dir", &folder];
    let reader = testbed.start_and_wait(node.pods[pod].first()?, &arguments, "cached")?;
    let (usage, working_set) = (node.root().memory()? / MIB, node.working_set()? / MIB);
    ensure!(
        usage > MEMORY / MIB - 16 && working_set < MAX_WORKING_SET / MIB,
        "the page cache did not fill: usage {usage} MiB, working set {working_set} MiB",
    );
    testbed.printer.line(
        "cache",
        format_args!("shop/checkout has read files: usage {usage} MiB, working set {working_set} MiB"),
    );
    Ok(reader)
}
