//! The agent is before the kubelet: it takes whom the kubelet would have taken, and leaves the kubelet
//! nothing to do.

use serde_json::json;
use tests::agent::{Event, GUARD, full_name};
use tests::cluster::Options;
use tests::node::MIB;
use tests::story::Story;

use crate::world::{self, World, chosen, climbing, growing, knows, outcome, pod};

/// How often it is run, unless the environment says otherwise.
const ROUNDS: usize = 5;
/// Says how often; twenty in a nightly run.
const MORE: &str = "EVICTION_AGENT_ROUNDS";

/// The agent evicts no more than ten pods a minute: a crossing each takes longer.
const PACE: std::time::Duration = std::time::Duration::from_secs(7);

/// More than this it has when the agent's line is crossed, since the others have no more than 300 MiB.
const HOGS_MIB: u64 = world::ROOM_MIB - world::THRESHOLD_MIB - 32 - 300;

#[test]
fn a_hog_among_three_pods_goes_before_the_kubelet_acts() {
    let Some(mut world) = World::small(&Options::default()) else { return };
    let rounds = std::env::var(MORE).ok().map_or(ROUNDS, |text| text.parse().unwrap());
    world.cluster.add_priority("important", 1000).unwrap();
    let steady = world.image("steady", &growing(0, 100));
    let important = world.image("important", &growing(0, 150));
    // As fast as it can be ended before the kubelet's own line: 32Mi below that of the agent last 0.6 s.
    // What grows faster is beyond both before anybody has ended it, and whether the kubelet looks just
    // then is chance.
    let hog = world.image("hog", &climbing(3, 400));

    // One of each class of quality of service. `important` is above its request too, and by its
    // priority the hog goes first.
    let mut manifest = pod("steady", &steady, Some("200Mi"), Some("200Mi"));
    for bound in ["requests", "limits"] {
        manifest["spec"]["containers"][0]["resources"][bound]["cpu"] = json!("100m");
    }
    assert_eq!(world.run(&manifest)["status"]["qosClass"], "Guaranteed");
    let mut manifest = pod("important", &important, Some("16Mi"), None);
    manifest["spec"]["priorityClassName"] = json!("important");
    let important = world.run(&manifest);
    assert_eq!(important["status"]["qosClass"], "Burstable");
    let mut agent = world.agent(&json!({}));
    knows(&mut agent, 2);
    let mut story = Story::begin();
    for round in 0..rounds {
        let begun = std::time::Instant::now();
        let name = format!("hog-{round}");
        let made = world.run(&pod(&name, &hog, None, None));
        assert_eq!(made["status"]["qosClass"], "BestEffort");
        let full = format!("default/{name}");
        let accepted = outcome(&mut agent, &name, "accepted");
        let decision = agent
            .wait_for("its decision", GUARD, |event: &Event| {
                event.kind() == "eviction_decision" && event.pod() == full
            })
            .unwrap();
        // Ranked by figures of that moment: what the others have leaves the hog no less.
        let first = &decision.value["candidates"][0];
        assert_eq!(full_name(first), full, "{decision:?}");
        assert!(first["usage"].as_u64() > Some(HOGS_MIB * MIB), "{decision:?}");
        if round == 0 {
            story.mark_at("decided", decision.number("decided_mono_ns").unwrap());
            story.mark_at("accepted", accepted.number("mono_ns").unwrap());
            story.value("signal", decision.text("signal"));
        }
        world.until_gone(&name);
        outcome(&mut agent, &name, "terminated");
        world.cluster.interrupt().sleep(PACE.saturating_sub(begun.elapsed())).unwrap();
    }
    story.value("rounds", rounds);
    let expected: Vec<String> = (0..rounds).map(|round| format!("default/hog-{round}")).collect();
    assert_eq!(chosen(&mut agent), expected);
    for name in ["steady", "important"] {
        let pod = world::running(&world.cluster, name).unwrap();
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "{pod}");
    }
    assert_eq!(world.kubelets_evictions(), [""; 0]);
    assert!(agent.stop().unwrap().success());
}
