//! The agent acts before the kubelet: it evicts the pod that the kubelet would have evicted, and leaves the kubelet
//! nothing to do.

use serde_json::json;
use tests::agent::{Event, GUARD, full_name};
use tests::cluster::Options;
use tests::node::MIB;
use tests::story::Story;

use crate::testbed::{self, Testbed, growing, growing_slowly, pod, selected_pods, wait_for_result};

/// The number of rounds, unless the environment sets another.
const ROUNDS: usize = 5;
/// The environment variable with the number of rounds; twenty in a nightly run.
const MORE: &str = "EVICTION_AGENT_ROUNDS";

/// The minimum duration of a round: the agent evicts at most ten pods a minute.
const PACE: std::time::Duration = std::time::Duration::from_secs(7);

/// The hog uses more than this when the agent's threshold is crossed, since the other pods use at most 300 MiB.
const HOGS_MIB: u64 = testbed::ROOM_MIB - testbed::THRESHOLD_MIB - 32 - 300;

#[test]
fn a_hog_is_evicted_before_the_kubelet_acts() {
    let Some(mut testbed) = Testbed::small(&Options::default()) else { return };
    let rounds = std::env::var(MORE).ok().map_or(ROUNDS, |text| text.parse().unwrap());
    testbed.cluster.add_priority("important", 1000).unwrap();
    let steady = testbed.image("steady", &growing(0, 100));
    let important = testbed.image("important", &growing(0, 150));
    // The hog grows as fast as possible for an agent that must act before the kubelet's threshold: the 32Mi between
    // both thresholds last 0.6 s. A faster hog passes both before it is ended, and whether the kubelet samples just
    // then is chance.
    let hog = testbed.image("hog", &growing_slowly(3, 400));

    // One pod of each QoS class. `important` is above its request too; because of its priority the hog goes first.
    let mut manifest = pod("steady", &steady, Some("200Mi"), Some("200Mi"));
    for bound in ["requests", "limits"] {
        manifest["spec"]["containers"][0]["resources"][bound]["cpu"] = json!("100m");
    }
    assert_eq!(testbed.run(&manifest)["status"]["qosClass"], "Guaranteed");
    let mut manifest = pod("important", &important, Some("16Mi"), None);
    manifest["spec"]["priorityClassName"] = json!("important");
    let important = testbed.run(&manifest);
    assert_eq!(important["status"]["qosClass"], "Burstable");
    let mut agent = testbed.agent(&json!({}));
    agent.wait_for_pods(2).unwrap();
    let mut story = Story::begin();
    for round in 0..rounds {
        let begun = std::time::Instant::now();
        let name = format!("hog-{round}");
        let made = testbed.run(&pod(&name, &hog, None, None));
        assert_eq!(made["status"]["qosClass"], "BestEffort");
        let full = format!("default/{name}");
        let accepted = wait_for_result(&mut agent, &name, "accepted");
        let is_match = |event: &Event| event.is_decision() && event.pod() == full;
        let decision = agent.wait_for("its decision", GUARD, is_match).unwrap();
        // The ranking uses values of that moment: with the usage of the other pods the hog has no less.
        let first = &decision.value["candidates"][0];
        assert_eq!(full_name(first), full, "{decision:?}");
        assert!(first["usage"].as_u64() > Some(HOGS_MIB * MIB), "{decision:?}");
        if round == 0 {
            story.mark_at("decided", decision.number("decided_mono_ns").unwrap());
            story.mark_at("accepted", accepted.number("mono_ns").unwrap());
            story.value("signal", decision.text("signal"));
        }
        testbed.wait_until_removed(&name);
        wait_for_result(&mut agent, &name, "terminated");
        testbed.cluster.interrupt().sleep(PACE.saturating_sub(begun.elapsed())).unwrap();
    }
    story.value("rounds", rounds);
    let expected: Vec<String> = (0..rounds).map(|round| format!("default/hog-{round}")).collect();
    assert_eq!(selected_pods(&mut agent), expected);
    for name in ["steady", "important"] {
        let pod = testbed::running_pod(&testbed.cluster, name).unwrap();
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "{pod}");
    }
    assert_eq!(testbed.kubelet_eviction_log(), [""; 0]);
    agent.stop().unwrap();
}
