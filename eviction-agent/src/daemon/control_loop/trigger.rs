//! Why the loop turns.

use eviction_core::progress::KillUpdate;

use super::super::event_batch::EventBatch;
use super::super::failover::BackendFailure;
use super::Command;
use eviction_node::fs::StorageSample;

/// What woke the loop.
pub(super) enum Wake {
    Kernel(EventBatch),
    V1Threshold,
    /// By the rung of this name.
    V2Trigger(&'static str),
    /// One of the two tells nothing any more: nobody knows what it did not tell.
    Lost(BackendFailure),
    OomNotice,
    Timer,
    Outcome(KillUpdate),
    /// What pods use of the disks was read.
    Storage(StorageSample),
    Command(Command),
}

/// What caused a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    Start,
    Charge,
    V1Threshold,
    V2(&'static str),
    Timer,
    Outcome,
    Configuration,
    Pods,
    Tasks,
    OomNotice,
    /// Process ids alone were due.
    Pids,
    ApiServer,
    /// What pods use of the disks was read.
    PodStorage,
}

impl Trigger {
    /// All of them, in their order.
    pub(super) const ALL: [Self; 13] = [
        Self::Start,
        Self::Charge,
        Self::V1Threshold,
        Self::V2(""),
        Self::Timer,
        Self::Outcome,
        Self::Configuration,
        Self::Pods,
        Self::Tasks,
        Self::OomNotice,
        Self::Pids,
        Self::ApiServer,
        Self::PodStorage,
    ];

    /// Its place among them.
    pub(super) fn place(self) -> usize {
        match self {
            Self::Start => 0,
            Self::Charge => 1,
            Self::V1Threshold => 2,
            Self::V2(_) => 3,
            Self::Timer => 4,
            Self::Outcome => 5,
            Self::Configuration => 6,
            Self::Pods => 7,
            Self::Tasks => 8,
            Self::OomNotice => 9,
            Self::Pids => 10,
            Self::ApiServer => 11,
            Self::PodStorage => 12,
        }
    }

    /// As metrics and lines have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Charge => "charge",
            Self::V1Threshold => "memcg_v1_threshold",
            Self::V2(_) => "psi_trigger",
            Self::Timer => "timer",
            Self::Outcome => "eviction_result",
            Self::Configuration => "configuration",
            Self::Pods => "pods",
            Self::Tasks => "task_alarm",
            Self::OomNotice => "memcg_oom_event",
            Self::Pids => "pids",
            Self::ApiServer => "kube_api",
            Self::PodStorage => "pod_storage",
        }
    }
}

impl Wake {
    pub(super) fn trigger(&self) -> Trigger {
        match self {
            Self::Kernel(_) => Trigger::Charge,
            Self::V1Threshold => Trigger::V1Threshold,
            Self::V2Trigger(rung) => Trigger::V2(rung),
            Self::OomNotice => Trigger::OomNotice,
            Self::Lost(_) | Self::Timer => Trigger::Timer,
            Self::Outcome(_) => Trigger::Outcome,
            Self::Storage(_) => Trigger::PodStorage,
            Self::Command(Command::Propose(_) | Command::Accept) => Trigger::Configuration,
            Self::Command(Command::Seed(_)) => Trigger::Start,
            Self::Command(Command::ApiServer(_)) => Trigger::ApiServer,
            Self::Command(Command::Pods(_) | Command::Stop) => Trigger::Pods,
        }
    }
}
