//! The API server goes and comes back; what was known stays known meanwhile, and then is made true.

use tests::agent::GUARD;
use tests::cluster::{Options, manifest};

use crate::agent::{self, NODE, wait_for_metric, wait_for_pods};
use crate::rig;

#[test]
fn a_watch_goes_on_when_the_server_is_back() {
    let Some(mut cluster) = rig::cluster(&Options::default()) else { return };
    cluster.add_node(NODE).unwrap();
    let account = agent::account(&mut cluster, "agent", &agent::watching_rules());
    let kubeconfig = cluster.kubeconfig("agent", &account.token).unwrap();
    let node = agent::small_node("e2e-outage");
    cluster.run_pod(&manifest::pod("before", NODE)).unwrap();
    let mut agent = agent::start(&node, &kubeconfig);
    wait_for_pods(&mut agent, "one pod", |it| it["pods"] == 1);

    cluster.kill_server().unwrap();
    let event = wait_for_pods(&mut agent, "that the server is gone", |it| it["error"].is_string());
    assert_eq!(event["pods"], 1, "{event}");
    cluster.start_server().unwrap();
    cluster.run_pod(&manifest::pod("after", NODE)).unwrap();
    let event = wait_for_pods(&mut agent, "the pod that came later", |it| it["pods"] == 2);
    assert!(event.get("error").is_none() || event["error"].is_null(), "{event}");
    wait_for_metric(&agent, "eviction_agent_watch_events_total", &[("outcome", "failed")], |count| {
        count > 0.0
    });

    // Frozen: nothing is heard, nothing is lost.
    cluster.freeze_server().unwrap();
    rig::interrupt().sleep(std::time::Duration::from_secs(3)).unwrap();
    cluster.thaw_server().unwrap();
    cluster.run_pod(&manifest::pod("thawed", NODE)).unwrap();
    wait_for_pods(&mut agent, "the pod after the frost", |it| it["pods"] == 3);
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let Some(mut cluster) = rig::cluster(&Options::default()) else { return };
    cluster.add_node(NODE).unwrap();
    let account = agent::account(&mut cluster, "agent", &agent::watching_rules());
    let kubeconfig = cluster.kubeconfig("agent", &account.token).unwrap();
    let node = agent::small_node("e2e-absent");
    cluster.run_pod(&manifest::pod("web", NODE)).unwrap();
    cluster.kill_server().unwrap();
    let mut agent = agent::start(&node, &kubeconfig);
    let started = agent.wait_for("its start", GUARD, |event| event.kind() == "started").unwrap();
    assert_eq!(started.value["pods"], 0);
    cluster.start_server().unwrap();
    wait_for_pods(&mut agent, "the pod", |it| it["pods"] == 1);
    assert!(agent.stop().unwrap().success());
}
