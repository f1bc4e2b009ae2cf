//! Restarts of the agent: killed at any instant and started again, it continues, evicts no other pod, and forgets
//! nothing.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::process::wait_until;
use tests::random::Random;
use tests::skip;
use tests::workload::Workload;

const MEMORY: u64 = 320 * MIB;

/// How often the agent is killed, unless `EVICTION_AGENT_KILLS` sets another number.
const KILLS: usize = 3;

/// The agent is killed within this time, in milliseconds, after a hog was started: the hog crosses the threshold in the
/// first half, and is terminating for a second after that.
const KILL_WITHIN: u64 = 1_500;

struct Testbed {
    node: Node,
    options: Options,
}

impl Testbed {
    /// Creates a node without pods, with a hard threshold and a state directory of its own for the agent.
    fn new(label: &str) -> Option<Self> {
        Self::with(label, &json!({"evictionHard": {"memory.available": "64Mi"}}))
    }

    fn with(label: &str, kubelet: &Value) -> Option<Self> {
        let node = Node::new(label, MEMORY, 200).ok()?;
        let config = json!({"profile": "Enhanced", "policy": {"soft": {"evictPodsWithoutController": true}}});
        let config = node.write_agent_config(&config).unwrap();
        let options = Options::new(&node, kubelet).unwrap().with_path("--state-dir", node.file("run"));
        Some(Self { node, options: Options { config: Some(config), ..options } })
    }

    fn start(&self) -> Agent {
        self.options.start().unwrap()
    }

    fn add(&mut self, name: &str) -> usize {
        // The UID is never that of a former pod.
        let index = self.node.add(PodSpec::new("shop", name, &["main"], 8)).unwrap();
        self.node.write_pods().unwrap();
        index
    }

    /// Starts a process that holds `size` and ignores SIGTERM.
    fn hold(&self, pod: usize, size: &str) -> Workload {
        self.node.run(pod, &["--on-term", "ignore", "hold", "--size", size]).unwrap()
    }

    fn wait_for_state(&self) {
        wait_until("the state", || self.state().exists()).unwrap();
    }

    fn state(&self) -> std::path::PathBuf {
        self.node.file("run/state.json")
    }
}

fn wait_for_result(agent: &mut Agent, result: &str) -> Event {
    agent.wait_for(&format!("the result {result}"), GUARD, |event| event.is_result(result)).unwrap()
}

fn decided_pods(events: &[Event]) -> Vec<String> {
    events.iter().filter(|event| event.is_decision()).map(Event::pod).collect()
}

fn wait_for_memory_pressure(agent: &Agent) {
    let labels = [("condition", "MemoryPressure")];
    agent.wait_for_metric("eviction_agent_node_condition", &labels, |state| state > 0.0).unwrap();
}

fn kills() -> usize {
    std::env::var("EVICTION_AGENT_KILLS").map_or(KILLS, |kills| kills.parse().unwrap())
}

#[test]
fn an_agent_killed_at_any_time_evicts_no_other_pod_after_restart() {
    let Some(mut testbed) = Testbed::new("restart") else { skip!("no cgroups can be made here") };
    let next = testbed.add("next");
    let mut bystander = testbed.hold(next, "60M");
    let mut random = Random(7);
    let mut agent = testbed.start();
    for round in 0..kills() {
        let hog = testbed.add(&format!("hog-{round}"));
        let name = testbed.node.pods[hog].full_name();
        let mut process = testbed.hold(hog, "210M");
        std::thread::sleep(Duration::from_millis(random.below(KILL_WITHIN)));
        let mut events = agent.kill().unwrap();
        agent = testbed.start();
        // Either of the two agents may have evicted the hog.
        process.process().wait().unwrap();
        let is_relieved = || testbed.node.working_set().unwrap() < MEMORY - 64 * MIB;
        wait_until("memory to be back", is_relieved).unwrap();
        wait_for_memory_pressure(&agent);
        events.extend(agent.kill().unwrap());
        assert!(decided_pods(&events).iter().all(|pod| *pod == name), "round {round}: {events:?}");
        assert!(bystander.process().is_running().unwrap(), "round {round}");
        // There is no pressure any more; the condition lasts longer than the pressure, also over a restart of the
        // agent.
        agent = testbed.start();
        wait_for_memory_pressure(&agent);
        testbed.node.pods.remove(hog);
        testbed.node.write_pods().unwrap();
    }
    agent.stop().unwrap();
    assert!(
        !set_aside_path(&testbed.state()).exists(),
        "every start could read what the one before has left"
    );
}

#[test]
fn a_deleted_pod_counts_as_terminating_until_its_processes_end() {
    let soft = json!({
        "evictionHard": {"memory.available": "8Mi"},
        "evictionSoft": {"memory.available": "64Mi"},
        "evictionSoftGracePeriod": {"memory.available": "1s"},
    });
    let Some(mut testbed) = Testbed::with("restart-leaving", &soft) else {
        skip!("no cgroups can be made here")
    };
    let next = testbed.add("next");
    let mut bystander = testbed.hold(next, "60M");
    let hog = testbed.add("hog");
    let mut agent = testbed.start();
    // The process gets SIGTERM and ignores it for the whole grace period of half a minute.
    let mut process = testbed.hold(hog, "205M");
    wait_for_result(&mut agent, "signalled");
    let hog = testbed.node.pods.remove(hog);
    testbed.node.write_pods().unwrap();
    let is_unknown_cgroup = |event: &Event| {
        event.kind() == "pods" && event.value["unknown_cgroups"].to_string().contains(hog.uid())
    };
    agent.wait_for("that the object is gone", GUARD, is_unknown_cgroup).unwrap();
    // The agent samples more than once a second while a threshold is met.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(decided_pods(&agent.kill().unwrap()), ["shop/hog"]);
    let mut agent = testbed.start();
    std::thread::sleep(Duration::from_secs(2));
    assert!(process.process().is_running().unwrap() && bystander.process().is_running().unwrap());
    assert!(decided_pods(agent.events().unwrap()).is_empty(), "{:?}", agent.events().unwrap());
    process.process().child().kill().unwrap();
    process.process().wait().unwrap();
    assert_eq!(wait_for_result(&mut agent, "terminated").text("pod_uid"), hog.uid());
    agent.stop().unwrap();
}

#[test]
fn kill_rate_limits_persist_across_a_restart() {
    let Some(mut testbed) = Testbed::new("restart-pace") else { skip!("no cgroups can be made here") };
    let mut agent = testbed.start();
    let hog = testbed.add("hog");
    let mut process = testbed.hold(hog, "270M");
    wait_for_result(&mut agent, "terminated");
    process.process().wait().unwrap();
    testbed.node.pods.remove(hog);
    agent.kill().unwrap();
    // The pod is created again, and grows as before.
    let mut agent = testbed.start();
    let hog = testbed.add("hog");
    let mut process = testbed.hold(hog, "270M");
    let refused = wait_for_result(&mut agent, "rejected");
    assert_eq!(refused.text("reason"), "the pod was killed a moment ago");
    assert!(process.process().is_running().unwrap());
    agent.stop().unwrap();
}

fn set_aside_path(state: &Path) -> std::path::PathBuf {
    state.with_file_name("state.json.set-aside")
}

#[test]
fn an_invalid_state_file_is_set_aside_and_the_agent_starts() {
    let Some(testbed) = Testbed::new("restart-foreign") else { skip!("no cgroups can be made here") };
    let agent = testbed.start();
    testbed.wait_for_state();
    agent.stop().unwrap();
    let good: Value = serde_json::from_slice(&fs::read(testbed.state()).unwrap()).unwrap();
    let with = |field: &str, value: Value| {
        let mut all = good.clone();
        all[field] = value;
        all.to_string()
    };
    let whole = good.to_string();
    // Each reason has its own test, beside the code that reads the file.
    for text in
        [whole[..whole.len() / 2].to_owned(), with("bootId", json!("00000000-0000-0000-0000-000000000000"))]
    {
        fs::write(testbed.state(), &text).unwrap();
        let agent = testbed.start();
        assert_eq!(fs::read_to_string(set_aside_path(&testbed.state())).unwrap(), text);
        testbed.wait_for_state();
        agent.stop().unwrap();
        let written: Value = serde_json::from_slice(&fs::read(testbed.state()).unwrap()).unwrap();
        assert_eq!((&written["bootId"], &written["version"]), (&good["bootId"], &good["version"]));
    }
    // The agent's own file is not set aside.
    fs::remove_file(set_aside_path(&testbed.state())).unwrap();
    testbed.start().stop().unwrap();
    assert!(!set_aside_path(&testbed.state()).exists());
}

#[test]
fn the_agent_evicts_when_its_state_cannot_be_written() {
    let Some(mut testbed) = Testbed::new("restart-unwritable") else { skip!("no cgroups can be made here") };
    // A file is in the place of the folder.
    fs::write(testbed.node.file("run"), "").unwrap();
    let hog = testbed.add("hog");
    let mut agent = testbed.start();
    let mut process = testbed.hold(hog, "270M");
    wait_for_result(&mut agent, "terminated");
    process.process().wait().unwrap();
    let failed = agent.metric("eviction_agent_state_writes_total", &[("result", "failed")]).unwrap();
    assert!(failed > 0.0);
    agent.stop().unwrap();
}
