//! A ring buffer that is full while the agent cannot read it.

use eviction_bpf::load::RING_BYTES;
use eviction_common::CgroupChange;
use rustix::process::{Pid, Signal, kill_process};
use tests::node::PodSpec;
use tests::skip;

use crate::fixture::{Fixture, node};

/// The number of cgroups that are created and removed, each with a record of at least this size: more than the ring
/// buffer has room for.
const GROUPS: usize = RING_BYTES as usize / size_of::<CgroupChange>();

#[test]
fn lost_bpf_events_are_counted_and_the_pod_is_still_evicted() {
    let Some(node) = node("lost") else { skip!("no cgroups can be made here") };
    let mut fixture = Fixture::start(node);
    if fixture.has_backend("cgroup", "none") {
        skip!("no BPF program for cgroups can be used here");
    }
    let agent = Pid::from_raw(fixture.pid().cast_signed()).unwrap();
    assert_eq!(fixture.metric("eviction_agent_bpf_events_lost_total"), 0.0);
    kill_process(agent, Signal::STOP).unwrap();
    for number in 0..GROUPS {
        fixture.node.root().group(format!("storm-{number}")).unwrap().destroy().unwrap();
    }
    // No event reports its cgroups, nor its charges.
    let late = fixture.node.add(PodSpec::new("shop", "late", &["main"], 8)).unwrap();
    fixture.node.write_pods().unwrap();
    let mut hog = fixture.node.run(late, &["grow", "--size", "220M", "--rate", "400M"]).unwrap();
    hog.wait_event("grown").unwrap();
    kill_process(agent, Signal::CONT).unwrap();
    fixture.until("the pod that came meanwhile goes", || !hog.process().is_running().unwrap());
    fixture
        .until("what was lost is counted", || fixture.metric("eviction_agent_bpf_events_lost_total") > 0.0);
    fixture.until("the eviction is reported", || fixture.metric("eviction_agent_evictions_total") == 1.0);
    assert_eq!(fixture.node.oom_kills().unwrap(), 0, "by the agent, not by the kernel");
    fixture.stop();
}
