//! A pod that is evicted and killed at once: what the kubelet and containerd do with it.

use std::time::Duration;

use serde_json::{Value, json};
use tests::cluster::Options;
use tests::story::Story;

use crate::testbed::{Testbed, growing, pod, wait_for_result};

/// Returns the status of a pod's only container, and how often it was restarted.
fn container(pod: &Value) -> (&Value, u64) {
    let status = &pod["status"]["containerStatuses"][0];
    (status, status["restartCount"].as_u64().unwrap_or(0))
}

#[test]
fn a_pod_that_is_killed_with_its_eviction_is_not_restarted() {
    let Some(mut testbed) = Testbed::small(&Options::default()) else { return };
    let quiet = testbed.image("quiet", &growing(0, 50));
    // The hog ignores SIGTERM, so that its end would take time.
    let hog = testbed.image("hog", &growing(3, 850).replace("exit 0", ""));
    testbed.run(&pod("quiet", &quiet, Some("100Mi"), None));
    let mut agent = testbed.agent(&json!({"hardMode": "EvictAndKill"}));
    agent.wait_for_pods(1).unwrap();
    let path = "/api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Dhog&watch=true";
    let mut watch = testbed.cluster.admin().watch(path).unwrap();
    let mut manifest = pod("hog", &hog, None, None);
    // Time enough for a kubelet that would restart the pod.
    manifest["spec"]["terminationGracePeriodSeconds"] = json!(30);
    testbed.run(&manifest);
    let mut story = Story::begin();
    let killed = wait_for_result(&mut agent, "hog", "killed");
    story.mark_at("killed", killed.number("mono_ns").unwrap());
    story.mark_at("dead", wait_for_result(&mut agent, "hog", "terminated").number("mono_ns").unwrap());
    story.mark_at("accepted", wait_for_result(&mut agent, "hog", "accepted").number("mono_ns").unwrap());
    testbed.wait_until_removed("hog");
    story.mark("object_gone");

    // Every state of the pod that was ever written.
    let mut end = None;
    while let Some(event) = watch.next(Duration::from_secs(2)).unwrap() {
        let object = &event["object"];
        let (status, restarts) = container(object);
        assert_eq!(restarts, 0, "it was started again: {object}");
        if status["state"]["terminated"].is_object() {
            assert!(object["metadata"]["deletionTimestamp"].is_string(), "{object}");
            end = Some(status["state"]["terminated"].clone());
        }
        if event["type"] == "DELETED" {
            break;
        }
    }
    let end = end.unwrap();
    // SIGKILL by the agent, not by the kernel.
    assert_eq!((&end["exitCode"], &end["reason"]), (&json!(137), &json!("Error")), "{end}");
    story.value("exit_code", end["exitCode"].clone());
    story.value("reason", end["reason"].clone());
    assert!(crate::testbed::running_pod(&testbed.cluster, "quiet").is_some());
    assert_eq!(testbed.kubelet_eviction_log(), [""; 0]);
    agent.stop().unwrap();
}
