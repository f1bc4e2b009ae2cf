//! A group named `kubepods` that may be another kubelet's: it has no pod that the agent knows, so nothing
//! is decided by its limit, until a known pod is in it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde_json::json;
use tests::agent::{self, Agent, Event, Options};
use tests::cgroup::Group;
use tests::interrupt::Interrupt;
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::{self, Workload};

const GUARD: std::time::Duration = agent::GUARD;

const SIGNAL: &str = "allocatableMemory.available";

/// Limits of the groups: each of them tells whose a reading is.
const FOREIGN: u64 = 96 * MIB;
const OWN: u64 = 128 * MIB;

fn holds(group: &Group, size: &str) -> Workload {
    let arguments = ["hold", "--size", size];
    let mut process = Workload::run(&workload::binary().unwrap(), group, arguments).unwrap();
    process.wait_event("holding").unwrap();
    process
}

fn is_of_signal(event: &Event) -> bool {
    event.kind() == "threshold" && event.text("signal") == SIGNAL
}

fn in_state(agent: &mut Agent, state: &str) -> Event {
    let what = format!("that the threshold is {state}");
    agent.wait_for(&what, GUARD, |event| is_of_signal(event) && event.text("state") == state).unwrap()
}

#[test]
fn a_group_without_known_pods_is_not_acted_on_and_the_own_one_is_when_it_appears() {
    let Ok(mut node) = Node::new("foreign", 512 * MIB, 400) else { skip!("no cgroups can be made here") };
    let foreign = node.root().group("machine/inner/kubepods").unwrap();
    foreign.limit_memory(FOREIGN).unwrap();
    let uid = Node::config_hash(70);
    let inner = node.root().group(format!("machine/inner/kubepods/burstable/pod{uid}/app")).unwrap();
    let _foreign_usage = holds(&inner, "72M");
    let kubelet = json!({
        "evictionHard": {"memory.available": "40Mi", "pid.available": "20"},
        "enforceNodeAllocatable": ["pods"],
    });
    let options = Options::of(&agent::binary().unwrap(), &node, &kubelet).unwrap();
    let options = Options { action: "none", ..options };
    let mut agent = Agent::start(&options, &Interrupt::default()).unwrap();
    let shows_it = |event: &Event| {
        event.kind() == "pods" && event.value["unknown_cgroups"].to_string().contains(uid.as_str())
    };
    agent.wait_for("the cgroup of an unknown pod", GUARD, shows_it).unwrap();

    let web = node.add(PodSpec::new("shop", "web", &["main"], 8)).unwrap();
    node.root().group("kubepods").unwrap().limit_memory(OWN).unwrap();
    let usage = holds(&node.pods[web].containers[0].group, "104M");
    node.write_pods().unwrap();
    let met = in_state(&mut agent, "met");
    assert_eq!(met.number("capacity"), Some(OWN), "{met:?}");
    let acts =
        |event: &&Event| is_of_signal(event) || ["condition", "eviction_decision"].contains(&event.kind());
    let heard = agent.heard().unwrap();
    assert_eq!(heard.iter().find(acts), Some(&met), "nothing was decided before");
    let decision = agent.wait_for("a decision", GUARD, |event| event.kind() == "eviction_decision").unwrap();
    assert_eq!((decision.text("signal"), &*decision.pod()), (SIGNAL, "shop/web"), "{decision:?}");

    // The pod is not known any more, though the group is as full as before: nothing was cleared.
    let removed = node.pods.pop().unwrap();
    node.write_pods().unwrap();
    in_state(&mut agent, "unknown");
    let cleared = |event: &Event| is_of_signal(event) && event.text("state") == "cleared";
    assert!(!agent.heard().unwrap().iter().any(cleared), "{:?}", agent.heard().unwrap());
    drop((usage, removed));
    assert!(agent.stop().unwrap().success());
}
