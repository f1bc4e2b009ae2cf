//! A fork bomb, bounded by a limit of its own, eats the node's process ids.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use tests::agent::Event;
use tests::death::Death;
use tests::node::Node;
use tests::stamps::Record;

use crate::hard::MEMORY;
use crate::pods::{self, Bystander};
use crate::scene::{GUARD, Scene};
use crate::timeline::Timeline;

/// Process ids of the node, and a bound that nothing in it can pass.
const PIDS: u64 = 300;
/// What must stay available.
const THRESHOLD: u64 = 60;
/// Children of the bystanders.
const CHECKOUT: u64 = 40;
const ETCD: u64 = 20;
/// The bomb's own bound: beyond the line, and not all that the node has.
const BOMB: u64 = 220;
/// Forks per second.
const RATE: &str = "400";

pub(crate) fn run(scene: &mut Scene<'_>) -> Result<()> {
    let mut node = scene.node(MEMORY, PIDS)?;
    let checkout = node.add(pods::checkout())?;
    let etcd = node.add(pods::etcd())?;
    let report = node.add(pods::report())?;
    node.pods[report].group.limit_pids(BOMB)?;
    describe(scene);
    let mut bystanders = Vec::new();
    for (index, children) in [(checkout, CHECKOUT), (etcd, ETCD)] {
        let children = children.to_string();
        let pod = &node.pods[index];
        let process = scene.settled(pod.first()?, &["forks", "--max", &children], "forked")?;
        bystanders.push(Bystander::new(pod, process));
    }
    let config = json!({"evictionHard": {"pid.available": THRESHOLD.to_string()}});
    let mut agent = scene.agent(&node, &config, "task")?;
    let kills_before = node.oom_kills()?;

    let stamps = node.file("stamps-forks");
    let file = stamps.display().to_string();
    let most = (2 * BOMB).to_string();
    let pod = &node.pods[report];
    let arguments = ["forks", "--bomb", "--max", &most, "--rate", RATE, "--stamps", &file];
    let mut bomb = scene.process(pod.first()?, &arguments)?;
    let before = node.root().pids()?;
    let death = Death::of(&pod.group, bomb.pid())?;
    bomb.go()?;
    let Some(decision) = scene.eviction(&mut agent, "pid.available", pod)? else {
        return Ok(());
    };
    let dead = death.at(scene.interrupt, GUARD)?;

    record(scene, &Record::read(&stamps)?, before, &decision, dead)?;
    check_bomb(scene, &node, report, before)?;

    // Time for a second victim to be chosen, were the first not enough for the agent.
    scene.interrupt.sleep(Duration::from_millis(1500))?;
    let decisions = agent.heard()?.iter().filter(|event| event.kind() == "eviction_decision").count();
    scene.check("one decision, one victim", decisions == 1, format_args!("{decisions} decisions"));
    let reasons = ["fewer processes than the bomb", "critical, though its priority is lower"];
    for (bystander, why) in bystanders.iter_mut().zip(reasons) {
        bystander.check(scene, why)?;
    }
    pods::check_one_eviction(scene, &node, kills_before, agent, ("pid.available", report))
}

fn describe(scene: &Scene<'_>) {
    scene.printer.line(
        "node",
        format_args!("{PIDS} process ids; pid.available is below {THRESHOLD} beyond {}", PIDS - THRESHOLD),
    );
    scene.printer.line("pod", format_args!("shop/checkout     {CHECKOUT} children"));
    scene.printer.line("pod", format_args!("kube-system/etcd  {ETCD} children: critical, being static"));
    scene.printer.line("pod", format_args!("batch/report      forks {RATE} a second, bounded at {BOMB}"));
}

fn record(scene: &mut Scene<'_>, record: &Record, before: u64, decision: &Event, dead: u64) -> Result<()> {
    let line = PIDS - THRESHOLD;
    let forks = (line + 1).checked_sub(before).context("the line was passed before the bomb")?;
    let taken = line + 1;
    // The agent may stop the bomb between the fork that crosses the line and its stamp: then it
    // crossed after the stamp before.
    let unstamped = || record.last().filter(|stamp| stamp.bytes + 1 == forks);
    let (crossed, what) = match (record.reached(forks), unstamped()) {
        (Some(at), _) => (at, format!("process id {taken} was taken, by the bomb's own clock")),
        (None, Some(before)) => {
            (before.ns, format!("the fork that took process id {taken} was next; it was stopped within it"))
        }
        (None, None) => {
            bail!("a pod was chosen, but the bomb never made {forks} forks: {:?}", record.last())
        }
    };
    scene.timeline = Timeline::crossed(crossed, what);
    scene.mark_decision(decision);
    scene.timeline.mark("dead", dead, "its last process was gone");
    scene.printer.timeline(scene);
    let decided = decision.number("decided_mono_ns").context("the decision has no time")?;
    let at_decision = record.bytes_at(decided).max(record.bytes_at(crossed));
    scene.value("victim", decision.pod());
    scene.value("line_pids", line);
    scene.value("overshoot_at_decision_pids", (before + at_decision).saturating_sub(line));
    scene.value("crossed_to_decided_us", decision.number("crossed_to_decided_us"));
    Ok(())
}

/// Nothing is left of the bomb, and the node has its process ids back.
fn check_bomb(scene: &mut Scene<'_>, node: &Node, bomb: usize, before: u64) -> Result<()> {
    let left = node.pods[bomb].group.processes();
    scene.check("no process of batch/report is left", left.is_empty(), format_args!("processes {left:?}"));
    let root = node.root();
    let freed = scene.interrupt.until("the process ids come back", GUARD, || {
        let pids = root.pids()?;
        Ok((pids <= before).then_some(pids))
    });
    let seen = match &freed {
        Ok(pids) => format!("{pids} are in use"),
        Err(_) => format!("{} are in use", root.pids()?),
    };
    scene.check("the node has its process ids back", freed.is_ok(), seen);
    Ok(())
}
