//! The Enhanced profile: the agent as it is shipped, real cgroups, real processes.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde_json::json;
use tests::agent::{Agent, Event, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::Workload;

const MEMORY: u64 = 384 * MIB;
const PIDS: u64 = 200;

fn pod(name: &str) -> PodSpec {
    PodSpec::new("shop", name, &["main"], 8)
}

fn start(node: &Node) -> Agent {
    let kubelet = json!({
        "evictionHard": {"memory.available": "64Mi", "pid.available": "60"},
        "evictionSoft": {"memory.available": "192Mi"},
        "evictionSoftGracePeriod": {"memory.available": "1s"},
    });
    // The pods of this node have no owner.
    let config = json!({"profile": "Enhanced", "policy": {"soft": {"evictPodsWithoutController": true}}});
    let config = node.write_agent_config(&config).unwrap();
    let options = Options { config: Some(config), ..Options::new(node, &kubelet).unwrap() };
    options.start().unwrap()
}

fn wait_for_decision(agent: &mut Agent, pod: &str, signal: &str, kind: &str) -> Event {
    let is_match = |event: &Event| {
        event.is_decision()
            && event.pod() == pod
            && event.text("signal") == signal
            && event.text("threshold") == kind
    };
    agent.wait_for(&format!("a {kind} decision on {pod} for {signal}"), GUARD, is_match).unwrap()
}

/// Creates a node where the agent selected `slow` for the soft memory threshold, and `slow` ignores SIGTERM.
fn node_with_slow_victim() -> Option<(Node, Agent, [Workload; 2])> {
    let mut node = Node::new("enhanced", MEMORY, PIDS).ok()?;
    for name in ["slow", "quiet", "bomb"] {
        node.add(pod(name)).unwrap();
    }
    let quiet = node.run(QUIET, &["hold", "--size", "24M"]).unwrap();
    let mut agent = start(&node);
    let slow = node.run(SLOW, &["grow", "--size", "190M", "--on-term", "ignore"]).unwrap();
    let soft = wait_for_decision(&mut agent, "shop/slow", "memory.available", "soft");
    assert_eq!(soft.number("grace_seconds"), Some(30), "the API server's default: the pod says nothing");
    Some((node, agent, [quiet, slow]))
}

const SLOW: usize = 0;
const QUIET: usize = 1;
const BOMB: usize = 2;

fn is_empty(node: &Node, pod: usize) -> bool {
    node.pods[pod].group.processes().is_empty()
}

#[test]
fn a_slow_soft_eviction_becomes_hard_when_the_hard_threshold_is_met() {
    let Some((node, mut agent, [mut quiet, _slow])) = node_with_slow_victim() else {
        skip!("no cgroups can be made here")
    };
    let _more = node.run(SLOW, &["grow", "--size", "110M", "--on-term", "ignore"]).unwrap();
    wait_for_decision(&mut agent, "shop/slow", "memory.available", "hard");
    agent.wait_for_result("shop/slow", "terminated").unwrap();
    assert!(is_empty(&node, SLOW));
    assert!(quiet.process().is_running().unwrap(), "there is no second victim for one deficit");
    let mut decisions = agent.events().unwrap().iter().filter(|event| event.is_decision());
    assert!(decisions.all(|event| event.pod() == "shop/slow"));
    agent.stop().unwrap();
}

#[test]
fn a_slow_victim_does_not_delay_evictions_for_other_signals() {
    let Some((node, mut agent, [mut quiet, _slow])) = node_with_slow_victim() else {
        skip!("no cgroups can be made here")
    };
    let _forks = node.run(BOMB, &["forks", "--max", "170", "--rate", "1000"]).unwrap();
    let bomb = wait_for_decision(&mut agent, "shop/bomb", "pid.available", "hard");
    agent.wait_for_result("shop/bomb", "terminated").unwrap();
    assert!(is_empty(&node, BOMB));
    let before = agent.events().unwrap().iter().filter(|event| event.read_ns < bomb.read_ns);
    let ended = before.filter(|event| event.is_result("terminated")).count();
    assert_eq!(ended, 0, "the slow one was still on its way, where the kubelet waits");
    assert!(quiet.process().is_running().unwrap());
    agent.stop().unwrap();
}
