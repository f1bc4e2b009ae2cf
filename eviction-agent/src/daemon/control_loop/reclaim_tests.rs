//! Tests of reclaim before evictions: the control loop runs on a small node whose nodefs is short.

use std::path::Path;
use std::time::Duration;

use ::tests::file_system::{FileSystem, Kind};
use ::tests::node::{MIB, Node, PodSpec};
use ::tests::or_skip;
use eviction_core::decision::Evaluation;
use eviction_core::eviction::EvaluationEnd;
use eviction_core::node::ContainerImage;
use eviction_core::observation::Observations;
use eviction_core::signal::Signal;
use eviction_cri::{ReclaimEnd, ReclaimOrder, ReclaimReport};
use eviction_node::clock::mono_ns;
use eviction_node::fs::FsPaths;
use tokio::sync::mpsc;

use super::super::ConfigurationFiles;
use super::reclaim::KubeletReclaim;
use super::tests::{Fixture, start};
use super::{LoopEvent, ReclaimState};
use crate::daemon::memory_notifier::Trigger;
use crate::daemon::reclaim::{ReclaimExecutor, ShortFs};
use crate::telemetry::event_log;
use crate::telemetry::queue::TelemetryEvent;

/// The maximum number of iterations until the expected result.
const ITERATIONS: usize = 200;

/// Always met: more than 0.1 % of the machine's disk is in use.
const MET: &str = "nodefs.available: 99.9%";
const INODES_MET: &str = "nodefs.inodesFree: 99.9%";

/// The machine's disk.
const DISK: &str = "/var/tmp";

/// Returns a node with a pod and one disk, the kubelet's thresholds, and this mode of node reclaim.
fn fixture_on(disk: &Path, thresholds: &str, node_reclaim: &str) -> Option<Fixture> {
    fixture_with(FsPaths { node_fs: Some(disk.into()), ..FsPaths::default() }, thresholds, node_reclaim)
}

fn fixture_with(disks: FsPaths, thresholds: &str, node_reclaim: &str) -> Option<Fixture> {
    let mut node = Node::new("reclaim", 128 * MIB, 200).ok()?;
    node.add(PodSpec::new("shop", "web", &["main"], 8)).unwrap();
    let root = node.file("kubelet");
    std::fs::create_dir_all(root.join("pods").join(node.pods[0].uid())).unwrap();
    let (kubelet, agent) = (node.file("thresholds.yaml"), node.file("agent.yaml"));
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nenforceNodeAllocatable: []\n\
         evictionHard: {{{thresholds}}}\n"
    );
    std::fs::write(&kubelet, text).unwrap();
    let text = format!(
        "apiVersion: eviction-agent.io/v1alpha1\nkind: AgentConfiguration\n\
         eviction: {{nodeReclaim: {node_reclaim}}}\nreclaim: {{criSocket: /nonexistent/cri.sock}}\n"
    );
    std::fs::write(&agent, text).unwrap();
    let configuration =
        ConfigurationFiles { kubelet: Some(kubelet), agent: Some(agent), ..ConfigurationFiles::default() };
    let disks = FsPaths { kubelet_root: Some(root), ..disks };
    let mut fixture = start(node, configuration, disks);
    // The reclaim state and the events of the start are discarded.
    fixture.control_loop.reclaim = ReclaimState::default();
    fixture.events();
    Some(fixture)
}

impl Fixture {
    /// Returns the reclaim events since the last call.
    fn events(&mut self) -> Vec<event_log::NodeReclaimEvent> {
        let mut events = Vec::new();
        while let Ok(event) = self.telemetry.try_recv() {
            let TelemetryEvent::Event(event, _) = event else { continue };
            if let event_log::Event::NodeReclaim(event) = *event {
                events.push(event);
            }
        }
        events
    }

    /// Takes one sample and follows its decision. Returns how the evaluation ended, and the deficit in MiB while
    /// reclaim is left to the kubelet.
    fn sync(&mut self) -> (EvaluationEnd, Option<u64>) {
        let (node_sample, decided) = self.control_loop.sample_and_decide(Trigger::Timer, None);
        let evaluation = decided.as_ref().unwrap().decision.evaluation().unwrap();
        let deficit_mib = evaluation.left_to_kubelet.map(|estimate| estimate.deficit_bytes >> 20);
        let seen = (evaluation.end, deficit_mib);
        self.control_loop.act_on(&node_sample, decided);
        seen
    }

    /// Runs iterations until a pod is evicted.
    async fn run_until_eviction(&mut self) {
        for _ in 0..ITERATIONS {
            if self.run_iteration().await.0 == Some(EvaluationEnd::Evicted) {
                return;
            }
        }
        panic!("no pod was evicted");
    }

    fn set_garbage(&mut self, size_bytes: u64) {
        let names = vec!["docker.io/library/unused:1".into()];
        self.control_loop.reclaim.images = vec![ContainerImage { names, size_bytes }];
    }

    fn left_to_kubelet(&mut self, signal: Signal) -> &mut Option<KubeletReclaim> {
        &mut self.control_loop.reclaim.left_to_kubelet[signal as usize]
    }

    /// Lets the test take the place of the executor.
    fn executor(&mut self) -> (mpsc::Receiver<(ReclaimOrder, ShortFs)>, mpsc::Sender<ReclaimReport>) {
        let (executor, orders, reports) = ReclaimExecutor::with_channels();
        self.control_loop.reclaim = ReclaimState::new(Some(executor));
        (orders, reports)
    }
}

macro_rules! fixture {
    ($thresholds:expr, $node_reclaim:expr) => {
        fixture!(Path::new(DISK), $thresholds, $node_reclaim)
    };
    ($disk:expr, $thresholds:expr, $node_reclaim:expr) => {
        match fixture_on($disk, $thresholds, $node_reclaim) {
            Some(fixture) => fixture,
            None => ::tests::skip!("no cgroups can be made here"),
        }
    };
}

#[tokio::test]
async fn enough_garbage_is_left_to_the_kubelet_for_fifteen_seconds() {
    let mut fixture = fixture!(MET, "Kubelet");
    fixture.set_garbage(1 << 60);
    let begun = mono_ns();
    for _ in 0..3 {
        let (end, deficit) = fixture.sync();
        assert!(deficit.is_some() && end != EvaluationEnd::Evicted, "{end:?}");
    }
    let events = fixture.events();
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((event.signal, event.result), ("nodefs.available", "left_to_kubelet"));
    assert!(event.deficit_bytes.unwrap() > 0 && event.unused_bytes == Some(1 << 60));
    let left = fixture.left_to_kubelet(Signal::NodeFsAvailable).as_mut().unwrap();
    assert!(left.since_ns >= begun);
    left.since_ns -= 15_000_000_000;
    fixture.run_until_eviction().await;
    assert!(fixture.events().is_empty(), "one attempt a crossing");
}

#[tokio::test]
async fn an_attempt_is_not_forgotten_while_the_disk_cannot_be_read() {
    let mut fixture = fixture!(MET, "Kubelet");
    fixture.set_garbage(1 << 60);
    let (_, decided) = fixture.control_loop.sample_and_decide(Trigger::Timer, None);
    let mut evaluation = decided.unwrap().decision.evaluation().unwrap().clone();
    evaluation.met.clear();
    let unread = Evaluation { observations: Observations::default(), ..evaluation.clone() };
    fixture.control_loop.reclaim.forget_resolved(&unread);
    assert!(fixture.left_to_kubelet(Signal::NodeFsAvailable).is_some());
    fixture.control_loop.reclaim.forget_resolved(&evaluation);
    assert!(fixture.left_to_kubelet(Signal::NodeFsAvailable).is_none());
}

#[tokio::test]
async fn a_pod_is_evicted_at_once_if_garbage_is_not_sufficient() {
    for (thresholds, garbage) in [(MET, 0), (MET, 1), (INODES_MET, 1 << 60)] {
        let mut fixture = fixture!(thresholds, "Kubelet");
        fixture.set_garbage(garbage);
        let begun = mono_ns();
        fixture.run_until_eviction().await;
        assert!(fixture.events().is_empty());
        assert!(mono_ns() - begun < 14_000_000_000, "{thresholds}: no wait for the kubelet");
    }
}

#[tokio::test]
async fn a_signal_does_not_wait_for_garbage_of_another_signal() {
    let mut fixture = fixture!(INODES_MET, "Kubelet");
    fixture.set_garbage(1 << 60);
    let estimate = eviction_core::disk_layout::GarbageEstimate { unused_bytes: 2, deficit_bytes: 1 };
    let left = KubeletReclaim { since_ns: mono_ns(), estimate };
    *fixture.left_to_kubelet(Signal::NodeFsAvailable) = Some(left);
    fixture.run_until_eviction().await;
}

/// Mounts a disk that no other test writes to.
macro_rules! disk {
    () => {
        or_skip!(FileSystem::new(Kind::Tmpfs, 512 * MIB, "eviction-reclaim"), "no tmpfs can be mounted here")
    };
}

/// Returns thresholds of one disk: 64 MiB of garbage cross that of imagefs, 128 MiB also that of nodefs.
fn two_thresholds(disk: &FileSystem) -> String {
    let free = disk.available().unwrap();
    format!("imagefs.available: \"{}\", nodefs.available: \"{}\"", free - 32 * MIB, free - 96 * MIB)
}

/// The kubelet frees space in steps, so the threshold that was met last is resolved first.
#[tokio::test]
async fn each_signal_is_left_to_the_kubelet_for_its_own_time() {
    let disk = disk!();
    let mut fixture = fixture!(disk.path(), &two_thresholds(&disk), "Kubelet");
    fixture.set_garbage(1 << 60);
    let garbage = ["first", "second"].map(|name| disk.path().join(name));
    for file in &garbage {
        std::fs::write(file, vec![1; 64 << 20]).unwrap();
        assert!(fixture.sync().1.is_some());
    }
    let signals: Vec<_> = fixture.events().iter().map(|event| event.signal).collect();
    assert_eq!(signals, ["imagefs.available", "nodefs.available"]);
    std::fs::remove_file(&garbage[1]).unwrap();
    let (end, deficit) = fixture.sync();
    assert!(deficit.is_some() && end != EvaluationEnd::Evicted, "{end:?}");
    assert!(fixture.left_to_kubelet(Signal::NodeFsAvailable).is_none(), "resolved");
}

/// The deficit is small at the moment of the crossing, so any garbage is enough then.
#[tokio::test]
async fn a_signal_is_left_to_the_kubelet_only_while_garbage_is_sufficient() {
    let disk = disk!();
    let mut fixture = fixture!(disk.path(), &two_thresholds(&disk), "Kubelet");
    fixture.set_garbage(48 << 20);
    std::fs::write(disk.path().join("first"), vec![1; 64 << 20]).unwrap();
    assert_eq!(fixture.sync().1, Some(32), "MiB are missing");
    std::fs::write(disk.path().join("second"), vec![1; 8 << 20]).unwrap();
    assert_eq!(fixture.sync().1, Some(32), "as at the crossing");
    std::fs::write(disk.path().join("third"), vec![1; 16 << 20]).unwrap();
    assert_eq!(fixture.sync().1, None, "56 MiB are missing");
    fixture.run_until_eviction().await;
}

/// Images are on a disk of their own, writable layers on nodefs.
#[tokio::test]
async fn in_a_split_layout_only_what_is_on_the_disk_is_reclaimed() {
    let images = disk!();
    let threshold = format!("imagefs.available: \"{}\"", images.available().unwrap() - 32 * MIB);
    let disks = FsPaths {
        node_fs: Some(DISK.into()),
        image_fs: Some(images.path().into()),
        container_fs: Some(DISK.into()),
        ..FsPaths::default()
    };
    let Some(mut by_kubelet) = fixture_with(disks.clone(), MET, "Kubelet") else {
        ::tests::skip!("no cgroups can be made here")
    };
    by_kubelet.set_garbage(1 << 60);
    by_kubelet.run_until_eviction().await;
    assert!(by_kubelet.events().is_empty(), "unused images are not on nodefs");
    for (thresholds, expected) in
        [(MET, (true, false, ShortFs::Node)), (&threshold, (false, true, ShortFs::Image))]
    {
        let mut fixture = fixture_with(disks.clone(), thresholds, "CRI").unwrap();
        let (mut orders, _reports) = fixture.executor();
        std::fs::write(images.path().join("image"), vec![1; 64 << 20]).unwrap();
        assert_ne!(fixture.sync().0, EvaluationEnd::Evicted);
        let (order, short) = orders.try_recv().unwrap();
        assert_eq!((order.containers, order.images, short), expected, "{thresholds}");
        std::fs::remove_file(images.path().join("image")).unwrap();
    }
}

#[tokio::test]
async fn a_pod_is_evicted_without_a_wait_if_reclaim_is_off() {
    let mut fixture = fixture!(MET, "Off");
    fixture.set_garbage(1 << 60);
    fixture.run_until_eviction().await;
    assert!(fixture.events().is_empty());
}

fn report(end: ReclaimEnd) -> ReclaimReport {
    let (images, errors) = (Vec::new(), Vec::new());
    ReclaimReport { end, images, containers: 3, freed_bytes: 7, errors, dry_run: false, took: Duration::ZERO }
}

#[tokio::test]
async fn a_pod_is_evicted_after_one_attempt_of_the_executor() {
    let mut fixture = fixture!(MET, "CRI");
    let (mut orders, reports) = fixture.executor();
    for _ in 0..3 {
        assert_ne!(fixture.sync().0, EvaluationEnd::Evicted);
    }
    let (order, short) = orders.try_recv().unwrap();
    let stats = rustix::fs::statvfs(DISK).unwrap();
    let capacity = stats.f_blocks * stats.f_frsize;
    assert!(order.goal.bytes > capacity / 1000 * 998 && order.goal.bytes < capacity, "{order:?}");
    assert_eq!(order.goal.inodes, None);
    assert!(order.containers && order.images && short == ShortFs::Node);
    assert!(orders.try_recv().is_err(), "one order");
    reports.try_send(report(ReclaimEnd::NothingLeft)).unwrap();
    fixture.run_until_eviction().await;
    let events = fixture.events();
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((event.result, event.containers, event.freed_bytes), ("nothing_left", 3, 7));
}

/// The reason of a failure is in the event.
#[tokio::test]
async fn a_pod_is_evicted_after_an_attempt_that_failed_or_timed_out() {
    let dies = "CRI RemoveImage: it dies (Unavailable)";
    for (end, result, reason) in [
        (ReclaimEnd::TimedOut, "timed_out", None),
        (ReclaimEnd::Failed(dies.to_owned()), "failed", Some(dies)),
    ] {
        let mut fixture = fixture!(MET, "CRI");
        let (mut orders, reports) = fixture.executor();
        fixture.sync();
        orders.try_recv().unwrap();
        reports.try_send(report(end)).unwrap();
        fixture.run_until_eviction().await;
        let events = fixture.events();
        let [event] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((event.result, event.reason.as_deref()), (result, reason));
    }
}

/// After reclaim, the kubelet's rules want every threshold resolved, also one that is not met.
#[tokio::test]
async fn the_goal_has_the_minimum_reclaim_of_all_thresholds_under_the_kubelets_rules() {
    let thresholds = "imagefs.available: 99.9%, nodefs.available: \"1\"}\n\
                      evictionMinimumReclaim: {nodefs.available: 100%";
    let mut fixture = fixture!(thresholds, "CRI");
    let (mut orders, _reports) = fixture.executor();
    assert_ne!(fixture.sync().0, EvaluationEnd::Evicted);
    let (order, short) = orders.try_recv().unwrap();
    let stats = rustix::fs::statvfs(DISK).unwrap();
    assert_eq!(short, ShortFs::Image);
    assert!(order.goal.bytes >= stats.f_blocks * stats.f_frsize, "{order:?}");
}

#[tokio::test]
async fn a_missing_ended_or_hung_executor_does_not_prevent_evictions() {
    let mut missing = fixture!(MET, "CRI");
    missing.run_until_eviction().await;
    let mut ended = fixture!(MET, "CRI");
    drop(ended.executor());
    ended.run_until_eviction().await;
    let mut hangs = fixture!(MET, "CRI");
    let (_orders, _reports) = hangs.executor();
    hangs.sync();
    hangs.control_loop.reclaim.running.as_mut().unwrap().since_ns -= 12_000_000_000;
    hangs.run_until_eviction().await;
    for mut fixture in [missing, ended, hangs] {
        let events = fixture.events();
        let [event] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(event.result, "failed");
        assert!(event.reason.as_ref().unwrap().contains("thread of node reclaim"), "{event:?}");
    }
}

/// The goal of the attempt was that of the threshold that was met when it began.
#[tokio::test]
async fn enough_for_one_signal_is_not_enough_for_another_that_was_met_meanwhile() {
    let disk = disk!();
    let mut fixture = fixture!(disk.path(), &two_thresholds(&disk), "CRI");
    let (mut orders, _reports) = fixture.executor();
    let garbage = ["first", "second"].map(|name| disk.path().join(name));
    for file in &garbage {
        std::fs::write(file, vec![1; 64 << 20]).unwrap();
        assert_ne!(fixture.sync().0, EvaluationEnd::Evicted);
    }
    let (first, short) = orders.try_recv().unwrap();
    assert_eq!(short, ShortFs::Image);
    let ended = LoopEvent::Reclaimed(Some(report(ReclaimEnd::Enough)));
    fixture.control_loop.handle(ended).unwrap();
    assert!(!fixture.control_loop.reclaim.has_ended, "pods would be evicted for nodefs");
    assert_ne!(fixture.sync().0, EvaluationEnd::Evicted);
    let (second, short) = orders.try_recv().unwrap();
    assert_eq!(short, ShortFs::Node);
    assert_eq!(second.goal, first.goal, "imagefs is the same disk, and its threshold is still met");
}

/// After enough was freed the threshold is not met any more.
#[tokio::test]
async fn no_pod_is_evicted_if_reclaim_freed_enough() {
    let disk = disk!();
    let threshold = disk.available().unwrap() - 32 * MIB;
    let mut fixture = fixture!(disk.path(), &format!("nodefs.available: \"{threshold}\""), "CRI");
    let (mut orders, reports) = fixture.executor();
    assert_eq!(fixture.sync().0, EvaluationEnd::NoPressure);
    let garbage = disk.path().join("garbage");
    std::fs::write(&garbage, vec![1; 64 << 20]).unwrap();
    assert_ne!(fixture.sync().0, EvaluationEnd::NoPressure);
    orders.try_recv().unwrap();
    std::fs::remove_file(&garbage).unwrap();
    let ended = LoopEvent::Reclaimed(Some(report(ReclaimEnd::Enough)));
    let trigger = fixture.control_loop.handle(ended).unwrap();
    assert_eq!(trigger.0, Trigger::NodeReclaim);
    let (end, _) = fixture.sync();
    assert!(matches!(end, EvaluationEnd::Reclaimed | EvaluationEnd::NoPressure), "{end:?}");
    assert_eq!(fixture.events()[0].result, "enough");
    // The next crossing has its own attempt.
    fixture.sync();
    std::fs::write(&garbage, vec![1; 64 << 20]).unwrap();
    fixture.sync();
    orders.try_recv().unwrap();
    drop(reports);
}
