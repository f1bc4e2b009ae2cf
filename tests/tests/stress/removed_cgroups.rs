//! Files that are removed while their descriptors are kept open.

use std::time::Duration;

use serde_json::json;
use tests::agent::{Agent, Options};
use tests::skip;

use crate::fixture::{GUARD, node};

/// The maximum number of iterations. A loop that spins would make some ten thousand in the time that the test waits.
const MANY: f64 = 2_000.0;

#[test]
fn a_removed_node_cgroup_causes_read_errors_and_no_busy_loop() {
    let Some(node) = node("gone") else { skip!("no cgroups can be made here") };
    let kubelet = json!({"evictionHard": {"memory.available": "64Mi", "pid.available": "10"}});
    let mut agent = Options::new(&node, &kubelet).unwrap().start().unwrap();
    drop(node);
    for signal in ["memory.available", "pid.available"] {
        let read_error = agent
            .wait_for(&format!("that {signal} is unknown"), GUARD, |event| {
                event.kind() == "signal_read_error" && event.text("signal") == signal
            })
            .unwrap();
        let why = read_error.text("error");
        assert!(why.contains("No such"), "{why}");
    }
    let syncs = |agent: &Agent| agent.metric("eviction_agent_syncs_total", &[]).unwrap();
    let before = syncs(&agent);
    std::thread::sleep(Duration::from_secs(3));
    let iterations = syncs(&agent) - before;
    assert!(iterations < MANY, "{iterations} iterations");
    assert_eq!(agent.count_decisions().unwrap(), 0);
    agent.stop().unwrap();
}
