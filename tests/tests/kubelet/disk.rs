//! Local storage of real pods: what the kubelet and containerd make of it, the agent finds and counts.

use std::net::{Ipv4Addr, TcpListener};

use serde_json::{Value, json};
use tests::agent::{Event, GUARD};
use tests::cluster::{Cluster, Options};
use tests::file_system::{FileSystem, Kind};
use tests::metrics::get;
use tests::node::MIB;
use tests::story::Story;

use crate::world::{self, World, chosen, knows, outcome, pod};

const SCRATCH: &str = "/scratch";

/// A line of shell that waits for `seconds`, writes so many MiB to a file, or to its log, and stays.
fn writing(seconds: u64, mib: u64, file: &str) -> String {
    format!(
        "trap 'exit 0' TERM; sleep {seconds} & wait; \
         dd if=/dev/zero bs=1M count={mib} of={file} 2>/dev/null; sleep 3600 & wait"
    )
}

/// A pod with a volume; `limit` is what its container may have of local storage.
fn with_volume(mut pod: Value, volume: &Value, request: Option<&str>, limit: Option<&str>) -> Value {
    pod["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": volume}]);
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = json!([{"name": "scratch", "mountPath": SCRATCH}]);
    for (bound, value) in [("requests", request), ("limits", limit)] {
        if let Some(value) = value {
            container["resources"][bound]["ephemeral-storage"] = json!(value);
        }
    }
    pod
}

fn message(agent: &mut tests::agent::Agent, pod: &str) -> String {
    let full = format!("default/{pod}");
    let is_it = |event: &Event| event.kind() == "eviction_decision" && event.pod() == full;
    agent.wait_for("its decision", GUARD, is_it).unwrap().text("eviction_message").to_owned()
}

#[test]
fn pods_over_their_limits_of_local_storage_are_evicted_and_no_other_one() {
    let Some(mut world) = World::small(&Options::default()) else { return };
    let modest = world.image("modest", &writing(0, 6, "/scratch/file"));
    let volume = world.image("volume", &writing(5, 12, "/scratch/file"));
    let layer = world.image("layer", &writing(5, 12, "/file"));
    let log = world.image("log", &writing(5, 12, "/dev/stdout"));
    let limited = json!({"sizeLimit": "8Mi"});
    world.run(&with_volume(pod("modest", &modest, None, None), &limited, None, Some("8Mi")));
    let mut agent = world.agent(&json!({}));
    knows(&mut agent, 1);
    let mut story = Story::begin();
    let of_volume = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"8Mi\". ";
    let of_pod = "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ";
    let cases = [
        ("volume", &volume, &limited, None, of_volume),
        ("layer", &layer, &json!({}), Some("8Mi"), of_pod),
        ("log", &log, &json!({}), Some("8Mi"), of_pod),
    ];
    for (name, image, volume, limit, says) in cases {
        world.run(&with_volume(pod(name, image, None, None), volume, None, limit));
        let accepted = outcome(&mut agent, name, "accepted");
        story.mark_at(name, accepted.number("mono_ns").unwrap());
        assert_eq!(message(&mut agent, name), says);
        world.until_gone(name);
    }
    assert_eq!(chosen(&mut agent), ["default/volume", "default/layer", "default/log"]);
    assert!(world::running(&world.cluster, "modest").is_some());
    assert!(agent.stop().unwrap().success());
}

/// A node whose nodefs is a disk of 1 GiB, with more of the kubelet's configuration.
fn world_on_disk(more: &Value) -> Option<(FileSystem, World)> {
    let disk = match FileSystem::new(Kind::Ext4, 1024 * MIB, "eviction-kubelet-disk") {
        Ok(disk) => disk,
        Err(why) => {
            tests::report_skip(&format!("no ext4 can be mounted here: {why:#}"));
            return None;
        }
    };
    let mut config = world::small();
    config["evictionHard"] = json!({"memory.available": "200Mi", "nodefs.available": "500Mi"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let world = world::node_on(&Options::default(), &config, Some(disk.path()))?;
    Some((disk, world))
}

#[test]
fn the_pod_that_fills_nodefs_goes_and_not_the_one_that_has_most() {
    let Some((disk, mut world)) = world_on_disk(&json!({})) else { return };
    let modest = world.image("modest", &writing(0, 250, "/scratch/file"));
    let hog = world.image("hog", &writing(5, 240, "/scratch/file"));
    let volume = json!({});
    world.run(&with_volume(pod("modest", &modest, None, None), &volume, Some("300Mi"), None));
    let mut agent = world.agent(&json!({}));
    knows(&mut agent, 1);
    world.run(&with_volume(pod("hog", &hog, None, None), &volume, Some("1Mi"), None));
    let mut story = Story::begin();
    let accepted = outcome(&mut agent, "hog", "accepted");
    story.mark_at("accepted", accepted.number("mono_ns").unwrap());
    assert!(message(&mut agent, "hog").starts_with("The node was low on resource: ephemeral-storage. "));
    world.until_gone("hog");
    let free = || rustix::fs::statvfs(disk.path()).map(|it| it.f_bavail * it.f_frsize / MIB).unwrap();
    story.value("free_mib", free());
    assert!(free() > 500, "the kubelet has removed its volume");
    assert_eq!(chosen(&mut agent), ["default/hog"]);
    assert!(world::running(&world.cluster, "modest").is_some());
    assert!(agent.stop().unwrap().success());
}

/// The kubelet reads a volume every one to two minutes: the threshold is crossed once it knows what the pods have.
#[test]
fn an_agent_that_sees_no_directories_asks_the_kubelet_which_pod_fills_nodefs() {
    let read_only = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let kubelet = json!({"readOnlyPort": read_only.port()});
    let Some((disk, mut world)) = world_on_disk(&kubelet) else { return };
    let modest = world.image("modest", &writing(0, 200, "/scratch/file"));
    let hog = world.image("hog", &writing(0, 150, "/scratch/file"));
    world.run(&with_volume(pod("modest", &modest, None, None), &json!({}), Some("300Mi"), None));
    world.run(&with_volume(pod("hog", &hog, None, None), &json!({}), Some("1Mi"), None));
    let mut agent = world.agent_by_summary();
    knows(&mut agent, 2);
    let used = |summary: &Value, name: &str| {
        let pods = summary["pods"].as_array().unwrap();
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == name);
        let volumes = pod.and_then(|pod| pod["volume"].as_array()).into_iter().flatten();
        volumes.filter_map(|volume| volume["usedBytes"].as_u64()).sum::<u64>()
    };
    let is_known = |_: &Cluster| {
        let summary: Value = serde_json::from_str(&get(read_only, "/stats/summary")?)?;
        let is_known = used(&summary, "modest") > 190 * MIB && used(&summary, "hog") > 140 * MIB;
        Ok(is_known.then_some(()))
    };
    world.cluster.until("the kubelet knows what the volumes use", is_known).unwrap();
    assert!(chosen(&mut agent).is_empty());
    let mut story = Story::begin();
    std::fs::write(disk.path().join("rest"), vec![0x5a; 200 << 20]).unwrap();
    let accepted = outcome(&mut agent, "hog", "accepted");
    story.mark_at("accepted", accepted.number("mono_ns").unwrap());
    assert!(message(&mut agent, "hog").starts_with("The node was low on resource: ephemeral-storage. "));
    world.until_gone("hog");
    assert_eq!(chosen(&mut agent), ["default/hog"]);
    assert!(world::running(&world.cluster, "modest").is_some());
    assert!(agent.stop().unwrap().success());
}
