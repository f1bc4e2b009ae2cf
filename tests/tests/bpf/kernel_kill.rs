//! Kernel kills: which processes the BPF programs kill, and above all which they do not.

use std::time::Duration;

use eviction_bpf::{ArmError, ArmedOrder, AttachWhen, LoadOptions};
use tests::clock;

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf};
use crate::groups::Cgroup;

mod growth;
mod no_kill;
mod writers;

const SECOND: u64 = 1_000_000_000;

/// The headroom of the tests' processes, and the step by which they try to touch more.
const HEADROOM: u64 = 48 * MIB;
const TOUCH_BEYOND_HEADROOM: &str = "touch 160";

/// Loads the programs with kernel kill, with the on-demand probe attached as near a threshold.
fn fixture() -> Fixture {
    fixture_with(LoadOptions::default())
}

fn fixture_with(options: LoadOptions) -> Fixture {
    let mut fixture = Fixture::with(&LoadOptions { kernel_kill: true, ..options });
    if !fixture.kernel.charge().unwrap().sees_every_charge {
        fixture.attach(AttachWhen::NearThreshold);
    }
    fixture
}

/// A node with two pods.
struct Node {
    root: Cgroup,
    victim: Cgroup,
    other: Cgroup,
}

impl Node {
    fn new() -> Self {
        let root = Cgroup::new();
        let (victim, other) = (root.child("victim"), root.child("other"));
        Self { root, victim, other }
    }

    /// Starts a process of this group that touches a little, and then arms a kill order on the victim.
    fn start_and_arm(&self, group: &Cgroup) -> (Stepper, Fixture, ArmedOrder) {
        self.start_and_arm_with(group, LoadOptions::default())
    }

    fn start_and_arm_with(&self, group: &Cgroup, options: LoadOptions) -> (Stepper, Fixture, ArmedOrder) {
        let process = Stepper::with_memory(group, 8);
        let mut fixture = fixture_with(options);
        let order = self.order(&mut fixture);
        fixture.kernel.arm_kill(&order).unwrap();
        (process, fixture, order)
    }

    /// Returns a kill order on the victim at a sample taken now.
    fn order(&self, fixture: &mut Fixture) -> ArmedOrder {
        let usage = self.root.usage();
        ArmedOrder {
            epoch: fixture.kernel.mark_sample(self.root.id()).unwrap(),
            victim_id: self.victim.id(),
            level_id: self.root.id(),
            max_working_set: Some(usage + HEADROOM),
            distance: HEADROOM,
            room: None,
            expires_ns: clock::now() + 600 * SECOND,
            still_until_ns: 0,
        }
    }
}

fn suppressed(fixture: &Fixture, why: &str) -> u64 {
    fixture.kernel.suppressed().unwrap().into_iter().find(|(reason, _)| *reason == why).unwrap().1
}

/// Asserts that no process was killed, for this reason.
fn assert_not_killed(fixture: &mut Fixture, why: &str) {
    fixture.drain();
    assert_eq!(fixture.events.kernel_kills, []);
    assert!(suppressed(fixture, why) > 0, "{why:?}: {:?}", fixture.kernel.suppressed().unwrap());
}

#[test]
fn a_growing_process_of_the_victim_is_killed_at_the_threshold() {
    need_bpf!();
    let node = Node::new();
    let container = node.victim.child("container");
    let mut fixture = fixture();
    for round in 0..8 {
        let mut process = Stepper::with_memory(&container, 8);
        let order = node.order(&mut fixture);
        let number = fixture.kernel.arm_kill(&order).unwrap();
        process.send(TOUCH_BEYOND_HEADROOM);
        assert_eq!(process.ended_by(), Some(9), "round {round}: {:?}", fixture.kernel.suppressed().unwrap());
        fixture.wait("the record", |reported| reported.kernel_kills.len() > round);
        let kill = *fixture.events.kernel_kills.last().unwrap();
        assert_eq!((kill.order, kill.error), (number, None));
        assert_eq!((kill.victim_id, kill.leaf_id), (node.victim.id(), container.id()));
        assert_eq!((kill.tgid, kill.pid), (process.pid(), process.pid()));
        assert_eq!(kill.comm_lossy().to_string(), "stepper");
        assert!(kill.grown > HEADROOM, "{kill:?}");
        // Usage exceeds the threshold by no more than what CPUs hold back and charge ahead.
        let threshold_bytes = order.max_working_set.unwrap();
        assert!(kill.usage > threshold_bytes, "{kill:?} for {order:?}");
        assert!(kill.usage < threshold_bytes + 3 * MIB, "{kill:?} for {order:?}");
        let peak = container.peak().unwrap_or(kill.usage);
        assert!(peak < threshold_bytes + 4 * MIB, "nothing was touched after the signal");
        container.reset_peak();
        assert!(fixture.kernel.disarm_kill().unwrap(), "it was carried out");
    }
    assert_eq!(fixture.events.kernel_kills.len(), 8);
}

#[test]
fn no_process_is_killed_without_an_event() {
    need_bpf!();
    let node = Node::new();
    let options = LoadOptions { ring_bytes: 1, ..LoadOptions::default() };
    let (mut process, mut fixture, _) = node.start_and_arm_with(&node.victim, options);
    // The test does not read meanwhile. The last room of the one page is filled with records that are smaller than
    // that of a kernel kill.
    let spare = node.root.child("spare");
    for _ in 0..80 {
        spare.child("full").remove();
    }
    let mut filler = Stepper::start(&node.other);
    for _ in 0..16 {
        let above = above(node.other.usage() + MIB);
        fixture.kernel.set_threshold(node.other.id(), above).unwrap();
        filler.step("touch 2");
    }
    let by_record = fixture.kernel.lost().unwrap().by_record();
    assert!(
        by_record.iter().any(|(record, lost)| *record == "threshold_crossed" && *lost > 0),
        "the ring is full"
    );
    process.step(TOUCH_BEYOND_HEADROOM);
    assert_not_killed(&mut fixture, "ring_full");
    // There is room now, and the kill order is armed as before.
    process.send("touch 16");
    assert_eq!(process.ended_by(), Some(9), "{:?}", fixture.kernel.suppressed().unwrap());
    fixture.wait("the record", |reported| reported.kernel_kills.len() == 1);
}

#[test]
fn growth_of_all_threads_counts_for_their_process() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.start_and_arm(&node.victim);
    process.send("touch-by-threads 160");
    assert_eq!(process.ended_by(), Some(9));
    fixture.wait("the record", |reported| !reported.kernel_kills.is_empty());
    assert_eq!(fixture.events.kernel_kills[0].tgid, process.pid());
}

#[test]
fn growth_into_memory_that_was_freed_before_is_seen() {
    need_bpf!();
    let node = Node::new();
    let mut process = Stepper::with_memory(&node.victim, 128);
    process.step("give-back");
    let mut fixture = fixture();
    let order = node.order(&mut fixture);
    fixture.kernel.arm_kill(&order).unwrap();
    process.send("again");
    assert_eq!(process.ended_by(), Some(9), "{:?}", fixture.kernel.suppressed().unwrap());
}

#[test]
fn a_growing_child_is_killed_without_its_parent() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.start_and_arm(&node.victim);
    process.send("child 160");
    let child = process.answer();
    assert_eq!(process.answer(), "ended 9", "{child}");
    assert_eq!(process.answer(), "ok", "its parent has not grown");
    process.step("touch 1");
    fixture.wait("the record", |reported| !reported.kernel_kills.is_empty());
    assert_eq!(format!("child {}", fixture.events.kernel_kills[0].tgid), child);
}

#[test]
fn a_growing_vforked_child_is_killed_without_its_parent() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.start_and_arm(&node.victim);
    process.send("vfork 160");
    let child: u32 = process.answer().strip_prefix("child ").unwrap().parse().unwrap();
    assert_eq!(process.answer(), "ended 9");
    assert_eq!(process.answer(), "ok", "the parent goes on");
    fixture.wait("the record", |reported| !reported.kernel_kills.is_empty());
    assert_eq!(fixture.events.kernel_kills[0].tgid, child);
}

#[test]
fn a_process_of_another_pod_is_not_killed() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.start_and_arm(&node.other);
    process.step(TOUCH_BEYOND_HEADROOM);
    assert_not_killed(&mut fixture, "not_victim");
}

#[test]
fn a_process_outside_the_node_is_neither_killed_nor_counted() {
    need_bpf!();
    let (node, elsewhere) = (Node::new(), Cgroup::new());
    let mut process = Stepper::with_memory(&elsewhere, 8);
    let mut fixture = fixture();
    let order = ArmedOrder { max_working_set: None, ..node.order(&mut fixture) };
    fixture.kernel.arm_kill(&order).unwrap();
    process.step(TOUCH_BEYOND_HEADROOM);
    fixture.drain();
    assert_eq!(fixture.events.kernel_kills, []);
    assert_eq!(fixture.kernel.suppressed().unwrap().iter().map(|(_, count)| count).sum::<u64>(), 0);
}

#[test]
fn a_process_moved_out_of_the_victim_is_not_killed() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.start_and_arm(&node.victim);
    process.step("touch 32");
    node.other.add_pid(process.pid());
    process.step(TOUCH_BEYOND_HEADROOM);
    assert_not_killed(&mut fixture, "not_victim");
}

#[test]
fn a_process_moved_into_the_victim_is_killed_for_its_growth() {
    need_bpf!();
    let node = Node::new();
    let (mut process, _fixture, _) = node.start_and_arm(&node.other);
    node.victim.add_pid(process.pid());
    process.send(TOUCH_BEYOND_HEADROOM);
    assert_eq!(process.ended_by(), Some(9));
}

#[test]
fn a_new_cgroup_with_the_victims_name_is_not_the_victim() {
    need_bpf!();
    let node = Node::new();
    let mut fixture = fixture();
    let order = node.order(&mut fixture);
    fixture.kernel.arm_kill(&order).unwrap();
    node.victim.remove();
    let recreated = node.root.child("victim");
    assert_ne!(recreated.id(), order.victim_id);
    let mut process = Stepper::with_memory(&recreated, 8);
    process.step(TOUCH_BEYOND_HEADROOM);
    assert_not_killed(&mut fixture, "not_victim");
}

#[test]
fn an_expired_kill_order_kills_no_process() {
    need_bpf!();
    let node = Node::new();
    let mut process = Stepper::with_memory(&node.victim, 8);
    let mut fixture = fixture();
    let order = ArmedOrder { expires_ns: clock::now() + SECOND / 50, ..node.order(&mut fixture) };
    fixture.kernel.arm_kill(&order).unwrap();
    while clock::now() < order.expires_ns {
        std::thread::sleep(Duration::from_millis(5));
    }
    process.step(TOUCH_BEYOND_HEADROOM);
    assert_not_killed(&mut fixture, "expired");
}

#[test]
fn a_kill_order_kills_only_one_process() {
    need_bpf!();
    let node = Node::new();
    let mut fixture = fixture();
    let mut processes: Vec<_> = (0..4).map(|_| Stepper::start(&node.victim)).collect();
    for process in &mut processes {
        process.step("touch 8");
    }
    let order = node.order(&mut fixture);
    fixture.kernel.arm_kill(&order).unwrap();
    for process in &mut processes {
        process.send(TOUCH_BEYOND_HEADROOM);
    }
    let survivors = processes.iter_mut().map(Stepper::answer).filter(|answer| answer == "ok").count();
    fixture.wait("the record", |reported| !reported.kernel_kills.is_empty());
    assert_eq!((survivors, fixture.events.kernel_kills.len()), (3, 1));
    assert!(suppressed(&fixture, "consumed") > 0);
    // Another order could kill a second victim before the agent has read of the first.
    let order = node.order(&mut fixture);
    assert!(matches!(fixture.kernel.arm_kill(&order), Err(ArmError::CarriedOut)));
    fixture.kernel.arm_kill(&order).unwrap();
}

#[test]
fn reloaded_programs_do_not_reuse_kill_order_numbers() {
    need_bpf!();
    let node = Node::new();
    let mut before = fixture();
    let order = node.order(&mut before);
    let number = before.kernel.arm_kill(&order).unwrap();
    let mut after = fixture();
    let order = ArmedOrder { epoch: after.kernel.mark_sample(node.root.id()).unwrap(), ..order };
    assert!(after.kernel.arm_kill(&order).unwrap() > number);
    // The new programs carry out their orders.
    assert!(!before.kernel.disarm_kill().unwrap(), "no cgroup grew");
    let mut process = Stepper::with_memory(&node.victim, 8);
    let order = node.order(&mut after);
    let number = after.kernel.arm_kill(&order).unwrap();
    process.send(TOUCH_BEYOND_HEADROOM);
    assert_eq!(process.ended_by(), Some(9));
    after.wait("the record", |reported| !reported.kernel_kills.is_empty());
    assert_eq!(after.events.kernel_kills[0].order, number);
}

#[test]
fn no_process_is_killed_after_disarming_or_unloading() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.start_and_arm(&node.victim);
    assert!(!fixture.kernel.disarm_kill().unwrap(), "no cgroup grew");
    process.step(TOUCH_BEYOND_HEADROOM);
    process.step("free");
    let order = node.order(&mut fixture);
    fixture.kernel.arm_kill(&order).unwrap();
    fixture.kernel.stop_marking_samples().unwrap();
    process.step(TOUCH_BEYOND_HEADROOM);
    process.step("free");
    let order = node.order(&mut fixture);
    fixture.kernel.arm_kill(&order).unwrap();
    fixture.drain();
    assert_eq!(fixture.events.kernel_kills, []);
    drop(fixture);
    process.step(TOUCH_BEYOND_HEADROOM);
}

#[test]
fn kernel_kill_is_absent_unless_it_is_requested() {
    need_bpf!();
    let mut fixture = Fixture::load();
    assert!(!fixture.kernel.has_kernel_kill());
    assert!(matches!(fixture.kernel.mark_sample(1), Err(ArmError::Absent)));
}

#[test]
fn a_kill_order_without_headroom_is_rejected() {
    need_bpf!();
    let node = Node::new();
    let mut fixture = fixture();
    let order = ArmedOrder { distance: 0, ..node.order(&mut fixture) };
    assert!(matches!(fixture.kernel.arm_kill(&order), Err(ArmError::NoDistance)));
}
