//! A cgroup named `kubepods` that may belong to another kubelet: it has no pod that the agent knows, so the agent
//! decides nothing by its limit, until a known pod is in it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde_json::json;
use tests::agent::{Agent, Event, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::Workload;

const SIGNAL: &str = "allocatableMemory.available";

/// The limits of the cgroups. They differ, so that a value shows which cgroup was read.
const FOREIGN: u64 = 96 * MIB;
const OWN: u64 = 128 * MIB;

fn is_of_signal(event: &Event) -> bool {
    event.kind() == "threshold" && event.text("signal") == SIGNAL
}

fn wait_for_state(agent: &mut Agent, state: &str) -> Event {
    let what = format!("that the threshold is {state}");
    agent.wait_for(&what, GUARD, |event| is_of_signal(event) && event.is_threshold(state)).unwrap()
}

#[test]
fn allocatable_limits_apply_only_to_a_kubepods_cgroup_with_known_pods() {
    let Ok(mut node) = Node::new("foreign", 512 * MIB, 400) else { skip!("no cgroups can be made here") };
    let foreign = node.root().group("machine/inner/kubepods").unwrap();
    foreign.limit_memory(FOREIGN).unwrap();
    let uid = Node::config_hash(70);
    let inner = node.root().group(format!("machine/inner/kubepods/burstable/pod{uid}/app")).unwrap();
    let _foreign_usage = Workload::hold(&inner, "72M").unwrap();
    let kubelet = json!({
        "evictionHard": {"memory.available": "40Mi", "pid.available": "20"},
        "enforceNodeAllocatable": ["pods"],
    });
    let options = Options { action: "none", ..Options::new(&node, &kubelet).unwrap() };
    let mut agent = options.start().unwrap();
    let names_cgroup = |event: &Event| {
        event.kind() == "pods" && event.value["unknown_cgroups"].to_string().contains(uid.as_str())
    };
    agent.wait_for("the cgroup of an unknown pod", GUARD, names_cgroup).unwrap();

    let web = node.add(PodSpec::new("shop", "web", &["main"], 8)).unwrap();
    node.root().group("kubepods").unwrap().limit_memory(OWN).unwrap();
    let usage = node.hold(web, "104M").unwrap();
    node.write_pods().unwrap();
    let met = wait_for_state(&mut agent, "met");
    assert_eq!(met.number("capacity"), Some(OWN), "{met:?}");
    let is_reaction =
        |event: &&Event| is_of_signal(event) || ["condition", "eviction_decision"].contains(&event.kind());
    let events = agent.events().unwrap();
    assert_eq!(events.iter().find(is_reaction), Some(&met), "nothing was decided before");
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!((decision.text("signal"), &*decision.pod()), (SIGNAL, "shop/web"), "{decision:?}");

    // The pod is no longer known, and the cgroup is as full as before: nothing was cleared.
    let removed = node.pods.pop().unwrap();
    node.write_pods().unwrap();
    wait_for_state(&mut agent, "unknown");
    let cleared = |event: &Event| is_of_signal(event) && event.text("state") == "cleared";
    assert!(!agent.events().unwrap().iter().any(cleared), "{:?}", agent.events().unwrap());
    drop((usage, removed));
    agent.stop().unwrap();
}
