//! The control loop, which owns the engine and runs on a separate thread.
//!
//! The loop waits for the memory notifier, results of evictions and commands; samples the node; lets the engine
//! decide; passes victims to the executor; and sets the kernel thresholds again. Nothing here waits for a slow
//! operation.

mod api_outage;
mod awaited_space;
mod cgroup_tree;
mod disk_counts;
mod eviction_results;
mod evictions;
mod kernel_kill;
mod kernel_thresholds;
mod kill_orders;
mod limits;
mod metrics;
mod oom;
mod persist;
mod pod_storage;
mod policy;
mod reclaim;
#[cfg(test)]
mod reclaim_tests;
mod sync;
mod tasks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

use crate::telemetry::metrics::Metrics;
use eviction_bpf::{EventClass, TaskAlarm};
use eviction_core::engine::Engine;
use eviction_core::input::{ApiReachability, Event};
use eviction_core::node::ContainerImage;
use eviction_core::node_conditions::InitialCondition;
use eviction_core::policy::Policy;
use eviction_core::progress::KillUpdate;
use eviction_core::rank::Candidate;
use eviction_core::reading::UnknownReason;
use eviction_core::signal::Signal;
use eviction_cri::ReclaimReport;
use eviction_kill::Killer;

use super::cluster::{EvictionSender, NodeStatusSender};
use super::limit_monitor::LimitMonitor;
use super::memory_notifier::{EventBatch, MemoryNotifier, Trigger};
use super::oom_counters::OomCounters;
use super::rate_limit::RateLimit;
use crate::error::Failure;
use eviction_core::threshold::ThresholdLevels;
use eviction_node::clock::{Clock, mono_ns};
use eviction_node::container_init::ContainerInitTracker;
use eviction_node::fs::StorageSample;
use eviction_node::pod_index::PodIndex;
use eviction_node::proc::watermarks::Watermarks;
use eviction_node::sampler::NodeSampler;

use crate::telemetry::event_log;
use crate::telemetry::health::Health;
use crate::telemetry::queue::TelemetryQueue;
use crate::telemetry::recording::Recorded;
use crate::telemetry::recording::recorder::RecordingQueue;
use api_outage::FrozenVictim;
pub(crate) use kill_orders::KillOrders;
pub(crate) use metrics::Gauges;
pub(crate) use oom::ContainerStatusTracker;
use oom::OomGroupCoalescer;
pub(crate) use persist::StateSender;
pub(crate) use pod_storage::PodStorageWatch;
pub(crate) use reclaim::ReclaimState;
use sync::LoopDelta;
pub(crate) use tasks::TaskTotals;

/// Commands of the main thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// The present pods.
    Pods(PodIndex),
    /// The conditions that the Node object had before the start.
    Seed(Vec<InitialCondition>),
    /// The present images of the Node object.
    Images(Vec<ContainerImage>),
    /// Whether the API server is available.
    ApiServer(ApiReachability),
    /// The changed configuration.
    Propose(Box<Policy>),
    /// Lets a pending configuration take effect.
    Accept,
}

/// The event that woke the loop.
pub(crate) enum LoopEvent {
    Memory(Trigger, EventBatch),
    EvictionResult(KillUpdate),
    PodStorage(StorageSample),
    /// An attempt of node reclaim has ended; `None` if its thread has ended.
    Reclaimed(Option<ReclaimReport>),
    Command(Command),
}

/// The control loop, with everything that it works with.
pub(crate) struct ControlLoop {
    pub(crate) clock: Clock,
    pub(crate) engine: Engine,
    pub(crate) node_sampler: NodeSampler,
    pub(crate) pod_index: PodIndex,
    pub(crate) container_inits: ContainerInitTracker,
    pub(crate) statuses: ContainerStatusTracker,
    pub(crate) oom_counters: OomCounters,
    pub(crate) notifier: MemoryNotifier,
    pub(crate) kill_orders: KillOrders,
    pub(crate) disk_kill_orders: KillOrders,
    pub(crate) watermarks: Watermarks,
    pub(crate) executor: Killer,
    /// The rate limit for evictions by any executor.
    pub(crate) rate_limit: RateLimit,
    /// The sender of evictions in a cluster. Without it the executor carries out all evictions.
    pub(crate) evictions: Option<EvictionSender>,
    /// Stands before the fields below: they are dropped after it, and at the end of the agent a frozen pod must not wait
    /// for a disk that hangs.
    pub(crate) state: IterationState,
    /// The sender of conditions and taints, if the agent maintains those of the node's object.
    pub(crate) node: Option<NodeStatusSender>,
    pub(crate) eviction_results: Receiver<KillUpdate>,
    pub(crate) reclaim: ReclaimState,
    pub(crate) telemetry: TelemetryQueue,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) gauges: Gauges,
    pub(crate) health: Arc<Health>,
    pub(crate) limits: LimitMonitor,
    pub(crate) memory_levels: ThresholdLevels,
    pub(crate) pid_levels: ThresholdLevels,
    pub(crate) storage: PodStorageWatch,
    pub(crate) task_totals: TaskTotals,
    pub(crate) state_sender: StateSender,
    /// Receives each policy that comes into force, to be saved.
    pub(crate) policy_in_force: watch::Sender<Arc<Policy>>,
    /// Receives the engine's inputs if they are recorded.
    pub(crate) recorder: Option<RecordingQueue>,
}

/// The state that the loop keeps from one iteration to the next.
#[derive(Debug, Default)]
pub(crate) struct IterationState {
    /// The number of decisions so far, which is the number of the last one.
    decisions: u64,
    /// The UIDs of terminating pods that have no object any more but still have processes in their cgroups, with the
    /// time when they stop counting, in nanoseconds of `CLOCK_MONOTONIC`.
    terminating: BTreeMap<Box<str>, u64>,
    /// Whether a threshold may be met, or is about to be, by the last sample.
    under_pressure: bool,
    last_change: LoopDelta,
    unknown: [Option<UnknownReason>; Signal::COUNT],
    /// When the kernel reported a crossing of a disk threshold that is still met. Pods are ranked once their
    /// storage is read.
    disk_crossed_ns: Option<u64>,
    last_full_ns: u64,
    /// When something other than process IDs is to be sampled.
    sync_due_ns: u64,
    /// Whether the engine still has to get the pods of the last full sample for their trends.
    needs_trends: bool,
    tree_due_ns: Option<u64>,
    /// When the cgroup tree was read last.
    tree_read_ns: u64,
    oom_groups: OomGroupCoalescer,
    /// Whether the buffers are large enough for an evaluation of the present pods.
    is_warm: bool,
    /// When the timer fires next.
    due_ns: u64,
    last_left: Option<(u64, u64)>,
    charged: Vec<u64>,
    /// The pod that is frozen while the API server is unavailable: one at a time.
    frozen: Option<FrozenVictim>,
    /// The UIDs of the pods that were frozen in this outage or, in a dry run, would have been. Each is frozen once: a
    /// freeze releases nothing, so the same pod would be chosen again and again.
    frozen_uids: BTreeSet<Box<str>>,
    /// A buffer for the order of pods before a decision.
    ahead: Vec<Candidate>,
}

impl ControlLoop {
    /// Runs until the sender of the commands is dropped.
    ///
    /// # Errors
    /// If the timer fails: without it no sample is guaranteed.
    pub(crate) async fn run(mut self, mut commands: Receiver<Command>) -> Result<(), Failure> {
        let pod_index = std::mem::take(&mut self.pod_index);
        self.adopt_pods(pod_index);
        self.warn_without_kernel_kill();
        self.sync(Trigger::Start, None);
        self.end_iteration();
        while let Some(event) = self.next(&mut commands).await? {
            self.health.begin_iteration(mono_ns());
            if let Some((trigger, crossed)) = self.handle(event) {
                self.sync(trigger, crossed);
            }
            self.end_iteration();
        }
        // To detach programs can take the kernel seconds (`synchronize_rcu_tasks`). The end of the process does it.
        std::mem::forget(self.notifier);
        Ok(())
    }

    /// Does the work that can wait for the end of an iteration.
    fn end_iteration(&mut self) {
        for info in self.notifier.take_changed() {
            let event = event_log::Event::Backend(info.into());
            self.telemetry.publish(event, self.clock.now().wall);
        }
        self.publish_counted_kills();
        self.adopt_late_disks();
        self.thaw_if_due();
        self.persist();
        self.record_key();
        self.health.end_iteration(self.state.due_ns);
    }

    /// Waits for the next event. Returns `None` if the loop must end.
    async fn next(&mut self, commands: &mut Receiver<Command>) -> Result<Option<LoopEvent>, Failure> {
        Ok(Some(tokio::select! {
            biased;
            // First, so that a storm of events cannot keep the agent from ending.
            command = commands.recv() => match command {
                None => {
                    self.publish_group_kills(u64::MAX);
                    self.abandon_kills();
                    return Ok(None);
                }
                Some(command) => LoopEvent::Command(command),
            },
            Some(result) = self.eviction_results.recv() => LoopEvent::EvictionResult(result),
            Some(sample) = self.storage.samples.recv() => LoopEvent::PodStorage(sample),
            report = self.reclaim.report() => LoopEvent::Reclaimed(report),
            notified = self.notifier.next() => {
                let notified = notified.map_err(|error| Failure::because("wait for the timer", &error));
                let (trigger, events) = notified?;
                LoopEvent::Memory(trigger, events)
            }
        }))
    }

    /// Handles an event. Returns the trigger of a sync, if one is to follow, and the kernel's timestamp.
    fn handle(&mut self, event: LoopEvent) -> Option<(Trigger, Option<u64>)> {
        let trigger = match event {
            LoopEvent::Memory(Trigger::Charge, events) => return self.handle_bpf_notification(events),
            LoopEvent::Memory(Trigger::Timer, _) if self.sample_pids_and_disks() => return None,
            LoopEvent::Memory(trigger, _) => {
                if trigger == Trigger::MemoryEvents && !self.notifier.bpf.reports(EventClass::Oom) {
                    self.oom_counters.schedule_read(mono_ns());
                }
                trigger
            }
            LoopEvent::PodStorage(sample) => {
                if !self.handle_storage_sample(sample) && self.sample_pids_and_disks() {
                    return None;
                }
                return Some((Trigger::PodStorage, self.state.disk_crossed_ns.take()));
            }
            LoopEvent::EvictionResult(result) => {
                if !self.handle_result(result) {
                    return None;
                }
                Trigger::EvictionResult
            }
            LoopEvent::Reclaimed(report) => {
                self.handle_reclaim_report(report);
                Trigger::NodeReclaim
            }
            LoopEvent::Command(command) => self.handle_command(command)?,
        };
        Some((trigger, None))
    }

    /// Handles a command of the main thread. Returns the trigger of a sync, if one is to follow.
    fn handle_command(&mut self, command: Command) -> Option<Trigger> {
        Some(match command {
            Command::Images(images) => {
                self.reclaim.images = images;
                return None;
            }
            Command::Pods(pod_index) => {
                // The index was made under the policy of the start.
                let pod_index = pod_index.with_policy(self.engine.policy());
                self.adopt_pods(pod_index);
                Trigger::Pods
            }
            Command::Seed(seed) => {
                let seed = match &mut self.node {
                    Some(node) => node.seed(seed),
                    None => seed,
                };
                let raised = seed.iter().filter_map(InitialCondition::raised);
                self.engine.seed_conditions(raised.clone());
                if let Some(recorder) = &mut self.recorder {
                    recorder.send(Some(Recorded::Seed(raised.collect())));
                }
                Trigger::Start
            }
            Command::ApiServer(reachability) => {
                self.handle_reachability(reachability);
                Trigger::KubeApi
            }
            Command::Propose(policy) => {
                self.step_configuration(Event::Propose(policy));
                Trigger::Configuration
            }
            Command::Accept => {
                self.step_configuration(Event::ApplyProposed);
                Trigger::Configuration
            }
        })
    }

    /// Handles what the BPF programs have sent. Returns as [`Self::handle`].
    fn handle_bpf_notification(&mut self, events: EventBatch) -> Option<(Trigger, Option<u64>)> {
        // After a kill the containers are checked soon, for which a sync sets the timer.
        let needs_sync = !events.kills.is_empty() || events.missed;
        let is_alarm = !events.alarms.is_empty();
        let disk_crossed = events.disk_crossed_ns;
        match self.handle_bpf_events(events) {
            Some(crossed_ns) => Some((Trigger::Charge, Some(crossed_ns))),
            None if is_alarm => Some((Trigger::TaskAlarm, None)),
            None if disk_crossed.is_some() => {
                self.read_storage_at_crossing();
                Some((Trigger::DiskThreshold, disk_crossed))
            }
            None if needs_sync => Some((Trigger::Charge, None)),
            None => {
                self.sample_limits_alone();
                None
            }
        }
    }

    /// Publishes kills and alarms at once. A change of the tree is read when it has settled. Returns the kernel's
    /// timestamp of the crossing of a memory threshold.
    fn handle_bpf_events(&mut self, events: EventBatch) -> Option<u64> {
        let EventBatch {
            crossed_ns,
            pods_crossed,
            kernel_kills,
            tree_changed,
            kills,
            alarms,
            missed,
            programs_loaded,
            disk_crossed_ns,
        } = events;
        if programs_loaded {
            self.forget_counts();
        }
        if pods_crossed {
            self.node_sampler.allocatable.read_at_next_sample();
        }
        for kill in kernel_kills {
            self.handle_kernel_kill(&kill);
        }
        if disk_crossed_ns.is_some() {
            self.notifier.bpf.count_disk_crossing();
        }
        if tree_changed {
            self.schedule_tree_read();
        }
        if missed {
            // The next sync takes a full sample of a tree that is read again.
            (self.state.last_full_ns, self.state.tree_read_ns) = (0, 0);
        }
        // The last tree has the names of cgroups that were removed meanwhile, but not of new ones.
        let is_unknown = |alarm: &TaskAlarm| self.node_sampler.cgroups.group(alarm.memcg_id).is_none();
        if alarms.iter().any(is_unknown) && (missed || self.state.tree_due_ns.is_some()) {
            self.refresh_tree();
        }
        self.handle_oom_kills(&kills);
        self.publish_task_alarms(&alarms);
        crossed_ns
    }

    /// Forgets counts and thresholds of programs that were replaced.
    fn forget_counts(&mut self) {
        self.limits.forget_thresholds();
        self.task_totals.forget_counts();
        self.storage.forget_counts();
    }
}
