//! A static pod is nobody's victim, whatever it uses.

use serde_json::{Value, json};
use tests::cluster::Options;

use crate::world::{World, chosen, growing, knows, outcome, pod};

#[test]
fn a_static_pod_is_exempt() {
    let Some(mut world) = World::small(&Options::default()) else { return };
    let large = world.image("large", &growing(0, 600));
    let ordinary = world.image("ordinary", &growing(3, 300));
    let mut manifest: Value = pod("large", &large, None, None);
    (manifest["apiVersion"], manifest["kind"]) = (json!("v1"), json!("Pod"));
    manifest["spec"].as_object_mut().unwrap().remove("nodeName");
    std::fs::write(world.node.static_pods().join("large.json"), manifest.to_string()).unwrap();
    let mirror = world.cluster.until("the static pod runs", |it| Ok(crate::world::running(it, "large-n1")));
    let mirror = mirror.unwrap();
    let id = mirror["status"]["containerStatuses"][0]["containerID"].clone();
    let mut agent = world.agent(&json!({}));
    knows(&mut agent, 1);
    world.run(&pod("ordinary", &ordinary, None, None));
    // It uses half as much, and it is the one that goes.
    outcome(&mut agent, "ordinary", "accepted");
    world.until_gone("ordinary");
    assert_eq!(chosen(&mut agent), ["default/ordinary"]);
    let now = crate::world::running(&world.cluster, "large-n1").unwrap();
    assert_eq!(now["metadata"]["uid"], mirror["metadata"]["uid"]);
    assert_eq!(now["status"]["containerStatuses"][0]["containerID"], id);
    assert!(agent.stop().unwrap().success());
}
