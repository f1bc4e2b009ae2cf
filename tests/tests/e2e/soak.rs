//! Constant pressure and churn under all kinds of faults, and an audit at the end.

mod audit;

use std::time::{Duration, Instant};

use serde_json::json;
use tests::agent::{Agent, GUARD};
use tests::cluster::proxy::{Fault, Proxy, When};
use tests::node::PodSpec;
use tests::random::Random;
use tests::workload::Workload;

use crate::evict::{config, hard};
use crate::fixture;
use crate::testbed::{Testbed, pod};

/// How many seconds the test lasts, unless `EVICTION_AGENT_SOAK_SECONDS` sets another number.
const DEFAULT_SECONDS: u64 = 15;

/// The number of pods that together use more than there is, beside those that may not be evicted.
const PODS: usize = 3;
const SIZE: &str = "70M";

/// Injects a random fault.
fn inject_fault(proxy: &Proxy, random: &mut Random) {
    let any = When::any;
    match random.below(10) {
        0 => proxy.refuse(),
        1 => proxy.hang(),
        2 => proxy.on(any(), Fault::status(500)),
        3 => proxy.on(any(), Fault::status(503)),
        4 => proxy.on(any(), Fault::status(401)),
        5 => proxy.on(any(), Fault::DelayResponse(Duration::from_secs(3))),
        6 => proxy.on(any(), Fault::Reset(0)),
        7 => proxy.on(any(), Fault::Reset(20)),
        8 => proxy.on(any().watch(true), Fault::Close(Duration::from_secs(1))),
        _ => proxy.on(any(), Fault::DropRequest),
    }
}

/// The part of a kubelet and a controller: ends pods that are being deleted, and starts others in their place.
struct Churn {
    hogs: Vec<(String, Workload)>,
    created: u64,
}

impl Churn {
    fn replace_terminating_pod(&mut self, testbed: &mut Testbed) {
        for index in 0..self.hogs.len() {
            let name = self.hogs[index].0.clone();
            if !testbed.is_terminating(&name) {
                continue;
            }
            let (_, mut hog) = self.hogs.remove(index);
            hog.process().child().kill().unwrap();
            testbed.cluster.finish_pod("default", &name).unwrap();
            testbed.node.pods.retain(|pod| pod.full_name() != format!("default/{name}"));
            self.start(testbed);
            return;
        }
    }

    fn start(&mut self, testbed: &mut Testbed) {
        self.created += 1;
        let name = format!("hog-{}", self.created);
        let HoldingPod { workload, uid: _ } = create_pod(testbed, pod(&name), SIZE);
        self.hogs.push((name, workload));
    }
}

/// A pod that holds memory.
struct HoldingPod {
    uid: String,
    workload: Workload,
}

fn create_pod(testbed: &mut Testbed, spec: PodSpec, size: &str) -> HoldingPod {
    let index = testbed.add(spec);
    HoldingPod { uid: testbed.node.pods[index].uid().to_owned(), workload: testbed.hog(index, size) }
}

/// The priority of `system-node-critical`.
const CRITICAL: i32 = 2_000_001_000;

/// The pods that may not be evicted, by the reason.
const PROTECTED: [&str; 4] = ["static", "critical", "modest", "small"];

/// Creates pods that hold memory and may not be evicted: a static pod and a critical one, both far above their
/// requests, and two below theirs.
fn create_protected_pods(testbed: &mut Testbed) -> [HoldingPod; 4] {
    let spec = |name: &str| PodSpec { request_mib: 1, ..pod(name) };
    let [static_pod, critical, modest, small] = PROTECTED.map(spec);
    let modest = PodSpec { request_mib: 60, limit_mib: Some(60), ..modest };
    let small = PodSpec { request_mib: 8, ..small };
    [
        create_pod(testbed, PodSpec { is_static: true, ..static_pod }, "30M"),
        create_pod(testbed, PodSpec { priority: Some(CRITICAL), ..critical }, "30M"),
        create_pod(testbed, modest, "20M"),
        create_pod(testbed, small, "4M"),
    ]
}

#[test]
fn faults_evict_no_pod_twice_or_without_a_decision() {
    let seconds =
        std::env::var("EVICTION_AGENT_SOAK_SECONDS").map_or(DEFAULT_SECONDS, |text| text.parse().unwrap());
    let Some(mut testbed) = Testbed::new("evict", []) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let options = testbed.options(&hard(), proxy.port());
    let options = options.with_path("--state-dir", testbed.node.file("run"));
    let recording = testbed.node.file("recording");
    let mut config = config(&json!({}));
    config["recorder"] = json!({"directory": recording, "minFreeDisk": "0"});
    testbed.node.write_agent_config(&config).unwrap();
    let mut protected = create_protected_pods(&mut testbed);
    let mut agent = Agent::start(&options, fixture::interrupt()).unwrap();
    let (mut churn, mut random) = (Churn { hogs: Vec::new(), created: 0 }, Random(5));
    for _ in 0..PODS {
        churn.start(&mut testbed);
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut is_faulty = false;
    let mut switch_at = Instant::now();
    while Instant::now() < end {
        if Instant::now() >= switch_at {
            is_faulty = !is_faulty;
            if is_faulty {
                inject_fault(&proxy, &mut random)
            } else {
                proxy.heal()
            }
            switch_at = Instant::now() + Duration::from_millis(1_000 + random.below(6_000));
        }
        churn.replace_terminating_pod(&mut testbed);
        fixture::interrupt().sleep(Duration::from_millis(100)).unwrap();
    }
    proxy.heal();
    // The result of every open request is found out: none may stay unknown.
    fixture::interrupt()
        .until("that all is known", GUARD, || {
            churn.replace_terminating_pod(&mut testbed);
            Ok(audit::unknown_decisions(agent.events()?).is_empty().then_some(()))
        })
        .unwrap();
    for (HoldingPod { workload, .. }, name) in protected.iter_mut().zip(PROTECTED) {
        assert!(workload.process().is_running().unwrap() && !testbed.is_terminating(name), "{name}");
    }
    let heard = agent.events().unwrap().to_vec();
    agent.stop().unwrap();
    // Each replacement was made because another pod was evicted.
    let created = usize::try_from(churn.created).unwrap();
    audit::check_events(&heard, created.saturating_sub(PODS));
    let protected: Vec<String> = protected.into_iter().map(|it| it.uid).collect();
    audit::check_recording(&recording, &heard, &protected);
}
