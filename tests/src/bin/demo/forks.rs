//! A fork bomb with its own limit uses up the node's process IDs.

use anyhow::{Context as _, Result};
use serde_json::json;
use tests::agent::Event;
use tests::death::DeathWatcher;
use tests::node::Node;
use tests::stamps::{Reached, Record};

use crate::hard::MEMORY;
use crate::pods::{self, Bystander};
use crate::testbed::{GUARD, Testbed};
use crate::timeline::Timeline;

/// The process IDs of the node. Its cgroup cannot exceed them.
const PIDS: u64 = 300;
/// The process IDs that must stay available.
const THRESHOLD: u64 = 60;
/// The children of the bystanders.
const CHECKOUT: u64 = 40;
const ETCD: u64 = 20;
/// The limit of the bomb: beyond the threshold, and less than the node has.
const BOMB: u64 = 220;
/// Forks per second.
const RATE: &str = "400";

pub(crate) fn run(testbed: &mut Testbed<'_>) -> Result<()> {
    let mut node = testbed.node(MEMORY, PIDS)?;
    let checkout = node.add(pods::checkout())?;
    let etcd = node.add(pods::etcd())?;
    let report = node.add(pods::report())?;
    node.pods[report].group.limit_pids(BOMB)?;
    describe(testbed);
    let mut bystanders = Vec::new();
    for (index, children) in [(checkout, CHECKOUT), (etcd, ETCD)] {
        let children = children.to_string();
        let pod = &node.pods[index];
        let process = testbed.start_and_wait(pod.first()?, &["forks", "--max", &children], "forked")?;
        bystanders.push(Bystander::new(pod, process));
    }
    let config = json!({"evictionHard": {"pid.available": THRESHOLD.to_string()}});
    let mut agent = testbed.agent(&node, &config, "task")?;
    let kills_before = node.oom_kills()?;

    let stamps = node.file("stamps-forks");
    let file = stamps.display().to_string();
    let most = (2 * BOMB).to_string();
    let pod = &node.pods[report];
    let arguments = ["forks", "--bomb", "--max", &most, "--rate", RATE, "--stamps", &file];
    let mut bomb = testbed.process(pod.first()?, &arguments)?;
    let before = node.root().pids()?;
    let death = DeathWatcher::start(&pod.group, bomb.pid())?;
    bomb.go()?;
    let Some(decision) = testbed.wait_for_eviction(&mut agent, "pid.available", pod)? else {
        return Ok(());
    };
    let dead = death.wait(testbed.interrupt, GUARD)?;

    record(testbed, &Record::read(&stamps)?, before, &decision, dead)?;
    check_bomb(testbed, &node, report, before)?;

    let reasons = ["fewer processes than the bomb", "critical, though its priority is lower"];
    pods::check_one_decision(testbed, &mut agent, &mut bystanders, reasons)?;
    pods::check_one_eviction(testbed, &node, kills_before, agent, ("pid.available", report))
}

fn describe(testbed: &Testbed<'_>) {
    testbed.printer.line(
        "node",
        format_args!("{PIDS} process ids; pid.available is below {THRESHOLD} beyond {}", PIDS - THRESHOLD),
    );
    testbed.printer.line("pod", format_args!("shop/checkout     {CHECKOUT} children"));
    testbed.printer.line("pod", format_args!("kube-system/etcd  {ETCD} children: critical, being static"));
    testbed.printer.line("pod", format_args!("batch/report      forks {RATE} a second, bounded at {BOMB}"));
}

fn record(
    testbed: &mut Testbed<'_>,
    record: &Record,
    before: u64,
    decision: &Event,
    dead: u64,
) -> Result<()> {
    let max_pids = PIDS - THRESHOLD;
    let forks = (max_pids + 1).checked_sub(before).context("the threshold was crossed before the bomb")?;
    let taken = max_pids + 1;
    // The agent may stop the bomb between the fork that crosses the threshold and its stamp.
    let reached = record.reached_by_steps(forks, 1);
    let reached =
        reached.with_context(|| format!("the bomb never made {forks} forks: {:?}", record.last()))?;
    let what = match reached {
        Reached::ByStamp(_) => format!("process id {taken} was taken, by the bomb's own clock"),
        Reached::AfterStamp(_) => {
            format!("the fork that took process id {taken} was next; it was stopped within it")
        }
    };
    let crossed = reached.ns();
    testbed.timeline = Timeline::crossed(crossed, what);
    testbed.mark_decision(decision);
    testbed.timeline.mark("dead", dead, "its last process was gone");
    testbed.printer.timeline(testbed);
    let decided = decision.number("decided_mono_ns").context("the decision has no time")?;
    let at_decision = record.bytes_at(decided).max(record.bytes_at(crossed));
    testbed.value("victim", decision.pod());
    testbed.value("max_pids", max_pids);
    testbed.value("overshoot_at_decision_pids", (before + at_decision).saturating_sub(max_pids));
    testbed.value("crossed_to_decided_us", decision.number("crossed_to_decided_us"));
    Ok(())
}

/// Checks that no process of the bomb is left, and that the node has its process IDs back.
fn check_bomb(testbed: &mut Testbed<'_>, node: &Node, bomb: usize, before: u64) -> Result<()> {
    let left = node.pods[bomb].group.processes();
    testbed.check("no process of batch/report is left", left.is_empty(), format_args!("processes {left:?}"));
    let root = node.root();
    let freed = testbed.interrupt.until("the process ids come back", GUARD, || {
        let pids = root.pids()?;
        Ok((pids <= before).then_some(pids))
    });
    let seen = match &freed {
        Ok(pids) => format!("{pids} are in use"),
        Err(_) => format!("{} are in use", root.pids()?),
    };
    testbed.check("the node has its process ids back", freed.is_ok(), seen);
    Ok(())
}
