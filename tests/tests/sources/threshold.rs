//! The kernel's threshold on the usage of a cgroup v1 group.

use std::path::PathBuf;
use std::time::Instant;

use eviction_node::notify::memcg_v1::{GRANULARITY, ThresholdError, UsageThreshold};
use tests::cgroup::{Group, Subtree};
use tests::mounts::Hierarchy;
use tests::workload::Workload;

use crate::MIB;
use crate::is_quiet;
use crate::run;

/// Returns the folder of the cgroup v1 memory controller, if the machine has one.
fn folder(group: &Group) -> Option<PathBuf> {
    group.dir(Hierarchy::Memory)
}

#[test]
fn a_crossing_is_reported_in_both_directions() {
    let subtree = Subtree::new("threshold").unwrap();
    subtree.root().limit_memory(128 * MIB).unwrap();
    let Some(folder) = folder(subtree.root()) else { tests::skip!("no memory controller of version 1") };
    run(async {
        let arguments = ["grow", "--size", "64M", "--stop-at", "32M", "--rate", "100M"];
        let mut grower = Workload::start(subtree.root(), arguments).unwrap();
        let base = subtree.root().memory().unwrap();
        let start = Instant::now();
        let mut threshold = UsageThreshold::register(&folder, &[base + 16 * MIB, base + 60 * MIB]).unwrap();
        println!("two lines registered in {} us", start.elapsed().as_micros());
        assert!(is_quiet(threshold.crossed()).await);
        grower.go().unwrap();
        threshold.crossed().await.unwrap();
        let usage = subtree.root().memory().unwrap();
        assert!(usage + GRANULARITY >= base + 16 * MIB, "{usage} is below {base} + 16 MiB");
        grower.wait_event("grown").unwrap();

        // Downwards, over a threshold that was set while usage was above it.
        let start = Instant::now();
        threshold = UsageThreshold::register(&folder, &[base + 8 * MIB]).unwrap();
        println!("one line set anew in {} us", start.elapsed().as_micros());
        assert!(is_quiet(threshold.crossed()).await, "the old lines are gone");
        drop(grower);
        threshold.crossed().await.unwrap();
        drop(threshold);
        subtree.remove().unwrap();
    });
}

#[test]
fn the_removal_of_the_cgroup_wakes_the_waiter() {
    let subtree = Subtree::new("threshold-end").unwrap();
    let group = subtree.group("group").unwrap();
    let Some(folder) = folder(&group) else { tests::skip!("no memory controller of version 1") };
    run(async {
        let threshold = UsageThreshold::register(&folder, &[1 << 40]).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        threshold.crossed().await.unwrap();
        let error = UsageThreshold::register(&folder, &[1]).unwrap_err();
        assert!(matches!(error, ThresholdError::Open { .. }), "{error}");
        subtree.remove().unwrap();
    });
}

#[test]
fn an_open_error_has_help_for_its_cause() {
    let open_error = |errno: i32| ThresholdError::Open {
        path: "/x/cgroup.event_control".into(),
        source: std::io::Error::from_raw_os_error(errno),
    };
    assert!(open_error(30).help().unwrap().contains("writable"));
    assert!(open_error(13).help().unwrap().contains("DAC_OVERRIDE"));
    assert!(open_error(2).help().unwrap().contains("version 1"));
    assert_eq!(open_error(5).help(), None);
    assert_eq!(open_error(30).to_string(), "cannot open /x/cgroup.event_control");
}
