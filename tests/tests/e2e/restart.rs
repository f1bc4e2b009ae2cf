//! The agent is killed while evictions are on their way, and started anew.

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tests::agent::{Agent, Event, Options};
use tests::cluster::proxy::{Fault, Proxy, When};

use crate::evict::{GUARD, World, hard, outcome};
use crate::fixture;

/// Kills, spread over the time from before the crossing until after the answer, unless
/// `EVICTION_AGENT_KILLS` says otherwise.
const KILLS: u32 = 4;
const SPREAD: Duration = Duration::from_millis(900);

fn with_state(world: &World, options: Options) -> Options {
    let state = world.node.file("run").display().to_string();
    let more = options.more.into_iter().chain(["--state-dir".to_owned(), state]).collect();
    Options { more, ..options }
}

fn start(options: &Options) -> Agent {
    Agent::start_recorded(options, fixture::interrupt()).unwrap()
}

/// How often the API server was asked to evict that pod, or to delete it.
fn asked(proxy: &Proxy, pod: &str) -> usize {
    let eviction = format!("/pods/{pod}/eviction");
    let deletion = format!("DELETE /api/v1/namespaces/default/pods/{pod}");
    let is_it = |request: &str| request.contains(&eviction) || request.starts_with(&deletion);
    proxy.seen().iter().filter(|seen| is_it(&seen.request)).count()
}

#[test]
fn killed_at_any_instant_it_asks_once_and_for_nobody_else() {
    let kills = std::env::var("EVICTION_AGENT_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let hogs: Vec<String> = (0..kills).map(|kill| format!("hog-{kill}")).collect();
    let names: Vec<&str> = hogs.iter().map(String::as_str).chain(["next"]).collect();
    let Some(mut world) = World::new(&names) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    // There is time to be killed in while a request is under way.
    let late = Fault::Late(Duration::from_millis(300));
    proxy.on(When::any().method(Method::POST).path("/eviction"), late);
    let options = with_state(&world, world.options("evict", &hard(), &json!({}), proxy.port()));
    let _next = world.hog(hogs.len(), "40M");
    for (kill, name) in (0..).zip(&hogs) {
        let agent = start(&options);
        let hog = world.hog(0, "240M");
        fixture::interrupt().sleep(SPREAD * kill / kills).unwrap();
        agent.kill().unwrap();
        let mut agent = start(&options);
        outcome(&mut agent, name, "accepted");
        // The memory is not back, and nothing else was reported: looks go on, decisions do not.
        fixture::interrupt().sleep(Duration::from_secs(2)).unwrap();
        assert_eq!((asked(&proxy, name), asked(&proxy, "next")), (1, 0), "kill {kill}");
        assert!(world.is_going(name) && !world.is_going("next"));
        world.end(hog);
        world.cluster.finish_pod("default", name).unwrap();
        world.node.pods.remove(0);
        world.node.write_pods().unwrap();
        outcome(&mut agent, name, "terminated");
        agent.kill().unwrap();
    }
}

#[test]
fn whose_object_is_gone_before_its_memory_is_back_is_waited_for() {
    let Some(mut world) = World::new(&["hog", "next"]) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    let options = with_state(&world, world.options("evict", &hard(), &json!({}), proxy.port()));
    let _next = world.hog(1, "40M");
    let mut agent = start(&options);
    let hog = world.hog(0, "240M");
    outcome(&mut agent, "hog", "accepted");
    // Deleted by force, or by a kubelet that is not there any more: what it holds it still holds.
    world.cluster.finish_pod("default", "hog").unwrap();
    let group = world.node.pods.remove(0);
    world.node.write_pods().unwrap();
    let is_strange = |event: &Event| {
        event.kind() == "pods" && event.value["unknown_cgroups"].to_string().contains(group.uid())
    };
    agent.wait_for("that the object is gone", GUARD, is_strange).unwrap();
    fixture::interrupt().sleep(Duration::from_secs(2)).unwrap();
    agent.kill().unwrap();
    let mut agent = start(&options);
    fixture::interrupt().sleep(Duration::from_secs(2)).unwrap();
    assert_eq!((asked(&proxy, "hog"), asked(&proxy, "next")), (1, 0));
    world.end(hog);
    drop(group);
    outcome(&mut agent, "hog", "terminated");
    assert!(!world.is_going("next"));
    assert!(agent.stop().unwrap().success());
}

#[test]
fn what_was_never_asked_is_decided_anew() {
    let Some(world) = World::new(&["hog", "next"]) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    let options = with_state(&world, world.options("evict", &hard(), &json!({}), proxy.port()));
    // It is written that the pod goes, and then nobody hears of it.
    proxy.on(When::any().method(Method::POST).path("/eviction").times(1), Fault::Lost);
    let mut agent = start(&options);
    let _hog = world.hog(0, "270M");
    outcome(&mut agent, "hog", "unknown");
    agent.kill().unwrap();
    let state = std::fs::read(world.node.file("run/state.json")).unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    let evictions = &state["state"]["engine"]["flights"];
    assert_eq!(evictions[0]["name"], json!("hog"));
    // Written when it was asked, and perhaps once more when no answer came.
    assert!([json!("asked"), json!("unconfirmed")].contains(&evictions[0]["api"]), "{evictions}");
    let mut agent = start(&options);
    outcome(&mut agent, "hog", "not_sent");
    outcome(&mut agent, "hog", "accepted");
    assert!(world.is_going("hog") && !world.is_going("next"));
    assert!(agent.stop().unwrap().success());
}
