//! A static pod is never evicted, whatever it uses.

use serde_json::{Value, json};
use tests::cluster::Options;

use crate::testbed::{Testbed, growing, pod, selected_pods, wait_for_result};

#[test]
fn a_static_pod_is_not_evicted() {
    let Some(mut testbed) = Testbed::small(&Options::default()) else { return };
    let large = testbed.image("large", &growing(0, 600));
    let ordinary = testbed.image("ordinary", &growing(3, 300));
    let mut manifest: Value = pod("large", &large, None, None);
    (manifest["apiVersion"], manifest["kind"]) = (json!("v1"), json!("Pod"));
    manifest["spec"].as_object_mut().unwrap().remove("nodeName");
    std::fs::write(testbed.node.static_pods().join("large.json"), manifest.to_string()).unwrap();
    let mirror =
        testbed.cluster.until("the static pod runs", |it| Ok(crate::testbed::running_pod(it, "large-n1")));
    let mirror = mirror.unwrap();
    let id = mirror["status"]["containerStatuses"][0]["containerID"].clone();
    let mut agent = testbed.agent(&json!({}));
    agent.wait_for_pods(1).unwrap();
    testbed.run(&pod("ordinary", &ordinary, None, None));
    // The ordinary pod uses half as much, and is the one that is evicted.
    wait_for_result(&mut agent, "ordinary", "accepted");
    testbed.wait_until_removed("ordinary");
    assert_eq!(selected_pods(&mut agent), ["default/ordinary"]);
    let now = crate::testbed::running_pod(&testbed.cluster, "large-n1").unwrap();
    assert_eq!(now["metadata"]["uid"], mirror["metadata"]["uid"]);
    assert_eq!(now["status"]["containerStatuses"][0]["containerID"], id);
    agent.stop().unwrap();
}
