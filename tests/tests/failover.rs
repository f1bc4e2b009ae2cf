//! An agent whose backend for charges is taken away while it runs moves to the next, says so, and goes
//! on deciding.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::time::Duration;

use eviction_agent::telemetry::metrics::backend_labels;
use eviction_bpf::attach_methods::ATTACH_METHODS;
use serde_json::json;
use tests::agent::{self, Agent, Options};
use tests::fdinfo::FdInfo;
use tests::inject::replace_descriptor;
use tests::interrupt::Interrupt;
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::{self, Workload};

/// A guard against an agent that hangs: backends are looked at each ten seconds while all is calm.
const GUARD: Duration = Duration::from_secs(90);

/// The descriptor in this process behind which a program of that name is attached.
fn link_of(pid: u32, program: &str) -> Option<u32> {
    // As the kernel has it: cut off.
    let name = &program[..program.len().min(15)];
    let loaded = aya::programs::loaded_programs().filter_map(Result::ok);
    let ids: Vec<_> =
        loaded.filter(|info| info.name() == name.as_bytes()).map(|info| u64::from(info.id())).collect();
    let is_link = |info: &FdInfo| {
        fs::read_link(format!("/proc/{pid}/fd/{}", info.number)).is_ok_and(|what| {
            what.to_string_lossy().contains("bpf_link") || what.to_string_lossy().contains("bpf-link")
        })
    };
    let is_its = |info: &FdInfo| is_link(info) && info.field("prog_id").is_some_and(|id| ids.contains(&id));
    FdInfo::all(pid).unwrap().into_iter().find(is_its).map(|info| info.number)
}

#[test]
fn a_lost_link_moves_the_agent_to_the_next_backend() {
    let Ok(mut node) = Node::new("backend-lost", 256 * MIB, 200) else {
        skip!("no cgroups can be made here")
    };
    let spec = PodSpec::new("shop", "web", &["app"], 8);
    let web = node.add(spec).unwrap();
    let group = &node.pods[web].containers[0].group;
    let arguments = ["grow", "--size", "250M"];
    let mut hog = Workload::start(&workload::binary().unwrap(), group, arguments).unwrap();
    let kubelet = json!({"evictionHard": {"memory.available": "96Mi"}});
    let options = Options::of(&agent::binary().unwrap(), &node, &kubelet).unwrap();
    let options = Options { action: "none", ..options };
    let mut agent = Agent::start(&options, &Interrupt::default()).unwrap();
    let (lost, _) = agent.backend("charge").unwrap();
    let Some(backend) = ATTACH_METHODS.iter().find(|backend| backend.name == lost) else {
        skip!("no BPF program for charges can be used here")
    };
    let program = backend.hooks[0].program;
    let Some(link) = link_of(agent.pid(), program) else {
        skip!("this kernel does not say which descriptor {program} is behind")
    };

    replace_descriptor(agent.pid(), link, 0).unwrap();
    assert_eq!(link_of(agent.pid(), program), None, "it is detached");
    let now = agent
        .wait_for("another backend", GUARD, |event| {
            event.kind() == "backend" && event.text("source") == "charge"
        })
        .unwrap();
    assert_ne!(now.text("backend"), lost);
    assert!(now.text("reason").contains(&format!("{lost}: failed while running")), "{now:?}");
    let metrics = agent.metrics().unwrap();
    let [_, backend] = backend_labels("charge", &lost);
    let labels = [("source", "charge"), ("backend", &*backend)];
    assert_eq!(metrics.sum("eviction_agent_backend_failures_total", &labels), 1.0);
    assert_eq!(metrics.sum("eviction_agent_backend_info", &labels), 0.0);
    assert_eq!(metrics.sum("eviction_agent_backend_info", &[("source", "charge")]), 1.0);

    hog.go().unwrap();
    let decision = agent.wait_for("a decision", GUARD, |event| event.kind() == "eviction_decision").unwrap();
    assert_eq!(decision.pod(), "shop/web");
    agent.stop().unwrap();
}
