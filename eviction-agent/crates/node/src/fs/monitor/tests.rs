//! Tests of the headroom to thresholds, and of samples that are due.

use super::*;
use eviction_core::fixture::{hard, policy};
use eviction_core::reading::UnknownReason;
use eviction_core::snapshot::NodeStats;

use crate::cgroup::hierarchy::Host;
use crate::fs::FsPaths;

const GB: u64 = 1_000_000_000;

fn monitor(thresholds: Vec<Threshold>) -> DiskMonitor {
    let mut monitor = DiskMonitor::new(NodeFileSystems::none(), 2);
    monitor.apply_policy(&policy(thresholds));
    monitor
}

/// Returns the headroom of a signal to its nearest threshold that is not met, in bytes or inodes.
fn headroom(monitor: &DiskMonitor, signal: Signal) -> Option<u64> {
    let index = SIGNALS.iter().position(|it| *it == signal).unwrap();
    monitor.headroom[index].distance()
}

fn stats(available: u64, inodes_free: u64) -> Reading<FsStats> {
    Reading::Known(FsStats {
        available: Some(available),
        capacity: Some(100 * GB),
        inodes_free: Some(inodes_free),
        inodes: Some(1_000_000),
        ..FsStats::default()
    })
}

#[test]
fn the_next_sample_comes_before_the_nearest_threshold_can_be_reached() {
    let mut monitor =
        monitor(vec![hard(Signal::NodeFsAvailable, "10G"), hard(Signal::ImageFsInodesFree, "20000")]);
    let mut due = |available, inodes| {
        monitor.observe(&[stats(available, 0), stats(0, inodes)], 0);
        monitor.due()
    };
    let ms = |ms| Some(Duration::from_millis(ms));
    assert_eq!(due(16 * GB, 1_000_000), ms(500));
    assert_eq!(due(50 * GB, 40_000), ms(100), "inodes at 200,000 a second");
    assert_eq!(due(10 * GB, 1_000_000), ms(1), "at the threshold");
    assert_eq!(due(100 * GB, 1_000_000), ms(4_900), "inodes again");
    assert_eq!(due(9 * GB, 1_000_000), ms(1_000), "met");
    assert!(monitor.may_be_met());
    assert_eq!(headroom(&monitor, Signal::ImageFsInodesFree), Some(980_000));
    assert_eq!(headroom(&monitor, Signal::NodeFsAvailable), None);
}

#[test]
fn the_kubelets_values_count_where_nothing_can_be_read_until_they_are_old() {
    let mut monitor = monitor(vec![hard(Signal::NodeFsAvailable, "10G")]);
    let at = |seconds: u64| Instant { mono_ns: seconds * 1_000_000_000, ..Instant::default() };
    assert!(monitor.read(at(1)).iter().all(|stats| stats.known().is_none()));
    assert!(monitor.is_incomplete() && !monitor.is_layout_known());
    let [node_fs, image_fs] = [stats(9 * GB, 1), stats(8 * GB, 1)];
    let node = NodeStats { node_fs, image_fs, ..NodeStats::default() };
    let summary = SummaryFileSystems::new(&node, at(1).mono_ns);
    assert!(monitor.take_summary(summary) && !monitor.take_summary(summary), "nothing new the second time");
    assert_eq!(monitor.read(at(2)), [node_fs, image_fs]);
    assert_eq!(monitor.due(), None, "a sample shows nothing new");
    assert!(monitor.is_layout_known() && !monitor.layout().dedicated_image_fs, "both have the same size");
    let info = &monitor.info()[0];
    assert_eq!(info.backend, "stats summary");
    assert!(info.reason.ends_with("disks are not watched"), "{}", info.reason);
    assert!(monitor.read(at(152)).iter().all(|stats| stats.known().is_none()), "too old");
}

#[test]
fn observed_rate_counts_double() {
    let mut monitor = monitor(vec![hard(Signal::NodeFsAvailable, "10G")]);
    monitor.observe(&[stats(90 * GB, 1), stats(0, 0)], 0);
    monitor.observe(&[stats(70 * GB, 1), stats(0, 0)], GB);
    assert_eq!(monitor.due(), Some(Duration::from_millis(1_500)), "60 GB at 40 GB/s");
}

#[test]
fn unknown_readings_meet_no_threshold_and_make_no_sample_due() {
    let unknown = Reading::Unknown(UnknownReason::Implausible);
    let mut monitor =
        monitor(vec![hard(Signal::NodeFsAvailable, "10G"), hard(Signal::NodeFsInodesFree, "5%")]);
    monitor.observe(&[stats(9 * GB, 1), unknown], 0);
    assert!(monitor.may_be_met());
    monitor.observe(&[unknown, unknown], 0);
    assert_eq!((monitor.may_be_met(), monitor.due()), (false, None));
    let no_limit =
        Reading::Known(FsStats { available: Some(50 * GB), capacity: Some(100 * GB), ..FsStats::default() });
    monitor.observe(&[no_limit, unknown], 0);
    assert_eq!((monitor.may_be_met(), headroom(&monitor, Signal::NodeFsInodesFree)), (false, None));
}

#[test]
fn thresholds_are_recomputed_for_a_new_policy_or_capacity() {
    let mut monitor = monitor(vec![hard(Signal::NodeFsAvailable, "25%")]);
    let of = |capacity| {
        let stats = FsStats { available: Some(60 * GB), capacity: Some(capacity), ..FsStats::default() };
        [Reading::Known(stats), stats_unknown()]
    };
    monitor.observe(&of(100 * GB), 0);
    assert_eq!(headroom(&monitor, Signal::NodeFsAvailable), Some(35 * GB));
    monitor.observe(&of(200 * GB), 0);
    assert_eq!(headroom(&monitor, Signal::NodeFsAvailable), Some(10 * GB));
    monitor.apply_policy(&policy(vec![hard(Signal::NodeFsAvailable, "50%")]));
    assert!(!monitor.may_be_met());
    monitor.observe(&of(200 * GB), 0);
    assert!(monitor.may_be_met());
}

#[test]
fn device_headroom_is_the_nearest_of_its_signals() {
    let root = tempfile::tempdir().unwrap();
    let paths = FsPaths { node_fs: Some(root.path().into()), ..FsPaths::default() };
    let found = NodeFileSystems::find(&Host::default(), &paths, true);
    let [Some((_, device)), _] = found.devices() else { return };
    let mut monitor = DiskMonitor::new(found, 2);
    monitor.apply_policy(&policy(vec![
        hard(Signal::NodeFsAvailable, "10G"),
        hard(Signal::ImageFsAvailable, "20G"),
        hard(Signal::NodeFsInodesFree, "1000"),
    ]));
    monitor.observe(&[stats(50 * GB, 3000), stats(50 * GB, 3000)], 0);
    let expected = DeviceHeadroom { device, capacity: 100 * GB, bytes: Some(30 * GB), inodes: Some(2000) };
    assert_eq!(monitor.devices().collect::<Vec<_>>(), [expected]);
}

#[test]
fn freed_bytes_are_not_subtracted_from_growth() {
    let mut monitor = monitor(Vec::new());
    let mut grown = |available| {
        monitor.observe(&[stats(available, 0), stats_unknown()], 0);
        monitor.grown_bytes() / GB
    };
    assert_eq!([90, 80, 95, 85, 85].map(|available| grown(available * GB)), [0, 10, 10, 20, 20]);
    monitor.observe(&[stats_unknown(), stats_unknown()], 0);
    monitor.observe(&[stats(80 * GB, 0), stats_unknown()], 0);
    assert_eq!(monitor.grown_bytes() / GB, 25, "what was not seen counts as well");
}

/// A threshold is met only by preallocation if it would not be met with the preallocated bytes, on xfs, with at least
/// 5 % available, and if no inodes are short.
#[test]
fn only_thresholds_of_bytes_on_xfs_can_be_met_by_preallocation() {
    const XFS: [bool; 2] = [true; 2];
    let thresholds = || {
        let signals = [Signal::NodeFsAvailable, Signal::ImageFsAvailable];
        let inodes = [Signal::NodeFsInodesFree, Signal::ImageFsInodesFree];
        let bytes = signals.map(|signal| hard(signal, "10G"));
        bytes.into_iter().chain(inodes.map(|signal| hard(signal, "5%"))).collect()
    };
    // GB available on nodefs and imagefs of 100 GB, thousands of free inodes of a million, GB preallocated, which are
    // xfs, and whether preallocation explains what is met.
    let cases = [
        ("6 % available", [6, 50], [900, 900], [5, 0], XFS, true),
        ("5 % available", [5, 50], [900, 900], [6, 0], XFS, true),
        ("4 % available", [4, 50], [900, 900], [90, 0], XFS, false),
        ("at the threshold with it", [6, 50], [900, 900], [4, 0], XFS, true),
        ("below the threshold with it", [6, 50], [900, 900], [3, 0], XFS, false),
        ("nothing met", [50, 50], [900, 900], [5, 0], XFS, false),
        ("nodefs is not xfs", [6, 50], [900, 900], [5, 0], [false, true], false),
        ("nodefs alone is xfs", [6, 50], [900, 900], [5, 0], [true, false], true),
        ("only imagefs met", [50, 6], [900, 900], [0, 5], [false, true], true),
        ("both met and explained", [6, 7], [900, 900], [5, 5], XFS, true),
        ("imagefs met and not explained", [6, 7], [900, 900], [5, 1], XFS, false),
        ("imagefs met and 4 % available", [6, 4], [900, 900], [5, 90], XFS, false),
        ("inodes of nodefs met too", [6, 50], [10, 900], [5, 0], XFS, false),
        ("inodes of imagefs met too", [6, 50], [900, 10], [5, 0], XFS, false),
        ("only inodes met", [50, 50], [10, 900], [5, 0], XFS, false),
    ];
    for (what, [node, image], [node_inodes, image_inodes], bytes, is_xfs, expected) in cases {
        let mut monitor = monitor(thresholds());
        monitor.observe(&[stats(node * GB, node_inodes * 1000), stats(image * GB, image_inodes * 1000)], 0);
        assert_eq!(monitor.is_met_by_bytes_on_xfs(bytes.map(|bytes| bytes * GB), is_xfs), expected, "{what}");
        assert!(
            !monitor.is_met_by_preallocation([90 * GB; 2]),
            "the types of these file systems are not known"
        );
    }
    let unknown = monitor(thresholds());
    assert!(!unknown.is_met_by_bytes_on_xfs([90 * GB; 2], XFS), "nothing was read");
}

#[test]
fn usage_explains_thresholds_of_bytes_and_inodes() {
    let thresholds = || vec![hard(Signal::NodeFsAvailable, "10G"), hard(Signal::ImageFsInodesFree, "5%")];
    let is_met_by = |available, inodes, usage: [(u64, u64); 2]| {
        let mut monitor = monitor(thresholds());
        monitor.observe(&[stats(available * GB, 900_000), stats(50 * GB, inodes)], 0);
        let of = |(bytes, inodes)| DiskUsage { bytes: bytes * GB, inodes, ..DiskUsage::default() };
        monitor.is_met_by(usage.map(of))
    };
    assert!(is_met_by(1, 900_000, [(9, 0), (0, 0)]));
    assert!(!is_met_by(1, 900_000, [(8, 0), (9, 0)]), "imagefs is another disk");
    assert!(!is_met_by(1, 40_000, [(9, 0), (0, 9_999)]), "inodes remain short");
    assert!(is_met_by(1, 40_000, [(9, 0), (0, 10_000)]));
    assert!(!is_met_by(20, 900_000, [(9, 0), (9, 9)]), "nothing is met");
}

#[test]
fn usage_of_a_shared_file_system_explains_thresholds_of_imagefs() {
    let mut monitor = monitor(vec![hard(Signal::ImageFsAvailable, "10G")]);
    let disk = stats(GB, 900_000);
    let node = NodeStats { node_fs: disk, image_fs: disk, ..NodeStats::default() };
    monitor.take_summary(SummaryFileSystems::new(&node, 0));
    monitor.observe(&[disk, disk], 0);
    let usage = |bytes| [DiskUsage { bytes, ..DiskUsage::default() }, DiskUsage::default()];
    assert!(monitor.is_met_by(usage(9 * GB)) && !monitor.is_met_by(usage(8 * GB)));
}

fn stats_unknown() -> Reading<FsStats> {
    Reading::Unknown(UnknownReason::Absent)
}

fn disk(capacity: u64) -> Reading<FsStats> {
    Reading::Known(FsStats { capacity: Some(capacity), inodes: Some(capacity), ..FsStats::default() })
}

#[test]
fn the_layout_follows_from_the_sizes() {
    let layout = |node_fs, image_fs, container_fs| {
        let node = NodeStats { node_fs, image_fs, container_fs, ..NodeStats::default() };
        SummaryFileSystems::new(&node, 0).layout
    };
    let of = |dedicated_image_fs, split_image_fs| Some(DiskLayout { dedicated_image_fs, split_image_fs });
    let unknown = Reading::Unknown(UnknownReason::Absent);
    assert_eq!(layout(disk(1), disk(1), disk(1)), of(false, false));
    assert_eq!(layout(disk(1), disk(2), disk(2)), of(true, false));
    assert_eq!(layout(disk(1), disk(2), disk(1)), of(true, true));
    assert_eq!(layout(disk(1), disk(2), unknown), of(true, false));
    assert_eq!(layout(disk(1), disk(2), disk(3)), None, "the kubelet has no such layout");
    assert_eq!(layout(unknown, disk(2), disk(2)), None);
    assert_eq!(layout(disk(1), unknown, unknown), None);
}
