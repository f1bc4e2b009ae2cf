//! The workloads do what the other tests expect of them: touch what they stamp, stay inside their bounds and their
//! cgroup, and end with the process that started them.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;

use rustix::process::Signal;
use tests::cgroup::{Driver, Group, Qos, Subtree, container_id, pod_uid};
use tests::mounts::Hierarchy;
use tests::node::MIB;
use tests::process::{self, Process, wait_until};
use tests::stamps::{Record, STEP};
use tests::workload::{Workload, binary};

/// Creates a subtree with one container and limits.
fn node(label: &str) -> (Subtree, Group) {
    let subtree = Subtree::new(label).unwrap();
    subtree.root().limit_memory(256 * MIB).unwrap();
    subtree.root().limit_pids(200).unwrap();
    let pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(1)).unwrap();
    let container = pod.group(container_id(1)).unwrap();
    (subtree, container)
}

fn grow(kind: &str, extra: &[&str]) -> (Record, u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let stamps = folder.path().join("stamps");
    let (subtree, container) = node(&format!("grow-{kind}"));
    let stamps_arg = stamps.to_str().unwrap();
    let mut arguments = vec!["--stamps", stamps_arg, "grow", "--kind", kind];
    arguments.extend(["--rate", "200M"]);
    arguments.extend(extra);
    let mut workload = Workload::start(&container, arguments).unwrap();
    let before = container.memory().unwrap();
    workload.go().unwrap();
    let grown = workload.wait_event("grown").unwrap();
    assert_eq!(grown["bytes"], 32 * MIB);
    let charged = container.memory().unwrap() - before;
    let inactive_file = container.memory_stat("inactive_file").unwrap();
    drop(workload);
    let record = Record::read(&stamps).unwrap();
    subtree.remove().unwrap();
    (record, charged, inactive_file)
}

fn assert_grown(kind: &str, extra: &[&str]) {
    let (record, charged, _) = grow(kind, &[&["--size", "32M"], extra].concat());
    assert_eq!(record.stamps.len() as u64, 32 * MIB / STEP, "{kind}");
    // With several threads the last one to stamp need not be the one that counted last.
    assert_eq!(record.bytes_at(u64::MAX), 32 * MIB, "{kind}");
    assert!(record.go.unwrap() <= record.stamps[0].ns, "{kind}");
    assert!(record.done.is_some(), "{kind}");
    // Page tables and the process's own memory come on top; a charge that is not yet flushed may be missing.
    assert!((31 * MIB..40 * MIB).contains(&charged), "{kind}: {charged} bytes charged");
}

#[test]
fn fresh_pages_are_charged_as_stamped() {
    assert_grown("fresh", &[]);
    assert_grown("fresh", &["--touch-first"]);
    assert_grown("fresh", &["--threads", "4"]);
}

#[test]
fn refaulted_and_huge_pages_are_charged_as_stamped() {
    assert_grown("refault", &[]);
    assert_grown("huge", &[]);
}

#[test]
fn files_are_charged_as_stamped() {
    assert_grown("tmpfs", &[]);
    let (record, charged, inactive_file) = grow("page-cache", &["--size", "32M"]);
    assert_eq!(record.last().unwrap().bytes, 32 * MIB);
    assert!(charged >= 31 * MIB, "{charged} bytes charged");
    assert!(inactive_file >= 31 * MIB, "{inactive_file} bytes inactive");
}

#[test]
fn growth_stops_at_the_given_limit_below_its_size() {
    let (record, ..) = grow("fresh", &["--size", "64M", "--stop-at", "32M"]);
    assert_eq!(record.last().unwrap().bytes, 32 * MIB);
    let mut refused = Command::new(binary().unwrap());
    refused.args(["grow", "--size", "1M", "--stop-at", "2M"]);
    let output = refused.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("--stop-at 2097152 is beyond --size 1048576"), "{stderr}");
}

#[test]
fn a_spike_frees_its_memory() {
    let (subtree, container) = node("spike");
    let arguments = ["spike", "--size", "32M", "--hold", "1"];
    let mut workload = Workload::run(&container, arguments).unwrap();
    workload.wait_event("freed").unwrap();
    wait_until("memory to be given back", || container.memory().unwrap() < 8 * MIB).unwrap();
    assert!(workload.process().is_running().unwrap());
    subtree.remove().unwrap();
}

#[test]
fn the_cache_workload_fills_its_limit_with_clean_pages() {
    let (subtree, container) = node("cache");
    container.limit_memory(48 * MIB).unwrap();
    let arguments = ["cache", "--size", "96M"];
    let mut workload = Workload::run(&container, arguments).unwrap();
    workload.wait_event("cached").unwrap();
    assert!(container.memory().unwrap() > 40 * MIB);
    assert!(container.memory_stat("inactive_file").unwrap() > 36 * MIB);
    assert_eq!(container.oom_kills().unwrap(), 0);
    subtree.remove().unwrap();
}

#[test]
fn the_kernel_kills_the_child_and_the_parent_keeps_running() {
    let (subtree, container) = node("child");
    container.limit_memory(24 * MIB).unwrap();
    let arguments = ["child", "--size", "64M", "--rate", "500M"];
    let mut workload = Workload::run(&container, arguments).unwrap();
    let ended = workload.wait_event("child-ended").unwrap();
    assert_eq!(ended["signal"], 9);
    assert_eq!(container.oom_kills().unwrap(), 1);
    assert!(workload.process().is_running().unwrap());
    subtree.remove().unwrap();
}

#[test]
fn a_fork_bomb_keeps_to_its_pids_limit_and_ends_when_dropped() {
    let (subtree, container) = node("forks");
    container.limit_pids(40).unwrap();
    let arguments = ["--on-term", "ignore", "forks", "--max", "1000"];
    let bomb = arguments.into_iter().chain(["--rate", "100000", "--bomb"]);
    let workload = Workload::run(&container, bomb).unwrap();
    wait_until("the bomb to fill its limit", || container.pids().unwrap() == 40).unwrap();
    assert_eq!(container.processes().len(), 40);
    drop(workload);
    subtree.remove().unwrap();
}

#[test]
fn forks_stop_at_the_given_maximum() {
    let (subtree, container) = node("few");
    let arguments = ["forks", "--max", "20", "--rate", "10000"];
    let mut workload = Workload::run(&container, arguments).unwrap();
    workload.wait_event("forked").unwrap();
    assert_eq!(container.processes().len(), 21);
    subtree.remove().unwrap();
}

#[test]
fn the_workload_stamps_sigterm_and_exits() {
    let folder = tempfile::tempdir().unwrap();
    let stamps = folder.path().join("stamps");
    let (subtree, container) = node("term");
    let stamps_arg = stamps.to_str().unwrap();
    let arguments = ["--stamps", stamps_arg, "--term-delay", "20", "grow"];
    let arguments = arguments.into_iter().chain(["--size", "1M"]);
    let mut workload = Workload::run(&container, arguments).unwrap();
    workload.wait_event("grown").unwrap();
    process::signal(workload.pid(), Signal::TERM).unwrap();
    let status = workload.process().wait().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(Record::read(&stamps).unwrap().term.is_some());
    subtree.remove().unwrap();
}

#[test]
fn workloads_end_when_the_process_that_started_them_is_killed() {
    let (subtree, container) = node("orphans");
    // A shell that starts two workloads and is killed stands for a crashed test.
    let join: Vec<_> = container.dirs().iter().map(|dir| dir.display().to_string()).collect();
    let script = format!(
        "{0} --join {1} hold --size 1M & {0} --join {1} --on-term ignore forks --max 10 --rate 10000 --bomb & wait",
        binary().unwrap().display(),
        join.join(",")
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stdout(Stdio::null());
    let shell = Process::spawn(&mut shell).unwrap();
    wait_until("workloads to run", || container.processes().len() == 12).unwrap();
    drop(shell);
    wait_until("workloads to end", || container.processes().is_empty()).unwrap();
    subtree.remove().unwrap();
}

#[test]
fn sweep_removes_subtrees_left_by_a_crash_and_no_live_ones() {
    let live = Subtree::new("live").unwrap();
    let memory = live.root().dir(Hierarchy::Memory);
    let dir = memory.or_else(|| live.root().dir(Hierarchy::Unified)).unwrap();
    // Pid 1 with another start time: the owner has exited, and its pid was reused.
    let left = dir.parent().unwrap().join("eviction-test-left-0-1-99999999999");
    std::fs::create_dir_all(left.join("kubepods")).unwrap();
    Subtree::sweep().unwrap();
    assert!(!left.exists());
    assert!(dir.exists());
    live.remove().unwrap();
    assert!(!dir.exists());
}

#[test]
fn subtrees_created_at_the_same_time_have_different_paths() {
    let barrier = Barrier::new(8);
    let create = || {
        barrier.wait();
        Subtree::new("twin").unwrap()
    };
    let created: Vec<Subtree> = thread::scope(|scope| {
        let makers: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    let paths: BTreeSet<_> = created.iter().map(Subtree::path).collect();
    assert_eq!(paths.len(), created.len());
}
