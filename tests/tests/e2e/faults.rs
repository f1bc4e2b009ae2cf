//! The API server cannot be asked for evictions: what waits, what goes on, and what is decided anew.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use serde_json::json;
use tests::agent::{Agent, Event, Options};
use tests::cluster::proxy::{Fault, Proxy, When};
use tests::workload::Workload;

use crate::evict::{GUARD, World, hard, outcome};
use crate::fixture;

/// Waits until the agent says this of the API server so many times in all.
fn wait_for_server(agent: &mut Agent, state: &str, times: usize) {
    fixture::interrupt()
        .until(&format!("{state} for the {times}. time"), GUARD, || {
            let is_it = |event: &&Event| event.kind() == "kube_api" && event.text("state") == state;
            Ok((agent.heard()?.iter().filter(is_it).count() >= times).then_some(()))
        })
        .unwrap();
}

/// Begins to go wrong.
type Begin = fn(&Proxy);

/// The pod that went is gone with its memory, as a kubelet ends it.
fn finish(world: &mut World, name: &str, hog: Workload) {
    world.end(hog);
    world.cluster.finish_pod("default", name).unwrap();
    world.node.pods.remove(0);
    world.node.write_pods().unwrap();
}

#[test]
fn whatever_is_wrong_nobody_goes_and_then_it_is_decided_anew() {
    let faults: [(&str, Begin); 5] = [
        ("refused", Proxy::refuse),
        ("silent", Proxy::hang),
        ("failing", |proxy| proxy.on(When::any(), Fault::status(503))),
        ("broken", |proxy| proxy.on(When::any(), Fault::Lost)),
        ("expired", |proxy| proxy.on(When::any(), Fault::status(401))),
    ];
    let names: Vec<&str> = faults.iter().map(|(name, _)| *name).chain(["calm"]).collect();
    let Some(mut world) = World::new(&names) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    let options = world.options("evict", &hard(), &json!({}), proxy.port());
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    for (times, (name, begin)) in (1..).zip(faults) {
        begin(&proxy);
        let hog = world.hog(0, "270M");
        wait_for_server(&mut agent, "unreachable", times);
        assert_eq!(agent.metrics().unwrap().sum("eviction_agent_kube_api_up", &[]), 0.0);
        assert!(!world.is_going(name));
        proxy.heal();
        wait_for_server(&mut agent, "reachable", times);
        outcome(&mut agent, name, "accepted");
        assert!(world.is_going(name) && !world.is_going("calm"));
        finish(&mut world, name, hog);
        outcome(&mut agent, name, "terminated");
    }
    assert!(agent.stop().unwrap().success());
}

#[test]
fn who_is_another_than_before_is_not_asked_until_somebody_vouches_for_it() {
    let Some(world) = World::new(&["hog"]) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    let mut options = world.options("evict", &hard(), &json!({}), proxy.port());
    let authority = with_own_authority(&world, &mut options);
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    let other = proxy.become_stranger().unwrap();
    proxy.cut();
    let _hog = world.hog(0, "270M");
    wait_for_server(&mut agent, "unreachable", 1);
    assert!(!world.is_going("hog"));
    // The authority was exchanged, and the agent's file of it as well.
    std::fs::write(authority, other).unwrap();
    wait_for_server(&mut agent, "reachable", 1);
    outcome(&mut agent, "hog", "accepted");
    assert!(agent.stop().unwrap().success());
}

/// Gives the agent a kubeconfig with a file of the authority that nobody else reads.
fn with_own_authority(world: &World, options: &mut Options) -> PathBuf {
    let (own, authority) = (world.node.file("own.kubeconfig"), world.node.file("authority.crt"));
    let place = options.more.iter().position(|argument| argument == "--kubeconfig").unwrap() + 1;
    let given = std::fs::read_to_string(&options.more[place]).unwrap();
    let shared = world.cluster.authority();
    std::fs::copy(&shared, &authority).unwrap();
    let path = |path: &Path| path.display().to_string();
    std::fs::write(&own, given.replace(&path(&shared), &path(&authority))).unwrap();
    options.more[place] = path(&own);
    authority
}

#[test]
fn a_slow_server_is_asked_all_the_same() {
    let Some(world) = World::new(&["hog"]) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    proxy.on(When::any().watch(false), Fault::Late(Duration::from_secs(3)));
    let options = world.options("evict", &hard(), &json!({}), proxy.port());
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    let _hog = world.hog(0, "270M");
    outcome(&mut agent, "hog", "accepted");
    assert!(agent.heard().unwrap().iter().all(|event| event.kind() != "kube_api"));
    assert!(agent.stop().unwrap().success());
}

#[test]
fn with_kill_the_victim_is_killed_instead() {
    let Some(world) = World::new(&["hog", "quiet"]) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    let hands = json!({"whenAPIServerDown": "Kill"});
    let options = world.options("evict", &hard(), &hands, proxy.port());
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    let mut quiet = world.hog(1, "8M");
    proxy.hang();
    let mut hog = world.hog(0, "270M");
    outcome(&mut agent, "hog", "killed");
    outcome(&mut agent, "hog", "terminated");
    assert_eq!(hog.process().wait().unwrap().signal(), Some(9));
    assert!(quiet.process().is_running().unwrap());
    proxy.heal();
    wait_for_server(&mut agent, "reachable", 1);
    assert!(!world.is_going("hog") && !world.is_going("quiet"), "the pressure is over");
    assert!(agent.stop().unwrap().success());
}

/// Waits until the agent says so of the first pod.
fn wait_for_freeze(agent: &mut Agent, state: &str) -> Event {
    let is_it = |event: &Event| event.kind() == "pod_freeze" && event.text("state") == state;
    let event = agent.wait_for(state, GUARD, is_it).unwrap();
    assert_eq!(event.pod(), "default/hog");
    event
}

#[test]
fn with_freeze_the_victim_is_frozen_until_the_server_is_back() {
    let Some(world) = World::new(&["hog", "quiet"]) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    let options = world.options("evict", &hard(), &json!({"whenAPIServerDown": "Freeze"}), proxy.port());
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    let frozen = |pod: usize| world.node.pods[pod].containers[0].group.is_frozen().unwrap();
    proxy.hang();
    let mut hog = world.hog(0, "270M");
    wait_for_freeze(&mut agent, "frozen");
    assert!(frozen(0) && !frozen(1));
    proxy.heal();
    assert_eq!(wait_for_freeze(&mut agent, "thawed").text("reason"), "api_server_reachable");
    outcome(&mut agent, "hog", "accepted");
    assert!(!frozen(0) && hog.process().is_running().unwrap());
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_frozen_pod_goes_on_after_a_while_and_when_the_agent_ends() {
    let Some(world) = World::new(&["hog"]) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    let frozen = || world.node.pods[0].containers[0].group.is_frozen().unwrap();
    proxy.refuse();
    let short = json!({"whenAPIServerDown": "Freeze", "freezeTimeout": "1s"});
    let options = world.options("evict", &hard(), &short, proxy.port());
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    let _hog = world.hog(0, "270M");
    wait_for_freeze(&mut agent, "frozen");
    assert_eq!(wait_for_freeze(&mut agent, "thawed").text("reason"), "timeout");
    assert!(!frozen());
    assert!(agent.stop().unwrap().success());
    let config = options.config.as_ref().unwrap();
    std::fs::write(config, std::fs::read_to_string(config).unwrap().replace("\"1s\"", "\"1h\"")).unwrap();
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    wait_for_freeze(&mut agent, "frozen");
    assert!(frozen());
    assert!(agent.stop().unwrap().success());
    assert!(!frozen());
}

#[test]
fn what_nobody_answered_is_open_until_somebody_does() {
    let Some(world) = World::new(&["hog", "next"]) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    // It is carried out; of that, and of everything after it, nothing is heard.
    proxy.on(When::any().method(Method::POST).path("/eviction"), Fault::Reset(0));
    proxy.on(When::any().method(Method::GET), Fault::Lost);
    let options = world.options("evict", &hard(), &json!({}), proxy.port());
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    let _next = world.hog(1, "40M");
    let _hog = world.hog(0, "240M");
    outcome(&mut agent, "hog", "unknown");
    wait_for_server(&mut agent, "unreachable", 1);
    assert!(world.is_going("hog"));
    proxy.heal();
    outcome(&mut agent, "hog", "accepted");
    assert!(!world.is_going("next"));
    let decisions = agent.heard().unwrap().iter().filter(|event| event.kind() == "eviction_decision").count();
    assert_eq!(decisions, 1);
    assert!(agent.stop().unwrap().success());
}

#[test]
fn who_is_rejected_is_let_be_for_a_while() {
    let Some(world) = World::new(&["hog", "quiet"]) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    let denied = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
        "message": "admission webhook \"guard.example.com\" denied the request: not this one",
    });
    proxy.on(When::any().method(Method::POST).path("/eviction"), Fault::Answer(403, Vec::new(), denied));
    let options = world.options("evict", &hard(), &json!({}), proxy.port());
    // Which remembers no failure, and would choose the same one again.
    let config = json!({
        "apiVersion": "eviction-agent.io/v1alpha1", "kind": "AgentConfiguration", "profile": "Kubelet",
        "thresholdMargin": {"mode": "Never"},
    });
    std::fs::write(options.config.as_ref().unwrap(), config.to_string()).unwrap();
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    let _hog = world.hog(0, "270M");
    outcome(&mut agent, "hog", "rejected");
    // The pressure goes on, and the same pod would be chosen at each look.
    std::thread::sleep(Duration::from_secs(3));
    let seen = proxy.seen();
    let asked: Vec<_> = seen.iter().filter(|seen| seen.request.contains("/eviction")).collect();
    assert_eq!(asked.len(), 1, "it is let be for ten seconds: {asked:?}");
    assert!(!world.is_going("hog") && !world.is_going("quiet"));
    proxy.heal();
    outcome(&mut agent, "hog", "accepted");
    assert!(agent.stop().unwrap().success());
}
