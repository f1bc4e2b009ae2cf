//! Recordings of an agent that evicts and is killed at any instant: a replay decides the same.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::json;
use tests::agent::{self, Agent, Options};
use tests::file_system::{FileSystem, Kind};
use tests::node::{MIB, Node, PodSpec};
use tests::process::run as run_program;
use tests::workload::Workload;
use tests::{or_skip, skip};

const MEMORY: u64 = 320 * MIB;

struct Testbed {
    node: Node,
    options: Options,
    /// The recording.
    directory: PathBuf,
}

impl Testbed {
    fn new(label: &str, profile: &str) -> Option<Self> {
        let node = Node::new(label, MEMORY, 200).ok()?;
        let directory = node.file("recording");
        Some(Self::recording_in(&directory, node, profile))
    }

    fn recording_in(directory: &Path, node: Node, profile: &str) -> Self {
        let recorder = json!({"directory": directory, "minFreeDisk": "0"});
        let config = json!({"profile": profile, "recorder": recorder});
        let config = node.write_agent_config(&config).unwrap();
        let kubelet = json!({
            "evictionHard": {"memory.available": "64Mi"},
            "evictionSoft": {"memory.available": "120Mi"},
            "evictionSoftGracePeriod": {"memory.available": "1h"},
        });
        let options = Options::new(&node, &kubelet).unwrap().with_path("--state-dir", node.file("run"));
        let options = Options { config: Some(config), ..options };
        Self { node, options, directory: directory.to_owned() }
    }

    fn add(&mut self, name: &str, size: &str) -> Workload {
        let index = self.node.add(PodSpec::new("shop", name, &["main"], 8)).unwrap();
        self.node.write_pods().unwrap();
        self.node.run(index, &["--on-term", "ignore", "hold", "--size", size]).unwrap()
    }

    /// Adds a hog, and waits until it is evicted.
    fn evict_hog(&mut self, agent: &mut Agent, name: &str) {
        let mut hog = self.add(name, "210M");
        agent.wait_for_decision().unwrap();
        hog.process().wait().unwrap();
        self.node.pods.pop();
        self.node.write_pods().unwrap();
    }
}

/// Waits until the recorder can write, or until it cannot.
fn wait_for_recorder(agent: &Agent, is_up: bool) {
    let wanted = if is_up { 1.0 } else { 0.0 };
    agent.wait_for_metric("eviction_agent_recorder_up", &[], |up| up == wanted).unwrap();
}

fn run(verb: &str, path: &Path, more: &[&str]) -> Output {
    Command::new(agent::binary().unwrap()).arg(verb).arg(path).args(more).output().unwrap()
}

/// Returns the number of decisions that a replay repeats as they were.
fn count_verified_decisions(path: &Path) -> usize {
    let output = run("replay", path, &["--verify"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{errors}");
    let passed = text.lines().last().unwrap().split(' ').next().unwrap();
    passed.parse().unwrap()
}

#[test]
fn replaying_the_recording_of_a_killed_agent_repeats_its_decisions() {
    for profile in ["Kubelet", "Enhanced"] {
        let Some(mut testbed) = Testbed::new("recorder", profile) else {
            skip!("no cgroups can be made here")
        };
        let bystander = testbed.add("bystander", "60M");
        let mut millis = 7;
        for round in 0..3 {
            let mut agent = testbed.options.start().unwrap();
            testbed.evict_hog(&mut agent, &format!("hog-{round}"));
            // Each round kills the agent at another instant.
            millis = millis * 31 % 97;
            std::thread::sleep(Duration::from_millis(millis));
            agent.kill().unwrap();
            // A recorder without CPU time may have lost the last decision.
            assert!(count_verified_decisions(&testbed.directory) >= round, "{profile} {round}");
        }
        let mut agent = testbed.options.start().unwrap();
        testbed.evict_hog(&mut agent, "last");
        agent.stop().unwrap();
        assert!(count_verified_decisions(&testbed.directory) > 4, "{profile}");
        let table = run("replay", &testbed.directory, &[]);
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        assert!(table.contains("shop/last") && table.contains("shop/hog-0"), "{table}");
        assert_explain_export_and_what_if(&testbed.directory);
        assert_snapshot_is_a_recording(&testbed.directory, &testbed.node.file("copy.rec.zst"));
        drop(bystander);
    }
}

/// Asserts that the other verbs accept the same recording.
fn assert_explain_export_and_what_if(recording: &Path) {
    let text = |verb: &str, more: &[&str]| {
        let output = run(verb, recording, more);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{verb} {more:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(text("explain", &["--pod", "shop/last"]).contains("EVICT shop/last"));
    let lines = text("export", &[]);
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    assert!(lines.contains("\"kind\":\"decision\"") && lines.contains("\"kind\":\"sample\""));
    let csv = text("export", &["-o", "csv"]);
    let columns = |line: &str| line.split(',').count() == 6;
    assert!(csv.lines().all(columns) && csv.contains(",shop,bystander,"), "{csv}");
    let metrics = text("export", &["-o", "openmetrics"]);
    assert!(metrics.ends_with("# EOF\n") && metrics.contains("{namespace=\"shop\",pod=\"last\"}"));
    assert!(text("what-if", &["--expect", "same"]).contains("fact"));
    let calm = ["--kubelet", "evictionHard.memory.available=1Ki", "--expect", "evictions=0"];
    assert!(text("what-if", &calm).contains("what if: 0 evictions"));
    let sweep = text("what-if", &["--sweep", "memory.available=1Ki..64Mi"]);
    assert_eq!(sweep.lines().count(), 11, "{sweep}");
    for wrong in [
        &["--kubelet", "evictionHard.a=1", "--kubelet", "evictionHard.a=2"][..],
        &["--without", "shop/last", "--priority", "shop/last=1"],
        &["--kubelet", "evictionHard.memory.available=1Gi", "--sweep", "memory.available=1Ki..1Gi"],
    ] {
        let output = run("what-if", recording, wrong);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && errors.contains("contradict"), "{errors}");
    }
    let failed = run("what-if", recording, &["--expect", "evictions>=1000"]);
    assert_eq!(failed.status.code(), Some(1));
}

/// Asserts that a copy of the end is a recording, too.
fn assert_snapshot_is_a_recording(recording: &Path, copy: &Path) {
    let to = copy.to_str().unwrap();
    let snapshot = |file: &str| {
        let mut command = Command::new(agent::binary().unwrap());
        let output = command.args(["record", "snapshot", "--last", "1h"]).arg(recording).arg(file).output();
        output.unwrap()
    };
    let output = snapshot(to);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(count_verified_decisions(copy), count_verified_decisions(recording));
    assert!(String::from_utf8(run("report", copy, &["-o", "md"]).stdout).unwrap().contains("shop/last"));
    assert_eq!(run("export", copy, &["-o", "csv"]).stdout, run("export", recording, &["-o", "csv"]).stdout);
    assert_eq!(snapshot("-").stdout, fs::read(copy).unwrap());
    assert_eq!(snapshot("copy.txt").status.code(), Some(2));
}

/// Evicts a pod while the recorder cannot write, and another one when it can again.
fn assert_evicts_without_recorder(
    file_system: &FileSystem,
    break_disk: impl FnOnce(),
    repair_disk: impl FnOnce(),
) {
    let Ok(node) = Node::new("recorder-disk", MEMORY, 200) else { skip!("no cgroups can be made here") };
    let mut testbed = Testbed::recording_in(file_system.path(), node, "Kubelet");
    let _bystander = testbed.add("bystander", "60M");
    let mut agent = testbed.options.start().unwrap();
    wait_for_recorder(&agent, true);
    break_disk();
    testbed.evict_hog(&mut agent, "unrecorded");
    wait_for_recorder(&agent, false);
    let errors = agent.metric("eviction_agent_recorder_write_errors_total", &[]).unwrap();
    assert!(errors > 0.0, "{errors}");
    repair_disk();
    wait_for_recorder(&agent, true);
    testbed.evict_hog(&mut agent, "recorded");
    agent.stop().unwrap();
    assert!(count_verified_decisions(&testbed.directory) > 0);
    let table = String::from_utf8(run("replay", &testbed.directory, &[]).stdout).unwrap();
    assert!(table.contains("shop/recorded"), "{table}");
}

#[test]
fn a_full_disk_stops_only_the_recorder_until_space_is_freed() {
    let file_system = FileSystem::new(Kind::Tmpfs, 4 * MIB, "eviction-recorder-");
    let file_system = or_skip!(file_system, "no file system can be mounted here");
    let filler = file_system.path().join("filler");
    let fill = || {
        let mut file = fs::File::create(&filler).unwrap();
        let error = std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    };
    assert_evicts_without_recorder(&file_system, fill, || fs::remove_file(&filler).unwrap());
}

#[test]
fn a_read_only_disk_stops_only_the_recorder_until_it_is_replaced() {
    let file_system = FileSystem::new(Kind::Ext4, 32 * MIB, "eviction-recorder-");
    let file_system = or_skip!(file_system, "no file system can be mounted here");
    let point = file_system.path();
    let mount = |arguments: &[&str]| run_program(Command::new("mount").args(arguments).arg(point)).unwrap();
    // As after an error of the disk.
    let abort = || {
        mount(&["-o", "remount,abort"]);
        assert!(fs::write(point.join("probe"), "x").is_err(), "it can still be written");
    };
    let replace = || mount(&["-t", "tmpfs", "tmpfs"]);
    assert_evicts_without_recorder(&file_system, abort, replace);
    run_program(Command::new("umount").arg("--lazy").arg(point)).unwrap();
}

#[test]
fn a_second_agent_cannot_record_in_the_same_directory() {
    let Some(testbed) = Testbed::new("recorder-two", "Kubelet") else { skip!("no cgroups can be made here") };
    let agent = testbed.options.start().unwrap();
    let options = Options { more: Vec::new(), action: "none", ..testbed.options.clone() };
    let error = options.with_path("--state-dir", testbed.node.file("other")).start().unwrap_err();
    assert!(format!("{error:#}").contains("another agent records there"), "{error:#}");
    agent.stop().unwrap();
}
