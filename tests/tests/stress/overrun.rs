//! A reaction thread that runs too long without waiting, by the kernel's own count.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tests::metrics::Metrics;
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::Workload;

use crate::rig::Rig;

/// To read as many without the iterator takes some dozens of milliseconds, each second while a line is near.
const GROUPS: usize = 4000;

/// The kernel looks at each tick of its clock, of which there are 100 to 1000 a second.
const LONGEST_RUN_US: u64 = 1;

#[test]
fn a_reaction_thread_that_runs_too_long_becomes_an_ordinary_one_and_goes_on_deciding() {
    let Ok(mut node) = Node::new("overrun", 1024 * MIB, 100) else { skip!("no cgroups can be made here") };
    node.add(PodSpec::new("shop", "web", &["main"], 8)).unwrap();
    for number in 0..GROUPS {
        node.root().group(format!("group-{number}")).unwrap();
    }
    let rig = Rig::start(node, Stdio::null(), Stdio::null(), "info", &["--deny-rung", "iter cgroup"]);
    let runs_as = |rung| {
        let labels = [("source", "reaction thread"), ("rung", rung)];
        Metrics::read(rig.address).unwrap().sum("eviction_agent_source_info", &labels) == 1.0
    };
    if !runs_as("SCHED_FIFO") {
        skip!("no thread can have real time here");
    }
    let agent = Pid::from_raw(rig.pid().cast_signed());
    let second = Rlimit { current: Some(LONGEST_RUN_US), maximum: None };
    let before = prlimit(agent, Resource::Rttime, second).unwrap();
    assert_eq!(before.current, Some(1_000_000), "the agent's own bound");
    rig.until("it is stepped down", || runs_as("nice -20"));
    assert!(!runs_as("SCHED_FIFO"));
    let group = &rig.node.pods[0].containers[0].group;
    let arguments = ["grow", "--size", "1000M", "--rate", "1G"];
    let mut hog = Workload::start(Path::new(env!("CARGO_BIN_EXE_workload")), group, arguments).unwrap();
    hog.go().unwrap();
    rig.until("the hog is killed", || !hog.process().is_running().unwrap());
    assert_eq!(rig.node.oom_kills().unwrap(), 0, "by the agent, not by the kernel");
    rig.until("the eviction is told", || rig.metric("eviction_agent_evictions_total") == 1.0);
    assert!(rig.stop().success());
}
