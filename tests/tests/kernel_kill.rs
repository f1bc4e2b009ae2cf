//! Kernel kills with a running agent: the kernel carries out a kill order while the agent cannot run, but not an
//! expired order, and none after the agent's exit.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use eviction_bpf::capabilities::{self, Lockdown};
use rustix::process::Signal;
use serde_json::json;
use tests::agent::{Agent, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::process::{is_alive, signal, wait_until};
use tests::program;
use tests::workload::Workload;

/// The capacity of the node. The threshold is at 256 MiB, and all usage below it is near.
const MEMORY: u64 = 320 * MIB;

/// The maximum age of a kill order.
const ORDER_MAX_AGE: Duration = Duration::from_secs(2);

fn pod(name: &str, request_mib: u64) -> PodSpec {
    PodSpec::new("default", name, &["app"], request_mib)
}

/// A node with two pods. The first has a small request and uses much, and its last process has not begun to grow; the
/// second keeps to its request. The agent has its kill order on the first.
struct Testbed {
    node: Node,
    hog: usize,
    bystander_pod: usize,
    idle: Workload,
    runaway: Workload,
    bystander: Workload,
    agent: Agent,
}

impl Testbed {
    /// Creates a testbed, or returns why there can be none here.
    fn new(label: &str) -> Result<Self, String> {
        Self::with(label, &[])
    }

    /// Creates a testbed; the processes of the pod with the kill order get the arguments `more` as well.
    fn with(label: &str, more: &[&str]) -> Result<Self, String> {
        if capabilities::facts().lockdown == Lockdown::Confidentiality {
            return Err("lockdown=confidentiality withholds what a kernel kill reads".to_owned());
        }
        let mut node = Node::new(label, MEMORY, 200).map_err(|error| format!("no cgroups: {error:#}"))?;
        let hog = node.add(pod("hog", 8)).unwrap();
        let other = node.add(pod("bystander", 64)).unwrap();
        let mut idle = node.run(hog, &[&["hold", "--size", "160M"], more].concat()).unwrap();
        idle.wait_event("holding").unwrap();
        let bystander = node.hold(other, "16M").unwrap();
        let runaway = node.workload(hog, &[&["grow", "--size", "120M"], more].concat()).unwrap();
        let config = node.write_agent_config(&json!({"kernelKill": "HardMemory"})).unwrap();
        let hard = json!({"evictionHard": {"memory.available": "64Mi"}});
        let options = Options { config: Some(config), ..Options::new(&node, &hard).unwrap() };
        let agent = options.start().unwrap();
        if !agent.has_backend("charge") {
            return Err("no hook for charges".to_owned());
        }
        agent.wait_for_metric("eviction_agent_kernel_kill_armed", &[], |armed| armed == 1.0).unwrap();
        Ok(Self { node, hog, bystander_pod: other, idle, runaway, bystander, agent })
    }

    /// Returns how many processes were killed in the kernel, by the agent's count.
    fn kernel_kills(&self) -> f64 {
        self.agent.metric("eviction_agent_kernel_kills_total", &[]).unwrap()
    }

    /// Lets the runaway grow as far as it can. Returns whether it was killed.
    fn let_runaway_grow(&mut self) -> bool {
        self.runaway.go().unwrap();
        let stopped = self.runaway.wait_event("grown").is_err();
        if stopped {
            assert_eq!(self.runaway.process().wait().unwrap().signal(), Some(9));
        }
        stopped
    }

    /// Waits until the rest of the victim has ended and the agent reports that. Asserts that the other pod still
    /// runs.
    fn wait_for_eviction_end(&mut self) {
        wait_until("the rest of the pod to be gone", || self.is_hog_terminated()).unwrap();
        self.agent.wait_for_result("default/hog", "terminated").unwrap();
        assert!(self.bystander.process().is_running().unwrap());
    }

    fn is_hog_terminated(&self) -> bool {
        self.node.pods[self.hog].first().unwrap().processes().is_empty()
    }
}

#[test]
fn the_kernel_kills_the_runaway_while_the_agent_is_stopped() {
    // On a machine that gives the runaway less than 100 MB in two seconds the kill order expires.
    for _ in 0..5 {
        let mut testbed = tests::or_skip!(Testbed::new("kernel-kill"));
        signal(testbed.agent.pid(), Signal::STOP).unwrap();
        let stopped = Instant::now();
        let is_killed = testbed.let_runaway_grow();
        let elapsed = stopped.elapsed();
        assert!(testbed.idle.process().is_running().unwrap(), "only the pod that crossed the threshold");
        signal(testbed.agent.pid(), Signal::CONT).unwrap();
        if !is_killed {
            let why = testbed.agent.metrics().unwrap();
            assert!(
                elapsed > ORDER_MAX_AGE / 2,
                "the order was good, and the runaway crossed the threshold: {why:?}"
            );
            continue;
        }
        let reported =
            testbed.agent.wait_for("the kernel kill", GUARD, |event| event.kind() == "kernel_kill").unwrap();
        assert_eq!(reported.pod(), "default/hog", "{reported:?}");
        assert_eq!(reported.number("pid"), Some(testbed.runaway.pid().into()), "{reported:?}");
        let decided = testbed.agent.wait_for_decision().unwrap();
        assert_eq!(
            (&*decided.pod(), decided.text("detected_by")),
            ("default/hog", "kernel_kill"),
            "{decided:?}"
        );
        assert_eq!((reported.number("id"), decided.number("id")), (Some(1), Some(1)));
        assert_eq!(reported.text("decision_id"), decided.text("decision_id"));
        assert!(reported.number("armed_mono_ns") < reported.number("killed_mono_ns"), "{reported:?}");
        assert!(reported.number("killed_mono_ns") < decided.number("decided_mono_ns"), "{reported:?}");
        testbed.wait_for_eviction_end();
        assert_eq!(testbed.kernel_kills(), 1.0);
        assert_eq!(testbed.agent.count_decisions().unwrap(), 1);
        testbed.agent.stop().unwrap();
        return;
    }
    panic!("this machine was too busy in five of five runs");
}

#[test]
fn the_kernel_kills_a_victim_that_still_grows_after_the_decision() {
    // On a machine that needs the grace period of a second until the runaway has grown, the end of that period kills
    // it.
    for _ in 0..5 {
        let mut testbed = tests::or_skip!(Testbed::with("kernel-kill-grace", &["--on-term", "ignore"]));
        // Another pod crosses the threshold, which the kill order is not on.
        let arguments = ["grow", "--size", "90M", "--rate", "200M"];
        let mut crossing = testbed.node.run(testbed.bystander_pod, &arguments).unwrap();
        let decided = testbed.agent.wait_for_decision().unwrap();
        assert_eq!(decided.pod(), "default/hog", "{decided:?}");
        assert_ne!(decided.text("detected_by"), "kernel_kill", "{decided:?}");
        assert!(testbed.let_runaway_grow(), "it had grown to its end");
        testbed.wait_for_eviction_end();
        assert!(
            crossing.process().is_running().unwrap(),
            "it has crossed the threshold, and is not killed for that"
        );
        if testbed.kernel_kills() == 0.0 {
            testbed.agent.stop().unwrap();
            continue;
        }
        let reported =
            testbed.agent.wait_for("the kernel kill", GUARD, |event| event.kind() == "kernel_kill").unwrap();
        assert_eq!(reported.number("pid"), Some(testbed.runaway.pid().into()), "{reported:?}");
        assert_eq!(reported.number("id"), decided.number("id"), "{reported:?}");
        assert!(reported.number("killed_mono_ns") > decided.number("decided_mono_ns"), "{reported:?}");
        assert_eq!(testbed.agent.count_decisions().unwrap(), 1);
        testbed.agent.stop().unwrap();
        return;
    }
    panic!("the grace period was over before the runaway was stopped, in five of five runs");
}

#[test]
fn an_expired_kill_order_is_not_carried_out() {
    let mut testbed = tests::or_skip!(Testbed::new("kernel-kill-old"));
    signal(testbed.agent.pid(), Signal::STOP).unwrap();
    std::thread::sleep(ORDER_MAX_AGE + Duration::from_secs(1));
    assert!(!testbed.let_runaway_grow(), "this was not decided recently");
    signal(testbed.agent.pid(), Signal::CONT).unwrap();
    // The agent evicts in the ordinary way then.
    let decided = testbed.agent.wait_for_decision().unwrap();
    assert_eq!(decided.pod(), "default/hog", "{decided:?}");
    assert_ne!(decided.text("detected_by"), "kernel_kill", "{decided:?}");
    wait_until("the pod to be gone", || testbed.is_hog_terminated()).unwrap();
    assert_eq!(testbed.kernel_kills(), 0.0);
    assert!(testbed.bystander.process().is_running().unwrap());
    testbed.agent.stop().unwrap();
}

#[test]
fn a_kill_order_ends_with_the_agent() {
    let mut testbed = tests::or_skip!(Testbed::new("kernel-kill-dead"));
    let agent = testbed.agent.pid();
    let programs = program::ids_of(agent).unwrap();
    assert!(!programs.is_empty());
    signal(agent, Signal::KILL).unwrap();
    wait_until("the agent's end", || !is_alive(agent)).unwrap();
    program::wait_until_unloaded(&programs).unwrap();
    assert!(!testbed.let_runaway_grow());
    for workload in [&mut testbed.runaway, &mut testbed.idle, &mut testbed.bystander] {
        assert!(workload.process().is_running().unwrap(), "nothing is killed by a program that is gone");
    }
}
