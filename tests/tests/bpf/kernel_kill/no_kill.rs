//! Cases in which no process may be killed: charges for another cgroup, tasks without memory of their own, and half
//! of a kill order.

use aya::maps::{Array, Map};

use super::*;

/// A testbed where the kernel charges the victim for events about files, in the context of the process that closes
/// them.
struct RemoteCharges {
    node: Node,
    fixture: Fixture,
    _watcher: Stepper,
    folder: tempfile::TempDir,
}

impl RemoteCharges {
    /// Creates the testbed with a headroom that is smaller than the events of one round.
    fn new() -> Self {
        let (node, folder) = (Node::new(), tempfile::tempdir().unwrap());
        let mut watcher = Stepper::start(&node.victim);
        watcher.step(&format!("watch {}", folder.path().display()));
        let mut fixture = fixture();
        let order = ArmedOrder { distance: 8 * MIB, max_working_set: None, ..node.order(&mut fixture) };
        fixture.kernel.arm_kill(&order).unwrap();
        Self { node, fixture, _watcher: watcher, folder }
    }

    fn send(&self, process: &mut Stepper, step: &str) {
        process.step(&format!("{step} {}", self.folder.path().display()));
    }
}

#[test]
fn no_process_is_killed_for_a_remote_charge() {
    need_bpf!();
    let mut testbed = RemoteCharges::new();
    let before = testbed.node.victim.usage();
    let mut other = Stepper::start(&testbed.node.other);
    testbed.send(&mut other, "stir");
    assert!(testbed.node.victim.usage() > before + 8 * MIB, "the victim is charged for it");
    assert_not_killed(&mut testbed.fixture, "remote_charge");
    other.step("touch 1");
}

#[test]
fn a_task_without_memory_is_not_killed() {
    need_bpf!();
    let mut testbed = RemoteCharges::new();
    let mut ending = Stepper::start(&testbed.node.victim);
    testbed.send(&mut ending, "open");
    assert_eq!(suppressed(&testbed.fixture, "kernel_thread"), 0);
    // Its files are closed after its memory was freed.
    let before = testbed.node.victim.usage();
    ending.end();
    assert!(testbed.node.victim.usage() > before + 8 * MIB, "the victim is charged for it");
    assert_not_killed(&mut testbed.fixture, "kernel_thread");
}

/// The index of `expires_ns` among the words of the kill order.
const EXPIRES: usize = 4;

#[test]
fn a_partially_written_kill_order_kills_no_process() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.start_and_arm(&node.victim);
    let mut map = Array::<_, [u64; 10]>::try_from(Map::Array(fixture.map("KILL_ORDER"))).unwrap();
    let whole = map.get(&0, 0).unwrap();
    // As another CPU finds the order between two words.
    let mut partial = whole;
    partial[EXPIRES] -= 1;
    map.set(0, partial, 0).unwrap();
    process.step(TOUCH_BEYOND_HEADROOM);
    assert_not_killed(&mut fixture, "partial_write");
    map.set(0, whole, 0).unwrap();
    process.send("touch 16");
    assert_eq!(process.ended_by(), Some(9), "{:?}", fixture.kernel.suppressed().unwrap());
}
