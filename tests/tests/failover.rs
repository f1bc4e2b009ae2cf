//! An agent that loses its backend for charges while it runs switches to the next one, reports that, and continues to
//! decide.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;

use eviction_agent::telemetry::metrics::backend_labels;
use eviction_bpf::attach_methods::ATTACH_METHODS;
use serde_json::json;
use tests::agent::{GUARD, Options};
use tests::fdinfo::FdInfo;
use tests::inject::replace_descriptor;
use tests::node::{MIB, Node, PodSpec};
use tests::skip;

/// Returns the descriptor in this process by which a program of that name is attached.
fn link_of(pid: u32, program: &str) -> Option<u32> {
    // The kernel truncates the names of programs.
    let name = &program[..program.len().min(15)];
    let loaded = aya::programs::loaded_programs().filter_map(Result::ok);
    let ids: Vec<_> =
        loaded.filter(|info| info.name() == name.as_bytes()).map(|info| u64::from(info.id())).collect();
    let is_link = |info: &FdInfo| {
        fs::read_link(format!("/proc/{pid}/fd/{}", info.number)).is_ok_and(|target| {
            target.to_string_lossy().contains("bpf_link") || target.to_string_lossy().contains("bpf-link")
        })
    };
    let is_link_of_program =
        |info: &FdInfo| is_link(info) && info.field("prog_id").is_some_and(|id| ids.contains(&id));
    FdInfo::all(pid).unwrap().into_iter().find(is_link_of_program).map(|info| info.number)
}

#[test]
fn the_agent_switches_to_the_next_backend_when_a_bpf_link_is_lost() {
    let Ok(mut node) = Node::new("backend-lost", 256 * MIB, 200) else {
        skip!("no cgroups can be made here")
    };
    let spec = PodSpec::new("shop", "web", &["app"], 8);
    let web = node.add(spec).unwrap();
    let mut hog = node.workload(web, &["grow", "--size", "250M"]).unwrap();
    let kubelet = json!({"evictionHard": {"memory.available": "96Mi"}});
    let options = Options { action: "none", ..Options::new(&node, &kubelet).unwrap() };
    let mut agent = options.start().unwrap();
    let first_backend = agent.backend("charge").unwrap();
    let Some(backend) = ATTACH_METHODS.iter().find(|backend| backend.name == first_backend) else {
        skip!("no BPF program for charges can be used here")
    };
    let program = backend.hooks[0].program;
    let Some(link) = link_of(agent.pid(), program) else {
        skip!("this kernel does not say which descriptor {program} is behind")
    };

    replace_descriptor(agent.pid(), link, 0).unwrap();
    assert_eq!(link_of(agent.pid(), program), None, "it is detached");
    let switched = agent
        .wait_for("another backend", GUARD, |event| {
            event.kind() == "backend" && event.text("source") == "charge"
        })
        .unwrap();
    assert_ne!(switched.text("backend"), first_backend);
    assert!(
        switched.text("reason").contains(&format!("{first_backend}: failed while running")),
        "{switched:?}"
    );
    let metrics = agent.metrics().unwrap();
    let [_, backend] = backend_labels("charge", &first_backend);
    let labels = [("source", "charge"), ("backend", &*backend)];
    assert_eq!(metrics.sum("eviction_agent_backend_failures_total", &labels), 1.0);
    assert_eq!(metrics.sum("eviction_agent_backend_info", &labels), 0.0);
    assert_eq!(metrics.sum("eviction_agent_backend_info", &[("source", "charge")]), 1.0);

    hog.go().unwrap();
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/web");
    agent.stop().unwrap();
}
