//! A limit is hit (a container's, its pod's, or the memory of the machine), and the kernel kills a child
//! process. That is no eviction, and must not be reported as one.

use anyhow::{Context as _, Error, Result};
use serde_json::{Value, json};
use tests::agent::Event;
use tests::meminfo;
use tests::node::{MIB, Pod, PodSpec};
use tests::process;
use tests::stamps::Record;

use crate::hard::{MEMORY, PIDS};
use crate::pods;
use crate::testbed::{GUARD, Skip, Testbed};
use crate::timeline::Timeline;

/// The limit of each container of the pod, MiB; the pod as a whole has twice that.
const LIMIT: u64 = 64;
const ETCD: u64 = 48;
const RATE: u64 = 128 * MIB;

/// The owner of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The container; the pod as a whole has twice its limit.
    Container,
    /// The pod; its containers have no limit.
    Pod,
    /// None, except for the memory of the machine.
    Node,
}

impl Level {
    /// Returns the owner as the agent names it.
    fn owner(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
            Self::Node => "node",
        }
    }

    /// Returns the limit, bytes.
    fn limit(self) -> Option<u64> {
        match self {
            Self::Container | Self::Pod => Some(LIMIT * MIB),
            Self::Node => None,
        }
    }

    /// Returns the size to which the child would grow, bytes.
    fn size(self) -> Result<u64> {
        match self {
            Self::Container | Self::Pod => Ok(4 * LIMIT * MIB),
            // More cannot be mapped.
            Self::Node => Ok(meminfo::total()? - 16 * MIB),
        }
    }
}

pub(crate) fn run(testbed: &mut Testbed<'_>, level: Level) -> Result<()> {
    // The limit of the node is above the machine's own memory, so that the machine runs out first.
    let memory = if level == Level::Node { 4 * meminfo::total()? } else { MEMORY };
    let mut node = testbed.node(memory, PIDS)?;
    let spec = PodSpec {
        containers: &["app", "proxy"],
        request_mib: 32,
        limit_mib: (level == Level::Container).then_some(LIMIT),
        ..pods::checkout()
    };
    let checkout = node.add(spec)?;
    if level == Level::Pod {
        node.pods[checkout].group.limit_memory(LIMIT * MIB)?;
    }
    let etcd = node.add(pods::etcd())?;
    let report = node.add(pods::report())?;
    let limits = match level {
        Level::Container => format!("limit {LIMIT} MiB each"),
        Level::Pod => format!("limit {LIMIT} MiB together"),
        Level::Node => "no limits".to_owned(),
    };
    testbed.printer.line("pod", format_args!("shop/checkout     containers app and proxy, {limits}"));
    testbed.printer.line("node", "far from its threshold");
    let mut bystanders = pods::bystanders(testbed, &node, &[(etcd, ETCD), (report, 16)])?;
    let config = json!({"evictionHard": {"memory.available": "128Mi"}});
    let mut agent = testbed.agent(&node, &config, "oom")?;
    if !agent.has_backend("oom") {
        return Err(Error::new(Skip("no source of OOM kills can be used here".to_owned())));
    }

    let pod = &node.pods[checkout];
    let app = pod.containers.first().context("the pod has no container")?;
    let kills_before = app.group.oom_kills()?;
    let stamps = node.file("stamps-child");
    let (size, rate, file) = (level.size()?.to_string(), RATE.to_string(), stamps.display().to_string());
    let mut arguments = vec!["child", "--size", &size, "--rate", &rate, "--stamps", &file];
    if level != Level::Node {
        arguments.push("--touch-first");
    }
    let mut main = testbed.process(&app.group, &arguments)?;
    main.go()?;
    let child = main.wait_event("child")?;
    let child = child.get("child").and_then(Value::as_u64).context("the child's pid")?;
    let child = u32::try_from(child).context("the child's pid")?;
    testbed
        .interrupt
        .until("the kernel kills the child", GUARD, || Ok((!process::is_alive(child)).then_some(())))?;
    let ended = main.wait_event("child-ended")?;
    let event = agent.wait_for("of the OOM kill", GUARD, |event| event.kind() == "oom_kill")?;

    record(testbed, &Record::read(&stamps)?, &ended, &event)?;
    check_event(testbed, &event, child, pod, level)?;
    let kills = app.group.oom_kills()?.saturating_sub(kills_before);
    testbed.check("the kernel counts one OOM kill in that container", kills == 1, format_args!("{kills}"));
    let signal = ended.get("signal").and_then(Value::as_u64);
    testbed.check("the child died by SIGKILL", signal == Some(9), format_args!("signal {signal:?}"));
    testbed.check("the container's main process lives", main.process().is_running()?, "it ended");

    testbed.check_no_eviction(&mut agent)?;
    let kills = agent.events()?.iter().filter(|event| event.kind() == "oom_kill").count();
    testbed.check("the kill was reported once", kills == 1, format_args!("{kills} kills"));
    pods::check_bystanders(testbed, &mut bystanders, ["nothing was evicted"; 2])?;
    pods::check_counters(testbed, &agent, &[], 1)?;
    agent.stop()
}

fn record(testbed: &mut Testbed<'_>, record: &Record, ended: &Value, event: &Event) -> Result<()> {
    let last = record.last().context("the child has stamped nothing")?;
    let what = format!("the child's own last stamp, {} MiB touched", last.bytes / MIB);
    testbed.timeline = Timeline::crossed(last.ns, what);
    if let Some(at) = event.number("mono_ns") {
        testbed.timeline.mark("kernel", at, "the kernel chose its victim");
    }
    let dead = ended.get("ns").and_then(Value::as_u64).context("the time of the child's end")?;
    testbed.timeline.mark("dead", dead, "its parent has seen its end");
    testbed.timeline.mark("seen", event.read_ns, "the agent had reported it");
    testbed.printer.timeline(testbed);
    for key in ["pid", "comm", "pod", "container", "limit_scope", "inferred", "usage", "limit", "anon"] {
        testbed.value(key, event.value.get(key).cloned().unwrap_or(Value::Null));
    }
    Ok(())
}

/// Checks the agent's event about the kill.
fn check_event(testbed: &mut Testbed<'_>, event: &Event, child: u32, pod: &Pod, level: Level) -> Result<()> {
    let app = pod.containers.first().context("the pod has no container")?;
    let victim = event.number("pid");
    testbed.check(
        format!("the agent names the victim, process {child}"),
        victim == Some(child.into()),
        format_args!("process {victim:?}"),
    );
    let container = event.text("container");
    let of_app = container == app.name || container.contains(&app.id);
    testbed.check(
        "in container app of shop/checkout",
        of_app && event.pod() == pod.full_name() && event.text("pod_uid") == pod.uid(),
        format_args!("container `{container}` of {} ({})", event.pod(), event.text("pod_uid")),
    );
    let (owner, limit) = (event.text("limit_scope"), event.number("limit"));
    testbed.check(
        format!("whose limit it was: {}", level.owner()),
        owner == level.owner() && (limit.is_none() || limit == level.limit()),
        format_args!("a limit of {limit:?} bytes of the {owner}"),
    );
    Ok(())
}
