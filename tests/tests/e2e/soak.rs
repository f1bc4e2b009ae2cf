//! Constant pressure and churn while everything goes wrong that can, and then an audit.

mod audit;

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::agent::Agent;
use tests::cluster::proxy::{Fault, Proxy, When};
use tests::node::PodSpec;
use tests::workload::Workload;

use crate::evict::{GUARD, World, hard};
use crate::fixture;

/// How long it lasts, unless `EVICTION_AGENT_SOAK_SECONDS` says otherwise.
const LASTS: u64 = 15;

/// So many pods want more together than there is, beside those that nobody may evict.
const PODS: usize = 3;
const SIZE: &str = "70M";

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Begins to go wrong in one way or another.
fn spoil(proxy: &Proxy, random: &mut Random) {
    let any = When::any;
    match random.below(10) {
        0 => proxy.refuse(),
        1 => proxy.hang(),
        2 => proxy.on(any(), Fault::status(500)),
        3 => proxy.on(any(), Fault::status(503)),
        4 => proxy.on(any(), Fault::status(401)),
        5 => proxy.on(any(), Fault::Late(Duration::from_secs(3))),
        6 => proxy.on(any(), Fault::Reset(0)),
        7 => proxy.on(any(), Fault::Reset(20)),
        8 => proxy.on(any().watch(true), Fault::Close(Duration::from_secs(1))),
        _ => proxy.on(any(), Fault::Lost),
    }
}

/// What a kubelet and a controller do: ends who is to go, and starts another in his place.
struct Churn {
    hogs: Vec<(String, Workload)>,
    made: u64,
}

impl Churn {
    fn turn(&mut self, world: &mut World) {
        for place in 0..self.hogs.len() {
            let name = self.hogs[place].0.clone();
            if !world.is_going(&name) {
                continue;
            }
            let (_, mut hog) = self.hogs.remove(place);
            hog.process().child().kill().unwrap();
            world.cluster.finish_pod("default", &name).unwrap();
            world.node.pods.retain(|pod| pod.full_name() != format!("default/{name}"));
            self.start(world);
            return;
        }
    }

    fn start(&mut self, world: &mut World) {
        self.made += 1;
        let name = format!("hog-{}", self.made);
        let Made { workload, uid: _ } = make(world, PodSpec::new("default", &name, &["main"], 8), SIZE);
        self.hogs.push((name, workload));
    }
}

/// A pod that holds memory.
struct Made {
    uid: String,
    workload: Workload,
}

fn make(world: &mut World, spec: PodSpec, size: &str) -> Made {
    let place = world.cluster.place("n1", &mut world.node, spec).unwrap();
    Made { uid: world.node.pods[place].uid().to_owned(), workload: world.hog(place, size) }
}

/// Priority of `system-node-critical`.
const CRITICAL: i32 = 2_000_001_000;

/// Nobody's victims, and why not.
const PROTECTED: [&str; 4] = ["static", "critical", "modest", "small"];

/// Pods that hold memory and may not go: one of the node's own manifests and a critical one, both far above what
/// they ask for, and two below.
fn protected(world: &mut World) -> [Made; 4] {
    let spec = |name: &str| PodSpec::new("default", name, &["main"], 1);
    let [own, critical, modest, small] = PROTECTED.map(spec);
    let modest = PodSpec { request_mib: 60, limit_mib: Some(60), ..modest };
    let small = PodSpec { request_mib: 8, ..small };
    [
        make(world, PodSpec { is_static: true, ..own }, "30M"),
        make(world, PodSpec { priority: Some(CRITICAL), ..critical }, "30M"),
        make(world, modest, "20M"),
        make(world, small, "4M"),
    ]
}

#[test]
fn whatever_goes_wrong_nobody_is_evicted_twice_or_without_a_decision() {
    let lasts = std::env::var("EVICTION_AGENT_SOAK_SECONDS").map_or(LASTS, |text| text.parse().unwrap());
    let Some(mut world) = World::new(&[]) else { return };
    let proxy = Proxy::start(&world.cluster).unwrap();
    let mut options = world.watching(&hard(), &json!({}), proxy.port());
    let state = world.node.file("run").display().to_string();
    options.more.extend(["--state-dir".to_owned(), state]);
    let recording = world.node.file("recording");
    let config = options.config.as_ref().unwrap();
    let mut text: Value = serde_json::from_slice(&fs::read(config).unwrap()).unwrap();
    text["recorder"] = json!({"directory": recording, "minFreeDisk": "0"});
    fs::write(config, text.to_string()).unwrap();
    let mut protected = protected(&mut world);
    let mut agent = Agent::start(&options, fixture::interrupt()).unwrap();
    let (mut churn, mut random) = (Churn { hogs: Vec::new(), made: 0 }, Random(5));
    for _ in 0..PODS {
        churn.start(&mut world);
    }
    let end = Instant::now() + Duration::from_secs(lasts);
    let mut is_wrong = false;
    let mut turns_at = Instant::now();
    while Instant::now() < end {
        if Instant::now() >= turns_at {
            is_wrong = !is_wrong;
            if is_wrong {
                spoil(&proxy, &mut random)
            } else {
                proxy.heal()
            }
            turns_at = Instant::now() + Duration::from_millis(1_000 + random.below(6_000));
        }
        churn.turn(&mut world);
        fixture::interrupt().sleep(Duration::from_millis(100)).unwrap();
    }
    proxy.heal();
    // What was open is found out: nobody is left of whom nobody knows.
    fixture::interrupt()
        .until("that all is known", GUARD, || {
            churn.turn(&mut world);
            Ok(audit::open(agent.heard()?).is_empty().then_some(()))
        })
        .unwrap();
    for (Made { workload, .. }, name) in protected.iter_mut().zip(PROTECTED) {
        assert!(workload.process().is_running().unwrap() && !world.is_going(name), "{name}");
    }
    let heard = agent.heard().unwrap().to_vec();
    assert!(agent.stop().unwrap().success());
    // Whoever was made in another's place was made because that one went.
    let made = usize::try_from(churn.made).unwrap();
    audit::of_what_was_said(&heard, made.saturating_sub(PODS));
    let protected: Vec<String> = protected.into_iter().map(|it| it.uid).collect();
    audit::of_what_was_recorded(&recording, &heard, &protected);
}
