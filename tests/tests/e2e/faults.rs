//! The API server is unavailable for evictions: what waits, what continues, and what is decided again.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options};
use tests::cluster::proxy::{Fault, Proxy, When};

use crate::evict::{hard, options, testbed, wait_for_result};
use crate::fixture;
use crate::testbed::Testbed;

/// Starts an agent with the hard threshold that uses the proxy as the API server.
fn start(testbed: &Testbed, proxy: &Proxy, eviction: &Value) -> Agent {
    fixture::start(&options(testbed, &hard(), eviction, proxy.port()))
}

/// Waits until the agent has reported this state of the API server so many times in all.
fn wait_for_server(agent: &mut Agent, state: &str, times: usize) {
    let is_match = |event: &Event| event.kind() == "kube_api" && event.text("state") == state;
    agent.wait_for_nth(times, &format!("{state} for the {times}. time"), GUARD, is_match).unwrap();
}

/// A function that injects a fault.
type InjectFault = fn(&Proxy);

#[test]
fn server_faults_prevent_evictions_until_they_end() {
    let faults: [(&str, InjectFault); 5] = [
        ("refused", Proxy::refuse),
        ("silent", Proxy::hang),
        ("failing", |proxy| proxy.on(When::any(), Fault::status(503))),
        ("broken", |proxy| proxy.on(When::any(), Fault::DropRequest)),
        ("expired", |proxy| proxy.on(When::any(), Fault::status(401))),
    ];
    let names: Vec<&str> = faults.iter().map(|(name, _)| *name).chain(["calm"]).collect();
    let Some(mut testbed) = testbed(&names) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let mut agent = start(&testbed, &proxy, &json!({}));
    for (times, (name, inject)) in (1..).zip(faults) {
        inject(&proxy);
        let hog = testbed.hog(0, "270M");
        wait_for_server(&mut agent, "unreachable", times);
        assert_eq!(agent.metric("eviction_agent_kube_api_up", &[]).unwrap(), 0.0);
        assert!(!testbed.is_terminating(name));
        proxy.heal();
        wait_for_server(&mut agent, "reachable", times);
        wait_for_result(&mut agent, name, "accepted");
        assert!(testbed.is_terminating(name) && !testbed.is_terminating("calm"));
        // As a kubelet ends the evicted pod.
        testbed.kill_hog(hog);
        testbed.remove_first_pod(name);
        wait_for_result(&mut agent, name, "terminated");
    }
    agent.stop().unwrap();
}

#[test]
fn an_untrusted_server_is_unavailable_until_its_ca_is_installed() {
    let Some(testbed) = testbed(&["hog"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let mut options = options(&testbed, &hard(), &json!({}), proxy.port());
    let authority = with_own_authority(&testbed, &mut options);
    let mut agent = fixture::start(&options);
    let other = proxy.use_untrusted_certificate().unwrap();
    proxy.reset_connections();
    let _hog = testbed.hog(0, "270M");
    wait_for_server(&mut agent, "unreachable", 1);
    assert!(!testbed.is_terminating("hog"));
    // The server's authority was exchanged; the test exchanges the agent's file of it as well.
    std::fs::write(authority, other).unwrap();
    wait_for_server(&mut agent, "reachable", 1);
    wait_for_result(&mut agent, "hog", "accepted");
    agent.stop().unwrap();
}

/// Gives the agent a kubeconfig with a copy of the authority's file that nothing else reads.
fn with_own_authority(testbed: &Testbed, options: &mut Options) -> PathBuf {
    let (own, authority) = (testbed.node.file("own.kubeconfig"), testbed.node.file("authority.crt"));
    let index = options.more.iter().position(|argument| argument == "--kubeconfig").unwrap() + 1;
    let kubeconfig = std::fs::read_to_string(&options.more[index]).unwrap();
    let shared = testbed.cluster.authority();
    std::fs::copy(&shared, &authority).unwrap();
    let path = |path: &Path| path.display().to_string();
    std::fs::write(&own, kubeconfig.replace(&path(&shared), &path(&authority))).unwrap();
    options.more[index] = path(&own);
    authority
}

#[test]
fn a_slow_server_is_not_treated_as_unavailable() {
    let Some(testbed) = testbed(&["hog"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    proxy.on(When::any().watch(false), Fault::DelayResponse(Duration::from_secs(3)));
    let mut agent = start(&testbed, &proxy, &json!({}));
    let _hog = testbed.hog(0, "270M");
    wait_for_result(&mut agent, "hog", "accepted");
    assert!(agent.events().unwrap().iter().all(|event| event.kind() != "kube_api"));
    agent.stop().unwrap();
}

#[test]
fn with_kill_the_victim_is_killed_during_an_outage() {
    let Some(testbed) = testbed(&["hog", "quiet"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let mut agent = start(&testbed, &proxy, &json!({"whenAPIServerDown": "Kill"}));
    let mut quiet = testbed.hog(1, "8M");
    proxy.hang();
    let mut hog = testbed.hog(0, "270M");
    wait_for_result(&mut agent, "hog", "killed");
    wait_for_result(&mut agent, "hog", "terminated");
    assert_eq!(hog.process().wait().unwrap().signal(), Some(9));
    assert!(quiet.process().is_running().unwrap());
    proxy.heal();
    wait_for_server(&mut agent, "reachable", 1);
    assert!(!testbed.is_terminating("hog") && !testbed.is_terminating("quiet"), "the pressure is over");
    agent.stop().unwrap();
}

/// Waits until the agent reports this state of the first pod.
fn wait_for_freeze(agent: &mut Agent, state: &str) -> Event {
    let is_match = |event: &Event| event.kind() == "pod_freeze" && event.text("state") == state;
    let event = agent.wait_for(state, GUARD, is_match).unwrap();
    assert_eq!(event.pod(), "default/hog");
    event
}

#[test]
fn with_freeze_the_victim_is_frozen_until_the_server_is_back() {
    let Some(testbed) = testbed(&["hog", "quiet"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let mut agent = start(&testbed, &proxy, &json!({"whenAPIServerDown": "Freeze"}));
    let frozen = |pod: usize| testbed.node.pods[pod].containers[0].group.is_frozen().unwrap();
    proxy.hang();
    let mut hog = testbed.hog(0, "270M");
    wait_for_freeze(&mut agent, "frozen");
    assert!(frozen(0) && !frozen(1));
    proxy.heal();
    assert_eq!(wait_for_freeze(&mut agent, "thawed").text("reason"), "api_server_reachable");
    wait_for_result(&mut agent, "hog", "accepted");
    assert!(!frozen(0) && hog.process().is_running().unwrap());
    agent.stop().unwrap();
}

#[test]
fn a_frozen_pod_is_thawed_on_timeout_and_when_the_agent_stops() {
    let Some(testbed) = testbed(&["hog"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let frozen = || testbed.node.pods[0].containers[0].group.is_frozen().unwrap();
    proxy.refuse();
    let short = json!({"whenAPIServerDown": "Freeze", "freezeTimeout": "1s"});
    let options = options(&testbed, &hard(), &short, proxy.port());
    let mut agent = fixture::start(&options);
    let _hog = testbed.hog(0, "270M");
    wait_for_freeze(&mut agent, "frozen");
    assert_eq!(wait_for_freeze(&mut agent, "thawed").text("reason"), "timeout");
    assert!(!frozen());
    agent.stop().unwrap();
    let config = options.config.as_ref().unwrap();
    std::fs::write(config, std::fs::read_to_string(config).unwrap().replace("\"1s\"", "\"1h\"")).unwrap();
    let mut agent = fixture::start(&options);
    wait_for_freeze(&mut agent, "frozen");
    assert!(frozen());
    agent.stop().unwrap();
    assert!(!frozen());
}

#[test]
fn each_pod_is_frozen_at_most_once_in_an_outage() {
    let Some(testbed) = testbed(&["hog", "next"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    proxy.refuse();
    let short = json!({"whenAPIServerDown": "Freeze", "freezeTimeout": "100ms"});
    let mut agent = fixture::start(&options(&testbed, &hard(), &short, proxy.port()));
    for (crossing, pod) in [(1, 0), (2, 1), (3, 0)] {
        let hog = testbed.hog(pod, "270M");
        wait_for_threshold(&mut agent, "met", crossing);
        if crossing <= 2 {
            let name = ["default/hog", "default/next"][pod];
            for state in ["frozen", "thawed"] {
                let is_match =
                    |it: &Event| it.kind() == "pod_freeze" && it.text("state") == state && it.pod() == name;
                agent.wait_for(state, GUARD, is_match).unwrap();
            }
        }
        drop(hog);
        wait_for_threshold(&mut agent, "cleared", crossing);
    }
    let frozen = agent.metric("eviction_agent_pod_freezes_total", &[("result", "frozen")]).unwrap();
    assert_eq!(frozen, 2.0);
    agent.stop().unwrap();
}

/// Waits until a threshold was reported in this state so many times.
fn wait_for_threshold(agent: &mut Agent, state: &str, times: usize) {
    agent.wait_for_nth(times, "the threshold", GUARD, |event| event.is_threshold(state)).unwrap();
}

#[test]
fn an_unanswered_eviction_is_unknown_until_the_server_responds() {
    let Some(testbed) = testbed(&["hog", "next"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    // The server carries the eviction out, but its response and all later ones are lost.
    proxy.on(When::any().method(Method::POST).path("/eviction"), Fault::Reset(0));
    proxy.on(When::any().method(Method::GET), Fault::DropRequest);
    let mut agent = start(&testbed, &proxy, &json!({}));
    let _next = testbed.hog(1, "40M");
    let _hog = testbed.hog(0, "240M");
    wait_for_result(&mut agent, "hog", "unknown");
    wait_for_server(&mut agent, "unreachable", 1);
    assert!(testbed.is_terminating("hog"));
    proxy.heal();
    wait_for_result(&mut agent, "hog", "accepted");
    assert!(!testbed.is_terminating("next"));
    assert_eq!(agent.count_decisions().unwrap(), 1);
    agent.stop().unwrap();
}

#[test]
fn a_rejected_eviction_is_not_retried_at_once() {
    let Some(testbed) = testbed(&["hog", "quiet"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let denied = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
        "message": "admission webhook \"guard.example.com\" denied the request: not this one",
    });
    proxy.on(When::any().method(Method::POST).path("/eviction"), Fault::Answer(403, Vec::new(), denied));
    let options = options(&testbed, &hard(), &json!({}), proxy.port());
    // The profile remembers no failure, and would select the same pod again.
    let config = json!({
        "apiVersion": "eviction-agent.io/v1alpha1", "kind": "AgentConfiguration", "profile": "Kubelet",
        "thresholdMargin": {"mode": "Never"},
    });
    std::fs::write(options.config.as_ref().unwrap(), config.to_string()).unwrap();
    let mut agent = fixture::start(&options);
    let _hog = testbed.hog(0, "270M");
    wait_for_result(&mut agent, "hog", "rejected");
    // The pressure continues, and each sync would select the same pod.
    std::thread::sleep(Duration::from_secs(3));
    let seen = proxy.requests();
    let requests: Vec<_> = seen.iter().filter(|seen| seen.request.contains("/eviction")).collect();
    assert_eq!(requests.len(), 1, "it is let be for ten seconds: {requests:?}");
    assert!(!testbed.is_terminating("hog") && !testbed.is_terminating("quiet"));
    proxy.heal();
    wait_for_result(&mut agent, "hog", "accepted");
    agent.stop().unwrap();
}
