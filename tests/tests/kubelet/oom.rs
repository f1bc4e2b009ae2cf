//! OOM kills on a real node: of a child, which its container survives, and of a main process.

use serde_json::{Value, json};
use tests::agent::{Event, GUARD};
use tests::cluster::{Cluster, Options};

use crate::testbed::{Testbed, pod};

fn is_of_pod(kind: &'static str, name: &'static str) -> impl Fn(&Event) -> bool {
    move |event| event.kind() == kind && event.pod() == format!("default/{name}")
}

/// Returns the `terminated` state of the only container that ended.
fn terminated(cluster: &Cluster, name: &str) -> Option<Value> {
    let status = cluster.pod("default", name).unwrap()?["status"]["containerStatuses"][0].clone();
    let ends = [&status["state"]["terminated"], &status["lastState"]["terminated"]];
    ends.into_iter().find(|end| end.is_object()).cloned()
}

/// Returns the event about the kill in that pod.
fn oom_kill_event(cluster: &mut Cluster, name: &str) -> Value {
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let is_match =
        |event: &&Value| event["reason"] == "ContainerOOMKilled" && event["regarding"]["name"] == name;
    cluster
        .until("the event of the kill", |it| {
            let list = it.admin().get(path)?.ok()?;
            Ok(list["items"].as_array().and_then(|items| items.iter().find(is_match)).cloned())
        })
        .unwrap()
}

#[test]
fn a_child_and_a_main_process_that_the_kernel_kills_are_distinguished() {
    let Some(mut testbed) = Testbed::small(&Options::default()) else { return };
    // The processes begin when the agent knows the pods.
    let child = testbed.image("oom-child", "sleep 5; tail /dev/zero; sleep 3; exit 0");
    let main = testbed.image("oom-main", "sleep 5; exec tail /dev/zero");
    let mut agent = testbed.agent(&json!({}));
    for (name, image) in [("child", &child), ("main", &main)] {
        let mut pod = pod(name, image, Some("16Mi"), Some("32Mi"));
        pod["spec"]["restartPolicy"] = json!("Never");
        testbed.cluster.make_pod(&pod).unwrap();
    }
    let cluster = &mut testbed.cluster;
    for (name, victim) in [("child", "child"), ("main", "init")] {
        let reported = agent.wait_for("the kill", GUARD, is_of_pod("oom_kill", name)).unwrap();
        assert_eq!(reported.text("victim"), victim, "{reported:?}");
        // A pod of one container has the container's limit, and more charges count against it.
        assert!(["container", "pod"].contains(&reported.text("limit_scope")), "{reported:?}");
        assert_eq!((reported.text("container"), reported.text("comm")), ("main", "tail"), "{reported:?}");
        let event = oom_kill_event(cluster, name);
        assert_eq!(event["metadata"]["annotations"]["eviction-agent.io/victim"], victim, "{event}");
        assert_eq!(
            event["metadata"]["annotations"]["eviction-agent.io/pid"],
            reported.number("pid").unwrap().to_string()
        );
        assert!(event["note"].as_str().unwrap().ends_with("; not an eviction"), "{event}");
    }

    // The child's container continued and ended well, whatever reason its runtime reports.
    let ended =
        agent.wait_for("the termination cause", GUARD, is_of_pod("container_terminated", "child")).unwrap();
    let end = cluster.until("the status of the child's container", |it| Ok(terminated(it, "child"))).unwrap();
    assert_eq!((ended.text("cause"), &end["exitCode"]), ("other", &json!(0)), "{ended:?} {end}");
    let differs = if end["reason"] == "OOMKilled" { "only_a_child_killed" } else { "child_not_in_status" };
    assert_eq!(ended.text("mismatch"), differs, "{ended:?} {end}");
    let ended =
        agent.wait_for("the termination cause", GUARD, is_of_pod("container_terminated", "main")).unwrap();
    let end = cluster.until("the status of the other container", |it| Ok(terminated(it, "main"))).unwrap();
    assert_eq!(ended.text("cause"), "oom_killed", "{ended:?}");
    assert!(["container", "pod"].contains(&ended.text("limit_scope")), "{ended:?}");
    let differs = if end["reason"] == "OOMKilled" { "" } else { "kill_not_in_status" };
    assert_eq!((ended.text("mismatch"), &end["exitCode"]), (differs, &json!(137)), "{ended:?} {end}");
    agent.stop().unwrap();
}
