//! A node of pods with two containers each, the agent on it, and processes that grow until the kernel kills
//! them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use tests::agent::{Agent, Event, Options};
use tests::cgroup::{Group, container_id};
use tests::interrupt::Interrupt;
use tests::meminfo;
use tests::mounts::Hierarchy;
use tests::node::{MIB, Node, PodSpec};
use tests::process::HANG;
use tests::workload::Workload;

use crate::kill::{Kill, Level};

/// Enough for the workload program itself, and small enough to be filled quickly.
const LIMIT: u64 = 8 * MIB;
/// A limit that is never reached.
const UNLIMITED: u64 = 1 << 50;
/// The limit of the node where the machine itself must not run out of memory.
const NODE: u64 = 1 << 30;
const PIDS: u64 = 400;
/// The timeout for what hangs. It does not measure speed.
const GUARD: Duration = HANG;
/// The time after which the agent has compared the kernel's counters with its records.
const SETTLE: Duration = Duration::from_secs(13);
/// One of this many kills at a container's limit is in a cgroup that is removed after it.
const FLEETING: usize = 10;

/// A node, and the agent on it.
#[derive(Debug)]
pub(crate) struct Testbed {
    interrupt: Interrupt,
    // Dropped before the node is removed.
    agent: Agent,
    node: Node,
    serial: u64,
}

impl Testbed {
    pub(crate) fn new(
        agent: &Path,
        pods: usize,
        global: bool,
        disabled: &[String],
        interrupt: Interrupt,
    ) -> Result<Self> {
        let mut node = Node::new("oom", if global { UNLIMITED } else { NODE }, PIDS)?;
        for nth in 0..pods {
            node.add(PodSpec::new("bench", format!("pod-{nth}"), &["app", "proxy"], 8))?;
        }
        let kubelet = json!({"evictionHard": {"memory.available": "1Mi"}});
        let more =
            disabled.iter().flat_map(|backend| ["--disable-backend".to_owned(), backend.clone()]).collect();
        let options = Options { action: "none", more, ..Options::of(agent, &node, &kubelet)? };
        let agent = Agent::start(&options, &interrupt)?;
        Ok(Self { interrupt, agent, node, serial: 0 })
    }

    /// Returns the backend by which the agent sees kills.
    pub(crate) fn backend(&self) -> String {
        self.agent.backend("oom").unwrap_or_else(|| "none".to_owned())
    }

    /// Causes a kill at a limit: one in each container at its own limit, then one in each at the limit of its
    /// pod, and so on. Every tenth kill is, if it is of the first kind, in a container that exists for it only.
    pub(crate) fn kill_at_limit(&mut self, nth: usize) -> Result<Kill> {
        let places = 2 * self.node.pods.len();
        let (place, round) = (nth % places, nth / places);
        let level = match round % 2 {
            0 if nth % FLEETING == FLEETING - 1 => Level::Fleeting,
            0 => Level::Container,
            _ => Level::Pod,
        };
        let pod = &self.node.pods[place / 2];
        let (own, whole) = if level == Level::Pod { (UNLIMITED, LIMIT) } else { (LIMIT, UNLIMITED) };
        let (pod_group, mut container) = (pod.group.clone(), pod.containers[place % 2].group.clone());
        let mut name = pod.containers[place % 2].name.to_owned();
        let full_name = pod.full_name();
        if level == Level::Fleeting {
            self.serial += 1;
            let id = container_id(u64::MAX - self.serial);
            // No pod status contains this container, so the agent reports the start of its ID as its name.
            name = id[..12].to_owned();
            container = pod_group.group(&id)?;
        }
        pod_group.limit_memory(whole)?;
        container.limit_memory(own)?;
        let pid = self.grow(&container, "16M")?;
        if level == Level::Fleeting {
            container.destroy()?;
        }
        let owner = if level == Level::Pod { &pod_group } else { &container };
        Ok(Kill {
            level,
            pids: vec![pid],
            pod: full_name,
            container: name,
            cgroup: self.path_below_node(&container)?,
            owner_cgroup: Some(self.path_below_node(owner)?),
        })
    }

    /// Returns whether `memory.oom.group` exists.
    pub(crate) fn has_groups(&self) -> bool {
        self.oom_group(&self.node.pods[0].containers[0].group).is_some()
    }

    fn oom_group(&self, group: &Group) -> Option<PathBuf> {
        let file = group.dir(Hierarchy::Unified)?.join("memory.oom.group");
        file.exists().then_some(file)
    }

    /// Kills a container of three processes as a group. One of them grows.
    pub(crate) fn kill_group(&mut self, nth: usize) -> Result<Kill> {
        let pod = &self.node.pods[nth % self.node.pods.len()];
        let (pod_group, container) = (pod.group.clone(), pod.containers[0].group.clone());
        let (full_name, name) = (pod.full_name(), pod.containers[0].name.to_owned());
        let file = self.oom_group(&container).context("no memory.oom.group")?;
        pod_group.limit_memory(UNLIMITED)?;
        container.limit_memory(2 * LIMIT)?;
        fs::write(&file, "1").with_context(|| format!("write {}", file.display()))?;
        let mut beside = Vec::new();
        for _ in 0..2 {
            let mut holder = self.start(&container, &["hold", "--size", "1M"])?;
            holder.go()?;
            holder.wait_event("holding")?;
            beside.push(holder);
        }
        let mut pids = vec![self.grow(&container, "32M")?];
        for holder in &mut beside {
            pids.push(holder.pid());
            let status = holder.process().wait()?;
            if status.success() {
                bail!("process {} of a group that is killed as a whole ended by itself", holder.pid());
            }
        }
        fs::write(&file, "0").with_context(|| format!("write {}", file.display()))?;
        let cgroup = self.path_below_node(&container)?;
        Ok(Kill {
            level: Level::Group,
            pids,
            pod: full_name,
            container: name,
            owner_cgroup: Some(cgroup.clone()),
            cgroup,
        })
    }

    /// Causes a global kill: a process without any limit takes all memory of the machine.
    pub(crate) fn kill_globally(&mut self, nth: usize) -> Result<Kill> {
        let pod = &self.node.pods[nth % self.node.pods.len()];
        let (pod_group, container) = (pod.group.clone(), pod.containers[1].group.clone());
        let (full_name, name) = (pod.full_name(), pod.containers[1].name.to_owned());
        pod_group.limit_memory(UNLIMITED)?;
        container.limit_memory(UNLIMITED)?;
        let pid = self.grow(&container, &meminfo::total()?.to_string())?;
        let cgroup = self.path_below_node(&container)?;
        Ok(Kill {
            level: Level::Global,
            pids: vec![pid],
            pod: full_name,
            container: name,
            cgroup,
            owner_cgroup: None,
        })
    }

    /// Runs a process that grows in a cgroup until the kernel kills it, and returns its process ID.
    fn grow(&self, group: &Group, size: &str) -> Result<u32> {
        let before = group.oom_kills()?;
        let mut process = self.start(group, &["grow", "--size", size, "--rate", "0"])?;
        process.go()?;
        let status = process.process().wait()?;
        let killed = group.oom_kills()?.saturating_sub(before);
        if killed == 0 {
            bail!(
                "the kernel counts no kill in {}: {}",
                group.path().display(),
                tests::agent::describe(status)
            );
        }
        Ok(process.pid())
    }

    fn start(&self, group: &Group, arguments: &[&str]) -> Result<Workload> {
        self.interrupt.check()?;
        let process = Workload::start(group, arguments)?;
        let file = format!("/proc/{}/oom_score_adj", process.pid());
        fs::write(&file, "1000").with_context(|| format!("write {file}"))?;
        Ok(process)
    }

    fn path_below_node(&self, group: &Group) -> Result<String> {
        let below = group.path().strip_prefix(self.node.root().path()).context("a group of the node")?;
        Ok(format!("/{}", below.display()))
    }

    /// Waits until the agent has reported so many kills, or until the timeout. Returns the events, and the
    /// number of kills that it has only counted.
    pub(crate) fn reported(&mut self, kills: u64) -> Result<(Vec<Event>, u64)> {
        let end = Instant::now() + GUARD;
        let mut settled = false;
        loop {
            self.interrupt.sleep(Duration::from_millis(500))?;
            let reported = self.agent.events()?.iter().filter(|event| event.kind() == "oom_kill");
            let reported: Vec<Event> = reported.cloned().collect();
            let unattributed: u64 = reported.iter().filter_map(|event| event.number("unattributed")).sum();
            if unattributed.max(reported.len() as u64) >= kills && !settled {
                settled = true;
                self.interrupt.sleep(SETTLE)?;
            } else if settled || Instant::now() >= end {
                return Ok((reported, unattributed));
            }
        }
    }
}

/// Returns the number of OOM kills on the machine since it was started.
pub(crate) fn kernel_oom_kills() -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").context("read /proc/vmstat")?;
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.context("/proc/vmstat has no oom_kill")?.trim().parse().context("oom_kill of /proc/vmstat")
}
