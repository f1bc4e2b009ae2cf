//! The agent is killed while evictions are in flight, and started again.

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tests::agent::{Event, GUARD, Options};
use tests::cluster::proxy::{Fault, Proxy, When};

use crate::evict::{self, hard, testbed, wait_for_result};
use crate::fixture::{self, start};
use crate::testbed::Testbed;

/// The number of kills, spread over the time from before the crossing until after the response, unless
/// `EVICTION_AGENT_KILLS` sets another.
const KILLS: u32 = 4;
const SPREAD: Duration = Duration::from_millis(900);

/// Returns the options of an agent with a state directory that uses the proxy as the API server.
fn options_at(testbed: &Testbed, proxy: &Proxy) -> Options {
    let options = evict::options(testbed, &hard(), &json!({}), proxy.port());
    options.with_path("--state-dir", testbed.node.file("run"))
}

/// Returns how often the API server was asked to evict that pod, or to delete it.
fn count_requests(proxy: &Proxy, pod: &str) -> usize {
    let eviction = format!("/pods/{pod}/eviction");
    let deletion = format!("DELETE /api/v1/namespaces/default/pods/{pod}");
    let is_match = |request: &str| request.contains(&eviction) || request.starts_with(&deletion);
    proxy.requests().iter().filter(|seen| is_match(&seen.request)).count()
}

#[test]
fn a_killed_agent_requests_each_eviction_once() {
    let kills = std::env::var("EVICTION_AGENT_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let hogs: Vec<String> = (0..kills).map(|kill| format!("hog-{kill}")).collect();
    let names: Vec<&str> = hogs.iter().map(String::as_str).chain(["next"]).collect();
    let Some(mut testbed) = testbed(&names) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    // The delay gives time to kill the agent while a request is in flight.
    let late = Fault::DelayResponse(Duration::from_millis(300));
    proxy.on(When::any().method(Method::POST).path("/eviction"), late);
    let options = options_at(&testbed, &proxy);
    let _next = testbed.hog(hogs.len(), "40M");
    for (kill, name) in (0..).zip(&hogs) {
        let agent = start(&options);
        let hog = testbed.hog(0, "240M");
        fixture::interrupt().sleep(SPREAD * kill / kills).unwrap();
        agent.kill().unwrap();
        let mut agent = start(&options);
        wait_for_result(&mut agent, name, "accepted");
        // The memory is not back, and nothing else was reported: the agent samples on, but decides nothing.
        fixture::interrupt().sleep(Duration::from_secs(2)).unwrap();
        assert_eq!((count_requests(&proxy, name), count_requests(&proxy, "next")), (1, 0), "kill {kill}");
        assert!(testbed.is_terminating(name) && !testbed.is_terminating("next"));
        testbed.kill_hog(hog);
        testbed.remove_first_pod(name);
        wait_for_result(&mut agent, name, "terminated");
        agent.kill().unwrap();
    }
}

#[test]
fn an_eviction_stays_in_flight_until_the_memory_is_released() {
    let Some(mut testbed) = testbed(&["hog", "next"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let options = options_at(&testbed, &proxy);
    let _next = testbed.hog(1, "40M");
    let mut agent = start(&options);
    let hog = testbed.hog(0, "240M");
    wait_for_result(&mut agent, "hog", "accepted");
    // Deleted by force, or by a kubelet that does not run any more: the processes still hold their memory.
    testbed.cluster.finish_pod("default", "hog").unwrap();
    let group = testbed.node.pods.remove(0);
    testbed.node.write_pods().unwrap();
    let is_unknown = |event: &Event| {
        event.kind() == "pods" && event.value["unknown_cgroups"].to_string().contains(group.uid())
    };
    agent.wait_for("that the object is gone", GUARD, is_unknown).unwrap();
    fixture::interrupt().sleep(Duration::from_secs(2)).unwrap();
    agent.kill().unwrap();
    let mut agent = start(&options);
    fixture::interrupt().sleep(Duration::from_secs(2)).unwrap();
    assert_eq!((count_requests(&proxy, "hog"), count_requests(&proxy, "next")), (1, 0));
    testbed.kill_hog(hog);
    drop(group);
    wait_for_result(&mut agent, "hog", "terminated");
    assert!(!testbed.is_terminating("next"));
    agent.stop().unwrap();
}

#[test]
fn a_lost_request_is_decided_again_after_a_restart() {
    let Some(testbed) = testbed(&["hog", "next"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let options = options_at(&testbed, &proxy);
    // The agent has saved the eviction, and then the request is lost.
    proxy.on(When::any().method(Method::POST).path("/eviction").times(1), Fault::DropRequest);
    let mut agent = start(&options);
    let _hog = testbed.hog(0, "270M");
    wait_for_result(&mut agent, "hog", "unknown");
    agent.kill().unwrap();
    let state = std::fs::read(testbed.node.file("run/state.json")).unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    let evictions = &state["state"]["engine"]["inFlight"];
    assert_eq!(evictions[0]["name"], json!("hog"));
    // Saved when the request was sent, and perhaps once more when no response came.
    assert!([json!("requested"), json!("unconfirmed")].contains(&evictions[0]["api"]), "{evictions}");
    let mut agent = start(&options);
    wait_for_result(&mut agent, "hog", "not_sent");
    wait_for_result(&mut agent, "hog", "accepted");
    assert!(testbed.is_terminating("hog") && !testbed.is_terminating("next"));
    agent.stop().unwrap();
}
