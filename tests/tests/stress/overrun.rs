//! A control loop that runs too long without waiting, by the kernel's own count.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tests::node::MIB;
use tests::skip;

use crate::fixture::{Fixture, node_of};

/// Reading so many takes some dozens of milliseconds, every second while a threshold is near.
const GROUPS: usize = 4000;

/// The kernel checks this limit at each tick of its clock, 100 to 1000 times a second.
const LONGEST_RUN_US: u64 = 1;

#[test]
fn a_control_loop_that_loses_real_time_priority_still_evicts() {
    let Some(node) = node_of("overrun", 1024 * MIB) else { skip!("no cgroups can be made here") };
    for number in 0..GROUPS {
        node.root().group(format!("group-{number}")).unwrap();
    }
    let fixture = Fixture::start(node);
    let runs_as = |backend| fixture.has_backend("control loop thread", backend);
    if !runs_as("SCHED_FIFO") {
        skip!("no thread can have real time here");
    }
    let agent = Pid::from_raw(fixture.pid().cast_signed());
    let limit = Rlimit { current: Some(LONGEST_RUN_US), maximum: None };
    let before = prlimit(agent, Resource::Rttime, limit).unwrap();
    assert_eq!(before.current, Some(1_000_000), "the agent's own bound");
    fixture.until("it is stepped down", || runs_as("nice_-20"));
    assert!(!runs_as("SCHED_FIFO"));
    fixture.assert_hog_is_evicted("1000M", "1G");
    fixture.stop();
}
