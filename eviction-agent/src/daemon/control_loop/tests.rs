//! Tests of the path from a kernel event to the compact decision, on a small node with real cgroups.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command as Program, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ::tests::allocations::{Allocations, trace_allocations};
use ::tests::node::{MIB, Node, PodSpec};
use eviction_bpf::KernelThreshold;
use eviction_core::decision::Action;
use eviction_core::eviction::EvaluationEnd;
use eviction_core::in_flight::{ExecutorUpdate, InFlightEviction};
use eviction_core::pods::KnownPod;
use eviction_core::policy::preferences::Profile;
use eviction_core::signal::Signal;
use eviction_node::clock::mono_ns;
use eviction_node::fs::FsPaths;
use eviction_node::pod_index::PodIndex;
use serde_json::json;
use tokio::sync::mpsc;

use super::super::ConfigurationFiles;
use super::super::pod_source::PodSource;
use super::super::startup;
use super::{Command, ControlLoop, EventBatch, LoopEvent, Trigger};
use crate::daemon::configuration::Options;
use crate::spsc::Receiver;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::queue::{DecisionEvent, TelemetryEvent};

use eviction_node::backend::BackendSelection;

/// The timeout for a loop that hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The number of iterations under pressure that are checked.
const ITERATIONS: usize = 40;

/// How often a test is repeated: on a busy machine the timer may be first each time.
const TRIES: usize = 10;

pub(super) struct Fixture {
    pub(super) control_loop: ControlLoop,
    commands: mpsc::Receiver<Command>,
    _sender: mpsc::Sender<Command>,
    pub(super) telemetry: Receiver<TelemetryEvent>,
    pub(super) node: Node,
}

/// Returns a node with some pods, and the loop that samples it with what this kernel offers.
pub(super) fn fixture(profile: Profile) -> Option<Fixture> {
    let mut node = Node::new("control-loop", 256 * MIB, 200).ok()?;
    for name in ["grows", "small", "other"] {
        // The pod that grows comes near its limit after the node's threshold is crossed.
        let spec = PodSpec::new("shop", name, &["main", "side"], 8);
        node.add(PodSpec { limit_mib: Some(230), ..spec }).unwrap();
    }
    // The threshold of all pods together is crossed shortly before that of the node.
    node.root().group("kubepods").unwrap().limit_memory(250 * MIB).unwrap();
    let kubelet = json!({
        "evictionHard": {"memory.available": "64Mi", "pid.available": "20"},
        "enforceNodeAllocatable": ["pods"],
    });
    let configuration = ConfigurationFiles {
        kubelet: Some(node.write_config(&kubelet).unwrap()),
        overrides: vec![("profile", json!(profile))],
        ..ConfigurationFiles::default()
    };
    Some(start(node, configuration, FsPaths::default()))
}

/// Starts the loop on that node.
pub(super) fn start(node: Node, configuration: ConfigurationFiles, disks: FsPaths) -> Fixture {
    let pods = node.write_pods().unwrap();
    let options = Options {
        configuration,
        pods_file: Some(pods),
        cgroup_root: PathBuf::from(node.cgroup_root()),
        disks,
        memory_capacity: Some(node.memory_capacity()),
        pid_capacity: Some(node.pid_capacity()),
        json_lines: true,
        choice: BackendSelection::default(),
        state_dir: None,
        socket: None,
        apply_config_now: false,
        bpf_debug_log: false,
    };
    let metrics = Arc::new(Metrics::new("0", "0"));
    let (plan, telemetry, _) = startup::prepare(&options, &metrics).unwrap();
    let (_, pod_index) = PodSource::open(options.pods_file.as_deref(), &plan.policy).unwrap();
    let (sender, commands) = mpsc::channel(1);
    let (mut control_loop, _) = startup::build(plan, pod_index).unwrap();
    let pod_index = std::mem::take(&mut control_loop.pod_index);
    control_loop.adopt_pods(pod_index);
    control_loop.sync(Trigger::Start, None);
    Fixture { control_loop, commands, _sender: sender, telemetry, node }
}

impl Fixture {
    /// Runs one iteration. Returns how its evaluation ended, its trigger, and what it allocated until the
    /// decision was made. Allocations do not count if kills or results of others came between: other programs
    /// run on this machine.
    pub(super) async fn run_iteration(&mut self) -> (Option<EvaluationEnd>, &'static str, Allocations) {
        let next = self.control_loop.next(&mut self.commands);
        let event = tokio::time::timeout(TIMEOUT, next).await.unwrap().unwrap().unwrap();
        let disturbed = match &event {
            LoopEvent::Memory(_, events) => !events.kills.is_empty(),
            LoopEvent::EvictionResult(_) | LoopEvent::Reclaimed(_) | LoopEvent::Command(_) => true,
            LoopEvent::PodStorage(_) => false,
        };
        let (result, allocated) = trace_allocations(|| {
            let (trigger, crossed) = self.control_loop.handle(event)?;
            Some((trigger, self.control_loop.sample_and_decide(trigger, crossed)))
        });
        let Some((trigger, (node_sample, decided))) = result else {
            self.control_loop.end_iteration();
            return (None, "no sync", Allocations::default());
        };
        let end = end_of(decided.as_ref());
        self.control_loop.act_on(&node_sample, decided);
        self.control_loop.end_iteration();
        (end, trigger.name(), if disturbed { Allocations::default() } else { allocated })
    }

    /// Empties the telemetry queue, as the telemetry thread does.
    pub(super) fn drain_telemetry(&mut self) {
        while let Ok(event) = self.telemetry.try_recv() {
            drop(event);
        }
    }

    /// Starts a process in the first pod that fills memory. The memory stays charged after the process has
    /// ended.
    fn grower(&self) -> Child {
        let file = self.node.file("grown");
        let mut child = Program::new("sh")
            .arg("-c")
            .arg(format!("read go && exec head -c 210M /dev/zero > {}", file.display()))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        self.node.pods[0].containers[0].group.add(child.id()).unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        child
    }
}

fn end_of(decided: Option<&DecisionEvent>) -> Option<EvaluationEnd> {
    Some(decided?.decision.evaluation()?.end)
}

impl Fixture {
    /// Lets buffers find their size with some syncs, one of them with a full sample.
    async fn warm_up(&mut self) {
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(3)).await;
            self.control_loop.sync(Trigger::Timer, None);
        }
        self.control_loop.end_iteration();
        assert!(self.control_loop.state.is_warm, "there was leisure to make room");
        self.drain_telemetry();
    }

    /// Removes the object of a pod that is being evicted, while a process stays in its cgroup.
    fn remove_object_of(&mut self, name: &str) -> (Box<str>, Child) {
        let pod = self.node.pods.iter().find(|pod| pod.full_name().ends_with(name)).unwrap();
        let process = Program::new("sleep").arg("600").spawn().unwrap();
        pod.containers[0].group.add(process.id()).unwrap();
        let known = self.control_loop.pod_index.known().to_vec();
        let is_it = |known: &Arc<KnownPod>| &*known.pod.name == name;
        let (lost, rest): (Vec<_>, Vec<_>) = known.into_iter().partition(is_it);
        // So long ago that the kubelet's rules do not wait for it any more.
        let decided_at = self.control_loop.clock.at(mono_ns().saturating_sub(40_000_000_000)).wall;
        let it = InFlightEviction {
            decided_at,
            since: decided_at,
            ..started_eviction(&self.control_loop, &lost[0])
        };
        let uid = it.pod.uid.clone();
        self.control_loop.update(DECISION, ExecutorUpdate::Started(Box::new(it)));
        self.control_loop.adopt_pods(PodIndex::new(rest));
        // The next sample is a full one: buffers are to be made for these pods.
        self.control_loop.state.last_full_ns = 0;
        (uid, process)
    }
}

/// The number of a decision that these tests do not use otherwise.
pub(super) const DECISION: u64 = 99;

/// Returns an eviction that the killer carries out.
pub(super) fn started_eviction(control_loop: &ControlLoop, known: &KnownPod) -> InFlightEviction {
    let (pod, signal) = (Arc::clone(&known.name), Signal::MemoryAvailable.name());
    let begun = InFlightEviction::new(pod, signal, true, control_loop.clock.now().wall, 60);
    InFlightEviction { killing: true, ..begun }
}

/// Returns whether a record of the kernel was among the triggers, if there are BPF programs. On a busy machine
/// the timer may have been first each time.
fn from_record_to_decision(profile: Profile, telemetry_is_read: bool) -> Option<bool> {
    crate::daemon::start_runtime().unwrap().block_on(async {
        let mut fixture = fixture(profile)?;
        let has_bpf = fixture.control_loop.notifier.bpf.growth().is_some();
        fixture.warm_up().await;
        let mut child = fixture.grower();
        let mut seen = Vec::new();
        let mut evicted = 0;
        while evicted == 0 || seen.len() < ITERATIONS {
            let (end, name, allocated) = fixture.run_iteration().await;
            assert_eq!(
                allocated.blocks,
                0,
                "{profile:?}, iteration {} for {name} that ended {end:?}: {allocated}",
                seen.len()
            );
            evicted += usize::from(end == Some(EvaluationEnd::Evicted));
            seen.push(name);
            if telemetry_is_read {
                fixture.drain_telemetry();
            }
        }
        assert!(child.wait().unwrap().success());
        Some(!has_bpf || seen.contains(&"charge"))
    })
}

const PROFILES: [Profile; 2] = [Profile::Kubelet, Profile::Enhanced];

#[test]
fn no_memory_is_allocated_from_a_kernel_record_to_the_decision() {
    for profile in PROFILES {
        for telemetry_is_read in [true, false] {
            let attempt = |_| from_record_to_decision(profile, telemetry_is_read);
            let woken_by_a_record = (0..TRIES).map(attempt).find(|woken| *woken != Some(false));
            assert!(woken_by_a_record.is_some(), "a record of the kernel wakes it in one of {TRIES} tries");
            if woken_by_a_record == Some(None) {
                ::tests::skip!("no cgroups can be made here");
            }
        }
    }
}

#[tokio::test]
async fn no_memory_is_allocated_while_a_pod_without_object_terminates() {
    for profile in PROFILES {
        let Some(mut fixture) = fixture(profile) else { ::tests::skip!("no cgroups can be made here") };
        let (uid, mut process) = fixture.remove_object_of("other");
        assert!(fixture.control_loop.is_terminating(&uid));
        fixture.warm_up().await;
        let mut grower = fixture.grower();
        for iteration in 0..ITERATIONS {
            let (end, name, allocated) = fixture.run_iteration().await;
            assert_eq!(
                allocated.blocks, 0,
                "{profile:?}, iteration {iteration} for {name} that ended {end:?}: {allocated}"
            );
        }
        assert!(grower.wait().unwrap().success());
        assert!(fixture.control_loop.is_terminating(&uid), "somebody is in it");
        process.kill().unwrap();
        process.wait().unwrap();
        while fixture.control_loop.is_terminating(&uid) {
            let (end, name, allocated) = fixture.run_iteration().await;
            assert_eq!(allocated.blocks, 0, "{profile:?}, {name} that ended {end:?}: {allocated}");
        }
    }
}

#[tokio::test]
async fn a_victim_keeps_its_cgroups_when_other_pods_come_or_go() {
    let Some(mut fixture) = fixture(Profile::Kubelet) else { ::tests::skip!("no cgroups can be made here") };
    let mut grower = fixture.grower();
    assert!(grower.wait().unwrap().success());
    let control_loop = &mut fixture.control_loop;
    let (_, decided) = control_loop.sample_and_decide(Trigger::Timer, None);
    assert_eq!(end_of(decided.as_ref()), Some(EvaluationEnd::Evicted));
    let decision = decided.unwrap().decision;
    let eviction = decision.actions.iter().find_map(|action| match action {
        Action::Evict(eviction) => Some(*eviction),
        _ => None,
    });
    let eviction = eviction.unwrap();
    let target = |control_loop: &ControlLoop| {
        let (evaluation, now_ns) = (decision.evaluation().unwrap(), mono_ns());
        let it = control_loop.eviction_of(evaluation, &eviction, 1, now_ns).unwrap();
        control_loop.target(&it, now_ns, Duration::ZERO).unwrap()
    };
    let ids = |control_loop: &ControlLoop| {
        let target = target(control_loop);
        target.groups.iter().map(|group| group.id).collect::<Vec<_>>()
    };
    let target = target(control_loop);
    assert_eq!((target.hard, target.kill_on_growth), (true, Some(16 << 20)), "as the policy says");
    let before = ids(control_loop);
    // After a change of the policy the tree is read again, and the index of a pod may be that of another
    // one.
    let mut known = control_loop.pod_index.known().to_vec();
    known.rotate_right(1);
    control_loop.adopt_pods(PodIndex::new(known));
    assert_eq!((before.len(), &ids(control_loop)), (1, &before));
    let uid = &decision.evaluation().unwrap().pods.get(eviction.pod).unwrap().pod.uid;
    let mut others = control_loop.pod_index.known().to_vec();
    others.retain(|known| known.pod.uid != *uid);
    control_loop.adopt_pods(PodIndex::new(others));
    assert_eq!(ids(control_loop), before, "also without his object");
}

#[tokio::test]
async fn a_full_sample_publishes_the_usage_of_pods() {
    let Some(mut fixture) = fixture(Profile::Kubelet) else { ::tests::skip!("no cgroups can be made here") };
    fixture.drain_telemetry();
    let mut published = Vec::new();
    for _ in 0..2 {
        fixture.control_loop.state.last_full_ns = 0;
        fixture.control_loop.sync(Trigger::Timer, None);
        while let Ok(event) = fixture.telemetry.try_recv() {
            if let TelemetryEvent::PodSample(sample, _) = event {
                published.push(sample.ranking(Signal::MemoryAvailable).len());
            }
        }
    }
    assert_eq!(published, [3, 3], "each full sample");
}

#[tokio::test]
async fn thresholds_and_counts_of_replaced_programs_are_forgotten() {
    let Some(mut fixture) = fixture(Profile::Kubelet) else { ::tests::skip!("no cgroups can be made here") };
    let control_loop = &mut fixture.control_loop;
    let limited = control_loop.limits.ids()[0];
    control_loop.limits.find_mut(limited).unwrap().armed = Some((1, KernelThreshold::default()));
    let events = EventBatch { programs_loaded: true, missed: true, ..EventBatch::default() };
    assert_eq!(control_loop.handle_bpf_events(events), None);
    assert_eq!(control_loop.limits.find(limited).unwrap().armed, None);
    assert!(control_loop.storage.older_pods.is_none());
    control_loop.sync(Trigger::Timer, None);
    let older_pods = control_loop.storage.older_pods.as_ref().unwrap();
    assert_eq!(older_pods.len(), fixture.node.pods.len(), "by the full sample");
}
