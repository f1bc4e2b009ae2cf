//! Evicted and killed at once: what the kubelet and containerd make of such a pod.

use std::time::Duration;

use serde_json::{Value, json};
use tests::cluster::Options;
use tests::story::Story;

use crate::world::{World, growing, knows, outcome, pod};

/// The state of a pod's only container, and how often it was started again.
fn container(pod: &Value) -> (&Value, u64) {
    let status = &pod["status"]["containerStatuses"][0];
    (status, status["restartCount"].as_u64().unwrap_or(0))
}

#[test]
fn a_pod_that_is_killed_with_its_eviction_is_not_restarted() {
    let Some(mut world) = World::small(&Options::default()) else { return };
    let quiet = world.image("quiet", &growing(0, 50));
    // It would take its time: SIGTERM is ignored.
    let hog = world.image("hog", &growing(3, 850).replace("exit 0", ""));
    world.run(&pod("quiet", &quiet, Some("100Mi"), None));
    let mut agent = world.agent(&json!({"hardMode": "EvictAndKill"}));
    knows(&mut agent, 1);
    let path = "/api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Dhog&watch=true";
    let mut watch = world.cluster.admin().watch(path).unwrap();
    let mut manifest = pod("hog", &hog, None, None);
    // Time enough for a kubelet that would restart it.
    manifest["spec"]["terminationGracePeriodSeconds"] = json!(30);
    world.run(&manifest);
    let mut story = Story::begin();
    let killed = outcome(&mut agent, "hog", "killed");
    story.mark_at("killed", killed.number("mono_ns").unwrap());
    story.mark_at("dead", outcome(&mut agent, "hog", "terminated").number("mono_ns").unwrap());
    story.mark_at("accepted", outcome(&mut agent, "hog", "accepted").number("mono_ns").unwrap());
    world.until_gone("hog");
    story.mark("object_gone");

    // Everything that was ever written of it.
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
    // SIGKILL of ours, and none of the kernel's.
    assert_eq!((&end["exitCode"], &end["reason"]), (&json!(137), &json!("Error")), "{end}");
    story.value("exit_code", end["exitCode"].clone());
    story.value("reason", end["reason"].clone());
    assert!(crate::world::running(&world.cluster, "quiet").is_some());
    assert_eq!(world.kubelets_evictions(), [""; 0]);
    assert!(agent.stop().unwrap().success());
}
