use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::tests::allocations::count_allocations;
use tempfile::TempDir;

use super::{Capacity, CompleteSample, NodeSampler};
use crate::cgroup::files::Version;
use crate::cgroup::node_root::NodeRoot;
use crate::cgroup::sampler::Sampler;
use crate::clock::Clock;
use crate::fs::{DiskMonitor, NodeFileSystems};
use crate::pod_index::PodIndex;
use eviction_core::decision::Decision;
use eviction_core::engine::Engine;
use eviction_core::eviction::EvaluationEnd;
use eviction_core::fixture::{container, engine, hard, limits, pod, policy};
use eviction_core::input::{Event, Input};
use eviction_core::pod::Pod;
use eviction_core::pods::KnownPod;
use eviction_core::signal::Signal::MemoryAvailable;
use eviction_core::snapshot::Snapshot;

const MIB: u64 = 1 << 20;
const UIDS: [&str; 2] = ["5d3fa8a5-3b1c-4e6f-9a55-0d5f0d4d8b01", "5d3fa8a5-3b1c-4e6f-9a55-0d5f0d4d8b02"];

/// A node in plain files, with a sampler and an engine.
struct Node {
    folder: TempDir,
    sampler: NodeSampler,
    pod_index: PodIndex,
    engine: Engine,
    clock: Clock,
}

fn write_group(folder: &Path, usage: u64) {
    fs::create_dir_all(folder).unwrap();
    let stat = "cache 0\nrss 0\ninactive_file 0\nactive_file 0\ntotal_cache 0\ntotal_rss 0\ntotal_inactive_file 0\ntotal_active_file 0\n";
    for (name, text) in [
        ("cgroup.procs", String::new()),
        ("memory.limit_in_bytes", format!("{}\n", 1024 * MIB)),
        ("memory.usage_in_bytes", format!("{usage}\n")),
        ("memory.stat", stat.to_owned()),
        ("pids.current", "7\n".to_owned()),
        ("pids.max", "1000\n".to_owned()),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// A pod with limits of its local storage, so that the engine needs its storage values.
fn pod_with_storage_limit(uid: &str) -> Pod {
    Pod { containers: vec![container("main", limits(&[("ephemeral-storage", "1Gi")]))], ..pod(uid, "1Mi") }
}

impl Node {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let top = folder.path();
        write_group(top, 500 * MIB);
        for uid in UIDS {
            let pod = top.join("kubepods/burstable").join(format!("pod{uid}"));
            write_group(&pod, 200 * MIB);
            write_group(&pod.join("0123456789abcdef"), 200 * MIB);
        }
        for parent in ["kubepods", "kubepods/burstable"] {
            write_group(&top.join(parent), 400 * MIB);
        }
        fs::write(top.join("meminfo"), "MemTotal: 2097152 kB\nMemAvailable: 2000000 kB\n").unwrap();
        let root = NodeRoot {
            memory: top.to_owned(),
            version: Version::V1,
            pids: Some(top.to_owned()),
            freezer: None,
            unified: None,
            whole_machine: false,
            partial: false,
        };
        let sampler = Sampler::new(root, top, 100, |_| true).unwrap();
        let policy = policy(vec![hard(MemoryAvailable, "100Mi")]);
        let known = UIDS.map(|uid| Arc::new(KnownPod::new(pod_with_storage_limit(uid), &policy)));
        let mut pod_index = PodIndex::new(known.into());
        assert!(pod_index.join(sampler.pods()), "its pods are found");
        let engine = engine(policy, pod_index.active());
        let capacity = Capacity { memory: 1024 * MIB, pids: 1000 };
        let disks = DiskMonitor::new(NodeFileSystems::none(), 1);
        let sampler = NodeSampler::new(sampler, disks, capacity, top);
        Self { folder, sampler, pod_index, engine, clock: Clock::start() }
    }

    fn use_memory(&self, bytes: u64) {
        fs::write(self.folder.path().join("memory.usage_in_bytes"), format!("{bytes}\n")).unwrap();
    }

    /// Samples as the control loop does.
    fn sample(&mut self, with_pods: bool) -> (Decision, Arc<Snapshot>) {
        let sample = self.sampler.sample_node(self.clock.now(), &self.clock, &[]);
        let snapshot = match with_pods {
            true => {
                self.sampler.sample_pods(&sample);
                self.sampler.cgroups.count_tasks();
                self.sampler.snapshot_of_pods(&sample, &self.pod_index)
            }
            false => self.sampler.snapshot_of_node(&sample),
        };
        let event = Event::Sample(Arc::clone(&snapshot));
        (self.engine.step(Input { at: sample.read_at.wall, event }), snapshot)
    }

    fn recycle(&mut self, (decision, snapshot): (Decision, Arc<Snapshot>)) {
        self.engine.recycle(decision);
        self.sampler.recycle(snapshot);
    }

    /// Returns how the last of some evaluations ended, and how many allocations it made.
    fn last_evaluation(&mut self, with_pods: bool) -> (EvaluationEnd, u64) {
        for _ in 0..3 {
            let evaluated = self.sample(with_pods);
            self.recycle(evaluated);
            // Values have to be newer than the last ones to count.
            std::thread::sleep(Duration::from_millis(2));
        }
        let (evaluated, sampling) = count_allocations(|| self.sample(with_pods));
        let end = evaluated.0.evaluation().unwrap().end;
        let ((), recycling) = count_allocations(|| self.recycle(evaluated));
        (end, sampling + recycling)
    }
}

#[test]
fn sample_without_pressure_does_not_allocate() {
    let mut node = Node::new();
    assert_eq!(node.last_evaluation(false), (EvaluationEnd::NoPressure, 0));
    assert_eq!(node.last_evaluation(true), (EvaluationEnd::NoPressure, 0), "nor one that looks at all pods");
}

#[test]
fn sample_that_leads_to_an_eviction_does_not_allocate() {
    let mut node = Node::new();
    node.use_memory(1000 * MIB);
    assert_eq!(node.last_evaluation(true), (EvaluationEnd::Evicted, 0));
}

#[test]
fn snapshot_contains_only_values_of_its_own_sample() {
    let mut node = Node::new();
    let (decision, snapshot) = node.sample(true);
    assert_eq!(snapshot.len(), 2);
    let stats = snapshot.pod(1).unwrap();
    assert_eq!((stats.uid(), stats.values().memory_working_set), (UIDS[1], Some(200 * MIB)));
    assert_eq!(stats.values().process_count, Some(7));
    node.recycle((decision, snapshot));
    assert!(node.sample(false).1.is_empty(), "nothing is left of them in the next one");
}

/// Those of another moment must not reach a kill order, the telemetry about pods, or the next decision.
#[test]
fn task_counts_are_those_of_one_sample() {
    let mut node = Node::new();
    type Resample = fn(&mut Node, &CompleteSample);
    let later: [Resample; 3] = [
        |node, _| {
            node.sampler.sample_node(node.clock.now(), &node.clock, &[]);
        },
        |node, sample| node.sampler.sample_pods(sample),
        |node, _| node.sampler.cgroups.sample_all(1),
    ];
    for resample in later {
        let sample = node.sampler.sample_node(node.clock.now(), &node.clock, &[]);
        node.sampler.sample_pods(&sample);
        node.sampler.cgroups.count_tasks();
        let count = |node: &mut Node| {
            let snapshot = node.sampler.snapshot_of_pods(&sample, &node.pod_index);
            snapshot.pod(1).unwrap().values().process_count
        };
        assert_eq!(count(&mut node), Some(7));
        assert_eq!(count(&mut node), Some(7), "also after the pods were ranked");
        resample(&mut node, &sample);
        assert_eq!(count(&mut node), None);
    }
}

#[test]
fn read_at_is_after_the_read_and_not_when_the_sample_began() {
    let mut node = Node::new();
    // A sample that was delayed before it read anything.
    let second = 1_000_000_000;
    let now = node.clock.now();
    let began = node.clock.at(now.mono_ns.saturating_sub(second));
    let sample = node.sampler.sample_node(began, &node.clock, &[]);
    assert_eq!(sample.at, began);
    assert!(sample.read_at.mono_ns >= now.mono_ns && sample.read_at.wall >= now.wall);
}

#[test]
fn pod_is_read_again_only_once_per_sample() {
    let mut node = Node::new();
    node.sample(true);
    // Page cache has become inactive: usage does not change, so there is no notification.
    let pod = node.folder.path().join("kubepods/burstable").join(format!("pod{}", UIDS[1]));
    let stat = format!("total_cache 0\ntotal_rss 0\ntotal_inactive_file {}\n", 150 * MIB);
    for group in [pod.join("0123456789abcdef"), pod] {
        fs::write(group.join("memory.stat"), &stat).unwrap();
    }
    let sample = node.sampler.sample_node(node.clock.now(), &node.clock, &[]);
    let working_set = |snapshot: &Snapshot| snapshot.pod(1).unwrap().values().memory_working_set;
    node.sampler.sample_pods(&sample);
    let snapshot = node.sampler.snapshot_of_pods(&sample, &node.pod_index);
    assert_eq!(working_set(&snapshot), Some(200 * MIB), "as it was read last");
    assert!(node.sampler.read_again(&sample, &node.pod_index, [1].into_iter()));
    let snapshot = node.sampler.snapshot_of_pods(&sample, &node.pod_index);
    assert_eq!(working_set(&snapshot), Some(50 * MIB));
    assert!(
        !node.sampler.read_again(&sample, &node.pod_index, [1].into_iter()),
        "it is of this sample already"
    );
    assert!(!node.sampler.read_again(&sample, &node.pod_index, [7].into_iter()), "no such pod");
}

#[test]
fn rank_preview_equals_the_ranking_of_the_evaluation() {
    let mut node = Node::new();
    node.use_memory(1000 * MIB);
    let (decision, snapshot) = node.sample(true);
    let mut preview = Vec::new();
    node.engine.rank_ahead(&snapshot, &mut preview);
    assert_eq!(preview.len(), 2);
    assert_eq!(preview, decision.evaluation().unwrap().ranked);
}

#[test]
fn snapshot_that_is_still_in_use_is_not_overwritten() {
    let mut node = Node::new();
    let (decision, snapshot) = node.sample(true);
    let in_use = Arc::clone(&snapshot);
    node.recycle((decision, snapshot));
    assert!(node.sample(false).1.is_empty());
    assert_eq!(in_use.len(), 2);
}
