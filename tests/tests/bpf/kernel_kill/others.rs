//! What no process does by itself: charges of one in the place of another, without memory of its own, or by half a kill order.

use aya::maps::{Array, Map, MapData, MapInfo};
use aya::programs::loaded_programs;

use super::*;

/// The victim is charged for what the kernel tells it of files, in the context of whoever closes them.
struct Charged {
    node: Node,
    fixture: Fixture,
    _watcher: Stepper,
    folder: tempfile::TempDir,
}

impl Charged {
    /// With so little left to the line that the events of one round are more.
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
fn who_is_charged_for_by_another_is_let_be_and_so_is_the_other() {
    need_bpf!();
    let mut charged = Charged::new();
    let before = charged.node.victim.usage();
    let mut other = Stepper::start(&charged.node.other);
    charged.send(&mut other, "stir");
    assert!(charged.node.victim.usage() > before + 8 * MIB, "the victim is charged for it");
    assert_not_killed(&mut charged.fixture, "remote_charge");
    other.step("touch 1");
}

#[test]
fn a_task_without_memory_is_let_be() {
    need_bpf!();
    let mut charged = Charged::new();
    let mut ending = Stepper::start(&charged.node.victim);
    charged.send(&mut ending, "open");
    assert_eq!(suppressed(&charged.fixture, "kernel_thread"), 0);
    // Its files are closed after its memory was given back.
    let before = charged.node.victim.usage();
    ending.end();
    assert!(charged.node.victim.usage() > before + 8 * MIB, "the victim is charged for it");
    assert_not_killed(&mut charged.fixture, "kernel_thread");
}

/// The map of the loaded programs that has the kill order.
fn verdict_map(fixture: &Fixture) -> Array<MapData, [u64; 10]> {
    let ours = fixture.kernel.program_ids();
    let programs = loaded_programs().filter_map(Result::ok).filter(|program| ours.contains(&program.id()));
    let mut ids = programs.flat_map(|program| program.map_ids().unwrap().unwrap());
    let named = |id: &u32| MapInfo::from_id(*id).unwrap().name_as_str() == Some("KILL_ORDER");
    let id = ids.find(named).unwrap();
    Map::Array(MapData::from_id(id).unwrap()).try_into().unwrap()
}

/// Which word of it is `expires_ns`.
const EXPIRES: usize = 4;

#[test]
fn half_a_verdict_ends_nobody() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.begin(&node.victim);
    let mut map = verdict_map(&fixture);
    let whole = map.get(&0, 0).unwrap();
    // As another CPU finds it between two words.
    let mut torn = whole;
    torn[EXPIRES] -= 1;
    map.set(0, torn, 0).unwrap();
    process.step(TOO_MUCH);
    assert_not_killed(&mut fixture, "partial_write");
    map.set(0, whole, 0).unwrap();
    process.send("touch 16");
    assert_eq!(process.ended_by(), Some(9), "{:?}", fixture.kernel.suppressed().unwrap());
}
