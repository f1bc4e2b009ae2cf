//! Files that go away under descriptors that are kept open.

use std::time::Duration;

use serde_json::json;
use tests::agent::{self, Agent, Options};
use tests::interrupt::Interrupt;
use tests::skip;

use crate::fixture::{GUARD, node};

/// Turns of a loop that spins would be some ten thousand in the time that is waited.
const MANY: f64 = 2_000.0;

#[test]
fn a_node_s_group_that_is_gone_is_unknown_and_the_loop_neither_ends_nor_spins() {
    let Some(node) = node("gone") else { skip!("no cgroups can be made here") };
    let kubelet = json!({"evictionHard": {"memory.available": "64Mi", "pid.available": "10"}});
    let options = Options::of(&agent::binary().unwrap(), &node, &kubelet).unwrap();
    let mut agent = Agent::start(&options, &Interrupt::default()).unwrap();
    drop(node);
    for signal in ["memory.available", "pid.available"] {
        let unknown = agent
            .wait_for(&format!("that {signal} is unknown"), GUARD, |event| {
                event.kind() == "signal_read_error" && event.text("signal") == signal
            })
            .unwrap();
        let why = unknown.text("error");
        assert!(why.contains("No such"), "{why}");
    }
    let looks = |agent: &Agent| agent.metrics().unwrap().sum("eviction_agent_syncs_total", &[]);
    let before = looks(&agent);
    std::thread::sleep(Duration::from_secs(3));
    let turns = looks(&agent) - before;
    assert!(turns < MANY, "{turns} turns");
    assert_eq!(agent.heard().unwrap().iter().filter(|event| event.kind() == "eviction_decision").count(), 0);
    assert!(agent.stop().unwrap().success());
}
