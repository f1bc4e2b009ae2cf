//! A container with `memory.oom.group` in its cgroup hits its limit: the kernel kills all of its processes.
//! That is one kill with several victims, and no eviction.

use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Error, Result};
use serde_json::json;
use tests::mounts::Hierarchy;
use tests::node::{MIB, PodSpec};

use crate::hard::{MEMORY, PIDS};
use crate::pods;
use crate::testbed::{GUARD, Skip, Testbed};

/// The memory limit of the container, MiB.
const LIMIT: u64 = 64;
/// The main process, its child that grows, and one that holds memory.
const PROCESSES: u64 = 3;

pub(crate) fn run(testbed: &mut Testbed<'_>) -> Result<()> {
    let mut node = testbed.node(MEMORY, PIDS)?;
    let spec = PodSpec { request_mib: 32, limit_mib: Some(LIMIT), ..pods::checkout() };
    let checkout = node.add(spec)?;
    // The limit of the pod is above the one of its only container. With equal limits it would be chance which
    // is met first: what the kernel needs for the pod's own cgroup is charged to the pod alone.
    node.pods[checkout].group.limit_memory(2 * LIMIT * MIB)?;
    let etcd = node.add(pods::etcd())?;
    let mut bystanders = pods::bystanders(testbed, &node, &[(etcd, 16)])?;
    let pod = &node.pods[checkout];
    let app = pod.containers.first().context("the pod has no container")?;
    let file = app.group.dir(Hierarchy::Unified).map(|dir| dir.join("memory.oom.group"));
    let Some(file) = file.filter(|file| file.exists()) else {
        return Err(Error::new(Skip("cgroup version 1 has no memory.oom.group".to_owned())));
    };
    std::fs::write(&file, "1").with_context(|| format!("write {}", file.display()))?;
    let id = std::fs::metadata(file.with_file_name("")).context("the container's cgroup")?.ino();
    testbed.printer.line("pod", format_args!("shop/checkout     limit {LIMIT} MiB, memory.oom.group"));

    let config = json!({"evictionHard": {"memory.available": "128Mi"}});
    let mut agent = testbed.agent(&node, &config, "oom")?;
    if !agent.has_backend("oom") {
        return Err(Error::new(Skip("no source of OOM kills can be used here".to_owned())));
    }
    let size = (8 * MIB).to_string();
    let _holder = testbed.start_and_wait(&app.group, &["hold", "--size", &size], "holding")?;
    let (size, rate) = ((4 * LIMIT * MIB).to_string(), (128 * MIB).to_string());
    let mut main = testbed.process(&app.group, &["child", "--size", &size, "--rate", &rate])?;
    main.go()?;
    testbed.interrupt.until("the kernel kills the container", GUARD, || {
        Ok(app.group.processes().is_empty().then_some(()))
    })?;
    let event = agent.wait_for("of all victims", GUARD, |event| {
        event.kind() == "oom_kill" && event.number("oom_group_kills") >= Some(PROCESSES)
    })?;
    testbed.check(
        "the agent reports one kill of the container's whole group",
        event.number("oom_group") == Some(id) && event.number("oom_group_kills") == Some(PROCESSES),
        format_args!("{}", event.value),
    );
    let (owner, limit) = (event.text("limit_scope"), event.number("limit"));
    testbed.check(
        "at the container's own limit",
        owner == "container" && limit == Some(LIMIT * MIB),
        format_args!("a limit of {limit:?} bytes of the {owner}"),
    );
    testbed.check_no_eviction(&mut agent)?;
    for bystander in &mut bystanders {
        bystander.check(testbed, "nothing was evicted")?;
    }
    agent.stop()
}
