//! The loop that owns the engine, on a thread of its own.
//!
//! It waits for the kernel side, the kernel's v1 threshold, a timer, outcomes and new pods;
//! looks at the node; lets the engine decide; hands victims to the executor; and arms the
//! kernel side again. Nothing here waits for anything slow.

mod again;
mod allocatable;
mod api_outage;
mod cgroup_tree;
mod eviction_results;
mod evictions;
mod failover;
mod kernel_kill;
mod limits;
mod metrics;
mod oom;
mod oom_group;
mod persist;
mod pod_storage;
mod policy;
mod publish;
mod rearm;
mod record_copies;
mod state;
mod sync;
mod task_alarms;
mod terminating;
#[cfg(test)]
mod tests;
mod trigger;
mod warm_up;

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;

use crate::telemetry::metrics::Metrics;
use eviction_bpf::ThresholdCrossed;
use eviction_config::PodMetrics;
use eviction_core::engine::Engine;
use eviction_core::input::{ApiReachability, Event};
use eviction_core::node_conditions::pressure::InitialConditions;
use eviction_core::policy::Policy;
use eviction_core::progress::KillUpdate;
use eviction_kill::Killer;
use eviction_node::memcg_oom_events::MemcgOomEvents;
use eviction_node::sample_interval::FillRate;
use eviction_node::timer::Timer;

use super::cluster::{EvictionSender, NodeStatusSender};
use super::container_status::ContainerStatusTracker;
use super::kernel_kill::KillOrders;
use super::limit_monitor::Limits;
use super::memcg_v1::MemcgV1Threshold;
use super::monitor::BpfMonitor;
use super::oom_counters::OomCounters;
use super::pod_activity::TaskTotals;
use super::psi_triggers::PsiTriggers;
use super::watchdog::Heartbeat;
use crate::error::Failure;
use crate::telemetry::queue::TelemetryQueue;
use eviction_core::threshold::ThresholdLevels;
use eviction_node::clock::{Clock, mono_ns};
use eviction_node::container_init::ContainerInitTracker;
use eviction_node::pod_index::PodIndex;
use eviction_node::proc::watermarks::Watermarks;
use eviction_node::sampler::NodeSampler;
pub(crate) use metrics::Gauges;
pub(crate) use persist::StateSender;
pub(crate) use pod_storage::PodStorageWatch;
pub(crate) use state::State;
use trigger::{Trigger, Wake};

/// What the slow side asks for.
#[derive(Debug)]
pub(crate) enum Command {
    /// These are the pods now.
    Pods(PodIndex),
    /// The node's object says this from before the start.
    Seed(Box<InitialConditions>),
    /// Whether the API server can be asked.
    ApiServer(ApiReachability),
    /// The configuration was changed to this.
    Propose(Box<Policy>),
    /// A changed configuration that waits is to take effect.
    Accept,
    /// End.
    Stop,
}

/// Everything that the loop works with.
pub(crate) struct ControlLoop {
    pub(crate) clock: Clock,
    pub(crate) engine: Engine,
    pub(crate) eyes: NodeSampler,
    pub(crate) roster: PodIndex,
    pub(crate) mains: ContainerInitTracker,
    pub(crate) statuses: ContainerStatusTracker,
    pub(crate) oom_counters: OomCounters,
    pub(crate) oom_notice: MemcgOomEvents,
    pub(crate) hook: BpfMonitor,
    pub(crate) kill_orders: KillOrders,
    pub(crate) kept_free: Watermarks,
    pub(crate) v1: MemcgV1Threshold,
    pub(crate) v2: PsiTriggers,
    pub(crate) timer: Timer,
    pub(crate) executor: Killer,
    /// In a cluster; else the executor does it all.
    pub(crate) evictions: Option<EvictionSender>,
    /// Where the node's own object is kept.
    pub(crate) node: Option<NodeStatusSender>,
    pub(crate) outcomes: Receiver<KillUpdate>,
    pub(crate) notes: TelemetryQueue,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) gauges: Gauges,
    pub(crate) pulse: Heartbeat,
    pub(crate) limits: Limits,
    pub(crate) memory_lines: ThresholdLevels,
    pub(crate) pid_lines: ThresholdLevels,
    pub(crate) storage: PodStorageWatch,
    pub(crate) rate: FillRate,
    /// Online, of the machine.
    pub(crate) cpus: usize,
    pub(crate) tally: TaskTotals,
    pub(crate) pod_metrics: PodMetrics,
    pub(crate) keep: StateSender,
    /// Whether decisions are recorded.
    pub(crate) records: bool,
    pub(crate) state: State,
}

impl ControlLoop {
    /// Runs until told to stop.
    ///
    /// # Errors
    /// If the timer is of no use any more: without it nothing is sure to be looked at.
    pub(crate) async fn run(mut self, mut commands: Receiver<Command>) -> Result<(), Failure> {
        let roster = std::mem::take(&mut self.roster);
        self.take_pods(roster);
        self.warn_without_kernel_kill();
        self.look(Trigger::Start, None);
        self.end_turn();
        while let Some(wake) = self.next(&mut commands).await? {
            self.pulse.turn(mono_ns());
            if let Some((trigger, crossed)) = self.take(wake) {
                self.look(trigger, crossed);
            }
            self.end_turn();
        }
        Ok(())
    }

    /// Does what can wait for the end of a turn.
    fn end_turn(&mut self) {
        self.publish_counted_kills();
        self.keep();
        self.take_down();
        self.pulse.rest(self.state.due_ns);
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
            told = self.hook.told(&self.metrics) => Wake::Kernel(told),
            crossed = self.v1.crossed() => crossed.map_or_else(Wake::Lost, |()| Wake::V1Threshold),
            fired = self.v2.fired() => fired.map_or_else(Wake::Lost, Wake::V2Trigger),
            () = self.oom_notice.noticed() => Wake::OomNotice,
            Some(outcome) = self.outcomes.recv() => Wake::Outcome(outcome),
            Some(sample) = self.storage.samples.recv() => Wake::Storage(sample),
            fired = self.timer.expired() => {
                fired.map_err(|error| Failure::because("wait for the timer", &error))?;
                Wake::Timer
            }
        }))
    }

    /// Takes note of what happened. Returns why there is to be a look, if there is.
    fn take(&mut self, wake: Wake) -> Option<(Trigger, Option<ThresholdCrossed>)> {
        let mut trigger = wake.trigger();
        let crossed = match wake {
            Wake::Kernel(told) => {
                // After a kill the containers are looked at soon, which a look arms the timer for.
                let (killed, alarmed, missed) =
                    (!told.kills.is_empty(), !told.alarms.is_empty(), told.missed);
                match self.take_told(told) {
                    None if alarmed => {
                        trigger = Trigger::Tasks;
                        None
                    }
                    None if !killed && !missed => {
                        self.turn_limits_alone();
                        return None;
                    }
                    crossed => crossed,
                }
            }
            Wake::Timer if self.glimpse() => return None,
            Wake::V1Threshold | Wake::V2Trigger(_) | Wake::Timer => None,
            Wake::Lost(lapse) => {
                self.give_up(&lapse);
                None
            }
            Wake::Storage(sample) => {
                self.take_storage(sample);
                None
            }
            Wake::OomNotice => {
                self.oom_counters.note_notice(mono_ns());
                None
            }
            Wake::Outcome(outcome) => {
                if !self.take_outcome(outcome) {
                    return None;
                }
                None
            }
            Wake::Command(Command::Pods(roster)) => {
                // It was made under the policy of the start.
                let roster = roster.under(self.engine.policy());
                self.take_pods(roster);
                None
            }
            Wake::Command(Command::Seed(seed)) => {
                let seed = self.node.as_mut().map_or(*seed, |node| node.seed(*seed));
                self.state.taken.outdate();
                self.engine.seed_conditions(seed.raised());
                None
            }
            Wake::Command(Command::ApiServer(reach)) => {
                self.take_reach(reach);
                None
            }
            Wake::Command(Command::Propose(policy)) => {
                self.tell_configuration(Event::Propose(policy));
                None
            }
            Wake::Command(Command::Accept) => {
                self.tell_configuration(Event::ApplyProposed);
                None
            }
            Wake::Command(Command::Stop) => None,
        };
        Some((trigger, crossed))
    }
}
