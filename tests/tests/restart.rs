//! The agent's own end, and what comes after it: killed at any instant, it is started anew and
//! goes on, evicts nobody else, and forgets nothing.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tests::agent::{self, Agent, Event, Options};
use tests::cgroup::pod_uid;
use tests::interrupt::Interrupt;
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::{self, Workload};

/// A guard against an agent that hangs.
const GUARD: Duration = Duration::from_secs(90);

const MEMORY: u64 = 320 * MIB;

/// How often the agent is killed, unless `EVICTION_AGENT_KILLS` says otherwise.
const KILLS: usize = 3;

/// After a hog was let go, the agent is killed within this time: it crosses the line in the first
/// half, and is on its way out for a second after that.
const WITHIN: Duration = Duration::from_millis(1_500);

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: Duration) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_nanos((self.0 >> 11) % u64::try_from(limit.as_nanos()).unwrap())
    }
}

struct Testbed {
    node: Node,
    options: Options,
    interrupt: Interrupt,
    /// So many were added so far.
    pods: u64,
}

impl Testbed {
    /// A node without pods, a hard threshold, and the agent's state in a file of its own.
    fn new(label: &str) -> Option<Self> {
        Self::with(label, &json!({"evictionHard": {"memory.available": "64Mi"}}))
    }

    fn with(label: &str, kubelet: &Value) -> Option<Self> {
        let node = Node::new(label, MEMORY, 200).ok()?;
        let own = node.file("agent.yaml");
        let policy = json!({
            "apiVersion": "eviction-agent.io/v1alpha1", "kind": "AgentConfiguration", "profile": "Enhanced",
            "policy": {"soft": {"evictPodsWithoutController": true}},
        });
        fs::write(&own, policy.to_string()).unwrap();
        let options = Options::of(&agent::binary().unwrap(), &node, kubelet).unwrap();
        let state = node.file("run").display().to_string();
        let options = Options { config: Some(own), more: vec!["--state-dir".to_owned(), state], ..options };
        Some(Self { node, options, interrupt: Interrupt::default(), pods: 0 })
    }

    fn start(&self) -> Agent {
        Agent::start(&self.options, &self.interrupt).unwrap()
    }

    fn add(&mut self, name: &str) -> usize {
        self.pods += 1;
        let spec = PodSpec::new("shop", name, &["main"], 8);
        // Never one that a former pod had.
        let place = self.node.add_as(spec, pod_uid(self.pods)).unwrap();
        self.node.write_pods().unwrap();
        place
    }

    /// It holds so much, and does not end on SIGTERM.
    fn hold(&self, pod: usize, size: &str) -> Workload {
        let group = &self.node.pods[pod].containers[0].group;
        let arguments = ["--on-term", "ignore", "hold", "--size", size];
        let mut workload = Workload::start(&workload::binary().unwrap(), group, arguments).unwrap();
        workload.go().unwrap();
        workload
    }

    fn wait_for_state(&self) {
        let is_there = || Ok(self.state().exists().then_some(()));
        self.interrupt.until("the state", GUARD, is_there).unwrap();
    }

    fn state(&self) -> std::path::PathBuf {
        self.node.file("run/state.json")
    }
}

fn outcome(agent: &mut Agent, outcome: &str) -> Event {
    let is_it = |event: &Event| event.kind() == "eviction_progress" && event.text("result") == outcome;
    agent.wait_for(&format!("the outcome {outcome}"), GUARD, is_it).unwrap()
}

fn decided(said: &[Event]) -> Vec<String> {
    said.iter().filter(|event| event.kind() == "eviction_decision").map(|event| event.pod()).collect()
}

fn holds(agent: &Agent) -> bool {
    agent.metrics().unwrap().sum("eviction_agent_node_condition", &[("condition", "MemoryPressure")]) > 0.0
}

fn kills() -> usize {
    std::env::var("EVICTION_AGENT_KILLS").map_or(KILLS, |kills| kills.parse().unwrap())
}

#[test]
fn killed_at_any_instant_it_evicts_nobody_else_and_forgets_nothing() {
    let Some(mut testbed) = Testbed::new("restart") else { skip!("no cgroups can be made here") };
    let next = testbed.add("next");
    let mut bystander = testbed.hold(next, "60M");
    let mut random = Random(9);
    let mut agent = testbed.start();
    for round in 0..kills() {
        let hog = testbed.add(&format!("hog-{round}"));
        let name = testbed.node.pods[hog].full_name();
        let mut process = testbed.hold(hog, "210M");
        testbed.interrupt.sleep(random.below(WITHIN)).unwrap();
        let mut said = agent.kill().unwrap();
        agent = testbed.start();
        // Whichever of the two it was.
        let ended = || Ok((!process.process().is_running()?).then_some(()));
        testbed.interrupt.until("the hog's end", GUARD, ended).unwrap();
        let relieved = || Ok((testbed.node.working_set()? < MEMORY - 64 * MIB).then_some(()));
        testbed.interrupt.until("that memory is back", GUARD, relieved).unwrap();
        testbed.interrupt.until("the condition", GUARD, || Ok(holds(&agent).then_some(()))).unwrap();
        said.extend(agent.kill().unwrap());
        assert!(self::decided(&said).iter().all(|pod| *pod == name), "round {round}: {said:?}");
        assert!(bystander.process().is_running().unwrap(), "round {round}");
        // There is no pressure any more; the condition outlives it, and the agent.
        agent = testbed.start();
        let still = || Ok(holds(&agent).then_some(()));
        testbed.interrupt.until("the condition that was raised before", GUARD, still).unwrap();
        testbed.node.pods.remove(hog);
        testbed.node.write_pods().unwrap();
    }
    assert!(agent.stop().unwrap().success());
    assert!(!aside(&testbed.state()).exists(), "every start could read what the one before has left");
}

#[test]
fn whose_object_is_gone_is_on_its_way_until_its_memory_is_back() {
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
    // It is asked to end, and does not for the half minute that it is given.
    let mut process = testbed.hold(hog, "205M");
    outcome(&mut agent, "signalled");
    let hog = testbed.node.pods.remove(hog);
    testbed.node.write_pods().unwrap();
    let is_strange = |event: &Event| {
        event.kind() == "pods" && event.value["unknown_cgroups"].to_string().contains(hog.uid())
    };
    agent.wait_for("that the object is gone", GUARD, is_strange).unwrap();
    // Looks at a threshold that is met come more than once a second.
    testbed.interrupt.sleep(Duration::from_secs(2)).unwrap();
    assert_eq!(decided(&agent.kill().unwrap()), ["shop/hog"]);
    let mut agent = testbed.start();
    testbed.interrupt.sleep(Duration::from_secs(2)).unwrap();
    assert!(process.process().is_running().unwrap() && bystander.process().is_running().unwrap());
    assert!(decided(agent.heard().unwrap()).is_empty(), "{:?}", agent.heard().unwrap());
    process.process().child().kill().unwrap();
    process.process().wait().unwrap();
    assert_eq!(outcome(&mut agent, "terminated").text("pod_uid"), hog.uid());
    assert!(agent.stop().unwrap().success());
}

#[test]
fn the_pace_goes_on() {
    let Some(mut testbed) = Testbed::new("restart-pace") else { skip!("no cgroups can be made here") };
    let mut agent = testbed.start();
    let hog = testbed.add("hog");
    let mut process = testbed.hold(hog, "270M");
    outcome(&mut agent, "terminated");
    process.process().wait().unwrap();
    testbed.node.pods.remove(hog);
    agent.kill().unwrap();
    // Somebody makes it anew, and it has learned nothing.
    let mut agent = testbed.start();
    let hog = testbed.add("hog");
    let mut process = testbed.hold(hog, "270M");
    let refused = outcome(&mut agent, "rejected");
    assert_eq!(refused.text("reason"), "the pod was killed a moment ago");
    assert!(process.process().is_running().unwrap());
    assert!(agent.stop().unwrap().success());
}

fn aside(state: &Path) -> std::path::PathBuf {
    state.with_file_name("state.json.set-aside")
}

#[test]
fn what_is_of_no_use_is_set_aside_and_the_agent_starts_all_the_same() {
    let Some(testbed) = Testbed::new("restart-foreign") else { skip!("no cgroups can be made here") };
    let agent = testbed.start();
    testbed.wait_for_state();
    assert!(agent.stop().unwrap().success());
    let good: Value = serde_json::from_slice(&fs::read(testbed.state()).unwrap()).unwrap();
    let with = |field: &str, value: Value| {
        let mut all = good.clone();
        all[field] = value;
        all.to_string()
    };
    let whole = good.to_string();
    // Each reason there is has its own test, beside what reads the file.
    for text in
        [whole[..whole.len() / 2].to_owned(), with("boot_id", json!("00000000-0000-0000-0000-000000000000"))]
    {
        fs::write(testbed.state(), &text).unwrap();
        let agent = testbed.start();
        assert_eq!(fs::read_to_string(aside(&testbed.state())).unwrap(), text);
        testbed.wait_for_state();
        assert!(agent.stop().unwrap().success());
        let written: Value = serde_json::from_slice(&fs::read(testbed.state()).unwrap()).unwrap();
        assert_eq!((&written["boot_id"], &written["version"]), (&good["boot_id"], &good["version"]));
    }
    // Its own is not.
    fs::remove_file(aside(&testbed.state())).unwrap();
    assert!(testbed.start().stop().unwrap().success());
    assert!(!aside(&testbed.state()).exists());
}

#[test]
fn decisions_go_on_where_nothing_can_be_written() {
    let Some(mut testbed) = Testbed::new("restart-unwritable") else { skip!("no cgroups can be made here") };
    // A file is where the folder should be.
    fs::write(testbed.node.file("run"), "").unwrap();
    let hog = testbed.add("hog");
    let mut agent = testbed.start();
    let mut process = testbed.hold(hog, "270M");
    outcome(&mut agent, "terminated");
    process.process().wait().unwrap();
    let failed = agent.metrics().unwrap().sum("eviction_agent_state_writes_total", &[("result", "failed")]);
    assert!(failed > 0.0);
    assert!(agent.stop().unwrap().success());
}
