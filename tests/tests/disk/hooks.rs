//! Events of the kernel about a disk while it is filled: the crossing itself, not the sample after it.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use serde_json::{Value, json};
use tests::agent::{self, Agent, GUARD, Options};
use tests::clock;
use tests::file_system::{FileSystem, Kind};
use tests::node::Node;
use tests::or_skip;

use crate::agent::{node, pod};
use crate::layout::Container;
use crate::{MIB, mount};

const EXT4: &str = "tp_btf ext4_allocate_blocks, ext4_free_blocks, ext4_allocate_inode, ext4_free_inode";

const XFS: &str = "raw_tp xfs_iomap_alloc, xfs_alloc_vextent_finish, xfs_create";
const XFS_BEFORE_6_12: &str = "raw_tp xfs_iomap_alloc, xfs_create";

/// The bytes until the threshold: to write them takes longer than [`MAX_DELAY_NS`] at the fastest rate that the timer
/// assumes.
const HEADROOM: u64 = 7 << 30;
/// The maximum delay by the clock of the writing process: half of what the timer leaves.
const MAX_DELAY_NS: u64 = 300_000_000;

/// Starts an agent that acts on no pod. Its threshold is met after so many bytes.
pub(crate) fn start(disk: &FileSystem, node: &Node, headroom: u64, more: &[&str]) -> Agent {
    let threshold = (disk.available().unwrap() - headroom).to_string();
    let config = agent::config_without_margin(node).unwrap();
    start_with(disk, node, &json!({"nodefs.available": threshold}), config, more)
}

fn start_with(disk: &FileSystem, node: &Node, thresholds: &Value, config: PathBuf, more: &[&str]) -> Agent {
    let kubelet = json!({"evictionHard": thresholds});
    let mut options = Options::new(node, &kubelet).unwrap();
    options.action = "none";
    options.config = Some(config);
    options.more = more.iter().map(|&argument| argument.to_owned()).collect();
    options.on_disk(disk).start().unwrap()
}

/// Returns backend and reason of a source in a `started` event or in the output of `check`.
fn backend(sources: &Value, source: &str) -> (String, String) {
    let all = sources.as_array().unwrap();
    let found = all.iter().find(|it| it["source"] == source).unwrap_or(&Value::Null);
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("backend"), text("reason"))
}

#[test]
fn an_allocation_over_the_threshold_is_detected_by_hooks_or_the_timer() {
    for (kind, source, hook) in [(Kind::Ext4, "disk", EXT4), (Kind::Xfs, "disk xfs", XFS)] {
        let is_late = (0..3).all(|_| assert_allocation_is_detected(kind, source, hook, false));
        assert!(!is_late, "the timer was first three times on {}", kind.name());
        assert_allocation_is_detected(kind, source, hook, true);
    }
}

/// Returns whether the timer was first although there is a hook. xfs takes the blocks from the free ones before its
/// hook runs, so that a timer that fires in between can be first.
fn assert_allocation_is_detected(kind: Kind, source: &str, hook: &str, is_denied: bool) -> bool {
    let disk = FileSystem::new(kind, HEADROOM + (1 << 30), "eviction-disk-hooks");
    let disk = or_skip!(disk, format!("no {} can be mounted here", kind.name()));
    let mut node = node!();
    let hog = node.add(pod("hog", None)).unwrap();
    let path = node.pods[hog].create_volume(&disk).unwrap().join("file");
    // Without some of its programs xfs has another backend, which sees no allocation.
    let denied = [hook, XFS_BEFORE_6_12].map(|hook| ["--disable-backend", hook]).concat();
    let more: &[&str] = if is_denied { &denied } else { &[] };
    let mut agent = start(&disk, &node, HEADROOM, more);
    if !is_denied && agent.backend(source).as_deref() != Some(hook) {
        tests::skip!("no hooks on {} here: {:?}", kind.name(), agent.backend_reason(source));
    }
    let start_ns = clock::now();
    let file = File::create_new(&path).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, HEADROOM + 8 * MIB).unwrap();
    let met = agent.wait_for_threshold("met").unwrap();
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    let delay_ns = decision.number("decided_mono_ns").unwrap() - start_ns;
    let crossings = agent.metric("eviction_agent_syncs_total", &[("trigger", "disk_threshold")]).unwrap();
    let by_hook = met.text("detected_by") == hook;
    if is_denied {
        assert_eq!((met.text("detected_by"), crossings), ("timer", 0.0));
    } else if by_hook {
        assert!(crossings >= 1.0 && delay_ns <= MAX_DELAY_NS, "{crossings} crossings, {delay_ns} ns late");
        let stamp = decision.number("crossed_mono_ns");
        assert!(
            stamp.is_some_and(|stamp| stamp >= start_ns && stamp <= start_ns + delay_ns),
            "{stamp:?}, from {start_ns}"
        );
    } else {
        assert_eq!(met.text("detected_by"), "timer");
    }
    agent.stop().unwrap();
    !is_denied && !by_hook
}

/// Only the probe that is attached while the threshold is near reports buffered writes. The timer runs every
/// millisecond there, and is sometimes first.
#[test]
fn a_buffered_write_that_crosses_is_reported_by_the_kernel() {
    const TRIES: usize = 20;
    let disk = mount!(Kind::Ext4);
    let node = node!();
    let mut agent = start(&disk, &node, 8 * MIB, &[]);
    if !agent.has_backend("disk near") {
        tests::skip!("no hook on reservations of ext4 here: {:?}", agent.backend_reason("disk near"));
    }
    let path = disk.path().join("file");
    for nth in 1..=TRIES {
        // The agent attaches the probe once the threshold is near; from then on the steps are slower than the timer.
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![0x5a; 7 << 20]).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        for _ in 0..20 {
            file.write_all(&[0x5a; 256 << 10]).unwrap();
            std::thread::sleep(Duration::from_millis(3));
        }
        drop(file);
        let met = agent.wait_for_nth(nth, "the threshold", GUARD, |event| event.is_threshold("met")).unwrap();
        std::fs::remove_file(&path).unwrap();
        if met.text("detected_by") == EXT4 {
            agent.stop().unwrap();
            return;
        }
        agent.wait_for_nth(nth, "the end", GUARD, |event| event.is_threshold("cleared")).unwrap();
    }
    panic!("the timer was first {TRIES} times");
}

/// Reading a volume with many inodes takes time, in which the pod makes more. So the agent reads it while the
/// threshold comes nearer, and counts what was made since: the decision does not wait for a reading.
#[test]
fn the_pod_that_creates_inodes_is_selected_at_the_threshold_crossing() {
    const HEADROOM: u64 = 10_000;
    let disk = mount!(Kind::Ext4);
    let mut node = node!();
    let (calm, hog) = (node.add(pod("calm", None)).unwrap(), node.add(pod("hog", None)).unwrap());
    let files = node.pods[calm].create_volume(&disk).unwrap();
    (0..HEADROOM / 3).for_each(|file| drop(File::create(files.join(file.to_string())).unwrap()));
    let directory = node.pods[hog].create_volume(&disk).unwrap().display().to_string();
    let threshold = statvfs(disk.path()).unwrap().f_ffree - HEADROOM;
    let thresholds = json!({"nodefs.inodesFree": threshold.to_string()});
    let config = agent::config_without_margin(&node).unwrap();
    let mut agent = start_with(&disk, &node, &thresholds, config, &[]);
    if agent.backend("disk").as_deref() != Some(EXT4) {
        tests::skip!("no hooks on ext4 here: {:?}", agent.backend_reason("disk"));
    }
    let max = (2 * HEADROOM).to_string();
    let arguments = ["create", "--dir", &directory, "--max", &max, "--rate", "10000"];
    let _creates = node.run(hog, &arguments).unwrap();
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    let detected_by = decision.text("detected_by");
    assert!(detected_by == EXT4 || detected_by == "timer", "{detected_by}");
    agent.stop().unwrap();
}

#[test]
fn bytes_in_other_directories_and_deleted_files_are_reported() {
    for profile in ["Kubelet", "Enhanced"] {
        assert_bytes_elsewhere_are_reported(profile);
    }
}

/// What a pod writes to a directory of the node or to a file that it has deleted is found by no reading.
fn assert_bytes_elsewhere_are_reported(profile: &str) {
    const HEADROOM: u64 = 48 * MIB;
    let disk = mount!(Kind::Ext4);
    let layers = disk.path().join("containerd");
    let mut container = Container::new(&disk.kubelet_root(), &layers, &layers).unwrap();
    std::fs::create_dir(container.root.join("disk")).unwrap();
    container.mount(Command::new("mount").arg("--bind").arg(disk.path()), "disk").unwrap();
    let mut node = node!();
    let threshold = (disk.available().unwrap() - HEADROOM).to_string();
    let config = json!({"profile": profile, "thresholdMargin": {"mode": "Never"}});
    let config = node.write_agent_config(&config).unwrap();
    let mut agent = start_with(&disk, &node, &json!({"nodefs.available": threshold}), config, &[]);
    if agent.backend("disk").as_deref() != Some(EXT4) {
        tests::skip!("no hooks on ext4 here: {:?}", agent.backend_reason("disk"));
    }
    let hog = node.add(pod("hog", None)).unwrap();
    node.write_pods().unwrap();
    agent.wait_for_pods(1).unwrap();
    let volume = node.pods[hog].create_volume(&disk).unwrap();
    let root = container.root.display().to_string();
    let allocate = |path: &Path, mib: u64| {
        let file = Path::new("/disk").join(path.strip_prefix(disk.path()).unwrap()).display().to_string();
        let size = (mib * MIB).to_string();
        let arguments = ["--chroot", &root, "allocate", "--file", &file, "--size", &size];
        let mut workload = node.run(hog, &arguments).unwrap();
        workload.wait_event("allocated").unwrap();
        workload
    };
    let deleted = volume.join("deleted");
    let _open = [allocate(&disk.path().join("other"), 8), allocate(&deleted, 6)];
    std::fs::remove_file(&deleted).unwrap();
    let _in_volume = allocate(&volume.join("file"), 32);
    let _crossing = allocate(&volume.join("crossing"), 4);
    let decision = agent.wait_for_decision().unwrap();
    let candidate = &decision.value["candidates"][0];
    // The counts are read before the files: what is allocated in between, of the crossing file at most, lowers the
    // bytes elsewhere.
    let mib = |key: &str| (candidate[key].as_u64().unwrap_or(0) + MIB / 2) / MIB;
    let (usage, elsewhere) = (mib("usage"), mib("bytes_elsewhere"));
    let is_expected = (32..=36).contains(&usage) && (10..=14).contains(&elsewhere);
    assert!(is_expected, "{profile}: {candidate}");
    agent.stop().unwrap();
}

/// `check` lists the sources of the file system that is nodefs, and no other.
#[test]
fn check_names_the_hooks_of_nodefs_and_a_missing_one() {
    let cases = [(Kind::Ext4, "disk", EXT4, "disk xfs"), (Kind::Xfs, "disk xfs", XFS, "disk")];
    for (kind, source, hook, other) in cases {
        let disk = mount!(kind);
        let check = |more: &[&str]| {
            let mut command = Command::new(agent::binary().unwrap());
            command.args(["check", "-o", "json", "--nodefs"]).arg(disk.path()).args(more);
            let output = command.output().unwrap();
            let found: Value = serde_json::from_slice(&output.stdout).unwrap();
            [source, other].map(|source| backend(&found["sources"], source))
        };
        // An xfs of an older kernel lacks one of the three tracepoints.
        let hooks = [EXT4, XFS, XFS_BEFORE_6_12];
        let denied = hooks.map(|hook| ["--disable-backend", hook]).concat();
        let [(none, why), _] = check(&denied);
        assert_eq!(none, "none");
        assert!(why.contains(hook) && why.contains("--disable-backend"), "{why}");
        let [(used, why), other] = check(&[]);
        assert!(hooks.contains(&used.as_str()) || !why.is_empty(), "{used}: {why}");
        assert_eq!(other, (String::new(), String::new()), "there is no other file system");
    }
}
