//! The loop that owns the engine, on a thread of its own.
//!
//! It waits for the memory notifier, results of evictions and commands; samples the node; lets the engine decide;
//! hands victims to the executor; and sets the kernel thresholds again. Nothing here waits for anything slow.

mod api_outage;
mod cgroup_tree;
mod eviction_results;
mod evictions;
mod inode_counts;
mod kernel_kill;
mod kernel_kill_disk;
mod limits;
mod metrics;
mod oom;
mod persist;
mod pod_storage;
mod policy;
mod publish;
mod rearm;
mod reclaim;
#[cfg(test)]
mod reclaim_tests;
mod state;
mod sync;
mod tasks;
mod terminating;
#[cfg(test)]
mod tests;
mod xfs_preallocation;

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;

use crate::telemetry::metrics::Metrics;
use eviction_core::engine::Engine;
use eviction_core::input::{ApiReachability, Event};
use eviction_core::node::ContainerImage;
use eviction_core::node_conditions::pressure::InitialConditions;
use eviction_core::policy::Policy;
use eviction_core::progress::KillUpdate;
use eviction_cri::ReclaimReport;
use eviction_kill::Killer;

use super::cluster::{EvictionSender, NodeStatusSender};
use super::container_status::ContainerStatusTracker;
use super::kernel_kill::KillOrders;
use super::limit_monitor::Limits;
use super::memory_notifier::{EventBatch, MemoryNotifier, Notification, Trigger};
use super::oom_counters::OomCounters;
use super::rate_limit::RateLimit;
use super::watchdog::Heartbeat;
use crate::error::Failure;
use eviction_core::threshold::ThresholdLevels;
use eviction_node::clock::{Clock, mono_ns};
use eviction_node::container_init::ContainerInitTracker;
use eviction_node::fs::StorageSample;
use eviction_node::pod_index::PodIndex;
use eviction_node::proc::watermarks::Watermarks;
use eviction_node::sampler::NodeSampler;

use super::startup::source_event;
use crate::telemetry::event_log;
use crate::telemetry::queue::TelemetryQueue;
use crate::telemetry::recording::Recorded;
use crate::telemetry::recording::recorder::RecordingQueue;
pub(crate) use api_outage::FreezeState;
pub(crate) use metrics::Gauges;
pub(crate) use persist::StateSender;
pub(crate) use pod_storage::PodStorageWatch;
pub(crate) use reclaim::ReclaimState;
pub(crate) use state::State;
pub(crate) use tasks::TaskTotals;

/// Commands of the main thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// These are the pods now.
    Pods(PodIndex),
    /// The Node object has these conditions from before the start.
    Seed(Box<InitialConditions>),
    /// The Node object has these images now.
    Images(Vec<ContainerImage>),
    /// Whether the API server is available.
    ApiServer(ApiReachability),
    /// The configuration was changed to this.
    Propose(Box<Policy>),
    /// A changed configuration that waits is to take effect.
    Accept,
    /// End.
    Stop,
}

/// What woke the loop.
pub(crate) enum Wake {
    Memory(Notification),
    EvictionResult(KillUpdate),
    PodStorage(StorageSample),
    /// An attempt of node reclaim has ended; `None` if its thread has.
    Reclaimed(Option<Box<ReclaimReport>>),
    Command(Command),
}

impl Wake {
    fn trigger(&self) -> Trigger {
        match self {
            Self::Memory(notification) => notification.trigger,
            Self::EvictionResult(_) => Trigger::EvictionResult,
            Self::PodStorage(_) => Trigger::PodStorage,
            Self::Reclaimed(_) | Self::Command(Command::Images(_)) => Trigger::NodeReclaim,
            Self::Command(Command::Propose(_) | Command::Accept) => Trigger::Configuration,
            Self::Command(Command::Seed(_)) => Trigger::Start,
            Self::Command(Command::ApiServer(_)) => Trigger::KubeApi,
            Self::Command(Command::Pods(_) | Command::Stop) => Trigger::Pods,
        }
    }
}

/// Everything that the loop works with.
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
    /// Of evictions by any executor.
    pub(crate) rate_limit: RateLimit,
    /// In a cluster; else the executor does it all.
    pub(crate) evictions: Option<EvictionSender>,
    /// Of the pod that is frozen while the API server is unavailable.
    pub(crate) freeze: Option<FreezeState>,
    /// Where the node's own object is kept.
    pub(crate) node: Option<NodeStatusSender>,
    pub(crate) eviction_results: Receiver<KillUpdate>,
    pub(crate) reclaim: ReclaimState,
    pub(crate) telemetry: TelemetryQueue,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) gauges: Gauges,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) limits: Limits,
    pub(crate) memory_levels: ThresholdLevels,
    pub(crate) pid_levels: ThresholdLevels,
    pub(crate) storage: PodStorageWatch,
    pub(crate) task_totals: TaskTotals,
    pub(crate) state_sender: StateSender,
    /// Takes the engine's inputs, where they are recorded.
    pub(crate) recorder: Option<RecordingQueue>,
    pub(crate) state: State,
}

impl ControlLoop {
    /// Runs until [`Command::Stop`].
    ///
    /// # Errors
    /// If the timer fails: without it no sample is certain.
    pub(crate) async fn run(mut self, mut commands: Receiver<Command>) -> Result<(), Failure> {
        let pod_index = std::mem::take(&mut self.pod_index);
        self.take_pods(pod_index);
        self.warn_without_kernel_kill();
        self.sync(Trigger::Start, None);
        self.end_iteration();
        while let Some(wake) = self.next(&mut commands).await? {
            self.heartbeat.turn(mono_ns());
            if let Some((trigger, crossed)) = self.take(wake) {
                self.sync(trigger, crossed);
            }
            self.end_iteration();
        }
        Ok(())
    }

    /// Does what can wait for the end of an iteration.
    fn end_iteration(&mut self) {
        for info in self.notifier.take_changed() {
            let event = event_log::Event::Backend(source_event(info));
            self.telemetry.publish(event, self.clock.now().wall);
        }
        self.publish_counted_kills();
        self.review_freeze();
        self.persist();
        self.record_key();
        self.heartbeat.rest(self.state.due_ns);
    }

    /// Waits for whatever happens next; nothing if that is the end.
    async fn next(&mut self, commands: &mut Receiver<Command>) -> Result<Option<Wake>, Failure> {
        Ok(Some(tokio::select! {
            biased;
            // First, so that no storm of events keeps the agent from ending.
            command = commands.recv() => match command {
                None | Some(Command::Stop) => {
                    self.publish_group_kills(u64::MAX);
                    return Ok(None);
                }
                Some(command) => Wake::Command(command),
            },
            Some(result) = self.eviction_results.recv() => Wake::EvictionResult(result),
            Some(sample) = self.storage.samples.recv() => Wake::PodStorage(sample),
            report = self.reclaim.report() => Wake::Reclaimed(report.map(Box::new)),
            notified = self.notifier.next() => {
                Wake::Memory(notified.map_err(|error| Failure::because("wait for the timer", &error))?)
            }
        }))
    }

    /// Takes what happened. Returns the trigger of a sync, if one is to follow, and the kernel's timestamp.
    fn take(&mut self, wake: Wake) -> Option<(Trigger, Option<u64>)> {
        let mut trigger = wake.trigger();
        let crossed = match wake {
            Wake::Memory(Notification { trigger: Trigger::Charge, events }) => {
                // After a kill the containers are checked soon, for which a sync sets the timer.
                let EventBatch { kills, alarms, missed, disk_crossed, .. } = &events;
                let disk_crossed = disk_crossed.map(|crossed| crossed.stamp.ktime_ns);
                let (killed, alarmed, missed) = (!kills.is_empty(), !alarms.is_empty(), *missed);
                match self.take_events(events) {
                    None if alarmed => {
                        trigger = Trigger::TaskAlarm;
                        None
                    }
                    None if disk_crossed.is_some() => {
                        self.read_storage_at_crossing();
                        trigger = Trigger::DiskThreshold;
                        disk_crossed
                    }
                    None if !killed && !missed => {
                        self.sample_limits_alone();
                        return None;
                    }
                    crossed => crossed.map(|crossed| crossed.stamp.ktime_ns),
                }
            }
            Wake::Memory(Notification { trigger: Trigger::Timer, .. }) if self.sample_pids_and_disks() => {
                return None;
            }
            Wake::Memory(Notification { trigger, .. }) => {
                if trigger == Trigger::MemoryEvents && !self.notifier.bpf.reports_kills() {
                    self.oom_counters.note_notice(mono_ns());
                }
                None
            }
            Wake::PodStorage(sample) => {
                if !self.take_storage(sample) && self.sample_pids_and_disks() {
                    return None;
                }
                self.state.disk_crossed_ns.take()
            }
            Wake::EvictionResult(result) => {
                if !self.take_outcome(result) {
                    return None;
                }
                None
            }
            Wake::Reclaimed(report) => {
                self.take_reclaimed(report.map(|report| *report));
                None
            }
            Wake::Command(Command::Images(images)) => {
                self.reclaim.take_images(images);
                return None;
            }
            Wake::Command(Command::Pods(pod_index)) => {
                // It was made under the policy of the start.
                let pod_index = pod_index.under(self.engine.policy());
                self.take_pods(pod_index);
                None
            }
            Wake::Command(Command::Seed(seed)) => {
                let seed = self.node.as_mut().map_or(*seed, |node| node.seed(*seed));
                self.engine.seed_conditions(seed.raised());
                if let Some(recorder) = &mut self.recorder {
                    recorder.send(Some(Recorded::Seed(seed.raised().collect())));
                }
                None
            }
            Wake::Command(Command::ApiServer(reach)) => {
                self.take_reachability(reach);
                None
            }
            Wake::Command(Command::Propose(policy)) => {
                self.step_configuration(Event::Propose(policy));
                None
            }
            Wake::Command(Command::Accept) => {
                self.step_configuration(Event::ApplyProposed);
                None
            }
            Wake::Command(Command::Stop) => None,
        };
        Some((trigger, crossed))
    }
}
