use super::{Met, ThresholdLevels, Thresholds};
use crate::disk_layout::DiskLayout;
use crate::fixture::{at, hard, node, quantity, soft};
use crate::observation::Observations;
use crate::policy::Threshold;
use crate::reading::Reading;
use crate::signal::Signal::{
    ContainerFsAvailable, ContainerFsInodesFree, ImageFsAvailable, MemoryAvailable, NodeFsAvailable,
    NodeFsInodesFree, PidAvailable,
};
use crate::snapshot::{NodeStats, ProcessStats};
use crate::threshold::MemoryConditions;
use crate::units::ThresholdValue;

const SHARED: DiskLayout = DiskLayout { dedicated_image_fs: false, split_image_fs: false };
const DEDICATED: DiskLayout = DiskLayout { dedicated_image_fs: true, split_image_fs: false };

fn observe(thresholds: &mut Thresholds, seconds: i64, node: &NodeStats) -> Vec<Met> {
    let mut met = Vec::new();
    thresholds.observe(at(seconds), &Observations::of(node), MemoryConditions::Fulfilled, &[], &mut met);
    met
}

fn memory(thresholds: &mut Thresholds, seconds: i64, available: u64) -> Vec<(u8, bool)> {
    let met = observe(thresholds, seconds, &node(available, 900, at(seconds)));
    met.iter().map(|met| (met.threshold, met.by_min_reclaim)).collect()
}

#[test]
fn threshold_is_met_only_below_its_value() {
    let mut thresholds = Thresholds::new(&[hard(MemoryAvailable, "100")]);
    assert_eq!(memory(&mut thresholds, 1, 100), []);
    assert_eq!(memory(&mut thresholds, 2, 99), [(0, false)]);
}

#[test]
fn threshold_counts_fractions_of_a_byte() {
    let mut thresholds = Thresholds::new(&[hard(MemoryAvailable, "100.5")]);
    assert_eq!(memory(&mut thresholds, 1, 100), [(0, false)]);
    assert_eq!(memory(&mut thresholds, 2, 101), []);
}

#[test]
fn minimum_reclaim_keeps_a_threshold_met_after_its_grace_period() {
    let keeping =
        Threshold { min_reclaim: Some(ThresholdValue::Percentage(0.05)), ..soft(MemoryAvailable, "100", 10) };
    let mut thresholds = Thresholds::new(&[keeping]);
    assert_eq!(memory(&mut thresholds, 0, 99), [(0, false)]);
    assert_eq!(memory(&mut thresholds, 5, 149), [], "it was not ripe yet");
    assert_eq!(memory(&mut thresholds, 10, 99), [(0, false)]);
    assert_eq!(memory(&mut thresholds, 20, 99), [(0, false)]);
    assert_eq!(memory(&mut thresholds, 21, 149), [(0, true)]);
    assert_eq!(memory(&mut thresholds, 22, 150), []);
}

#[test]
fn missing_observation_resets_the_grace_period() {
    let mut thresholds = Thresholds::new(&[soft(MemoryAvailable, "100", 10)]);
    observe(&mut thresholds, 0, &node(1, 900, at(0)));
    assert_eq!(observe(&mut thresholds, 5, &NodeStats::default()), []);
    let met = observe(&mut thresholds, 10, &node(1, 900, at(10)));
    assert!(!met[0].grace_period_over, "the grace period starts anew");
}

#[test]
fn observations_without_a_time_are_always_new() {
    let mut thresholds = Thresholds::new(&[hard(PidAvailable, "10")]);
    let node = NodeStats {
        processes: Reading::Known(ProcessStats {
            max: Some(100),
            running: Some(200),
            ..ProcessStats::default()
        }),
        ..NodeStats::default()
    };
    for seconds in [1, 1, 2] {
        assert!(observe(&mut thresholds, seconds, &node)[0].may_evict);
    }
}

#[test]
fn percentage_threshold_is_not_met_at_zero_capacity() {
    let mut thresholds = Thresholds::new(&[hard(NodeFsAvailable, "50%")]);
    let mut empty = node(1, 0, at(1));
    if let Reading::Known(fs) = &mut empty.node_fs {
        fs.capacity = Some(0);
    }
    assert_eq!(observe(&mut thresholds, 1, &empty), []);
}

#[test]
fn levels_beyond_64_bits_may_always_be_met() {
    let reclaiming = Threshold {
        min_reclaim: Some(ThresholdValue::Quantity(quantity("20E"))),
        ..hard(MemoryAvailable, "100")
    };
    for threshold in [hard(MemoryAvailable, "20E"), reclaiming] {
        let levels = ThresholdLevels::of(&[threshold], MemoryAvailable, 1000);
        assert!(levels.may_be_met(999), "{levels:?}");
    }
}

/// Returns the thresholds that the evaluation that learns the layout uses, and those that the later ones use.
fn derived(given: &[Threshold], layout: DiskLayout) -> [Vec<Threshold>; 2] {
    let mut thresholds = Thresholds::new(given);
    let visible = |thresholds: &Thresholds| {
        let visible = thresholds.visible().iter();
        visible.map(|&index| thresholds.all()[usize::from(index)].clone()).collect()
    };
    thresholds.derive_containerfs(0, layout);
    let at_first = visible(&thresholds);
    thresholds.show_all();
    [at_first, visible(&thresholds)]
}

#[test]
fn containerfs_follows_nodefs_or_a_dedicated_imagefs() {
    let given = [hard(NodeFsAvailable, "1"), hard(ImageFsAvailable, "2"), soft(NodeFsInodesFree, "3", 30)];
    let appended = |layout| {
        let [at_first, later] = derived(&given, layout);
        assert_eq!(at_first, given);
        later[given.len()..].to_vec()
    };
    assert_eq!(appended(SHARED), [hard(ContainerFsAvailable, "1"), soft(ContainerFsInodesFree, "3", 30)]);
    assert_eq!(appended(DEDICATED), [hard(ContainerFsAvailable, "2")]);
    let odd = DiskLayout { dedicated_image_fs: false, split_image_fs: true };
    assert_eq!(appended(odd), []);
}

#[test]
fn configured_containerfs_threshold_is_replaced_or_dropped() {
    let given = [hard(ContainerFsAvailable, "7"), hard(NodeFsAvailable, "1")];
    let replaced = vec![hard(ContainerFsAvailable, "1"), hard(NodeFsAvailable, "1")];
    assert_eq!(derived(&given, SHARED), [replaced.clone(), replaced]);
    let dropped = vec![hard(NodeFsAvailable, "1")];
    assert_eq!(derived(&given, DEDICATED), [dropped.clone(), dropped]);
}

#[test]
fn first_evaluation_sees_replacements_only_if_the_list_has_room() {
    let given = [soft(ContainerFsAvailable, "700", 5), hard(NodeFsAvailable, "1")];
    for (room, at_first) in [(0, 1), (1, 0)] {
        let mut thresholds = Thresholds::new(&given);
        thresholds.derive_containerfs(room, SHARED);
        let node = node(1, 600, at(1));
        assert_eq!(observe(&mut thresholds, 1, &node).len(), at_first, "room {room}");
        thresholds.show_all();
        assert_eq!(observe(&mut thresholds, 2, &node).len(), 0);
    }
}

#[test]
fn replaced_threshold_stays_met_until_its_minimum_reclaim() {
    let given = [Threshold {
        min_reclaim: Some(ThresholdValue::Percentage(0.5)),
        ..hard(ContainerFsInodesFree, "60")
    }];
    let mut thresholds = Thresholds::new(&given);
    thresholds.derive_containerfs(0, SHARED);
    let node = node(1, 900, at(1));
    assert_eq!(observe(&mut thresholds, 1, &node).len(), 1);
    thresholds.show_all();
    let met = observe(&mut thresholds, 2, &node);
    assert!(met[0].by_min_reclaim);
}
