//! Kernel kill: which processes the BPF programs kill, and above all which they do not.

use std::time::Duration;

use eviction_bpf::{ArmError, ArmedOrder, AttachWhen, LoadOptions};
use rustix::time::{ClockId, clock_gettime};

use crate::groups::Cgroup;
use crate::rig::{MIB, Rig, Stepper, above, need_bpf};

mod growth;
mod others;
mod writers;

const SECOND: u64 = 1_000_000_000;

/// How much the tests' processes have left to the line, and how much they try to touch.
const DISTANCE: u64 = 48 * MIB;
const TOO_MUCH: &str = "touch 160";

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * SECOND + now.tv_nsec as u64
}

/// The programs with kernel kill, and the dense hook attached, as near a line.
fn rig() -> Rig {
    rig_with(LoadOptions::default())
}

fn rig_with(options: LoadOptions) -> Rig {
    let mut rig = Rig::with(&LoadOptions { kernel_kill: true, ..options });
    if !rig.kernel.charge().unwrap().sees_every_charge {
        rig.attach(AttachWhen::NearThreshold);
    }
    rig
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

    /// A process of this group that has touched a little, and a kill order on the victim that stands since.
    fn begin(&self, group: &Cgroup) -> (Stepper, Rig, ArmedOrder) {
        self.begin_with(group, LoadOptions::default())
    }

    fn begin_with(&self, group: &Cgroup, options: LoadOptions) -> (Stepper, Rig, ArmedOrder) {
        let mut process = Stepper::start(group);
        process.step("touch 8");
        let mut rig = rig_with(options);
        let order = self.order(&mut rig);
        rig.kernel.arm_kill(&order).unwrap();
        (process, rig, order)
    }

    /// A kill order on the victim at a sample taken now.
    fn order(&self, rig: &mut Rig) -> ArmedOrder {
        let usage = self.root.usage();
        ArmedOrder {
            epoch: rig.kernel.mark_sample(self.root.id()).unwrap(),
            victim_id: self.victim.id(),
            level_id: self.root.id(),
            max_working_set: Some(usage + DISTANCE),
            distance: DISTANCE,
            room: None,
            expires_ns: now_ns() + 600 * SECOND,
            still_until_ns: 0,
        }
    }
}

fn suppressed(rig: &Rig, why: &str) -> u64 {
    rig.kernel.suppressed().unwrap().into_iter().find(|(reason, _)| *reason == why).unwrap().1
}

/// Nothing was carried out, and this is why.
fn assert_not_killed(rig: &mut Rig, why: &str) {
    rig.drain();
    assert_eq!(rig.told.kernel_kills, []);
    assert!(suppressed(rig, why) > 0, "{why:?}: {:?}", rig.kernel.suppressed().unwrap());
}

#[test]
fn a_runaway_of_the_victim_stops_at_the_threshold() {
    need_bpf!();
    let node = Node::new();
    let container = node.victim.child("container");
    let mut rig = rig();
    for round in 0..8 {
        let mut process = Stepper::start(&container);
        process.step("touch 8");
        let order = node.order(&mut rig);
        let number = rig.kernel.arm_kill(&order).unwrap();
        process.tell(TOO_MUCH);
        assert_eq!(process.ended_by(), Some(9), "round {round}: {:?}", rig.kernel.suppressed().unwrap());
        rig.wait("the record", |told| told.kernel_kills.len() > round);
        let kill = *rig.told.kernel_kills.last().unwrap();
        assert_eq!((kill.order, kill.error), (number.0, None));
        assert_eq!((kill.victim_id, kill.leaf_id), (node.victim.id(), container.id()));
        assert_eq!((kill.tgid, kill.pid), (process.pid(), process.pid()));
        assert_eq!(kill.comm_lossy().to_string(), "stepper");
        assert!(kill.grown > DISTANCE, "{kill:?}");
        // Beyond the line by no more than what CPUs hold back and charge ahead.
        let line = order.max_working_set.unwrap();
        assert!(kill.usage > line, "{kill:?} for {order:?}");
        assert!(kill.usage < line + 3 * MIB, "{kill:?} for {order:?}");
        let peak = container.peak().unwrap_or(kill.usage);
        assert!(peak < line + 4 * MIB, "nothing was touched after the signal");
        container.reset_peak();
        assert!(rig.kernel.disarm_kill().unwrap(), "it was carried out");
    }
    assert_eq!(rig.told.kernel_kills.len(), 8);
}

#[test]
fn nobody_is_killed_without_a_record() {
    need_bpf!();
    let node = Node::new();
    let options = LoadOptions { ring_bytes: 1, ..LoadOptions::default() };
    let (mut process, mut rig, _) = node.begin_with(&node.victim, options);
    // Nobody reads meanwhile. The last room of the one page is filled with records that are smaller than that of a kill order.
    let spare = node.root.child("spare");
    for _ in 0..50 {
        spare.child("full").remove();
    }
    let mut filler = Stepper::start(&node.other);
    for _ in 0..16 {
        let above = above(node.other.usage() + MIB);
        rig.kernel.set_threshold(node.other.id(), above).unwrap();
        filler.step("touch 2");
    }
    let by_record = rig.kernel.lost().unwrap().by_record();
    assert!(
        by_record.iter().any(|(record, lost)| *record == "threshold_crossed" && *lost > 0),
        "the ring is full"
    );
    process.step(TOO_MUCH);
    assert_not_killed(&mut rig, "ring_full");
    // There is room now, and the kill order is armed as before.
    process.tell("touch 16");
    assert_eq!(process.ended_by(), Some(9), "{:?}", rig.kernel.suppressed().unwrap());
    rig.wait("the record", |told| told.kernel_kills.len() == 1);
}

#[test]
fn threads_grow_their_process_together() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut rig, _) = node.begin(&node.victim);
    process.tell("touch-by-threads 160");
    assert_eq!(process.ended_by(), Some(9));
    rig.wait("the record", |told| !told.kernel_kills.is_empty());
    assert_eq!(rig.told.kernel_kills[0].tgid, process.pid());
}

#[test]
fn memory_that_was_given_back_before_is_seen_again() {
    need_bpf!();
    let node = Node::new();
    let mut process = Stepper::start(&node.victim);
    process.step("touch 128");
    process.step("give-back");
    let mut rig = rig();
    let order = node.order(&mut rig);
    rig.kernel.arm_kill(&order).unwrap();
    process.tell("again");
    assert_eq!(process.ended_by(), Some(9), "{:?}", rig.kernel.suppressed().unwrap());
}

#[test]
fn a_child_that_grows_is_killed_alone() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut rig, _) = node.begin(&node.victim);
    process.tell("child 160");
    let child = process.answer();
    assert_eq!(process.answer(), "ended 9", "{child}");
    assert_eq!(process.answer(), "ok", "its parent has not grown");
    process.step("touch 1");
    rig.wait("the record", |told| !told.kernel_kills.is_empty());
    assert_eq!(format!("child {}", rig.told.kernel_kills[0].tgid), child);
}

#[test]
fn a_vforked_child_in_its_parents_memory_is_killed_alone() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut rig, _) = node.begin(&node.victim);
    process.tell("vfork 160");
    let child: u32 = process.answer().strip_prefix("child ").unwrap().parse().unwrap();
    assert_eq!(process.answer(), "ended 9");
    assert_eq!(process.answer(), "ok", "the parent goes on");
    rig.wait("the record", |told| !told.kernel_kills.is_empty());
    assert_eq!(rig.told.kernel_kills[0].tgid, child);
}

#[test]
fn a_process_of_another_pod_is_not_killed() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut rig, _) = node.begin(&node.other);
    process.step(TOO_MUCH);
    assert_not_killed(&mut rig, "not_victim");
}

#[test]
fn a_process_outside_of_the_node_is_not_even_counted() {
    need_bpf!();
    let (node, elsewhere) = (Node::new(), Cgroup::new());
    let mut process = Stepper::start(&elsewhere);
    process.step("touch 8");
    let mut rig = rig();
    let order = ArmedOrder { max_working_set: None, ..node.order(&mut rig) };
    rig.kernel.arm_kill(&order).unwrap();
    process.step(TOO_MUCH);
    rig.drain();
    assert_eq!(rig.told.kernel_kills, []);
    assert_eq!(rig.kernel.suppressed().unwrap().iter().map(|(_, count)| count).sum::<u64>(), 0);
}

#[test]
fn a_process_moved_out_of_the_victim_is_not_killed() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut rig, _) = node.begin(&node.victim);
    process.step("touch 32");
    node.other.take(process.pid());
    process.step(TOO_MUCH);
    assert_not_killed(&mut rig, "not_victim");
}

#[test]
fn a_process_moved_into_the_victim_is_killed_for_its_growth() {
    need_bpf!();
    let node = Node::new();
    let (mut process, _rig, _) = node.begin(&node.other);
    node.victim.take(process.pid());
    process.tell(TOO_MUCH);
    assert_eq!(process.ended_by(), Some(9));
}

#[test]
fn a_new_group_of_the_same_name_is_another_one() {
    need_bpf!();
    let node = Node::new();
    let mut rig = rig();
    let order = node.order(&mut rig);
    rig.kernel.arm_kill(&order).unwrap();
    node.victim.remove();
    let again = node.root.child("victim");
    assert_ne!(again.id(), order.victim_id);
    let mut process = Stepper::start(&again);
    process.step("touch 8");
    process.step(TOO_MUCH);
    assert_not_killed(&mut rig, "not_victim");
}

#[test]
fn never_after_expiry() {
    need_bpf!();
    let node = Node::new();
    let mut process = Stepper::start(&node.victim);
    process.step("touch 8");
    let mut rig = rig();
    let order = ArmedOrder { expires_ns: now_ns() + SECOND / 50, ..node.order(&mut rig) };
    rig.kernel.arm_kill(&order).unwrap();
    while now_ns() < order.expires_ns {
        std::thread::sleep(Duration::from_millis(5));
    }
    process.step(TOO_MUCH);
    assert_not_killed(&mut rig, "expired");
}

#[test]
fn never_twice_by_one_kill_order() {
    need_bpf!();
    let node = Node::new();
    let mut rig = rig();
    let mut processes: Vec<_> = (0..4).map(|_| Stepper::start(&node.victim)).collect();
    for process in &mut processes {
        process.step("touch 8");
    }
    let order = node.order(&mut rig);
    rig.kernel.arm_kill(&order).unwrap();
    for process in &mut processes {
        process.tell(TOO_MUCH);
    }
    let survivors = processes.iter_mut().map(Stepper::answer).filter(|answer| answer == "ok").count();
    rig.wait("the record", |told| !told.kernel_kills.is_empty());
    assert_eq!((survivors, rig.told.kernel_kills.len()), (3, 1));
    assert!(suppressed(&rig, "consumed") > 0);
    // Another one would be a second victim before anybody has read of the first.
    let order = node.order(&mut rig);
    assert!(matches!(rig.kernel.arm_kill(&order), Err(ArmError::CarriedOut)));
    rig.kernel.arm_kill(&order).unwrap();
}

#[test]
fn programs_in_the_place_of_others_give_no_number_twice() {
    need_bpf!();
    let node = Node::new();
    let mut before = rig();
    let order = node.order(&mut before);
    let number = before.kernel.arm_kill(&order).unwrap();
    let mut after = rig();
    after.kernel.continue_from(before.kernel.last_numbers());
    let order = ArmedOrder { epoch: after.kernel.mark_sample(node.root.id()).unwrap(), ..order };
    assert!(after.kernel.arm_kill(&order).unwrap().0 > number.0);
    // And they carry it out.
    assert!(!before.kernel.disarm_kill().unwrap(), "nobody grew");
    let mut process = Stepper::start(&node.victim);
    process.step("touch 8");
    let order = node.order(&mut after);
    let number = after.kernel.arm_kill(&order).unwrap();
    process.tell(TOO_MUCH);
    assert_eq!(process.ended_by(), Some(9));
    after.wait("the record", |told| !told.kernel_kills.is_empty());
    assert_eq!(after.told.kernel_kills[0].order, number.0);
}

#[test]
fn nothing_is_armed_after_it_was_disarmed_or_the_programs_are_gone() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut rig, _) = node.begin(&node.victim);
    assert!(!rig.kernel.disarm_kill().unwrap(), "nobody grew");
    process.step(TOO_MUCH);
    process.step("free");
    let order = node.order(&mut rig);
    rig.kernel.arm_kill(&order).unwrap();
    rig.kernel.end_marks().unwrap();
    process.step(TOO_MUCH);
    process.step("free");
    let order = node.order(&mut rig);
    rig.kernel.arm_kill(&order).unwrap();
    rig.drain();
    assert_eq!(rig.told.kernel_kills, []);
    drop(rig);
    process.step(TOO_MUCH);
}

#[test]
fn without_being_asked_for_there_is_none() {
    need_bpf!();
    let mut rig = Rig::load();
    assert!(!rig.kernel.has_kernel_kill());
    assert!(matches!(rig.kernel.mark_sample(1), Err(ArmError::Absent)));
}

#[test]
fn at_the_threshold_itself_nothing_is_armed() {
    need_bpf!();
    let node = Node::new();
    let mut rig = rig();
    let order = ArmedOrder { distance: 0, ..node.order(&mut rig) };
    assert!(matches!(rig.kernel.arm_kill(&order), Err(ArmError::NoDistance)));
}
