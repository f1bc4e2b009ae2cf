//! The API server goes away and comes back: meanwhile the agent keeps what it knows, and then updates it.

use std::time::Duration;

use tests::cluster::manifest;
use tests::cluster::proxy::{Fault, Proxy, When};

use crate::agent::{self, NODE, wait_for_pods};
use crate::fixture;

#[test]
fn a_watch_continues_when_the_server_is_back() {
    let Some((mut cluster, account)) = agent::watched_cluster() else { return };
    let kubeconfig = cluster.kubeconfig("agent", &account.token).unwrap();
    let node = agent::small_node("e2e-outage");
    cluster.run_pod(&manifest::pod("before", NODE)).unwrap();
    let mut agent = agent::start(&node, &kubeconfig);
    wait_for_pods(&mut agent, "one pod", |it| it["pods_known"] == 1);

    cluster.kill_server().unwrap();
    let event = wait_for_pods(&mut agent, "that the server is gone", |it| it["error"].is_string());
    assert_eq!(event["pods_known"], 1, "{event}");
    cluster.start_server().unwrap();
    cluster.run_pod(&manifest::pod("after", NODE)).unwrap();
    let event = wait_for_pods(&mut agent, "the pod that came later", |it| it["pods_known"] == 2);
    assert!(event.get("error").is_none() || event["error"].is_null(), "{event}");
    let failed = [("event", "failed")];
    agent.wait_for_metric("eviction_agent_kube_watch_events_total", &failed, |count| count > 0.0).unwrap();

    // The server is frozen: no event arrives, and none is lost.
    cluster.freeze_server().unwrap();
    fixture::interrupt().sleep(Duration::from_secs(3)).unwrap();
    cluster.thaw_server().unwrap();
    cluster.run_pod(&manifest::pod("thawed", NODE)).unwrap();
    wait_for_pods(&mut agent, "the pod after the frost", |it| it["pods_known"] == 3);
    agent.stop().unwrap();
}

#[test]
fn the_agent_waits_for_a_server_that_is_not_up() {
    let Some((mut cluster, account)) = agent::watched_cluster() else { return };
    let kubeconfig = cluster.kubeconfig("agent", &account.token).unwrap();
    let node = agent::small_node("e2e-absent");
    cluster.run_pod(&manifest::pod("web", NODE)).unwrap();
    cluster.kill_server().unwrap();
    let mut agent = agent::start(&node, &kubeconfig);
    assert_eq!(agent.started().unwrap().value["pods_known"], 0);
    cluster.start_server().unwrap();
    wait_for_pods(&mut agent, "the pod", |it| it["pods_known"] == 1);
    agent.stop().unwrap();
}

#[test]
fn watches_closed_every_second_lose_no_event() {
    let Some((cluster, account)) = agent::watched_cluster() else { return };
    let proxy = Proxy::start(&cluster).unwrap();
    proxy.on(When::any().watch(true), Fault::Close(Duration::from_secs(1)));
    let kubeconfig = cluster.kubeconfig_at("agent", &account.token, proxy.port()).unwrap();
    let node = agent::small_node("e2e-closed");
    let mut agent = agent::start(&node, &kubeconfig);
    for number in 1..=5 {
        cluster.run_pod(&manifest::pod(&format!("web-{number}"), NODE)).unwrap();
        wait_for_pods(&mut agent, "the pod that came", |it| it["pods_known"] == number);
        // Each pod is created at another time of a watch.
        fixture::interrupt().sleep(Duration::from_millis(700)).unwrap();
    }
    cluster.finish_pod("default", "web-2").unwrap();
    wait_for_pods(&mut agent, "that one has gone", |it| it["pods_known"] == 4);
    let pods = |event| [("resource", "pods"), ("event", event)];
    let watched = "eviction_agent_kube_watch_events_total";
    agent.wait_for_metric(watched, &pods("closed"), |count| count >= 3.0).unwrap();
    let metrics = agent.metrics().unwrap();
    assert_eq!(
        (metrics.sum(watched, &pods("listed")), metrics.sum(watched, &pods("failed"))),
        (1.0, 0.0),
        "each goes on where the one before it has ended"
    );
    assert!(
        agent.events().unwrap().iter().all(|event| event.kind() != "pods" || event.value["error"].is_null())
    );
    agent.stop().unwrap();
}
